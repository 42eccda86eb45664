/* Products of up to 16 rows with weights in 16 bits, whose weights are on their way before the rows are there.
 *
 * A block starts while the kernel before it still runs, asks for the first weights, and only then waits for that kernel:
 * the memory has work across the borders between kernels. One warp of a block asks for tiles, through the tensor memory
 * accelerator into a ring of stages; the others multiply. A warp has 16 outputs in two groups of 8: neighbours, or a gate
 * and its up, or the two halves of a rotation, so that a lane has both that belong together.
 *
 * A row's sum runs over the inputs in their order, 16 at a time, as those of `linear.py`'s kernels do, and what follows is
 * rounded in the same places: a row has the same bits here and there.
 *
 * Compiled for each KIND, number of 8 rows (ROW_TILES), of 64 inputs in a stage (DEPTH), and type (FLOAT16).
 */
#include "hopper.cuh"
#include "products.cuh"

#define BOX 1024 /* bytes of 8 rows and 64 inputs */
#define MAX_STAGES 8

struct Task {
    int rows, outputs, inputs;
    int tiles_a_block; /* of 16 outputs */
    int parts, share;  /* warps that share a tile's inputs; inputs of each */
    int stages;
    float eps;
    const u64 *squares; /* [rows], of the norm of x */
    const float *bias;  /* [outputs] or null */
};

struct Cache {
    const int *position, *slot, *page_from, *pages;
    const float *cosine, *sine;
    u16 *keys, *values;
    int heads, kv_heads, head_dim, page_size;
};

/* ---- instructions, as in hopper.cuh ---- */
#ifndef EMULATED

static __device__ __forceinline__ void load_four(u32 d[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at) : "memory");
}

static __device__ __forceinline__ void load_two(u32 d[2], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(d[0]), "=r"(d[1]) : "r"(at) : "memory");
}

static __device__ __forceinline__ void multiply(float d[4], const u32 a[4], const u32 b[2]) {
#if FLOAT16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

/* ---- which outputs a tile has ---- */

struct Groups {
    int first, second; /* where its two groups of 8 outputs begin */
};

/* Both groups of neighbouring tiles stand side by side in the weight, so that one box has those of a block; but for QKV,
 * whose tiles may belong to different heads. */
static __device__ __forceinline__ Groups groups_of(const Task &t, const Cache &c, int in_block) {
    const int tile = blockIdx.x * t.tiles_a_block + in_block;
    if (KIND == GATED) return {8 * tile, t.outputs + 8 * tile};
    if (KIND == QKV) {
        const int half = c.head_dim / 2, at = 8 * tile / half * c.head_dim + 8 * tile % half;
        return {at, at + half};
    }
    const int first = blockIdx.x * t.tiles_a_block * 16 + 8 * in_block;
    return {first, first + 8 * t.tiles_a_block};
}

/* ---- the sum ---- */

/* A stage has for each part: the first groups of all tiles, their second groups, the rows. Boxes have 128 bytes a row. */
struct Ring {
    u32 base, stage_bytes, part_bytes, group_bytes;
    u32 full, empty; /* barriers, 8 bytes each */
};

/* A place in the ring, and how often it was there: barriers tell odd turns from even ones. */
struct Slot {
    int at, parity;
    __device__ void next(const Task &t) {
        if (++at == t.stages) at = 0, parity ^= 1;
    }
};

static __device__ __forceinline__ int turns_of(int inputs) { return (inputs + DEPTH * 64 - 1) / (DEPTH * 64); }

static __device__ __forceinline__ int inputs_of(const Task &t, int part) {
    return min(max(t.inputs - part * t.share, 0), t.share);
}

/* The warp that asks for boxes: a lane for each box of a stage, with its place and its part's turns. There are at most 31
 * boxes: of 15 tiles of QKV. */
static __device__ __forceinline__ void bring_all(const TensorMap *weights, const TensorMap *rows, const Task &t,
                                                 const Cache &c, const Ring &r, int turns) {
    const int lane = threadIdx.x % 32, boxes = KIND == QKV ? t.tiles_a_block : 1, each = 2 * boxes + 1;
    const int part = lane / each, box = lane % each, own = part < t.parts ? turns_of(inputs_of(t, part)) : 0;
    const bool is_rows = box == 2 * boxes;
    const Groups g = groups_of(t, c, box < boxes ? box : box - boxes);
    const int row = is_rows ? 0 : box < boxes ? g.first : g.second;
    const u32 in_stage = part * r.part_bytes + (is_rows ? 2 * r.group_bytes : box < boxes ? box * DEPTH * BOX
                                                : r.group_bytes + (box - boxes) * DEPTH * BOX);
    const TensorMap *map = is_rows ? rows : weights;
    int column = part * t.share / 64, ahead = min(turns, t.stages);
    for (int turn = 0; turn < ahead; turn++) {
        const u32 bytes = __popc(__ballot_sync(0xffffffff, is_rows && turn < own)) * r.part_bytes;
        if (lane == 0) barrier_expect(r.full + 8 * turn, bytes);
        __syncwarp();
        const u32 to = r.base + turn * r.stage_bytes + in_stage;
        if (!is_rows && turn < own) copy_box(to, map, row, column + turn * DEPTH, r.full + 8 * turn);
    }
    wait_for_last_kernel();
    for (int turn = 0; turn < ahead; turn++) {
        const u32 to = r.base + turn * r.stage_bytes + in_stage;
        if (is_rows && turn < own) copy_box(to, map, row, column + turn * DEPTH, r.full + 8 * turn);
    }
    column += ahead * DEPTH;
    Slot slot = {0, 0};
    for (int turn = ahead; turn < turns; turn++, slot.next(t), column += DEPTH) {
        const u32 bytes = __popc(__ballot_sync(0xffffffff, is_rows && turn < own)) * r.part_bytes;
        barrier_wait(r.empty + 8 * slot.at, slot.parity);
        if (lane == 0) barrier_expect(r.full + 8 * slot.at, bytes);
        __syncwarp();
        if (turn < own) copy_box(r.base + slot.at * r.stage_bytes + in_stage, map, row, column, r.full + 8 * slot.at);
    }
}

/* What 64 inputs bring to a warp: fragments of its weights and of all rows, for four products. */
struct Fragments {
    u32 a[4][4], b[4][ROW_TILES][2];
};

/* Pieces of 16 bytes are exchanged by the number of their row in a box. */
static __device__ __forceinline__ void load(Fragments &f, u32 weights, u32 rows, int lane) {
    const u32 row = lane % 8 * 128;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        load_four(f.a[step], weights + row + ((2 * step + lane / 16) ^ lane % 8) * 16);
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++)
            load_two(f.b[step][n], rows + n * BOX + row + ((2 * step + lane / 8 % 2) ^ lane % 8) * 16);
    }
}

static __device__ __forceinline__ void add_up(float d[ROW_TILES][4], const Task &t, const Ring &r, int warp, int turns) {
    const int lane = threadIdx.x % 32, part = warp % t.parts, tile = warp / t.parts;
    const u32 deeper = KIND == QKV ? BOX : t.tiles_a_block * BOX;
    const u32 weights = r.base + part * r.part_bytes + lane / 8 % 2 * r.group_bytes + tile * (KIND == QKV ? DEPTH : 1) * BOX;
    const u32 rows = r.base + part * r.part_bytes + 2 * r.group_bytes;
    int left = inputs_of(t, part) / 64;
    Slot slot = {0, 0};
    for (int turn = 0; turn < turns; turn++, slot.next(t), left -= DEPTH) {
        const u32 stage = slot.at * r.stage_bytes;
        barrier_wait(r.full + 8 * slot.at, slot.parity);
        Fragments f[2];
        if (left > 0) load(f[0], weights + stage, rows + stage, lane);
#pragma unroll
        for (int box = 0; box < DEPTH; box++) {
            if (box + 1 < DEPTH && box + 1 < left)
                load(f[(box + 1) % 2], weights + stage + (box + 1) * deeper, rows + stage + (box + 1) * ROW_TILES * BOX, lane);
            if (box < left)
#pragma unroll
                for (int i = 0; i < 4 * ROW_TILES; i++)
                    multiply(d[i % ROW_TILES], f[box % 2].a[i / ROW_TILES], f[box % 2].b[i / ROW_TILES][i % ROW_TILES]);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(r.empty + 8 * slot.at);
    }
}

/* The sums of all parts, in their order, at the first. The ring is free by then. */
static __device__ void merge_parts(float d[ROW_TILES][4], const Task &t, char *shared, int warp, int consumers) {
    float *sums = (float *)shared;
    const int lane = threadIdx.x % 32;
    __syncthreads();
    if (warp < consumers && warp % t.parts)
#pragma unroll
        for (int i = 0; i < ROW_TILES * 4; i++) sums[(warp * ROW_TILES * 4 + i) * 32 + lane] = d[i / 4][i % 4];
    __syncthreads();
    if (warp < consumers && warp % t.parts == 0)
        for (int part = 1; part < t.parts; part++)
#pragma unroll
            for (int i = 0; i < ROW_TILES * 4; i++)
                d[i / 4][i % 4] += sums[((warp + part) * ROW_TILES * 4 + i) * 32 + lane];
}

/* ---- what becomes of it ---- */

#define OWN_ROWS (2 * ROW_TILES) /* of which a lane has sums, for two outputs each */

static __device__ __forceinline__ int own_row(int i) { return i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2; }

/* What a lane needs besides its sums, asked for before they are there. */
struct Needs {
    int output[2];
    float factor[OWN_ROWS];          /* of the norm */
    float bias[2];
    float old[OWN_ROWS][2], gain[2]; /* of the residual stream */
    float cosine[OWN_ROWS], sine[OWN_ROWS];
    u16 *to[OWN_ROWS]; /* queries, keys or values */
    bool is_value;
};

static __device__ __forceinline__ void look_up_place(Needs &n, const Task &t, const Cache &c, u16 *queries) {
    const int half = c.head_dim / 2, head = n.output[0] / c.head_dim, j = n.output[0] % c.head_dim;
    const bool is_query = head < c.heads, is_key = !is_query && head < c.heads + c.kv_heads;
    n.is_value = !is_query && !is_key;
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
        const int row = own_row(i);
        n.cosine[i] = 1.0f, n.sine[i] = 0.0f, n.to[i] = queries;
        if (row >= t.rows) continue;
        if (!n.is_value) {
            const long angle = (long)c.position[row] * half + j;
            n.cosine[i] = c.cosine[angle], n.sine[i] = c.sine[angle];
        }
        if (is_query) {
            n.to[i] = queries + (long)row * c.heads * c.head_dim + n.output[0];
            continue;
        }
        const int slot = c.slot[row], page = c.pages[c.page_from[row] + slot / c.page_size];
        const long cell = (long)page * c.page_size + slot % c.page_size;
        const int kv_head = head - c.heads - (is_key ? 0 : c.kv_heads);
        n.to[i] = (is_key ? c.keys : c.values) + (cell * c.kv_heads + kv_head) * c.head_dim + j;
    }
}

static __device__ __forceinline__ void look_up(Needs &n, const Task &t, const Cache &c, const Residual &residual, void *out,
                                               int tile) {
    const Groups g = groups_of(t, c, tile);
    n.output[0] = g.first + threadIdx.x % 32 / 4, n.output[1] = g.second + threadIdx.x % 32 / 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int output = min(n.output[k], t.outputs - 1);
        n.bias[k] = t.bias ? t.bias[output] : 0.0f; /* a gate and its up have none */
        if (KIND == ADDED) n.gain[k] = residual.gain[output];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++)
            if (KIND == ADDED && own_row(i) < t.rows) n.old[i][k] = widen(residual.x[(long)own_row(i) * t.outputs + output]);
    }
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++)
        if (KIND != ADDED && own_row(i) < t.rows) n.factor[i] = norm_factor(t.squares[own_row(i)], t.inputs, t.eps);
    if (KIND == QKV) look_up_place(n, t, c, (u16 *)out);
}

/* x * cosine + other * sine */
static __device__ __forceinline__ u16 rotated(float x, float other, float cosine, float sine) {
    return narrow(__fmaf_rn(x, cosine, __fmul_rn(other, sine)));
}

/* A value as it is stored: 0 times it must be 0, for rows of the same stream that don't see it. */
static __device__ __forceinline__ u16 finite_value(float x) {
    const float most = FLOAT16 ? 65504.0f : 3.3e38f;
    return x == x ? narrow(fminf(fmaxf(x, -most), most)) : 0;
}

static __device__ __forceinline__ void put_qkv(float low, float high, const Needs &n, int i, int half) {
    low = widen(narrow(low)), high = widen(narrow(high));
    if (n.is_value) {
        n.to[i][0] = finite_value(low), n.to[i][half] = finite_value(high);
    } else {
        n.to[i][0] = rotated(low, -high, n.cosine[i], n.sine[i]);
        n.to[i][half] = rotated(high, low, n.cosine[i], n.sine[i]);
    }
}

/* Adds to the residual stream. Returns the square of what it is then, as a whole number: those add up in any order. */
static __device__ __forceinline__ u64 put_added(float sum, const Task &t, const Residual &to, const Needs &n, int i, int k) {
    if (own_row(i) >= t.rows || n.output[k] >= t.outputs) return 0;
    const long at = (long)own_row(i) * t.outputs + n.output[k];
    const Added now = added(n.old[i][k], t.bias ? sum + n.bias[k] : sum, n.gain[k]);
    to.x[at] = now.x;
    to.scaled[at] = now.scaled;
    return now.square;
}

static __device__ __forceinline__ void put_plain(void *out, bool wide, long at, float value) {
    if (wide) ((float *)out)[at] = value;
    else ((u16 *)out)[at] = narrow(value);
}

static __device__ __forceinline__ void put(const float d[ROW_TILES][4], const Needs &n, const Task &t, const Cache &c,
                                           const Residual &residual, void *out, bool wide) {
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
        const int row = own_row(i);
        const float a = d[i / 2][i % 2], b = d[i / 2][i % 2 + 2];
        if (KIND == ADDED) {
            u64 squares = put_added(a, t, residual, n, i, 0) + put_added(b, t, residual, n, i, 1);
            for (int step = 4; step < 32; step *= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
            if (row < t.rows && threadIdx.x % 32 < 4) atomicAdd(residual.squares + row, squares);
            continue;
        }
        if (row >= t.rows || n.output[0] >= t.outputs) continue;
        const float first = normed(a, n.factor[i], t.bias, n.bias[0]), second = normed(b, n.factor[i], t.bias, n.bias[1]);
        const long at = (long)row * t.outputs;
        if (KIND == QKV) put_qkv(first, second, n, i, c.head_dim / 2);
        if (KIND == GATED) ((u16 *)out)[at + n.output[0]] = narrow(gated(first, second));
        if (KIND == PLAIN) put_plain(out, wide, at + n.output[0], first);
        if (KIND == PLAIN && n.output[1] < t.outputs) put_plain(out, wide, at + n.output[1], second);
    }
}

extern "C" __global__ void __launch_bounds__(512, 1)
    product(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap rows, Task t, Cache c,
            Residual residual, void *out, int wide) {
    __shared__ u64 barriers[2 * MAX_STAGES];
    char *shared = ring_memory();
    const int warp = threadIdx.x / 32, consumers = t.tiles_a_block * t.parts, turns = turns_of(t.share);
    Ring r;
    r.base = shared_address(shared) + 1023 & ~1023u;
    r.group_bytes = t.tiles_a_block * DEPTH * BOX;
    r.part_bytes = 2 * r.group_bytes + ROW_TILES * DEPTH * BOX;
    r.stage_bytes = t.parts * r.part_bytes;
    r.full = shared_address(barriers), r.empty = r.full + 8 * MAX_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < t.stages; i++) barrier_init(r.full + 8 * i, 1), barrier_init(r.empty + 8 * i, consumers);
        barriers_are_set();
    }
    __syncthreads();
    start_next_kernel();
    float d[ROW_TILES][4] = {};
    Needs needs;
    if (warp == consumers) {
        bring_all(&weights, &rows, t, c, r, turns);
    } else {
        wait_for_last_kernel();
        look_up(needs, t, c, residual, out, warp / t.parts);
        add_up(d, t, r, warp, turns);
    }
    if (t.parts > 1) merge_parts(d, t, shared, warp, consumers);
    if (warp < consumers && warp % t.parts == 0) put(d, needs, t, c, residual, out, wide);
}
