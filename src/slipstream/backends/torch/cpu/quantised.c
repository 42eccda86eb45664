/* ---- quantised weights ---------------------------------------------------------------------------------------
 *
 * A weight is scale * code + minimum, with one scale and minimum for a group of 32 or 16 inputs. The activations of a
 * row are quantised too: code = round(x / scale) with scale = max |x| / 127 of each group of 32. So a group of a product
 * is a sum of whole numbers, which is exact in every order, and then, in this order and rounded once each:
 *
 *     sum += (sum of code * code) * (weight's scale * row's scale)
 *     sum += minimum * (row's scale * sum of the row's codes)
 *
 * This is the same on every processor and for every number of rows.
 *
 * Outputs are interleaved, QUANT_TILE at a time, as many as a vector has 32-bit lanes: a group of a tile is 8 vectors of
 * 4 inputs of each output. Of 4-bit codes, vector j has inputs 4 j to 4 j + 3 in the low halves of its bytes, and 16 more
 * in the high ones. Scales and minimums lie in arrays of their own, [tiles][groups][QUANT_TILE].
 */
#define GROUP 32
#define MAGIC 12582912.0f /* 1.5 * 2^23: a float that has a small whole number in its low bits, if it is added */
#define MAGIC_BITS 0x4B400000

#if defined(SLIP_PORTABLE) /* for tests: what a processor without any of the others runs */
#define QUANT_TILE 4
#define UNSIGNED_CODES 0
#elif defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512F__)
#define QUANT_TILE 16
#define UNSIGNED_CODES 1 /* the processor multiplies unsigned by signed bytes: 8-bit codes are stored plus 128 */
#elif defined(__AVX512BW__) && defined(__AVX512F__) && !defined(__AVXVNNI__)
#define QUANT_TILE 16
#define UNSIGNED_CODES 0
#elif defined(__AVX2__) && defined(__FMA__) && (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
#define QUANT_TILE 8
#define UNSIGNED_CODES 1
#elif defined(__AVX2__) && defined(__FMA__)
#define QUANT_TILE 8
#define UNSIGNED_CODES 0
#else
#define QUANT_TILE 4
#define UNSIGNED_CODES 0
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD) && !defined(SLIP_PORTABLE)
#define HAS_DOT
#endif
#if defined(HAS_DOT) && defined(__ARM_FEATURE_MATMUL_INT8) && !defined(SLIP_NO_PAIRS)
#define PAIRS 1 /* the processor multiplies two rows by two outputs, 8 inputs at a time */
#else
#define PAIRS 0
#endif
int slip_quant_tile(void) { return QUANT_TILE; }
int slip_unsigned_codes(void) { return UNSIGNED_CODES; }

/* The quantised rows of one product. */
struct acts {
    int8_t *codes;      /* [rows, inputs]; in pairs [rows / 2, inputs / 8, 2, 8] */
    float *scale;       /* [groups, stride], the rows of a group side by side; so are the others */
    float *shift;       /* [groups, stride] scale * sum of codes */
    float *half_shift;  /* [2 groups, stride] the same of 16 inputs each */
    int32_t *half_sum;  /* [2 groups, stride] */
    long inputs, stride;
    int in_pairs;
};

/* From here on rows lie in pairs. By LLVM's model of a Neoverse-N2, a group of 4-bit codes takes 50 cycles for eight
 * rows in pairs and 54 one by one, for four of them 30 either way; scales of 16 inputs take 67 and 60. */
#define PAIRED_ROWS 8

static long acts_stride(long rows) { return (rows + 7) / 4 * 4; } /* a vector of 4 may begin at any row */

static long code_bytes(long rows, long inputs) { return (PAIRS ? (rows + 1) / 2 * 2 : rows) * inputs; }

/* Floats of room that the acts of `rows` rows take. */
static long acts_floats(long rows, long inputs) {
    return (code_bytes(rows, inputs) + 63) / 64 * 16 + 6 * ((inputs + GROUP - 1) / GROUP) * acts_stride(rows);
}

static struct acts acts_in(float *room, long rows, long inputs, int in_pairs) {
    long stride = acts_stride(rows), groups = inputs / GROUP;
    float *scale = room + (code_bytes(rows, inputs) + 63) / 64 * 16;
    return (struct acts){(int8_t *)room,
                         scale,
                         scale + groups * stride,
                         scale + 2 * groups * stride,
                         (int32_t *)(scale + 4 * groups * stride),
                         inputs,
                         stride,
                         in_pairs};
}

/* Where the codes of a group of a row begin. Each 8 of a row in a pair are followed by 8 of the other. */
static inline int8_t *group_codes(const struct acts *a, long row, long group) {
    if (!PAIRS || !a->in_pairs) return a->codes + row * a->inputs + group * GROUP;
    return a->codes + (row & ~1L) * a->inputs + group * 2 * GROUP + (row & 1) * 8;
}

/* The largest |x| of a group; infinite or NaN if any of them is. As whole numbers, floats without signs keep their order. */
static inline float largest(const float *x) {
    ivec top = {0};
    for (int i = 0; i < GROUP; i += WIDTH) {
        ivec bits = (ivec)load_f32(x, i) & 0x7fffffff, above = bits > top;
        top = (above & bits) | (~above & top);
    }
    int32_t most = top_of(top);
    float value;
    memcpy(&value, &most, 4);
    return value;
}

static inline void quantise_group(const struct acts *a, long row, long group, const float *x) {
    float top = largest(x), scale = top / 127.0f, inverse = 127.0f / top;
    if (!(top < INFINITY)) scale = NAN; /* what comes out is then no number either */
    if (!(top < INFINITY) || top < 1e-30f) inverse = 0.0f;
    int8_t *codes = group_codes(a, row, group);
    int32_t sums[2];
    for (int half = 0; half < 2; half++) {
        ivec sum = {0};
        for (int i = half * 16; i < half * 16 + 16; i += WIDTH) {
            ivec code = inverse == 0.0f ? sum : (ivec)fused(splat(MAGIC), load_f32(x, i), splat(inverse)) - MAGIC_BITS;
            store_bytes(codes + (PAIRS && a->in_pairs ? i / 8 * 16 + i % 8 : i), code);
            sum += code;
        }
        sums[half] = whole_sum_of(sum);
    }
    long at = group * a->stride + row, first = 2 * group * a->stride + row;
    a->scale[at] = scale;
    a->shift[at] = scale * (float)(sums[0] + sums[1]);
    a->half_shift[first] = scale * (float)sums[0];
    a->half_shift[first + a->stride] = scale * (float)sums[1];
    a->half_sum[first] = sums[0];
    a->half_sum[first + a->stride] = sums[1];
}

static void quantise_groups(const struct acts *a, long row, long from, long to, const float *x) {
    for (long g = from; g < to; g++) quantise_group(a, row, g, x + g * GROUP);
}

/* ---- vectors of a tile: qf has a float of each output, qb 4 codes of each output ---- */

/* How scales are stored: half precision for each group; or a byte for each group of 32 or 16, times a float of several */
enum { HALF, BYTES, BYTES16 };
enum { NO_MINIMUM, MINIMUM, OFFSET }; /* OFFSET: the minimum is the scale times a number that all have in common */

struct part { /* some outputs of a product, all stored alike */
    const void *codes, *scales, *minimums;
    const float *supers, *super_minimums; /* [tiles][inputs / 32 / super][QUANT_TILE] */
    int64_t first, outputs;               /* where they stand among the outputs of the product */
    int64_t super;                        /* groups of 32 that have a float in common */
    float offset;
    int32_t layout;
};

/* Some rows of a group, or of half of one. Pointers that move on from group to group: computing places anew in each
 * would take as many instructions as the products of a row. */
struct group_rows {
    const int8_t *codes;
    const float *scale, *shift;
    const int32_t *half_sum;
    long inputs, stride;
};

static inline struct group_rows first_rows(const struct acts *a, long row, const int in_halves) {
    return (struct group_rows){a->codes + row * a->inputs,
                               a->scale + row,
                               (in_halves ? a->half_shift : a->shift) + row,
                               a->half_sum + row,
                               a->inputs,
                               a->stride};
}

/* Four rows further on. */
static inline struct group_rows next_rows(struct group_rows rows) {
    return (struct group_rows){rows.codes + 4 * rows.inputs, rows.scale + 4, rows.shift + 4, rows.half_sum + 4,
                               rows.inputs,                  rows.stride};
}

static inline float half_to_float(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float value;
    memcpy(&value, &magnitude, 4);
    value *= 5.192296858534828e+33f; /* 2^112: the difference of the exponents' biases */
    if ((h & 0x7c00) == 0x7c00) value = h & 0x3ff ? NAN : INFINITY;
    return sign ? -value : value;
}

#ifdef HAS_DOT
#include <arm_neon.h>
typedef float32x4_t qf;
typedef int8x16_t qb;

static inline qf qf_zero(void) { return vdupq_n_f32(0.0f); }
static inline qf qf_times(qf a, qf b) { return vmulq_f32(a, b); }
static inline qf qf_scaled(qf a, float b) { return vmulq_n_f32(a, b); }
static inline qf qf_load(const float *at) { return vld1q_f32(at); }
static inline void qf_store(float *at, qf v) { vst1q_f32(at, v); }
static inline qf qf_halves(const uint16_t *at) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at))); }
/* 2^23 plus a byte without its sign is a float with the byte in its lowest bits; a conversion would take longer. */
static inline qf qf_bytes(const int8_t *at) {
    static const uint8_t spread[16] = {0, 255, 255, 255, 1, 255, 255, 255, 2, 255, 255, 255, 3, 255, 255, 255};
    uint8x16_t four;
    __asm__("ldr %s0, %1" : "=w"(four) : "m"(*(const int8_t(*)[4])at)); /* compilers add a move */
    uint8x16_t bytes = vqtbl1q_u8(four, vld1q_u8(spread));
    uint32x4_t raised = veorq_u32(vreinterpretq_u32_u8(bytes), vdupq_n_u32(0x4B000080));
    return vsubq_f32(vreinterpretq_f32_u32(raised), vdupq_n_f32(8388608.0f + 128.0f));
}
static inline void load_4_bits(const uint8_t *at, qb w[8]) {
    for (int j = 0; j < 4; j++) {
        uint8x16_t both = vld1q_u8(at + 16 * j);
        w[j] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
        w[j + 4] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
    }
}
static inline void load_8_bits(const uint8_t *at, qb w[8]) {
    for (int j = 0; j < 8; j++) w[j] = vld1q_s8((const int8_t *)at + 16 * j);
}

/* The products of 1 to 4 rows with a group are written out, because compilers put them in an order in which the
 * processor waits (measured on a Neoverse-N1: 41 cycles for 4 rows, this 33). A sum starts as the bits of MAGIC, so that
 * it is a float when it is complete: converting takes as long as 4 multiplications. The memory that they read is not
 * declared: it was written before the tile's function was called. */
static const int32_t magic_bits[4] __attribute__((aligned(16))) = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
#define SDOT(SUM, W, X, LANE) "sdot v" #SUM ".4s, %[w" #W "].16b, v" #X ".4b[" #LANE "]\n"
#define DOT_1(W, LANE) SDOT(28, W, 24, LANE)
#define DOT_2(W, LANE) DOT_1(W, LANE) SDOT(29, W, 25, LANE)
#define DOT_3(W, LANE) DOT_2(W, LANE) SDOT(30, W, 26, LANE)
#define DOT_4(W, LANE) DOT_3(W, LANE) SDOT(31, W, 27, LANE)
#define START(N) "ldr q2" #N ", [%[magic]]\n"
#define START_1 START(8)
#define START_2 START_1 START(9)
#define START_3 START_2 "ldr q30, [%[magic]]\n"
#define START_4 START_3 "ldr q31, [%[magic]]\n"
#define ROW_1(AT) "ldr q24, [%[x0], #" #AT "]\n"
#define ROW_2(AT) ROW_1(AT) "ldr q25, [%[x1], #" #AT "]\n"
#define ROW_3(AT) ROW_2(AT) "ldr q26, [%[x2], #" #AT "]\n"
#define ROW_4(AT) ROW_3(AT) "ldr q27, [%[x3], #" #AT "]\n"
#define DOTS_16(N) ROW_##N(0) DOT_##N(0, 0) DOT_##N(1, 1) DOT_##N(2, 2) DOT_##N(3, 3)
#define DOTS_32(N) DOTS_16(N) ROW_##N(16) DOT_##N(4, 0) DOT_##N(5, 1) DOT_##N(6, 2) DOT_##N(7, 3)
#define SCALE_OF(X, LANE) "fmul v" #X ".4s, %[s].4s, v22.s[" #LANE "]\n"
#define SCALE_1 "ldr q22, [%[scale]]\n" SCALE_OF(24, 0)
#define SCALE_2 SCALE_1 SCALE_OF(25, 1)
#define SCALE_3 SCALE_2 SCALE_OF(26, 2)
#define SCALE_4 SCALE_3 SCALE_OF(27, 3)
#define FLOAT_OF(SUM) "fsub v" #SUM ".4s, v" #SUM ".4s, %[magic_float].4s\n"
#define FLOAT_1 FLOAT_OF(28)
#define FLOAT_2 FLOAT_1 FLOAT_OF(29)
#define FLOAT_3 FLOAT_2 FLOAT_OF(30)
#define FLOAT_4 FLOAT_3 FLOAT_OF(31)
#define ADD_OF(T, SUM, X) "fmla %[t" #T "].4s, v" #SUM ".4s, v" #X ".4s\n"
#define ADD_1 ADD_OF(0, 28, 24)
#define ADD_2 ADD_1 ADD_OF(1, 29, 25)
#define ADD_3 ADD_2 ADD_OF(2, 30, 26)
#define ADD_4 ADD_3 ADD_OF(3, 31, 27)
#define SHIFT_OF(T) "fmla %[t" #T "].4s, %[m].4s, v23.s[" #T "]\n"
#define SHIFT_1 "ldr q23, [%[shift]]\n" SHIFT_OF(0)
#define SHIFT_2 SHIFT_1 SHIFT_OF(1)
#define SHIFT_3 SHIFT_2 SHIFT_OF(2)
#define SHIFT_4 SHIFT_3 SHIFT_OF(3)
#define NO_SHIFT(N) ""
#define WITH_SHIFT(N) SHIFT_##N
#define SUMS_1 [t0] "+w"(t[0])
#define SUMS_2 SUMS_1, [t1] "+w"(t[1])
#define SUMS_3 SUMS_2, [t2] "+w"(t[2])
#define SUMS_4 SUMS_3, [t3] "+w"(t[3])
#define ROWS_1 [x0] "r"(x)
#define ROWS_2 ROWS_1, [x1] "r"(x + rows.inputs)
#define ROWS_3 ROWS_2, [x2] "r"(x + 2 * rows.inputs)
#define ROWS_4 ROWS_3, [x3] "r"(x + 3 * rows.inputs)
#define CODES_16 [w0] "w"(w[0]), [w1] "w"(w[1]), [w2] "w"(w[2]), [w3] "w"(w[3])
#define CODES_32 CODES_16, [w4] "w"(w[4]), [w5] "w"(w[5]), [w6] "w"(w[6]), [w7] "w"(w[7])
#define ADD_ROWS(N, LENGTH, SHIFT)                                                                                  \
    __asm__ volatile(START_##N DOTS_##LENGTH(N) SCALE_##N FLOAT_##N ADD_##N SHIFT(N)                                \
                     : SUMS_##N                                                                                     \
                     : CODES_##LENGTH, [s] "w"(s), [m] "w"(m), [magic_float] "w"(magic), [magic] "r"(magic_bits),   \
                       ROWS_##N, [scale] "r"(rows.scale), [shift] "r"(rows.shift)                                   \
                     : "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")
#define ADD_COUNT(N)                                                                                                \
    if (length == 32 && has_minimum) ADD_ROWS(N, 32, WITH_SHIFT);                                                   \
    else if (length == 32) ADD_ROWS(N, 32, NO_SHIFT);                                                               \
    else if (has_minimum) ADD_ROWS(N, 16, WITH_SHIFT);                                                              \
    else ADD_ROWS(N, 16, NO_SHIFT)

/* Adds a group (or half of one: `length` 16) of 1 to 4 rows to their sums t. */
static inline __attribute__((always_inline)) void add_rows(qf *t, const qb *w, qf s, qf m, struct group_rows rows,
                                                           const int count, const int length, const int bits,
                                                           const int has_minimum) {
    const int8_t *x = rows.codes;
    const qf magic = vdupq_n_f32(MAGIC);
    if (count == 1) { ADD_COUNT(1); }
    if (count == 2) { ADD_COUNT(2); }
    if (count == 3) { ADD_COUNT(3); }
    if (count == 4) { ADD_COUNT(4); }
}

#if PAIRS
/* 4 inputs of 4 outputs each become 8 inputs of 2 outputs each. */
static inline void zip_codes(qb *w) {
    for (int j = 0; j < 8; j += 2) {
        int32x4_t low = vreinterpretq_s32_s8(w[j]), high = vreinterpretq_s32_s8(w[j + 1]);
        w[j] = vreinterpretq_s8_s32(vzip1q_s32(low, high));
        w[j + 1] = vreinterpretq_s8_s32(vzip2q_s32(low, high));
    }
}

/* The sums of a row, as bits of MAGIC plus them, to those that it has. */
#define ADD_ROW(R, SUMS)                                                                                            \
    if (first + R < count) {                                                                                        \
        t[R] = vfmaq_f32(t[R], vsubq_f32(vreinterpretq_f32_s32(SUMS), magic), vmulq_laneq_f32(s, scale, R));        \
        if (has_minimum) t[R] = vfmaq_laneq_f32(t[R], m, shift, R);                                                 \
    }

/* Adds a group of 1 to 4 rows in pairs to their sums t; `w` is zipped. */
static inline __attribute__((always_inline)) void add_pairs(qf *t, const qb *w, qf s, qf m, struct group_rows rows,
                                                            const int first, const int count, const int has_minimum) {
    const qf magic = vdupq_n_f32(MAGIC), scale = vld1q_f32(rows.scale);
    const qf shift = has_minimum ? vld1q_f32(rows.shift) : magic;
    int32x4_t low[2], high[2]; /* of each pair: outputs 0 and 1 of both rows, 2 and 3 */
    for (int pair = 0; pair < 2; pair++) {
        low[pair] = high[pair] = vld1q_s32(magic_bits);
        if (first + 2 * pair >= count) continue;
        for (int j = 0; j < 4; j++) {
            int8x16_t both = vld1q_s8(rows.codes + 2 * pair * rows.inputs + 16 * j);
            low[pair] = vmmlaq_s32(low[pair], w[2 * j], both);
            high[pair] = vmmlaq_s32(high[pair], w[2 * j + 1], both);
        }
    }
    ADD_ROW(0, vuzp1q_s32(low[0], high[0]))
    ADD_ROW(1, vuzp2q_s32(low[0], high[0]))
    ADD_ROW(2, vuzp1q_s32(low[1], high[1]))
    ADD_ROW(3, vuzp2q_s32(low[1], high[1]))
}
#endif

#else
#if QUANT_TILE > 4
/* V(mul_ps) is _mm512_mul_ps or _mm256_mul_ps, VI(and) the one for whole numbers. */
#if QUANT_TILE == 16
typedef __m512 qf;
typedef __m512i qb;
#define V(OPERATION) _mm512_##OPERATION
#define VI(OPERATION) _mm512_##OPERATION##_si512
#define LOAD_HALVES(AT) _mm256_loadu_si256((const __m256i *)(AT))
#define LOAD_BYTES(AT) _mm_loadu_si128((const __m128i *)(AT))
#define DPBUSD _mm512_dpbusd_epi32
#define SIGNED_AS(X, W) _mm512_mask_sub_epi8(X, _mm512_movepi8_mask(W), _mm512_setzero_si512(), X)
#else
typedef __m256 qf;
typedef __m256i qb;
#define V(OPERATION) _mm256_##OPERATION
#define VI(OPERATION) _mm256_##OPERATION##_si256
#define LOAD_HALVES(AT) _mm_loadu_si128((const __m128i *)(AT))
#define LOAD_BYTES(AT) _mm_loadl_epi64((const __m128i *)(AT))
#ifdef __AVXVNNI__
#define DPBUSD _mm256_dpbusd_avx_epi32
#else
#define DPBUSD _mm256_dpbusd_epi32
#endif
#define SIGNED_AS(X, W) _mm256_sign_epi8(X, W)
#endif
static inline qf qf_zero(void) { return V(setzero_ps)(); }
static inline qf qf_times(qf a, qf b) { return V(mul_ps)(a, b); }
static inline qf qf_scaled(qf a, float b) { return V(mul_ps)(a, V(set1_ps)(b)); }
static inline qf qf_fused(qf sum, qf a, float b) { return V(fmadd_ps)(a, V(set1_ps)(b), sum); }
static inline qf qf_fused_all(qf sum, qf a, qf b) { return V(fmadd_ps)(a, b, sum); }
static inline qf qf_load(const float *at) { return V(loadu_ps)(at); }
static inline void qf_store(float *at, qf v) { V(storeu_ps)(at, v); }
#if QUANT_TILE == 16 || defined(__F16C__)
static inline qf qf_halves(const uint16_t *at) { return V(cvtph_ps)(LOAD_HALVES(at)); }
#else
static inline qf qf_halves(const uint16_t *at) {
    float out[QUANT_TILE];
    for (int i = 0; i < QUANT_TILE; i++) out[i] = half_to_float(at[i]);
    return qf_load(out);
}
#endif
static inline qf qf_bytes(const int8_t *at) { return V(cvtepi32_ps)(V(cvtepi8_epi32)(LOAD_BYTES(at))); }
static inline void load_8_bits(const uint8_t *at, qb w[8]) {
    for (int j = 0; j < 8; j++) w[j] = VI(loadu)((const qb *)at + j);
}
static inline void load_4_bits(const uint8_t *at, qb w[8]) {
    for (int j = 0; j < 4; j++) {
        qb both = VI(loadu)((const qb *)at + j), low = V(set1_epi8)(15);
        w[j] = VI(and)(both, low);
        w[j + 4] = VI(and)(V(srli_epi16)(both, 4), low);
    }
}
static inline qb four_inputs(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return V(set1_epi32)(four);
}
#if UNSIGNED_CODES
static inline qf dot_group(const qb *w, const int8_t *x, const int length, const int bits, int32_t start) {
    qb sum = V(set1_epi32)(start);
    for (int j = 0; j < length / 4; j++) sum = DPBUSD(sum, w[j], four_inputs(x + 4 * j));
    return V(cvtepi32_ps)(sum);
}
#else
/* Pairs are added in 16 bits. 4-bit codes: 8 pairs are at most 8 * 2 * 15 * 127 = 30480, so all are. */
static inline qf dot_group(const qb *w, const int8_t *x, const int length, const int bits, int32_t start) {
    const qb ones = V(set1_epi16)(1);
    qb sum = VI(setzero)();
    for (int j = 0; j < length / 4; j++) {
        qb four = four_inputs(x + 4 * j);
        if (bits == 4) {
            sum = V(add_epi16)(sum, V(maddubs_epi16)(w[j], four));
        } else {
            qb pairs = V(maddubs_epi16)(V(abs_epi8)(w[j]), SIGNED_AS(four, w[j]));
            sum = V(add_epi32)(sum, V(madd_epi16)(pairs, ones));
        }
    }
    return V(cvtepi32_ps)(bits == 4 ? V(madd_epi16)(sum, ones) : sum);
}
#endif
#else /* any processor */
typedef struct { float v[QUANT_TILE]; } qf;
typedef struct { int8_t v[4 * QUANT_TILE]; } qb;
#define EACH for (int i = 0; i < QUANT_TILE; i++)
static inline qf qf_zero(void) { return (qf){{0}}; }
static inline qf qf_times(qf a, qf b) { EACH a.v[i] *= b.v[i]; return a; }
static inline qf qf_scaled(qf a, float b) { EACH a.v[i] *= b; return a; }
static inline qf qf_fused(qf sum, qf a, float b) { EACH sum.v[i] += a.v[i] * b; return sum; }
static inline qf qf_fused_all(qf sum, qf a, qf b) { EACH sum.v[i] += a.v[i] * b.v[i]; return sum; }
static inline qf qf_load(const float *at) { qf v; memcpy(&v, at, sizeof v); return v; }
static inline void qf_store(float *at, qf v) { memcpy(at, &v, sizeof v); }
static inline qf qf_halves(const uint16_t *at) { qf v; EACH v.v[i] = half_to_float(at[i]); return v; }
static inline qf qf_bytes(const int8_t *at) { qf v; EACH v.v[i] = (float)at[i]; return v; }
static inline void load_4_bits(const uint8_t *at, qb w[8]) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4 * QUANT_TILE; i++) {
            w[j].v[i] = at[4 * QUANT_TILE * j + i] & 15;
            w[j + 4].v[i] = at[4 * QUANT_TILE * j + i] >> 4;
        }
}
static inline void load_8_bits(const uint8_t *at, qb w[8]) { memcpy(w, at, 8 * sizeof(qb)); }
static inline qf dot_group(const qb *w, const int8_t *x, const int length, const int bits, int32_t start) {
    int32_t sum[QUANT_TILE] = {0};
    for (int j = 0; j < length / 4; j++)
        for (int i = 0; i < 4 * QUANT_TILE; i++) sum[i / 4] += w[j].v[i] * x[4 * j + i % 4];
    qf v;
    EACH v.v[i] = (float)sum[i];
    return v;
}
#endif

/* Adds a group (or half of one: `length` 16) of 1 to 4 rows to their sums t. */
static inline __attribute__((always_inline)) void add_rows(qf *t, const qb *w, qf s, qf m, struct group_rows rows,
                                                           const int count, const int length, const int bits,
                                                           const int has_minimum) {
    for (int r = 0; r < count; r++) {
        int32_t start = 0;
        if (UNSIGNED_CODES && bits == 8)
            start = -128 * (rows.half_sum[r] + (length == 32 ? rows.half_sum[rows.stride + r] : 0));
        qf sum = dot_group(w, rows.codes + r * rows.inputs, length, bits, start);
        t[r] = qf_fused_all(t[r], sum, qf_scaled(s, rows.scale[r]));
        if (has_minimum) t[r] = qf_fused(t[r], m, rows.shift[r]);
    }
}
#endif

/* ---- tiles ---- */

#define QUANT_ROWS 8 /* rows that share one unpacking of the codes: their sums stay in registers */

/* Where the scales and minimums of a group are, and what they are multiplied with. */
struct scales {
    const char *scale, *minimum;
    qf super, super_minimum;
};

/* Scale and minimum of a group; then those of the next are next. */
static inline __attribute__((always_inline)) void read_scale(struct scales *at, float offset, const int scale,
                                                             const int minimum, qf *s, qf *m) {
    const long step = QUANT_TILE * (scale == HALF ? 2 : 1);
    if (scale == HALF) {
        *s = qf_halves((const uint16_t *)at->scale);
        if (minimum == MINIMUM) *m = qf_halves((const uint16_t *)at->minimum);
    } else {
        *s = qf_times(at->super, qf_bytes((const int8_t *)at->scale));
        if (minimum == MINIMUM) *m = qf_times(at->super_minimum, qf_bytes((const int8_t *)at->minimum));
    }
    if (minimum == OFFSET) *m = qf_scaled(*s, offset);
    at->scale += step;
    if (minimum == MINIMUM) at->minimum += step;
}

static inline __attribute__((always_inline)) void add_group(qf *t, const qb *w, qf s, qf m, struct group_rows rows,
                                                            const int count, const int length, const int bits,
                                                            const int minimum, const int in_pairs) {
#if PAIRS
    if (in_pairs) {
        add_pairs(t, w, s, m, rows, 0, count, minimum != NO_MINIMUM);
        if (count > 4) add_pairs(t + 4, w, s, m, next_rows(rows), 4, count, minimum != NO_MINIMUM);
        return;
    }
#endif
    add_rows(t, w, s, m, rows, count > 4 ? 4 : count, length, bits, minimum != NO_MINIMUM);
    if (count > 4) add_rows(t + 4, w, s, m, next_rows(rows), count - 4, length, bits, minimum != NO_MINIMUM);
}

/* Bytes of codes that are asked for ahead: the processor's own guesses end with a page. A step of SmolLM2 took 12 % less
 * on a Xeon with 4096, 9 to 11 % with 1024 to 8192, and 25 % more where caches were to be spared (locality 0). */
#define AHEAD 4096

/* out[count][QUANT_TILE]: `count` rows from `row` on, times the outputs of a tile. */
static inline __attribute__((always_inline)) void quant_tile(const struct part *p, long tile, const struct acts *a, long row,
                                                             float *out, const int count, const int bits, const int scale,
                                                             const int minimum) {
    const int in_halves = scale == BYTES16, in_pairs = PAIRS && !in_halves && a->in_pairs;
    const long groups = a->inputs / GROUP, super = scale == HALF ? groups : p->super, stride = a->stride;
    const long before = tile * groups * (in_halves ? 2 : 1) * QUANT_TILE * (scale == HALF ? 2 : 1);
    const uint8_t *codes = (const uint8_t *)p->codes + tile * groups * QUANT_TILE * 4 * bits;
    struct group_rows rows = first_rows(a, row, in_halves);
    const long shared = scale == HALF ? 0 : tile * (groups / super) * QUANT_TILE;
    const float *supers = p->supers + shared, *minimums = p->super_minimums + shared;
    qf zero = qf_zero(), s = zero, m = zero;
    struct scales at = {(const char *)p->scales + before, (const char *)p->minimums + before, zero, zero};
    qf t[QUANT_ROWS] = {zero, zero, zero, zero, zero, zero, zero, zero}; /* no loops over it: it would not be registers */
    for (long first = 0; first < groups; first += super) {
        if (scale != HALF) at.super = qf_load(supers), supers += QUANT_TILE;
        if (scale != HALF && minimum == MINIMUM) at.super_minimum = qf_load(minimums), minimums += QUANT_TILE;
        for (long g = 0; g < super; g++) {
            qb w[8];
            if (bits == 4) load_4_bits(codes, w);
            else load_8_bits(codes, w);
            for (int line = 0; line < QUANT_TILE * 4 * bits; line += 64) __builtin_prefetch(codes + AHEAD + line);
            codes += QUANT_TILE * 4 * bits;
#if PAIRS
            if (in_pairs) zip_codes(w);
#endif
            read_scale(&at, p->offset, scale, minimum, &s, &m);
            add_group(t, w, s, m, rows, count, in_halves ? 16 : 32, bits, minimum, in_pairs);
            if (in_halves) {
                struct group_rows second = rows;
                second.codes += 16, second.shift += stride, second.half_sum += stride;
                read_scale(&at, p->offset, scale, minimum, &s, &m);
                add_group(t, w + 4, s, m, second, count, 16, bits, minimum, 0);
            }
            rows.codes += in_pairs ? 2 * GROUP : GROUP, rows.scale += stride, rows.shift += (in_halves ? 2 : 1) * stride;
            rows.half_sum += 2 * stride;
        }
    }
#define STORE_ROW(R) if (count > R) qf_store(out + R * QUANT_TILE, t[R]);
    STORE_ROW(0) STORE_ROW(1) STORE_ROW(2) STORE_ROW(3) STORE_ROW(4) STORE_ROW(5) STORE_ROW(6) STORE_ROW(7)
}

typedef void quant_fn(const struct part *p, long tile, const struct acts *a, long row, float *out);
#define DEFINE_QUANT(NAME, COUNT, BITS, SCALE, MIN)                                                                 \
    static void NAME##COUNT(const struct part *p, long tile, const struct acts *a, long row, float *out) {          \
        quant_tile(p, tile, a, row, out, COUNT, BITS, SCALE, MIN);                                                  \
    }
#define DEFINE_QUANTS(NAME, BITS, SCALE, MIN)                                                                       \
    DEFINE_QUANT(NAME, 1, BITS, SCALE, MIN) DEFINE_QUANT(NAME, 2, BITS, SCALE, MIN)                                 \
    DEFINE_QUANT(NAME, 3, BITS, SCALE, MIN) DEFINE_QUANT(NAME, 4, BITS, SCALE, MIN)                                 \
    DEFINE_QUANT(NAME, 5, BITS, SCALE, MIN) DEFINE_QUANT(NAME, 6, BITS, SCALE, MIN)                                 \
    DEFINE_QUANT(NAME, 7, BITS, SCALE, MIN) DEFINE_QUANT(NAME, 8, BITS, SCALE, MIN)
#define QUANTS_OF(NAME) {NAME##1, NAME##2, NAME##3, NAME##4, NAME##5, NAME##6, NAME##7, NAME##8}
DEFINE_QUANTS(q4_half_offset, 4, HALF, OFFSET)
DEFINE_QUANTS(q4_half_min, 4, HALF, MINIMUM)
DEFINE_QUANTS(q4_bytes_min, 4, BYTES, MINIMUM)
DEFINE_QUANTS(q4_bytes16_min, 4, BYTES16, MINIMUM)
DEFINE_QUANTS(q4_bytes16_offset, 4, BYTES16, OFFSET)
DEFINE_QUANTS(q8_half, 8, HALF, NO_MINIMUM)
DEFINE_QUANTS(q8_half_min, 8, HALF, MINIMUM)
DEFINE_QUANTS(q8_bytes, 8, BYTES, NO_MINIMUM)
DEFINE_QUANTS(q8_bytes_min, 8, BYTES, MINIMUM)
DEFINE_QUANTS(q8_bytes16, 8, BYTES16, NO_MINIMUM)

/* In the order of LAYOUTS in weights.py. */
static const struct { int bits, scale, minimum; quant_fn *tiles[QUANT_ROWS]; } quants[] = {
    {4, HALF, OFFSET, QUANTS_OF(q4_half_offset)},
    {4, HALF, MINIMUM, QUANTS_OF(q4_half_min)},
    {4, BYTES, MINIMUM, QUANTS_OF(q4_bytes_min)},
    {4, BYTES16, MINIMUM, QUANTS_OF(q4_bytes16_min)},
    {4, BYTES16, OFFSET, QUANTS_OF(q4_bytes16_offset)},
    {8, HALF, NO_MINIMUM, QUANTS_OF(q8_half)},
    {8, HALF, MINIMUM, QUANTS_OF(q8_half_min)},
    {8, BYTES, NO_MINIMUM, QUANTS_OF(q8_bytes)},
    {8, BYTES, MINIMUM, QUANTS_OF(q8_bytes_min)},
    {8, BYTES16, NO_MINIMUM, QUANTS_OF(q8_bytes16)},
};
#define FLOAT_LAYOUTS 3 /* layouts below this are F32, BF16 and F16 */

/* Row `output` of a part as floats: scale * code, then plus the minimum. */
static void unpack_row(const struct part *p, long output, long inputs, float *out) {
    int kind = p->layout - FLOAT_LAYOUTS, bits = quants[kind].bits, scale = quants[kind].scale;
    long tile = output / QUANT_TILE, lane = output % QUANT_TILE, groups = inputs / GROUP;
    for (long k = 0; k < inputs; k++) {
        long group = tile * groups + k / GROUP, own = scale == BYTES16 ? 2 * group + k % GROUP / 16 : group;
        long chunk = k % GROUP / 4, at = own * QUANT_TILE + lane, byte = lane * 4 + k % 4;
        const uint8_t *codes = (const uint8_t *)p->codes + group * QUANT_TILE * 4 * bits;
        int code;
        if (bits == 4) code = codes[(chunk % 4) * 4 * QUANT_TILE + byte] >> (chunk < 4 ? 0 : 4) & 15;
        else code = UNSIGNED_CODES ? codes[chunk * 4 * QUANT_TILE + byte] - 128
                                   : ((const int8_t *)codes)[chunk * 4 * QUANT_TILE + byte];
        float s, m = 0.0f;
        if (scale == HALF) {
            s = half_to_float(((const uint16_t *)p->scales)[at]);
            if (p->minimums) m = half_to_float(((const uint16_t *)p->minimums)[at]);
        } else {
            long super = (tile * (groups / p->super) + k / GROUP / p->super) * QUANT_TILE + lane;
            s = p->supers[super] * (float)((const int8_t *)p->scales)[at];
            if (p->minimums) m = p->super_minimums[super] * (float)((const int8_t *)p->minimums)[at];
        }
        float whole = (float)code + (quants[kind].minimum == OFFSET ? p->offset : 0.0f);
        volatile float product = s * whole; /* rounded by itself, as the file's own unpacking does */
        out[k] = product + m;
    }
}
