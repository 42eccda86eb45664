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
 * 4 c + 3 of each half of a group. All of a tile and a quad is one record. Compiled once for each layout: BITS (of
 * codes: 4, 6 or 8), SCALE, MINIMUM and SUPER_BYTES.
 */
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define HALF 0    /* half precision for each group of 32 */
#define BYTES 1   /* a byte for each group of 32, times a super: a float that several have in common */
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

/* Rows of activations: for each 8 of them and each quad a record. Rows that there are not are computed too, each in
 * columns of its own, and thrown away. */
#define ACT_CODES 0       /* [2 pairs of groups][32 lanes: 4 rows + place of 4 inputs] 16 bytes */
#define ACT_SCALE 1024    /* [4 pairs of rows][4 groups][2] floats; so are the others */
#define ACT_SHIFT 1152    /* scale * sum of codes */
#define ACT_HALVES 1280   /* the sums of the codes of both halves of a group, 16 bits each */
#define ACT_RECORD 1408

/* A kernel may start while the one before it still runs (programmatic dependent launch): what it does before the wait must
 * not read what that one writes. */
#ifndef EMULATED
static __device__ __forceinline__ void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ void wait_for_last_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

/* ---- products ------------------------------------------------------------------------------------------------- */
#ifdef BITS

/* ---- instructions that C++ has no words for; tests run the rest on a CPU, with their own ---- */
#ifndef EMULATED

/* Weights are read once: they leave the first cache to the activations. */
static __device__ __forceinline__ uint4 stream_16(const char *at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

static __device__ __forceinline__ float half_float(u32 bits) {
    float value;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(bits));
    return value;
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

static __device__ __forceinline__ u32 two_bf16(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

#define NUMBERS (MINIMUM == STORED ? 2 : 1) /* of a group: its scale, its minimum */
#define CODE_PARTS (BITS == 8 ? 4 : 2)
#define SCALES_A_QUAD (SCALE == BYTES16 ? 8 : 4)
#define SCALE_BYTES (SCALE == HALF ? 2 : SCALE == FLOAT ? 4 : 1)
#define SCALE_WORDS (2 * NUMBERS * SCALES_A_QUAD * SCALE_BYTES / 4)
#define ROW_WORDS (SCALE_WORDS / 2) /* of one output: its scales, then its minimums */
#define KIND_WORDS (ROW_WORDS / NUMBERS)
#define SUPER_WORDS (SUPER_BYTES * NUMBERS / 2) /* SUPER_BYTES: 2, 4, or 0 where there are none */
#define WIDE_OFFSET 32                          /* 6-bit codes are stored plus this */
#define NEEDS_SHIFT (MINIMUM != NO_MINIMUM && SCALE != BYTES16)
#define NEEDS_HALVES (BITS == 6 || (MINIMUM != NO_MINIMUM && SCALE == BYTES16))

/* The record of a tile and a quad. */
#define HIGH_AT (CODE_PARTS * 512)                     /* [32 lanes] 16 bytes: the two highest of 6 bits */
#define SCALES_AT (HIGH_AT + (BITS == 6 ? 512 : 0))    /* [8][SCALE_WORDS]: of lane / 4, both outputs */
#define SUPERS_AT (SCALES_AT + 32 * SCALE_WORDS)       /* [8][SUPER_WORDS] */
#define RECORD (SUPERS_AT + 32 * SUPER_WORDS)

struct Part {
    const char *records; /* [tiles][quads] */
    int tiles, quads, outputs;
    float offset;
};

struct Outcome {
    void *y; /* [rows, stride] */
    const float *bias;
    int rows, stride, first;
    int kind; /* 0: bf16, 1: float, 2: added to floats */
};

struct Weights {
    u32 codes[CODE_PARTS * 4];
    u32 high[4];
    u32 scales[SCALE_WORDS];
    u32 supers[SUPER_WORDS + 1];
};

template <int WORDS> static __device__ __forceinline__ void read_words(u32 *to, const char *at) {
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        if (WORDS % 4 == 0 && i % 4 == 0) {
            uint4 v = __ldg((const uint4 *)(at + 4 * i));
            to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
        } else if (WORDS % 4 == 2 && i % 2 == 0) {
            uint2 v = __ldg((const uint2 *)(at + 4 * i));
            to[i] = v.x, to[i + 1] = v.y;
        } else if (WORDS % 2) to[i] = __ldg((const u32 *)(at + 4 * i));
    }
}

static __device__ __forceinline__ void read_numbers(Weights &w, const char *record, int output) {
    read_words<SCALE_WORDS>(w.scales, record + SCALES_AT + output * 4 * SCALE_WORDS);
    if constexpr (SUPER_BYTES) read_words<SUPER_WORDS>(w.supers, record + SUPERS_AT + output * 4 * SUPER_WORDS);
}

static __device__ __forceinline__ void read_weights(Weights &w, const char *record, int lane) {
#pragma unroll
    for (int i = 0; i < CODE_PARTS; i++) {
        uint4 v = stream_16(record + i * 512 + lane * 16);
        w.codes[4 * i] = v.x, w.codes[4 * i + 1] = v.y, w.codes[4 * i + 2] = v.z, w.codes[4 * i + 3] = v.w;
    }
    if constexpr (BITS == 6) {
        uint4 v = stream_16(record + HIGH_AT + lane * 16);
        w.high[0] = v.x, w.high[1] = v.y, w.high[2] = v.z, w.high[3] = v.w;
    }
    read_numbers(w, record, lane / 4);
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

/* What bytes are multiplied with. A byte (stored plus 128) becomes a float by its place in one: 2^15 + 128 + byte. With
 * supers of half precision, `super * (2^15 + 128)` is exact, so one fused operation gives super * byte, rounded once. */
struct Supers {
    float each[2][2], less[2][2]; /* of both outputs: of scales, of minimums */
};

static __device__ __forceinline__ Supers supers_of(const Weights &w) {
    Supers s;
    if constexpr (SUPER_BYTES) {
#pragma unroll
        for (int i = 0; i < 2 * NUMBERS; i++) {
            float super = SUPER_BYTES == 4 ? __uint_as_float(w.supers[i]) : half_float(w.supers[i / 2] >> (i % 2 * 16));
            s.each[i / NUMBERS][i % NUMBERS] = super;
            s.less[i / NUMBERS][i % NUMBERS] = -super * (32768.0f + 128.0f);
        }
    }
    return s;
}

/* A number of the scales: `kind` 0 scale, 1 minimum; `i` which of its quad. */
static __device__ __forceinline__ float number(const Weights &w, const Supers &s, int output, int kind, int i) {
    const u32 *words = w.scales + output * ROW_WORDS + kind * KIND_WORDS;
    if constexpr (SCALE == FLOAT) return __uint_as_float(words[i]);
    if constexpr (SCALE == HALF) return half_float(words[i / 2] >> (i % 2 * 16));
    float raised = __uint_as_float(__byte_perm(words[i / 4], 0x47000000, 0x7604 + i % 4 * 16));
    if constexpr (SUPER_BYTES == 4) return s.each[output][kind] * (raised - (32768.0f + 128.0f));
    return __fmaf_rn(s.each[output][kind], raised, s.less[output][kind]);
}

struct Scaled {
    float scale[2], minimum[2]; /* of both outputs */
};

static __device__ __forceinline__ Scaled scales_of(const Weights &w, const Supers &supers, int i, float offset) {
    Scaled s;
#pragma unroll
    for (int output = 0; output < 2; output++) {
        s.scale[output] = number(w, supers, output, 0, i);
        if constexpr (MINIMUM == STORED) s.minimum[output] = number(w, supers, output, 1, i);
        if constexpr (MINIMUM == OFFSET) s.minimum[output] = s.scale[output] * offset;
    }
    return s;
}

/* Rows are read by plain loads: the kernel before may still have been writing them when this one started.
 * What a group of 8 rows brings: the lane's codes; scale, shift and sums of the two rows whose products it gets. */
struct Rows {
    u32 b0, b1;
    float scale[2], shift[2];
    int halves[2];
};

static __device__ __forceinline__ void read_group(Rows &r, const char *record, int group, int lane) {
    uint2 b = *(const uint2 *)(record + ACT_CODES + group / 2 * 512 + lane * 16 + group % 2 * 8);
    r.b0 = b.x, r.b1 = b.y;
    const char *pair = record + lane % 4 * 32 + group * 8;
    float2 v = *(const float2 *)(pair + ACT_SCALE);
    r.scale[0] = v.x, r.scale[1] = v.y;
    if constexpr (NEEDS_SHIFT) {
        v = *(const float2 *)(pair + ACT_SHIFT);
        r.shift[0] = v.x, r.shift[1] = v.y;
    }
    if constexpr (NEEDS_HALVES) {
        int2 h = *(const int2 *)(pair + ACT_HALVES);
        r.halves[0] = h.x, r.halves[1] = h.y;
    }
}

/* All groups of a quad. A lane whose row there is not reads no codes. */
static __device__ __forceinline__ void read_quad(Rows r[4], const char *record, int lane, bool is_row) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (is_row) v = *(const uint4 *)(record + ACT_CODES + i * 512 + lane * 16);
        r[2 * i].b0 = v.x, r[2 * i].b1 = v.y, r[2 * i + 1].b0 = v.z, r[2 * i + 1].b1 = v.w;
        const char *pair = record + lane % 4 * 32 + i * 16;
        float4 f = *(const float4 *)(pair + ACT_SCALE);
        r[2 * i].scale[0] = f.x, r[2 * i].scale[1] = f.y, r[2 * i + 1].scale[0] = f.z, r[2 * i + 1].scale[1] = f.w;
        if constexpr (NEEDS_SHIFT) {
            f = *(const float4 *)(pair + ACT_SHIFT);
            r[2 * i].shift[0] = f.x, r[2 * i].shift[1] = f.y, r[2 * i + 1].shift[0] = f.z, r[2 * i + 1].shift[1] = f.w;
        }
        if constexpr (NEEDS_HALVES) {
            int4 h = *(const int4 *)(pair + ACT_HALVES);
            r[2 * i].halves[0] = h.x, r[2 * i].halves[1] = h.y;
            r[2 * i + 1].halves[0] = h.z, r[2 * i + 1].halves[1] = h.w;
        }
    }
}

static __device__ __forceinline__ int first_half(int halves) { return (int)((u32)halves << 16) >> 16; }
static __device__ __forceinline__ int second_half(int halves) { return halves >> 16; }

/* Where a sum starts: at the bits of MAGIC, so that it is a float when it is complete, less what codes are stored plus. */
static __device__ __forceinline__ int start_of(int sum) { return MAGIC_BITS - (BITS == 6 ? WIDE_OFFSET * sum : 0); }

/* COLUMNS: of the two rows whose products a lane gets. With up to 4 rows, every other one is there. */
template <int COLUMNS>
static __device__ __forceinline__ void add_sums(float t[4], const int d[4], const Scaled &s, const float scale[2],
                                                const float shift[2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (COLUMNS == 1 && i % 2) continue;
        t[i] = __fmaf_rn(__int_as_float(d[i]) - MAGIC, s.scale[i / 2] * scale[i % 2], t[i]);
        if constexpr (MINIMUM != NO_MINIMUM) t[i] = __fmaf_rn(s.minimum[i / 2], shift[i % 2], t[i]);
    }
}

/* A group of one tile and 8 rows. `s` has one entry, or one for each half. */
template <int COLUMNS>
static __device__ __forceinline__ void add_group(float t[4], const u32 a[4], const Scaled *s, const Rows &r) {
    int d[4];
    if constexpr (SCALE == BYTES16) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int sum[2] = {0, 0};
            float shift[2] = {0.0f, 0.0f};
            if constexpr (NEEDS_HALVES) {
#pragma unroll
                for (int i = 0; i < COLUMNS; i++) {
                    sum[i] = half ? second_half(r.halves[i]) : first_half(r.halves[i]);
                    if constexpr (MINIMUM != NO_MINIMUM) shift[i] = r.scale[i] * (float)sum[i];
                }
            }
            multiply_16(d, a + 2 * half, half ? r.b1 : r.b0, start_of(sum[0]), start_of(sum[1]));
            add_sums<COLUMNS>(t, d, s[half], r.scale, shift);
        }
    } else {
        int sum[2] = {0, 0};
        if constexpr (NEEDS_HALVES) {
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) sum[i] = first_half(r.halves[i]) + second_half(r.halves[i]);
        }
        multiply_32(d, a, r.b0, r.b1, start_of(sum[0]), start_of(sum[1]));
        add_sums<COLUMNS>(t, d, s[0], r.scale, r.shift);
    }
}

static __device__ __forceinline__ void put(const Outcome &o, int row, int output, float value) {
    long at = (long)row * o.stride + o.first + output;
    if (o.bias) value += o.bias[o.first + output];
    if (o.kind == 0) ((u16 *)o.y)[at] = (u16)two_bf16(value, 0.0f);
    else if (o.kind == 1) ((float *)o.y)[at] = value;
    else ((float *)o.y)[at] += value;
}

/* 8 NT rows from 8 NT * blockIdx.y on, times the outputs of MT tiles. */
template <int NT, int MT, int COLUMNS>
static __device__ __forceinline__ void product(const Part &p, const char *acts, const Outcome &o) {
    constexpr int OUTPUTS = 16 * MT, STRIDE = OUTPUTS + 4; /* no two lanes of a store in one bank */
    constexpr int APART = 3 - COLUMNS;                     /* where the next row is */
    __shared__ float sums[WARPS][8 * STRIDE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_tile = blockIdx.x * MT;
    const int begin = p.quads * warp / WARPS, end = p.quads * (warp + 1) / WARPS;
    const int row_tile = blockIdx.y * NT, rows_left = o.rows - row_tile * 8;
    const bool is_row = lane / 4 % APART == 0 && lane / 4 / APART < rows_left;
    const char *weights[MT], *rows = acts + ((long)row_tile * p.quads + begin) * ACT_RECORD;
    float t[MT][NT][4] = {};
    Weights now[MT], next[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        weights[m] = p.records + ((long)min(first_tile + m, p.tiles - 1) * p.quads + begin) * RECORD;
        if (begin < end) read_weights(now[m], weights[m], lane);
    }
    start_next_kernel();
    wait_for_last_kernel();
#pragma unroll(NT == 1 ? 2 : 1)
    for (int quad = begin; quad < end; quad++) {
        Rows r[4];
        if (NT == 1) read_quad(r, rows, lane, is_row);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            weights[m] += quad + 1 < end ? RECORD : 0; /* the last reads itself again: cheaper than a branch */
            read_weights(next[m], weights[m], lane);
        }
        Supers supers[MT];
#pragma unroll
        for (int m = 0; m < MT; m++) supers[m] = supers_of(now[m]);
#pragma unroll
        for (int group = 0; group < 4; group++) {
            u32 codes[MT][4];
            Scaled s[MT][2];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                unpack_codes(codes[m], now[m], group);
                s[m][0] = scales_of(now[m], supers[m], SCALE == BYTES16 ? 2 * group : group, p.offset);
                if constexpr (SCALE == BYTES16) s[m][1] = scales_of(now[m], supers[m], 2 * group + 1, p.offset);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                if (NT > 1) read_group(r[group], rows + (long)n * p.quads * ACT_RECORD, group, lane);
#pragma unroll
                for (int m = 0; m < MT; m++) add_group<COLUMNS>(t[m][n], codes[m], s[m], r[group]);
            }
        }
        rows += ACT_RECORD;
#pragma unroll
        for (int m = 0; m < MT; m++) now[m] = next[m];
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float *own = sums[warp] + lane % 4 * 2 * STRIDE + lane / 4;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (COLUMNS == 2 || i % 2 == 0) own[i % 2 * STRIDE + m * 16 + i / 2 * 8] = t[m][n][i];
        __syncthreads();
        for (int i = threadIdx.x; i < 8 / APART * OUTPUTS; i += 32 * WARPS) {
            int row = i / OUTPUTS, output = i % OUTPUTS, to = first_tile * 16 + output;
            float value = sums[0][row * APART * STRIDE + output];
#pragma unroll
            for (int w = 1; w < WARPS; w++) value += sums[w][row * APART * STRIDE + output];
            if (n * 8 + row < rows_left && to < p.outputs) put(o, (row_tile + n) * 8 + row, to, value);
        }
        if (n + 1 < NT) __syncthreads();
    }
}

/* By the tiles of 8 rows, the tiles of outputs, and the columns that are used. */
#define PRODUCT(NT, MT, COLUMNS, BLOCKS)                                                                            \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                                                \
        product_##NT##_##MT##_##COLUMNS(Part p, const char *acts, Outcome o) { product<NT, MT, COLUMNS>(p, acts, o); }
PRODUCT(1, 1, 1, 2)
PRODUCT(1, 2, 1, 2)
PRODUCT(1, 1, 2, 2)
PRODUCT(1, 2, 2, 2)
PRODUCT(2, 2, 2, 2)
PRODUCT(4, 2, 2, 1)
PRODUCT(8, 2, 2, 1)

/* ---- weights as floats ---- */

/* The weight of one output and input, rounded as the file's own unpacking rounds: the product, then the sum. */
static __device__ float weight_at(const Part &p, int output, int input) {
    int tile = output / 16, side = output % 16 / 8, quad = input / QUAD, group = input % QUAD / GROUP;
    int half = input % 32 / 16, lane = output % 8 * 4 + input % 16 / 4, byte = input % 4, code;
    const char *record = p.records + ((long)tile * p.quads + quad) * RECORD, *of_lane = record + lane * 16;
    if (BITS == 8) code = ((const signed char *)of_lane)[group * 512 + (half * 2 + side) * 4 + byte];
    else code = of_lane[group / 2 * 512 + (group % 2 * 2 + side) * 4 + byte] >> (4 * half) & 15;
    if (BITS == 6) code += (of_lane[HIGH_AT + group * 4 + byte] >> (2 * (half * 2 + side)) & 3) * 16 - WIDE_OFFSET;
    if (MINIMUM == OFFSET) code += (int)p.offset;
    Weights w;
    read_numbers(w, record, output % 8);
    const Supers supers = supers_of(w);
    float value = 0.0f;
#pragma unroll
    for (int k = 0; k < SCALES_A_QUAD; k++) /* registers have no index */
#pragma unroll
        for (int s = 0; s < 2; s++)
            if (k == (SCALE == BYTES16 ? 2 * group + half : group) && s == side) {
                value = __fmul_rn(number(w, supers, s, 0, k), (float)code);
                if (MINIMUM == STORED) value = __fadd_rn(value, number(w, supers, s, 1, k));
            }
    return value;
}

/* out[rows, inputs]: rows of a table, by id. */
extern "C" __global__ void embed(Part p, const int *ids, int inputs, float *out) {
    wait_for_last_kernel();
    int id = min(max(ids[blockIdx.x], 0), p.outputs - 1);
    for (int k = blockIdx.y * blockDim.x + threadIdx.x; k < inputs; k += gridDim.y * blockDim.x)
        out[(long)blockIdx.x * inputs + k] = weight_at(p, id, k);
}

/* out[outputs, inputs]: the weights of tiles from `first` on, in bf16. A warp has a tile and a quad. */
extern "C" __global__ void __launch_bounds__(256) unpack(Part p, int first, int inputs, u16 *out) {
    const int lane = threadIdx.x % 32, quad = blockIdx.y * WARPS + threadIdx.x / 32, tile = first + blockIdx.x;
    wait_for_last_kernel();
    if (quad >= p.quads) return;
    Weights w;
    read_weights(w, p.records + ((long)tile * p.quads + quad) * RECORD, lane);
    const Supers supers = supers_of(w);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int group = i / 4, side = i % 2, half = i % 4 / 2, k = quad * QUAD + group * GROUP + half * 16 + lane % 4 * 4;
        const int row = lane / 4 + 8 * side, number_at = SCALE == BYTES16 ? 2 * group + half : group;
        u32 codes[4];
        unpack_codes(codes, w, group);
        const float scale = number(w, supers, side, 0, number_at);
        float value[4];
#pragma unroll
        for (int byte = 0; byte < 4; byte++) {
            int code = (int)(codes[i % 4] << (24 - 8 * byte)) >> 24;
            if (BITS == 6) code -= WIDE_OFFSET;
            if (MINIMUM == OFFSET) code += (int)p.offset;
            value[byte] = __fmul_rn(scale, (float)code);
            if (MINIMUM == STORED) value[byte] = __fadd_rn(value[byte], number(w, supers, side, 1, number_at));
        }
        if (k < inputs && tile * 16 + row < p.outputs)
            *(uint2 *)(out + ((long)blockIdx.x * 16 + row) * inputs + k) =
                make_uint2(two_bf16(value[0], value[1]), two_bf16(value[2], value[3]));
    }
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
static __device__ void quantise(char *acts, int row, int quads, int quad, float4 v) {
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
    char *record = acts + ((long)(row / 8) * quads + quad) * ACT_RECORD;
    char *codes = record + ACT_CODES + group / 2 * 512 + (row % 8 * 4 + at_four % 4) * 16;
    ((u32 *)codes)[group % 2 * 2 + at_four / 4] = word;
    if (at_four == 0) {
        char *place = record + row % 8 / 2 * 32 + group * 8 + row % 2 * 4;
        *(float *)(place + ACT_SCALE) = scale;
        *(float *)(place + ACT_SHIFT) = scale * (float)(sum + other);
        *(int *)(place + ACT_HALVES) = (sum & 0xffff) | other << 16;
    }
}

/* Rows as codes. `kind` 0: x is floats, normed with `gain`; 1: x is bf16; 2: x is floats, gates and then as many ups;
 * 3: x is floats as they are. Rows are put `apart` places from each other. */
extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_rows(const void *x, const float *gain, float eps, int inputs, int quads, int kind, int apart,
                  char *acts) {
    const int row = blockIdx.x, quad = blockIdx.y * (THREADS / 32) + threadIdx.x / 32, k = quad * QUAD + threadIdx.x % 32 * 4;
    const float *floats = (const float *)x + (long)row * inputs;
    float factor = 1.0f;
    start_next_kernel();
    wait_for_last_kernel();
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
    quantise(acts, row * apart, quads, quad, v);
}
#endif
