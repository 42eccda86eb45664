/* Products of many rows on Hopper, with weights in 16 bits: tiles of 128 rows and up to 256 outputs.
 *
 * One warp brings 64 inputs at a time, of a tile's weights and of its rows, through the tensor memory accelerator into a
 * ring of stages. Two groups of four warps have 64 rows each, and multiply. A block goes on to its next tile without
 * a pause: the ring is filled for it while the last sums are stored. It starts while the kernel before it still runs, asks
 * for the first weights, and only then waits for that kernel.
 *
 * Blocks of a cluster have other rows of the same outputs, or another part of their sums. Those with other rows bring an
 * equal share of the weights each, for all of them. The sums of parts meet in the shared memory of the block that stores
 * those rows, which adds them in order.
 *
 * A row's sum runs over the inputs in their order, 16 at a time, as those of `linear.py`'s kernels do, and what follows is
 * rounded in the same places: a row has the same bits here and there.
 *
 * Compiled for each KIND, number of OUTPUTS in a tile, of ROW_TILES, of PARTS and of STAGES, and type (FLOAT16).
 */
#include "hopper.cuh"
#include "products.cuh"

#define ROWS 128      /* of a tile */
#define ROW_BYTES 128 /* of 64 inputs */
#define WEIGHT_BYTES (OUTPUTS * ROW_BYTES)
#define STAGE_BYTES (WEIGHT_BYTES + ROWS * ROW_BYTES)
#define SUMS (OUTPUTS / 2) /* of a lane: for each 8 outputs two neighbours of one row, and of the row 8 further on */

struct Task {
    int rows, outputs, inputs;
    int tiles, row_groups; /* all, and those of the same outputs: a cluster has the rows of one */
    int share;             /* inputs of a part */
    float eps;
    const u64 *squares; /* [rows], of the norm of x */
    const float *bias;  /* [outputs] or null */
};

/* ---- instructions, as in hopper.cuh ---- */
#ifndef EMULATED

/* Into the same place of all `blocks` of the cluster, a bit for each. */
static __device__ __forceinline__ void copy_box_to(u16 blocks, u32 to, const TensorMap *map, int row, int sixty_fourth,
                                                   u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(to), "l"(map), "r"(0), "r"(row), "r"(sixty_fourth), "r"(barrier), "h"(blocks) : "memory");
}

/* Where a gate and its up belong together: pairs of 8 outputs each, side by side. */
static __device__ __forceinline__ void copy_pairs_to(u16 blocks, u32 to, const TensorMap *map, int pair, int sixty_fourth,
                                                     u32 barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %2, %2, %3, %4}], [%5], %6;"
                 ::"r"(to), "l"(map), "r"(0), "r"(pair), "r"(sixty_fourth), "r"(barrier), "h"(blocks) : "memory");
}

/* A map comes from memory too, before what it describes. */
static __device__ __forceinline__ void fetch_map(const TensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

static __device__ __forceinline__ void cluster_meets() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* An address of this block's shared memory, in that of another block of the cluster. */
static __device__ __forceinline__ u32 at_block(u32 address, int block) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}

static __device__ __forceinline__ void arrive_there(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void send_four(u32 to, const float *d) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]) : "memory");
}

static __device__ __forceinline__ void receive_four(float *d, u32 at) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(at) : "memory");
}

#define R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define R1 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R2 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define R3 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define R4 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define R5 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define R6 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define R7 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define D1 SIXTEEN(d, 0), SIXTEEN(d, 16)
#define D3 D1, SIXTEEN(d, 32), SIXTEEN(d, 48)
#define D5 D3, SIXTEEN(d, 64), SIXTEEN(d, 80)
#if OUTPUTS == 64
#define NUMBERS "n64k16" TYPES " {" R0 R1 "}, %32, %33"
#define REGISTERS D1
#elif OUTPUTS == 96
#define NUMBERS "n96k16" TYPES " {" R0 R1 R2 "}, %48, %49"
#define REGISTERS D1, SIXTEEN(d, 32)
#elif OUTPUTS == 128
#define NUMBERS "n128k16" TYPES " {" R0 R1 R2 R3 "}, %64, %65"
#define REGISTERS D3
#elif OUTPUTS == 192
#define NUMBERS "n192k16" TYPES " {" R0 R1 R2 R3 R4 R5 "}, %96, %97"
#define REGISTERS D5
#elif OUTPUTS == 224
#define NUMBERS "n224k16" TYPES " {" R0 R1 R2 R3 R4 R5 R6 "}, %112, %113"
#define REGISTERS D5, SIXTEEN(d, 96)
#elif OUTPUTS == 256
#define NUMBERS "n256k16" TYPES " {" R0 R1 R2 R3 R4 R5 R6 R7 "}, %128, %129"
#define REGISTERS D5, SIXTEEN(d, 96), SIXTEEN(d, 112)
#endif

/* d [64 x OUTPUTS] += a [64 x 16] times b [OUTPUTS x 16] turned */
static __device__ __forceinline__ void multiply(float (&d)[SUMS], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64" NUMBERS ", 1, 1, 1, 0, 0;" : REGISTERS : "l"(a), "l"(b));
}

#endif

/* ---- the sum ---- */

struct Ring {
    u32 base, full, empty; /* barriers, 8 bytes each */
};

static __device__ __forceinline__ u32 stage(int turn) { return turn % STAGES; }
static __device__ __forceinline__ u32 parity(int turn) { return turn / STAGES & 1; }

static __device__ __forceinline__ int own_part() { return blockIdx.x % PARTS; }
static __device__ __forceinline__ int own_share() { return blockIdx.x / PARTS; } /* of weights */
static __device__ __forceinline__ int outputs_of(const Task &t, int tile) { return tile / t.row_groups * OUTPUTS; }
static __device__ __forceinline__ int rows_of(const Task &t, int tile) {
    return (tile % t.row_groups * ROW_TILES + own_share()) * ROWS;
}

/* Turns of a tile: the block's part of the inputs. */
static __device__ __forceinline__ int turns_of(const Task &t) { return min(t.inputs - own_part() * t.share, t.share) / 64; }

struct Source {
    const TensorMap *weights, *rows;
    int column;    /* the first, by 64 */
    u16 same_part; /* blocks of the cluster */

    __device__ __forceinline__ void bring_weights(const Ring &r, int first, int step, int turn) const {
        const int share = OUTPUTS / ROW_TILES, own = first + own_share() * share;
        const u32 to = r.base + stage(turn) * STAGE_BYTES + own_share() * share * ROW_BYTES, full = r.full + 8 * stage(turn);
        barrier_expect(full, STAGE_BYTES);
        if (KIND == GATED) copy_pairs_to(same_part, to, weights, own / 16, column + step, full);
        else copy_box_to(same_part, to, weights, own, column + step, full);
    }

    __device__ __forceinline__ void bring_rows(const Ring &r, int first, int step, int turn) const {
        const u32 to = r.base + stage(turn) * STAGE_BYTES + WEIGHT_BYTES;
        copy_box(to, rows, first, column + step, r.full + 8 * stage(turn));
    }
};

static __device__ __forceinline__ void bring_all(const Source &from, const Task &t, const Ring &r) {
    const int turns = turns_of(t), ahead = min(turns, STAGES);
    int tile = blockIdx.y, outputs = outputs_of(t, tile), rows = rows_of(t, tile), step = ahead;
    for (int turn = 0; turn < ahead; turn++) from.bring_weights(r, outputs, turn, turn);
    wait_for_last_kernel();
    for (int turn = 0; turn < ahead; turn++) from.bring_rows(r, rows, turn, turn);
    for (int turn = ahead;; step = 0) {
        for (; step < turns; step++, turn++) {
            barrier_wait(r.empty + 8 * stage(turn), parity(turn) ^ 1);
            from.bring_weights(r, outputs, step, turn);
            from.bring_rows(r, rows, step, turn);
        }
        if ((tile += gridDim.y) >= t.tiles) return;
        outputs = outputs_of(t, tile), rows = rows_of(t, tile);
    }
}

/* The stage is free, for all who bring something there: a lane tells each. */
static __device__ __forceinline__ void done_with(const Ring &r, int turn, int lane) {
    if (lane < ROW_TILES) arrive_there(at_block(r.empty + 8 * stage(turn), own_part() + PARTS * lane));
}

/* From this turn on, of as many as a tile has. */
static __device__ __forceinline__ void add_up(float (&d)[SUMS], const Ring &r, int turn, int turns, int group, int lane) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) d[i] = 0.0f;
    stays(d);
    for (int end = turn + turns; turn < end; turn++) {
        const u32 weights = r.base + stage(turn) * STAGE_BYTES, rows = weights + WEIGHT_BYTES + group * 64 * ROW_BYTES;
        barrier_wait(r.full + 8 * stage(turn), parity(turn));
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) multiply(d, matrix(rows + 32 * k, 16), matrix(weights + 32 * k, 16));
        products_end();
        wait_for_products<1>();
        if (turn > end - turns) done_with(r, turn - 1, lane);
    }
    wait_for_products<0>();
    stays(d);
    done_with(r, turn - 1, lane);
}

/* ---- what becomes of it ---- */

#define QUADS(outputs) (((outputs) + 31) / 32) /* groups of 8 outputs that four lanes store together */

struct Place {
    int row[2]; /* of the lane */
    int output; /* the first of the tile */
};

static __device__ __forceinline__ Place place_of(const Task &t, int tile) {
    const int thread = threadIdx.x - WARPGROUP, row = rows_of(t, tile) + thread / 32 * 16 + thread % 32 / 4;
    return {{row, row + 8}, outputs_of(t, tile) / (KIND == GATED ? 2 : 1)};
}

static __device__ __forceinline__ u32 two(u16 low, u16 high) { return (u32)high << 16 | low; }

/* Of four neighbours, each has two outputs of four groups of 8; then each has the 8 outputs of one group. Or back. */
static __device__ __forceinline__ void exchange(u32 (&d)[4]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int low = step == 1 ? 2 * k : k, high = low + step;
            const u32 theirs = __shfl_xor_sync(0xffffffff, upper ? d[low] : d[high], step);
            if (upper) d[low] = theirs;
            else d[high] = theirs;
        }
    }
}

/* Each lane of four stores its group of 8 outputs, if there is one. */
static __device__ __forceinline__ void store(u16 *out, u32 (&d)[4], int row, int output, const Task &t) {
    exchange(d);
    const int own = output + threadIdx.x % 4 * 8;
    if (row < t.rows && own < t.outputs) *(uint4 *)(out + (long)row * t.outputs + own) = make_uint4(d[0], d[1], d[2], d[3]);
}

static __device__ __forceinline__ float factor_of(const Task &t, int row) {
    return row < t.rows ? norm_factor(t.squares[row], t.inputs, t.eps) : 0.0f;
}

static __device__ __forceinline__ void put_gated(const float (&d)[SUMS], const Place &at, const Task &t, u16 *out) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float factor = factor_of(t, at.row[half]);
#pragma unroll
        for (int quad = 0; quad < QUADS(OUTPUTS / 2); quad++) {
            u32 both[4] = {};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int pair = 4 * quad + k, i = 8 * pair + 2 * half;
                if (pair < OUTPUTS / 16)
                    both[k] = two(narrow(gated(d[i] * factor, d[i + 4] * factor)),
                                  narrow(gated(d[i + 1] * factor, d[i + 5] * factor)));
            }
            const int beyond = 4 * quad + threadIdx.x % 4 < OUTPUTS / 16 ? 0 : t.outputs;
            store(out, both, at.row[half], at.output + 32 * quad + beyond, t);
        }
    }
}

static __device__ __forceinline__ void put_plain(const float (&d)[SUMS], const Place &at, const Task &t, void *out, bool wide) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.row[half];
        const float factor = factor_of(t, row);
#pragma unroll
        for (int quad = 0; quad < QUADS(OUTPUTS); quad++) {
            u32 both[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int output = at.output + 32 * quad + 8 * k + threadIdx.x % 4 * 2, i = 16 * quad + 4 * k + 2 * half;
                const bool inside = output < t.outputs, has_bias = t.bias && inside;
                const float low = normed(d[i], factor, t.bias, has_bias ? t.bias[output] : 0.0f);
                const float high = normed(d[i + 1], factor, t.bias, has_bias ? t.bias[output + 1] : 0.0f);
                if (wide && inside && row < t.rows)
                    *(float2 *)((float *)out + (long)row * t.outputs + output) = make_float2(low, high);
                both[k] = two(narrow(low), narrow(high));
            }
            if (!wide) store((u16 *)out, both, row, at.output + 32 * quad, t);
        }
    }
}

/* What sums are added to: of one group of 8 in each quad. */
static __device__ __forceinline__ void look_up(uint4 (&old)[2 * QUADS(OUTPUTS)], const Place &at, const Task &t, const u16 *x) {
#pragma unroll
    for (int i = 0; i < 2 * QUADS(OUTPUTS); i++) {
        const int row = at.row[i % 2], output = at.output + i / 2 * 32 + threadIdx.x % 4 * 8;
        const bool inside = row < t.rows && output < t.outputs;
        old[i] = inside ? *(const uint4 *)(x + (long)row * t.outputs + output) : make_uint4(0, 0, 0, 0);
    }
}

static __device__ __forceinline__ void put_added(const float (&d)[SUMS], const uint4 (&old)[2 * QUADS(OUTPUTS)],
                                                 const Place &at, const Task &t, const Residual &to) {
    u64 squares[2] = {};
#pragma unroll
    for (int quad = 0; quad < QUADS(OUTPUTS); quad++) {
        float gain[8], bias[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int output = at.output + 32 * quad + k / 2 * 8 + threadIdx.x % 4 * 2 + k % 2;
            gain[k] = output < t.outputs ? to.gain[output] : 0.0f;
            bias[k] = t.bias && output < t.outputs ? t.bias[output] : 0.0f;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 own = old[2 * quad + half];
            u32 was[4] = {own.x, own.y, own.z, own.w}, now[4], scaled[4];
            exchange(was);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int i = 16 * quad + 4 * k + 2 * half;
                const Added low = added(widen(was[k]), t.bias ? d[i] + bias[2 * k] : d[i], gain[2 * k]);
                const Added high = added(widen(was[k] >> 16), t.bias ? d[i + 1] + bias[2 * k + 1] : d[i + 1], gain[2 * k + 1]);
                now[k] = two(low.x, high.x);
                scaled[k] = two(low.scaled, high.scaled);
                squares[half] += low.square + high.square;
            }
            store(to.x, now, at.row[half], at.output + 32 * quad, t);
            store(to.scaled, scaled, at.row[half], at.output + 32 * quad, t);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u64 sum = squares[half];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (threadIdx.x % 4 == 0 && at.row[half] < t.rows) atomicAdd(to.squares + at.row[half], sum);
    }
}

#if PARTS > 1
/* The sums of all parts, in their order, in the block that stores these rows; the others are done. `here`: its room for
 * them, which is the ring's. */
static __device__ __forceinline__ void merge_parts(float (&d)[SUMS], u32 here, int keeper, int thread) {
    const u32 own = here + 16 * thread, part_bytes = SUMS * 4 * WARPGROUP;
    if (own_part() != keeper)
#pragma unroll
        for (int i = 0; i < SUMS; i += 4)
            send_four(at_block(own + own_part() * part_bytes + i * 4 * WARPGROUP, blockIdx.x - own_part() + keeper), d + i);
    cluster_meets();
    if (own_part() != keeper) return;
#pragma unroll
    for (int i = 0; i < SUMS; i += 4) {
        float total[4];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float theirs[4];
            receive_four(theirs, own + part * part_bytes + i * 4 * WARPGROUP);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float x = part == keeper ? d[i + k] : theirs[k];
                total[k] = part ? total[k] + x : x;
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) d[i + k] = total[k];
    }
}
#endif

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1)
    product(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap rows, const Task t,
            const Residual residual, void *out, int wide) {
    Ring r;
    r.base = (shared_address(ring_memory()) + 1023) & ~1023u;
    r.full = r.base + STAGES * STAGE_BYTES;
    r.empty = r.full + 8 * STAGES;
    if (threadIdx.x == 0) {
        fetch_map(&weights), fetch_map(&rows);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, ROW_TILES * 2 * WARPGROUP / 32);
        }
        barriers_are_set();
    }
    if (ROW_TILES > 1) cluster_meets();
    else __syncthreads();
    start_next_kernel();
    if (threadIdx.x < WARPGROUP) {
        give_registers<40>();
        u16 same_part = 0;
        for (int i = 0; i < ROW_TILES; i++) same_part |= 1 << (own_part() + i * PARTS);
        const Source from = {&weights, &rows, own_part() * t.share / 64, same_part};
        if (threadIdx.x == 0) bring_all(from, t, r);
        if (PARTS > 1) cluster_meets(), cluster_meets();
    } else {
        take_registers<232>();
        const int group = threadIdx.x / WARPGROUP - 1, lane = threadIdx.x % 32, turns = turns_of(t);
        const bool keeps = own_part() == group % PARTS;
        wait_for_last_kernel();
        int turn = 0;
        for (int tile = blockIdx.y; tile < t.tiles; tile += gridDim.y, turn += turns) {
            const Place at = place_of(t, tile);
            float d[SUMS];
#if KIND == ADDED
            uint4 old[2 * QUADS(OUTPUTS)];
            if (keeps) look_up(old, at, t, residual.x);
#endif
            add_up(d, r, turn, turns, group, lane);
#if PARTS > 1
            cluster_meets(); /* all rings are free */
            merge_parts(d, r.base, group % PARTS, threadIdx.x % WARPGROUP);
#endif
            if (!keeps) continue;
#if KIND == ADDED
            put_added(d, old, at, t, residual);
#elif KIND == GATED
            put_gated(d, at, t, (u16 *)out);
#else
            put_plain(d, at, t, out, wide);
#endif
        }
    }
    if (ROW_TILES > 1) cluster_meets(); /* nobody writes to who has gone */
}
