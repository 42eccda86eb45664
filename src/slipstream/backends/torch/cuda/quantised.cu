/* Products with quantised weights on a GPU, for any number of rows: the arithmetic that cpu/quantised.c states.
 *
 * A weight is scale * code + minimum, with one scale and minimum for a group of 32 or 16 inputs. Activations are codes
 * too: round(x / scale) with scale = max |x| / 127 of each group of 32. The sum of a group is a whole number, which is
 * exact in every order, and then, rounded once each:
 *
 *     sum += (sum of code * code) * (weight's scale * row's scale)
 *     sum += minimum * (row's scale * sum of the row's codes)
 *
 * A warp adds up its share of the inputs in their order, and the warps of a block are added in theirs. Both depend on the
 * weight alone, so a row has the same bits in any company.
 *
 * Tensor cores multiply 16 outputs and 32 inputs of the weight (a group) with 8 rows. Weights are stored as their lanes
 * hold them: a tile is 16 outputs, a quad is 4 groups, and lane 4 g + c has of the outputs g and g + 8 the inputs 4 c to
 * 4 c + 3 of each half of a group. Compiled once for each layout: BITS (of codes: 4, 6 or 8), SCALE and MINIMUM.
 */
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define HALF 0    /* half precision for each group of 32 */
#define BYTES 1   /* a byte for each group of 32, times a float that several have in common */
#define BYTES16 2 /* the same for groups of 16 */
#define FLOAT 3   /* a float for each group of 32 */
#define NO_MINIMUM 0
#define STORED 1
#define OFFSET 2 /* the minimum is the scale times a number that all have in common */

#define GROUP 32
#define QUAD 128            /* inputs */
#define WARPS 8             /* that share the inputs of a tile: part of what a sum is, so it never changes */
#define MAGIC 12582912.0f   /* 1.5 * 2^23: a float that has a small whole number in its low bits, if it is added */
#define MAGIC_BITS 0x4B400000

struct Acts {
    uint4 *codes;  /* [tiles of 8 rows][quads][2][32 lanes] */
    float4 *scale; /* [tiles][quads][4][2]: of lane % 4, 4 groups of 2 rows; so are the others */
    float4 *shift; /* scale * sum of codes */
    int4 *halves;  /* the sums of the codes of both halves, 16 bits each */
};

/* ---- products ------------------------------------------------------------------------------------------------- */
#ifdef BITS

struct Part {
    const uint4 *codes;  /* [tiles][quads][CODE_PARTS][32 lanes] */
    const uint4 *high;   /* [tiles][quads][32 lanes]: the two highest of 6 bits */
    const u32 *scales;   /* [tiles][quads][8][SCALE_WORDS]: of lane / 4, both outputs */
    const float *supers; /* [tiles][quads / super_quads][8][SUPER_FLOATS] */
    int tiles, quads, super_quads, outputs;
    float offset;
};

struct Outcome {
    void *y; /* [rows, stride] */
    const float *bias;
    int rows, stride, first;
    int kind; /* 0: bf16, 1: float, 2: added to floats */
};

#define PARTS_OF_MINIMUM (MINIMUM == STORED ? 2 : 1)
#define CODE_PARTS (BITS == 8 ? 4 : 2)
#define SCALES_A_QUAD (SCALE == BYTES16 ? 8 : 4)
#define SCALE_BYTES (SCALE == HALF ? 2 : SCALE == FLOAT ? 4 : 1)
#define SCALE_WORDS (2 * PARTS_OF_MINIMUM * SCALES_A_QUAD * SCALE_BYTES / 4)
#define HAS_SUPERS (SCALE == BYTES || SCALE == BYTES16)
#define SUPER_FLOATS (2 * PARTS_OF_MINIMUM)
#define ROW_WORDS (SCALE_WORDS / 2)                   /* of one output: its scales, then its minimums */
#define KIND_WORDS (ROW_WORDS / PARTS_OF_MINIMUM)
#define WIDE_OFFSET 32 /* 6-bit codes are stored plus this */
#define NEEDS_SHIFT (MINIMUM != NO_MINIMUM && SCALE != BYTES16)
#define NEEDS_HALVES (BITS == 6 || (MINIMUM != NO_MINIMUM && SCALE == BYTES16))

struct Weights {
    u32 codes[CODE_PARTS * 4];
    u32 high[4];
    u32 scales[SCALE_WORDS];
    float supers[SUPER_FLOATS];
};

/* Weights are read once: they leave the first cache to the activations. */
static __device__ __forceinline__ uint4 stream_16(const void *at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

template <int WORDS> static __device__ __forceinline__ void read_words(u32 *to, const u32 *at) {
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            uint4 v = __ldg((const uint4 *)(at + i));
            to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i += 2) {
            uint2 v = __ldg((const uint2 *)(at + i));
            to[i] = v.x, to[i + 1] = v.y;
        }
    }
}

static __device__ __forceinline__ void read_weights(Weights &w, const Part &p, int tile, int quad, int lane) {
    long at = (long)tile * p.quads + quad;
#pragma unroll
    for (int i = 0; i < CODE_PARTS; i++) {
        uint4 v = stream_16(p.codes + (at * CODE_PARTS + i) * 32 + lane);
        w.codes[4 * i] = v.x, w.codes[4 * i + 1] = v.y, w.codes[4 * i + 2] = v.z, w.codes[4 * i + 3] = v.w;
    }
    if constexpr (BITS == 6) {
        uint4 v = stream_16(p.high + at * 32 + lane);
        w.high[0] = v.x, w.high[1] = v.y, w.high[2] = v.z, w.high[3] = v.w;
    }
    read_words<SCALE_WORDS>(w.scales, p.scales + (at * 8 + lane / 4) * SCALE_WORDS);
    if constexpr (HAS_SUPERS) {
        long super = (long)tile * (p.quads / p.super_quads) + quad / p.super_quads;
        read_words<SUPER_FLOATS>((u32 *)w.supers, (const u32 *)p.supers + (super * 8 + lane / 4) * SUPER_FLOATS);
    }
}

/* The codes of a group as the tensor cores take them: both outputs of the first half, then both of the second. */
static __device__ __forceinline__ void unpack_codes(u32 a[4], const Weights &w, int group) {
    if constexpr (BITS == 8) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = w.codes[4 * group + i];
        return;
    }
    u32 both[2] = {w.codes[2 * group], w.codes[2 * group + 1]};
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = both[i % 2] >> (i / 2 * 4) & 0x0f0f0f0f;
    if constexpr (BITS == 6) {
        u32 h = w.high[group];
        a[0] |= h << 4 & 0x30303030;
        a[1] |= h << 2 & 0x30303030;
        a[2] |= h & 0x30303030;
        a[3] |= h >> 2 & 0x30303030;
    }
}

static __device__ __forceinline__ float half_float(u32 bits) {
    float value;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(bits));
    return value;
}

/* A number of the scales: `kind` 0 scale, 1 minimum; `i` which of its quad. Bytes are stored plus 128. */
static __device__ __forceinline__ float number(const Weights &w, int output, int kind, int i) {
    const u32 *words = w.scales + output * ROW_WORDS + kind * KIND_WORDS;
    if constexpr (SCALE == FLOAT) return __uint_as_float(words[i]);
    if constexpr (SCALE == HALF) return half_float(words[i / 2] >> (i % 2 * 16) & 0xffff);
    float raised = __uint_as_float(__byte_perm(words[i / 4], 0x4B000000, 0x7650 + i % 4));
    return w.supers[output * PARTS_OF_MINIMUM + kind] * (raised - (8388608.0f + 128.0f));
}

struct Scaled {
    float scale[2], minimum[2]; /* of both outputs */
};

static __device__ __forceinline__ Scaled scales_of(const Weights &w, int i, float offset) {
    Scaled s;
#pragma unroll
    for (int output = 0; output < 2; output++) {
        s.scale[output] = number(w, output, 0, i);
        if constexpr (MINIMUM == STORED) s.minimum[output] = number(w, output, 1, i);
        if constexpr (MINIMUM == OFFSET) s.minimum[output] = s.scale[output] * offset;
    }
    return s;
}

static __device__ __forceinline__ void multiply_32(int d[4], const u32 a[4], u32 b0, u32 b1, int c0, int c1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%10, %11, %10, %11};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
}

static __device__ __forceinline__ void multiply_16(int d[4], const u32 a[2], u32 b, int c0, int c1) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %7, %8};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c0), "r"(c1));
}

/* What a group of 8 rows brings: the lane's codes; scale, shift and sums of the two rows whose products it gets. */
struct Rows {
    u32 b0, b1;
    float scale[2], shift[2];
    int halves[2];
};

static __device__ __forceinline__ Rows read_rows(const Acts &a, long at, int group, int lane, bool is_row) {
    Rows r;
    const uint2 *codes = (const uint2 *)(a.codes + (at * 2 + group / 2) * 32 + lane) + group % 2;
    uint2 b = is_row ? __ldg(codes) : make_uint2(0, 0);
    r.b0 = b.x, r.b1 = b.y;
    long place = (at * 4 + lane % 4) * 4 + group;
    float2 v = __ldg((const float2 *)a.scale + place);
    r.scale[0] = v.x, r.scale[1] = v.y;
    if constexpr (NEEDS_SHIFT) {
        v = __ldg((const float2 *)a.shift + place);
        r.shift[0] = v.x, r.shift[1] = v.y;
    }
    if constexpr (NEEDS_HALVES) {
        int2 h = __ldg((const int2 *)a.halves + place);
        r.halves[0] = h.x, r.halves[1] = h.y;
    }
    return r;
}

static __device__ __forceinline__ int first_half(int halves) { return (int)((u32)halves << 16) >> 16; }
static __device__ __forceinline__ int second_half(int halves) { return halves >> 16; }

/* Where a sum starts: at the bits of MAGIC, so that it is a float when it is complete, less what codes are stored plus. */
static __device__ __forceinline__ int start_of(int sum) { return MAGIC_BITS - (BITS == 6 ? WIDE_OFFSET * sum : 0); }

static __device__ __forceinline__ void add_sums(float t[4], const int d[4], const Scaled &s, const float scale[2],
                                                const float shift[2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        t[i] = __fmaf_rn(__int_as_float(d[i]) - MAGIC, s.scale[i / 2] * scale[i % 2], t[i]);
        if constexpr (MINIMUM != NO_MINIMUM) t[i] = __fmaf_rn(s.minimum[i / 2], shift[i % 2], t[i]);
    }
}

/* A group of one tile and 8 rows. `s` has one entry, or one for each half. */
static __device__ __forceinline__ void add_group(float t[4], const u32 a[4], const Scaled *s, const Rows &r) {
    int d[4];
    if constexpr (SCALE == BYTES16) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int sum[2];
            float shift[2];
#pragma unroll
            for (int i = 0; i < 2 && NEEDS_HALVES; i++) {
                sum[i] = half ? second_half(r.halves[i]) : first_half(r.halves[i]);
                shift[i] = r.scale[i] * (float)sum[i];
            }
            multiply_16(d, a + 2 * half, half ? r.b1 : r.b0, start_of(sum[0]), start_of(sum[1]));
            add_sums(t, d, s[half], r.scale, shift);
        }
    } else {
        int sum[2] = {0, 0};
        if constexpr (NEEDS_HALVES) {
#pragma unroll
            for (int i = 0; i < 2; i++) sum[i] = first_half(r.halves[i]) + second_half(r.halves[i]);
        }
        multiply_32(d, a, r.b0, r.b1, start_of(sum[0]), start_of(sum[1]));
        add_sums(t, d, s[0], r.scale, r.shift);
    }
}

static __device__ __forceinline__ void put(const Outcome &o, int row, int output, float value) {
    long at = (long)row * o.stride + o.first + output;
    if (o.bias) value += o.bias[o.first + output];
    if (o.kind == 0) {
        u16 bits;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        ((u16 *)o.y)[at] = bits;
    } else if (o.kind == 1) ((float *)o.y)[at] = value;
    else ((float *)o.y)[at] += value;
}

/* 8 NT rows from 8 NT * blockIdx.y on, times the outputs of MT tiles. */
template <int NT, int MT> static __device__ __forceinline__ void product(const Part &p, const Acts &a, const Outcome &o) {
    constexpr int OUTPUTS = 16 * MT, STRIDE = OUTPUTS + 4; /* no two lanes of a store in one bank */
    __shared__ float sums[WARPS][8 * STRIDE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_tile = blockIdx.x * MT;
    const int begin = p.quads * warp / WARPS, end = p.quads * (warp + 1) / WARPS;
    const int row_tile = blockIdx.y * NT, rows_left = o.rows - row_tile * 8;
    float t[MT][NT][4] = {};
    Weights now[MT], next[MT];
#pragma unroll
    for (int m = 0; m < MT && begin < end; m++) read_weights(now[m], p, min(first_tile + m, p.tiles - 1), begin, lane);
#pragma unroll(NT == 1 ? 2 : 1)
    for (int quad = begin; quad < end; quad++) {
#pragma unroll
        for (int m = 0; m < MT && quad + 1 < end; m++)
            read_weights(next[m], p, min(first_tile + m, p.tiles - 1), quad + 1, lane);
#pragma unroll
        for (int group = 0; group < 4; group++) {
            u32 codes[MT][4];
            Scaled s[MT][2];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                unpack_codes(codes[m], now[m], group);
                s[m][0] = scales_of(now[m], SCALE == BYTES16 ? 2 * group : group, p.offset);
                if constexpr (SCALE == BYTES16) s[m][1] = scales_of(now[m], 2 * group + 1, p.offset);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                if (NT > 1 && n * 8 >= rows_left) break;
                const bool is_row = n * 8 + lane / 4 < rows_left;
                const Rows r = read_rows(a, (long)(row_tile + n) * p.quads + quad, group, lane, is_row);
#pragma unroll
                for (int m = 0; m < MT; m++) add_group(t[m][n], codes[m], s[m], r);
            }
        }
#pragma unroll
        for (int m = 0; m < MT; m++) now[m] = next[m];
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (n * 8 >= rows_left) break;
        float *own = sums[warp] + lane % 4 * 2 * STRIDE + lane / 4;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) own[i % 2 * STRIDE + m * 16 + i / 2 * 8] = t[m][n][i];
        __syncthreads();
        for (int i = threadIdx.x; i < 8 * OUTPUTS; i += 32 * WARPS) {
            int row = i / OUTPUTS, output = i % OUTPUTS, to = first_tile * 16 + output;
            float value = sums[0][row * STRIDE + output];
#pragma unroll
            for (int w = 1; w < WARPS; w++) value += sums[w][row * STRIDE + output];
            if (n * 8 + row < rows_left && to < p.outputs) put(o, (row_tile + n) * 8 + row, to, value);
        }
        if (n + 1 < NT) __syncthreads();
    }
}

#define PRODUCT(NT, MT, BLOCKS)                                                                                     \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                                                \
        product_##NT##_##MT(Part p, Acts a, Outcome o) { product<NT, MT>(p, a, o); }
PRODUCT(1, 1, 2)
PRODUCT(1, 2, 2)
PRODUCT(2, 2, 2)
PRODUCT(4, 2, 1)
PRODUCT(8, 2, 1)

/* ---- weights as floats ---- */

/* The weight of one output and input, rounded as the file's own unpacking rounds: the product, then the sum. */
static __device__ float weight_at(const Part &p, int output, int input) {
    int tile = output / 16, side = output % 16 / 8, quad = input / QUAD, group = input % QUAD / GROUP;
    int half = input % 32 / 16, lane = output % 8 * 4 + input % 16 / 4, byte = input % 4;
    long at = (long)tile * p.quads + quad;
    int code;
    if (BITS == 8) {
        const u8 *of_lane = (const u8 *)(p.codes + (at * CODE_PARTS + group) * 32 + lane);
        code = ((const signed char *)of_lane)[(half * 2 + side) * 4 + byte];
    } else {
        const u8 *of_lane = (const u8 *)(p.codes + (at * CODE_PARTS + group / 2) * 32 + lane);
        code = of_lane[(group % 2 * 2 + side) * 4 + byte] >> (4 * half) & 15;
    }
    if (BITS == 6) {
        const u8 *of_lane = (const u8 *)(p.high + at * 32 + lane);
        code += (of_lane[group * 4 + byte] >> (2 * (half * 2 + side)) & 3) * 16 - WIDE_OFFSET;
    }
    Weights w;
    read_words<SCALE_WORDS>(w.scales, p.scales + (at * 8 + output % 8) * SCALE_WORDS);
    if (HAS_SUPERS) {
        long super = (long)tile * (p.quads / p.super_quads) + quad / p.super_quads;
        read_words<SUPER_FLOATS>((u32 *)w.supers, (const u32 *)p.supers + (super * 8 + output % 8) * SUPER_FLOATS);
    }
    int i = SCALE == BYTES16 ? 2 * group + half : group;
    float value = 0.0f;
#pragma unroll
    for (int k = 0; k < SCALES_A_QUAD; k++)
#pragma unroll
        for (int s = 0; s < 2; s++)
            if (k == i && s == side) {
                if (MINIMUM == OFFSET) code += (int)p.offset;
                value = __fmul_rn(number(w, s, 0, k), (float)code);
                if (MINIMUM == STORED) value = __fadd_rn(value, number(w, s, 1, k));
            }
    return value;
}

/* out[rows, inputs]: rows of a table, by id. */
extern "C" __global__ void embed(Part p, const int *ids, int inputs, float *out) {
    int id = min(max(ids[blockIdx.x], 0), p.outputs - 1);
    for (int k = blockIdx.y * blockDim.x + threadIdx.x; k < inputs; k += gridDim.y * blockDim.x)
        out[(long)blockIdx.x * inputs + k] = weight_at(p, id, k);
}

/* out[outputs, inputs]: the weights from output `first` on, in bf16. */
extern "C" __global__ void unpack(Part p, int first, int inputs, u16 *out) {
    int k = (blockIdx.y * blockDim.x + threadIdx.x) * 2, output = first + blockIdx.x;
    if (k >= inputs) return;
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(weight_at(p, output, k + 1)), "f"(weight_at(p, output, k)));
    *(u32 *)(out + (long)blockIdx.x * inputs + k) = both;
}

/* ---- activations ---------------------------------------------------------------------------------------------- */
#else

#define THREADS 256

/* The sum of a row's squares over all threads of the block, in an order that depends on its length alone. */
static __device__ float sum_of_squares(const float *x, int inputs) {
    __shared__ float warps[THREADS / 32];
    float sum = 0.0f;
    for (int k = threadIdx.x * 4; k < inputs; k += THREADS * 4) {
        float4 v = *(const float4 *)(x + k);
        sum = __fmaf_rn(v.x, v.x, sum), sum = __fmaf_rn(v.y, v.y, sum);
        sum = __fmaf_rn(v.z, v.z, sum), sum = __fmaf_rn(v.w, v.w, sum);
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < THREADS / 32; i++) sum += warps[i];
    return sum;
}

static __device__ float bf16_float(u16 bits) { return __uint_as_float((u32)bits << 16); }

static __device__ float4 four_bf16(const u16 *at) {
    ushort4 v = *(const ushort4 *)at;
    return make_float4(bf16_float(v.x), bf16_float(v.y), bf16_float(v.z), bf16_float(v.w));
}

static __device__ float gated(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

/* Writes 4 inputs of a row; the 8 lanes of a group have all of it. */
static __device__ void quantise(const Acts &a, int row, int quads, int quad, float4 v) {
    const int lane = threadIdx.x % 32, group = lane / 8, at_four = lane % 8; /* which four of the group */
    float x[4] = {v.x, v.y, v.z, v.w};
    u32 top = 0;
    for (int i = 0; i < 4; i++) top = max(top, __float_as_uint(x[i]) & 0x7fffffff);
    for (int step = 4; step; step /= 2) top = max(top, __shfl_xor_sync(0xffffffff, top, step));
    float most = __uint_as_float(top), scale = most / 127.0f, inverse = 127.0f / most;
    if (!(most < __uint_as_float(0x7f800000))) scale = __uint_as_float(0x7fc00000); /* no number comes out either */
    if (!(most < __uint_as_float(0x7f800000)) || most < 1e-30f) inverse = 0.0f;
    u32 word = 0;
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        int code = inverse == 0.0f ? 0 : __float_as_int(__fmaf_rn(x[i], inverse, MAGIC)) - MAGIC_BITS;
        word |= (u32)(code & 255) << (8 * i);
        sum += code;
    }
    for (int step = 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step); /* of a half */
    int other = __shfl_xor_sync(0xffffffff, sum, 4);
    long at = (long)(row / 8) * quads + quad;
    u32 *codes = (u32 *)(a.codes + (at * 2 + group / 2) * 32 + row % 8 * 4 + at_four % 4);
    codes[group % 2 * 2 + at_four / 4] = word;
    if (at_four == 0) {
        long place = ((at * 4 + row % 8 / 2) * 4 + group) * 2 + row % 2;
        ((float *)a.scale)[place] = scale;
        ((float *)a.shift)[place] = scale * (float)(sum + other);
        ((int *)a.halves)[place] = (sum & 0xffff) | other << 16;
    }
}

/* Rows as codes. `kind` 0: x is floats, normed with `gain`; 1: x is bf16; 2: x is floats, gates and then as many ups;
 * 3: x is floats as they are. */
extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_rows(const void *x, const float *gain, float eps, int inputs, int quads, int kind, Acts a) {
    const int row = blockIdx.x, quad = blockIdx.y * (THREADS / 32) + threadIdx.x / 32, k = quad * QUAD + threadIdx.x % 32 * 4;
    const float *floats = (const float *)x + (long)row * inputs;
    float factor = 1.0f;
    if (kind == 0) factor = rsqrtf(sum_of_squares(floats, inputs) / (float)inputs + eps);
    if (quad >= quads) return;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (k < inputs) {
        if (kind == 0 || kind == 3) v = *(const float4 *)(floats + k);
        if (kind == 0) {
            float4 g = *(const float4 *)(gain + k);
            v = make_float4(v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w);
        } else if (kind == 1) v = four_bf16((const u16 *)x + (long)row * inputs + k);
        else if (kind == 2) {
            const float *gates = (const float *)x + (long)row * 2 * inputs + k;
            float4 g = *(const float4 *)gates, u = *(const float4 *)(gates + inputs);
            v = make_float4(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
        }
    }
    quantise(a, row, quads, quad, v);
}
#endif
