/* Attention for long queries on Hopper: 128 rows of a prompt (positions times the heads that share a key head) over all
 * keys that they see, in 16 bits.
 *
 * One warp brings tiles of 128 keys, and of their values, through the tensor memory accelerator into a ring of stages. Two
 * groups of four warps have 64 rows each: the tensor cores multiply one group's tiles while the other group takes its
 * exponentials. A group asks for the scores of the next tile and for the values of the last one together, so its own
 * exponentials hide behind the latter too. Tiles run from the last keys to the first: what has to be masked comes first.
 *
 * Where a row's tiles begin and end depends on positions alone, so its result does not depend on other rows.
 *
 * Compiled for each head size (HEAD_DIM: 64 or 128), number of heads that share a key head (GROUP), and type (FLOAT16).
 */
#include "hopper.cuh"

#define ROWS 128 /* of a block */
#define KEYS 128 /* of a tile */
#define PANELS (HEAD_DIM / 64)
#define PANEL_BYTES (KEYS * 128) /* 64 columns of a tile: 128 bytes a row, in pieces of 16 exchanged by the row */
#define TILE_BYTES (PANELS * PANEL_BYTES)
#define KEY_GROUPS (KEYS / 8)
#define OUT_GROUPS (HEAD_DIM / 8)
#define NO_ROW -1

struct Task {
    const u16 *queries; /* [rows, query_stride] */
    u16 *out;           /* [rows, heads * HEAD_DIM] */
    const int *blocks;  /* [blocks, 4]: first row, rows, position of the first, where its keys begin */
    int query_stride, heads;
    float scale; /* of the scores, for powers of two */
};

/* Threads of the block that meet, by the number of their meeting. */
static __device__ __forceinline__ void meet(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

static __device__ __forceinline__ void announce(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ u32 two_narrow(float low, float high) {
    u32 both;
#if FLOAT16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

#define FIRST_32                                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "     \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define FIRST_64                                                                                                        \
    FIRST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "     \
             "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* d [64 x 128] = a [64 x 16] times b [128 x 16] turned, plus d if `adds`. */
static __device__ __forceinline__ void multiply_scores(float (&d)[64], u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred adds;\n"
                 "setp.ne.b32 adds, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16" TYPES " {" FIRST_64 "}, %64, %65, adds, 1, 1, 0, 0;}"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16), SIXTEEN(d, 32), SIXTEEN(d, 48)
                 : "l"(a), "l"(b), "r"(adds));
}

/* d [64 x HEAD_DIM] += a [64 x 16] times b [16 x HEAD_DIM] */
static __device__ __forceinline__ void multiply_values(float (&d)[64], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16" TYPES " {" FIRST_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16), SIXTEEN(d, 32), SIXTEEN(d, 48)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}

static __device__ __forceinline__ void multiply_values(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16" TYPES " {" FIRST_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}

template <int COUNT> static __device__ __forceinline__ void stays(u32 (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* Largest score, times the scale, and sum of the exponentials so far: of the two rows of a lane. A sum is that of the
 * lane's own columns until the end. */
struct Rows {
    float peak[2], sum[2];
};

static __device__ __forceinline__ float over_row(float x, bool largest) {
    float y = __shfl_xor_sync(~0u, x, 1);
    x = largest ? fmaxf(x, y) : x + y;
    y = __shfl_xor_sync(~0u, x, 2);
    return largest ? fmaxf(x, y) : x + y;
}

/* Scores become exponentials. `shrink`: by how much what was summed before has to become less. `own`: positions of the
 * lane's rows; `key`: of its first column. */
template <bool MASKED>
static __device__ __forceinline__ void exponentials(float (&score)[64], Rows &rows, float (&shrink)[2], float scale,
                                                    const int (&own)[2], int key) {
    if (MASKED) {
#pragma unroll
        for (int j = 0; j < KEY_GROUPS; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (key + 8 * j + i % 2 > own[i / 2]) score[4 * j + i] = -__int_as_float(0x7f800000);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = score[2 * half];
#pragma unroll
        for (int j = 0; j < KEY_GROUPS; j++)
            most = fmaxf(most, fmaxf(score[4 * j + 2 * half], score[4 * j + 2 * half + 1]));
        float peak = fmaxf(rows.peak[half], over_row(most, true) * scale);
        float from = MASKED && peak == -__int_as_float(0x7f800000) ? 0.0f : peak;
        shrink[half] = power_of_two(rows.peak[half] - from);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < KEY_GROUPS; j++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                score[4 * j + i] = power_of_two(fmaf(score[4 * j + i], scale, -from));
                sum += score[4 * j + i];
            }
        rows.sum[half] = rows.sum[half] * shrink[half] + sum;
        rows.peak[half] = peak;
    }
}

static __device__ __forceinline__ void narrowed(const float (&score)[64], u32 (&part)[32]) {
#pragma unroll
    for (int i = 0; i < 32; i++) part[i] = two_narrow(score[2 * i], score[2 * i + 1]);
}

static __device__ __forceinline__ void ask_for_scores(float (&score)[64], u32 queries, u32 keys) {
    products_begin();
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        u32 at = k / 4 * PANEL_BYTES + k % 4 * 32;
        multiply_scores(score, matrix(queries + at, 16), matrix(keys + at, 16), k > 0);
    }
    products_end();
}

static __device__ __forceinline__ void ask_for_values(float (&total)[HEAD_DIM / 2], const u32 (&part)[32], u32 values) {
    products_begin();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        multiply_values(total, part[4 * k], part[4 * k + 1], part[4 * k + 2], part[4 * k + 3],
                        matrix(values + k * 16 * 128, PANEL_BYTES));
    products_end();
}

/* What the accelerator brings, and what has been read of it. */
struct Ring {
    u32 keys, values;                   /* tiles: where the first stage is */
    u32 key_full, key_empty;            /* barriers, of the first stage */
    u32 value_full, value_empty;
};

static __device__ __forceinline__ u32 stage(int tile) { return tile % STAGES; }
static __device__ __forceinline__ u32 turn(int tile) { return tile / STAGES & 1; }

static __device__ __forceinline__ void bring(const Ring &ring, const TensorMap *keys, const TensorMap *values, int tiles,
                                             int key_from, int panel) {
    for (int tile = 0; tile <= tiles; tile++) { /* keys are asked for one tile ahead of values */
        if (tile < tiles) {
            u32 at = stage(tile);
            barrier_wait(ring.key_empty + 8 * at, turn(tile) ^ 1);
            barrier_expect(ring.key_full + 8 * at, TILE_BYTES);
            copy_box(ring.keys + at * TILE_BYTES, keys, key_from + (tiles - 1 - tile) * KEYS, panel, ring.key_full + 8 * at);
        }
        if (tile > 0) {
            u32 at = stage(tile - 1);
            barrier_wait(ring.value_empty + 8 * at, turn(tile - 1) ^ 1);
            barrier_expect(ring.value_full + 8 * at, TILE_BYTES);
            copy_box(ring.values + at * TILE_BYTES, values, key_from + (tiles - tile) * KEYS, panel,
                      ring.value_full + 8 * at);
        }
    }
}

/* One group of warps with its 64 rows. */
struct Group {
    Ring ring;
    u32 queries;
    int number, lane;
    float scale;
    int own[2];
    Rows rows;
    float shrink[2];

    __device__ __forceinline__ void done_with(u32 empty, int tile) const {
        if (lane == 0) barrier_arrive(empty + 8 * stage(tile));
    }

    /* Scores of this tile, and the last one's values into the total. */
    template <bool MASKED>
    __device__ __forceinline__ void step(float (&score)[64], float (&total)[HEAD_DIM / 2], u32 (&part)[32], int tile,
                                         int tiles) {
        barrier_wait(ring.key_full + 8 * stage(tile), turn(tile));
        meet(1 + number, 2 * WARPGROUP); /* it is this group's turn at the tensor cores */
        stays(score);
        stays(total);
        stays(part);
        ask_for_scores(score, queries, ring.keys + stage(tile) * TILE_BYTES);
        barrier_wait(ring.value_full + 8 * stage(tile - 1), turn(tile - 1));
        ask_for_values(total, part, ring.values + stage(tile - 1) * TILE_BYTES);
        if (number == 0 || tile + 1 < tiles) announce(2 - number, 2 * WARPGROUP);
        wait_for_products<1>();
        stays(score);
        done_with(ring.key_empty, tile);
        exponentials<MASKED>(score, rows, shrink, scale, own, (tiles - 1 - tile) * KEYS + 2 * (lane % 4));
        wait_for_products<0>();
        stays(total);
        stays(part);
        done_with(ring.value_empty, tile - 1);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) total[i] *= shrink[i / 2 % 2];
        narrowed(score, part);
    }
};

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1)
hopper_attention(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, const Task task) {
    extern __shared__ char shared[];
    const int *block = task.blocks + 4 * blockIdx.x;
    int first_row = block[0], num_rows = block[1], first = block[2], key_from = block[3];
    if (num_rows == 0) return; /* of the room that a graph has */
    int kv_head = blockIdx.y;
    int tiles = (first + num_rows - 1) / KEYS + 1;

    u32 memory = (shared_address(shared) + 1023) & ~1023u;
    u32 barriers = memory + ROWS * HEAD_DIM * 2 + 2 * STAGES * TILE_BYTES;
    Ring ring;
    ring.keys = memory + ROWS * HEAD_DIM * 2;
    ring.values = ring.keys + STAGES * TILE_BYTES;
    ring.key_full = barriers;
    ring.key_empty = barriers + 8 * STAGES;
    ring.value_full = barriers + 16 * STAGES;
    ring.value_empty = barriers + 24 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(ring.key_full + 8 * i, 1);
            barrier_init(ring.value_full + 8 * i, 1);
            barrier_init(ring.key_empty + 8 * i, 2 * WARPGROUP / 32);
            barrier_init(ring.value_empty + 8 * i, 2 * WARPGROUP / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (threadIdx.x < WARPGROUP) {
        give_registers<24>();
        if (threadIdx.x == 0) bring(ring, &keys, &values, tiles, key_from, kv_head * PANELS);
    } else {
        take_registers<240>();
        Group group;
        int thread = threadIdx.x % WARPGROUP;
        group.number = threadIdx.x / WARPGROUP - 1;
        group.lane = threadIdx.x % 32;
        group.ring = ring;
        group.scale = task.scale;
        group.queries = memory + group.number * 64 * 128;
        for (int i = thread; i < 64 * HEAD_DIM / 8; i += WARPGROUP) {
            int m = group.number * 64 + i / (HEAD_DIM / 8), piece = i % (HEAD_DIM / 8);
            uint4 value = make_uint4(0, 0, 0, 0);
            if (m / GROUP < num_rows) {
                size_t row = (size_t)(first_row + m / GROUP) * task.query_stride;
                value = *(const uint4 *)(task.queries + row + (kv_head * GROUP + m % GROUP) * HEAD_DIM + piece * 8);
            }
            u32 at = memory + piece / 8 * PANEL_BYTES + m * 128 + (piece % 8 ^ m % 8) * 16;
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(value.x), "r"(value.y), "r"(value.z),
                         "r"(value.w) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet(3 + group.number, WARPGROUP);

        int m = group.number * 64 + thread / 32 * 16 + group.lane / 4; /* of the lane's first row; the other is 8 on */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = (m + 8 * half) / GROUP;
            group.own[half] = row < num_rows ? first + row : NO_ROW;
            group.rows.peak[half] = -__int_as_float(0x7f800000);
            group.rows.sum[half] = 0.0f;
        }
        float score[64], total[HEAD_DIM / 2];
        u32 part[32];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) total[i] = 0.0f;

        barrier_wait(ring.key_full, 0);
        stays(score);
        ask_for_scores(score, group.queries, ring.keys);
        if (group.number == 1 && tiles > 1) announce(1, 2 * WARPGROUP);
        wait_for_products<0>();
        stays(score);
        group.done_with(ring.key_empty, 0);
        exponentials<true>(score, group.rows, group.shrink, task.scale, group.own,
                           (tiles - 1) * KEYS + 2 * (group.lane % 4));
        narrowed(score, part);
        int masked = tiles - (first + 1) / KEYS; /* tiles that some row does not see whole */
        int tile = 1;
        for (; tile < masked; tile++) group.step<true>(score, total, part, tile, tiles);
        for (; tile < tiles; tile++) group.step<false>(score, total, part, tile, tiles);

        barrier_wait(ring.value_full + 8 * stage(tiles - 1), turn(tiles - 1));
        stays(total);
        stays(part);
        ask_for_values(total, part, ring.values + stage(tiles - 1) * TILE_BYTES);
        wait_for_products<0>();
        stays(total);
        stays(part);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float share = 1.0f / over_row(group.rows.sum[half], false);
            if (group.own[half] == NO_ROW) continue;
            int place = m + 8 * half;
            size_t row = (size_t)(first_row + place / GROUP) * task.heads * HEAD_DIM;
            u16 *out = task.out + row + (kv_head * GROUP + place % GROUP) * HEAD_DIM + 2 * (group.lane % 4);
#pragma unroll
            for (int j = 0; j < OUT_GROUPS; j++)
                *(u32 *)(out + 8 * j) = two_narrow(total[4 * j + 2 * half] * share, total[4 * j + 2 * half + 1] * share);
        }
    }
}
