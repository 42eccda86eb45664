/* Decoder kernels for the CPU, for 1 to a few hundred rows.
 *
 * Each is batch-invariant: what it computes for a row is the same, bit for bit, whatever other rows are computed with
 * it. Every output is one accumulator that takes its terms in one fixed order, so speculative and plain decoding agree
 * exactly and not only nearly. Keep it so: no split reductions that depend on the number of rows, no -ffast-math, and
 * multiply-adds through `fused`. Left to themselves compilers for x86 fuse in one loop and not in another, as they see
 * fit for the processor; so there `fused` is spelled out and -ffp-contract=off. Elsewhere they always fuse (`sum + a * b`
 * with -ffp-contract=fast), and spelling it out would keep the sums from staying in registers.
 *
 * Weights are packed once, [outputs / 16][inputs][16], so that a block of 16 outputs is one straight read.
 * Activations and sums are float; weights may be float, bfloat16 or half.
 */
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#define omp_get_num_threads() 1
#endif

#define BLOCK 16 /* outputs computed together */
#define TILE 6   /* rows computed together: accumulators must stay in registers */

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define VECTORS (BLOCK / WIDTH)

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t uvec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t hvec __attribute__((vector_size(2 * WIDTH)));

/* splat(a): a in all lanes. fused(sum, a, b): sum + a * b, rounded once where the processor can. widened(at): WIDTH
 * bytes as floats. sum_of, whole_sum_of: the sum of all lanes; top_of: the largest; sums_of_4: the sum of each of 4
 * vectors. store_bytes: each lane as a byte, into which it fits. Compilers left to themselves take lanes one by one. */
#if defined(__AVX512F__)
#define HAS_WIDENED
#include <immintrin.h>
static inline vec splat(float a) { return (vec)_mm512_set1_ps(a); }
static inline vec widened(const int8_t *at) {
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
}
static inline vec fused(vec sum, vec a, vec b) { return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum); }
#define HAS_LANES
static inline float sum_of(vec v) { return _mm512_reduce_add_ps((__m512)v); }
static inline void sums_of_4(const vec *v, float *out) {
    __m512 a = (__m512)v[0], b = (__m512)v[1], c = (__m512)v[2], d = (__m512)v[3];
    __m512d ab = (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512d cd = (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 all = _mm512_add_ps((__m512)_mm512_unpacklo_pd(ab, cd), (__m512)_mm512_unpackhi_pd(ab, cd));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), (__m256)_mm512_extractf64x4_pd((__m512d)all, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
static inline int32_t whole_sum_of(ivec v) { return _mm512_reduce_add_epi32((__m512i)v); }
static inline int32_t top_of(ivec v) { return _mm512_reduce_max_epi32((__m512i)v); }
static inline void store_bytes(int8_t *at, ivec v) { _mm_storeu_si128((__m128i *)at, _mm512_cvtepi32_epi8((__m512i)v)); }
#elif defined(__AVX__) && defined(__FMA__)
#include <immintrin.h>
static inline vec splat(float a) { return (vec)_mm256_set1_ps(a); }
#ifdef __AVX2__
#define HAS_WIDENED
static inline vec widened(const int8_t *at) {
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}
#define HAS_LANES
#define UPPER(V) _mm256_extracti128_si256((__m256i)(V), 1)
#define LOWER(V) _mm256_castsi256_si128((__m256i)(V))
static inline float sum_of(vec v) {
    __m128 four = _mm_add_ps(_mm_castsi128_ps(LOWER(v)), _mm_castsi128_ps(UPPER(v)));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline void sums_of_4(const vec *v, float *out) {
    __m256 a = (__m256)v[0], b = (__m256)v[1], c = (__m256)v[2], d = (__m256)v[3];
    __m256d ab = (__m256d)_mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    __m256d cd = (__m256d)_mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256 all = _mm256_add_ps((__m256)_mm256_unpacklo_pd(ab, cd), (__m256)_mm256_unpackhi_pd(ab, cd));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
static inline int32_t whole_sum_of(ivec v) {
    __m128i four = _mm_add_epi32(LOWER(v), UPPER(v)), two = _mm_add_epi32(four, _mm_srli_si128(four, 8));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_si128(two, 4)));
}
static inline int32_t top_of(ivec v) {
    __m128i four = _mm_max_epi32(LOWER(v), UPPER(v)), two = _mm_max_epi32(four, _mm_srli_si128(four, 8));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_srli_si128(two, 4)));
}
static inline void store_bytes(int8_t *at, ivec v) {
    __m128i pairs = _mm_packs_epi32(LOWER(v), UPPER(v));
    _mm_storel_epi64((__m128i *)at, _mm_packs_epi16(pairs, pairs));
}
#endif
static inline vec fused(vec sum, vec a, vec b) { return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum); }
#else
static inline vec splat(float a) { return a - (vec){0}; } /* one instruction; a loop over the lanes is one for each */
static inline vec fused(vec sum, vec a, vec b) { return sum + a * b; }
#endif

#if defined(__ARM_NEON) && defined(__aarch64__)
#define HAS_WIDENED
#include <arm_neon.h>
static inline vec widened(const int8_t *at) {
    int32_t four;
    memcpy(&four, at, sizeof four);
    return (vec)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8((uint32_t)four)))));
}
#endif
#ifndef HAS_WIDENED
static inline vec widened(const int8_t *at) {
    vec v;
    for (int i = 0; i < WIDTH; i++) v[i] = at[i];
    return v;
}
#endif

#ifndef HAS_LANES
static inline float sum_of(vec v) {
    float total = 0.0f;
    for (int i = 0; i < WIDTH; i++) total += v[i];
    return total;
}
#if defined(__ARM_NEON) && defined(__aarch64__)
static inline void sums_of_4(const vec *v, float *out) {
    float32x4_t ab = vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]);
    vst1q_f32(out, vpaddq_f32(ab, vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3])));
}
#else
static inline void sums_of_4(const vec *v, float *out) {
    for (int n = 0; n < 4; n++) out[n] = sum_of(v[n]);
}
#endif
static inline int32_t whole_sum_of(ivec v) {
    int32_t total = 0;
    for (int i = 0; i < WIDTH; i++) total += v[i];
    return total;
}
static inline int32_t top_of(ivec v) {
    int32_t most = v[0];
    for (int i = 1; i < WIDTH; i++) most = v[i] > most ? v[i] : most;
    return most;
}
static inline void store_bytes(int8_t *at, ivec v) {
    for (int i = 0; i < WIDTH; i++) at[i] = (int8_t)v[i];
}
#endif

/* sum += v * a, for the innermost loop: written so that the sums stay in registers. */
#if defined(__AVX__) && (defined(__AVX512F__) || defined(__FMA__))
#define ADD_SCALED(sum, v, a) (sum) = fused(sum, v, splat(a))
#else
#define ADD_SCALED(sum, v, a) (sum) += (v) * (a)
#endif

enum kind { F32 = 0, BF16 = 1, F16 = 2 };

static inline vec load_f32(const void *base, long at) {
    vec v;
    memcpy(&v, (const float *)base + at, sizeof v);
    return v;
}

static inline vec load_bf16(const void *base, long at) {
    hvec h;
    memcpy(&h, (const uint16_t *)base + at, sizeof h);
    uvec u = __builtin_convertvector(h, uvec) << 16;
    return (vec)u;
}

#ifdef __FLT16_MAX__
typedef _Float16 f16vec __attribute__((vector_size(2 * WIDTH)));
static inline vec load_f16(const void *base, long at) {
    f16vec h;
    memcpy(&h, (const _Float16 *)base + at, sizeof h);
    return __builtin_convertvector(h, vec);
}
int slip_has_f16(void) { return 1; }
#else
#define load_f16 load_f32
int slip_has_f16(void) { return 0; }
#endif

/* Not omp_set_num_threads: that holds only for the thread that calls it, and a server decodes in another one. `team`: how
 * many of them work now. */
static int num_threads = 1, team = 1;
void slip_set_threads(int threads) { num_threads = team = threads; }
int slip_team(void) { return team; }

/* Where the threads of a parallel region wait for each other. OpenMP's own barrier keeps its core for milliseconds, so that
 * with another program on the cores the thread that is waited for does not get one. After TURNS turns this one calls
 * sched_yield, which takes half a microsecond where no other thread is ready to run. */
struct meeting {
    atomic_int arrived, number;
    atomic_llong waited_ns; /* with the core offered */
};
static _Thread_local struct meeting *meeting; /* of the region that this thread is in */
#define TURNS 256 /* before a core is offered; a turn takes up to 60 ns */

#if defined(__x86_64__)
#define pause_a_little() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define pause_a_little() __asm__ volatile("isb")
#else
#define pause_a_little()
#endif

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void meet(void) {
    int threads = omp_get_num_threads(), number = atomic_load(&meeting->number);
    if (threads == 1) return;
    if (atomic_fetch_add(&meeting->arrived, 1) == threads - 1) {
        atomic_store(&meeting->arrived, 0);
        atomic_store(&meeting->number, number + 1);
        return;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        if (atomic_load(&meeting->number) != number) return;
        pause_a_little();
    }
    long long from = now_ns();
    while (atomic_load(&meeting->number) == number) sched_yield();
    atomic_fetch_add(&meeting->waited_ns, now_ns() - from);
}

/* Beside other programs a thread may wait for its core for milliseconds, and all others wait for it, hundreds of times in a
 * forward pass. Without one of n threads a pass takes n / (n - 1) of its time; with them, 1 / (1 - w), where they wait w of
 * it. So after SLOW_PASSES in which w was more than 1 / n, one thread less works. One more is tried when TRIED_EVERY times
 * the time of such a pass has gone by. */
#define SLOW_PASSES 3
#define TRIED_EVERY 20
static long long tried_at;
static int is_trial, slow_passes;

static void begin_pass(void) {
    is_trial = team < num_threads && now_ns() > tried_at;
    team += is_trial;
}

static void end_pass(const struct meeting *place, long long took_ns) {
    int is_slow = team > 1 && place->waited_ns / (team - 1) > took_ns / team;
    slow_passes = is_slow ? slow_passes + 1 : 0;
    if (!is_slow || (slow_passes < SLOW_PASSES && !is_trial)) return;
    team--, slow_passes = 0, tried_at = now_ns() + TRIED_EVERY * took_ns;
}

/* ---- linear ------------------------------------------------------------------------------------------------ */

typedef void tile_fn(const void *w, const float *x, long ldx, long inputs, float out[TILE][BLOCK]);

/* rows x 16 outputs; the sum over inputs runs in order, one fused multiply-add a term. */
#define DEFINE_TILE(LOAD, ROWS)                                                                                     \
    static void LOAD##_tile##ROWS(const void *restrict w, const float *restrict x, long ldx, long inputs,           \
                                  float out[TILE][BLOCK]) {                                                         \
        vec sum[ROWS][VECTORS];                                                                                     \
        memset(sum, 0, sizeof sum);                                                                                 \
        for (long k = 0; k < inputs; k++) {                                                                         \
            vec column[VECTORS];                                                                                    \
            for (int j = 0; j < VECTORS; j++) column[j] = LOAD(w, k * BLOCK + j * WIDTH);                           \
            for (int r = 0; r < ROWS; r++) {                                                                        \
                float a = x[r * ldx + k];                                                                           \
                for (int j = 0; j < VECTORS; j++) ADD_SCALED(sum[r][j], column[j], a);                              \
            }                                                                                                       \
        }                                                                                                           \
        memcpy(out, sum, sizeof sum);                                                                               \
    }
#define DEFINE_TILES(LOAD)                                                                                          \
    DEFINE_TILE(LOAD, 1) DEFINE_TILE(LOAD, 2) DEFINE_TILE(LOAD, 3) DEFINE_TILE(LOAD, 4) DEFINE_TILE(LOAD, 5)        \
    DEFINE_TILE(LOAD, 6)
#define TILES_OF(LOAD) {LOAD##_tile1, LOAD##_tile2, LOAD##_tile3, LOAD##_tile4, LOAD##_tile5, LOAD##_tile6}

DEFINE_TILES(load_f32)
DEFINE_TILES(load_bf16)
DEFINE_TILES(load_f16)
static tile_fn *const tiles[3][TILE] = {TILES_OF(load_f32), TILES_OF(load_bf16), TILES_OF(load_f16)};
static const long item_bytes[3] = {4, 2, 2};

/* Rows of the next tile, so that what is left splits evenly: 4 + 4 beats 6 + 2. */
static long tile_rows(long left) {
    long tiles_left = (left + TILE - 1) / TILE;
    if (left > 2 * TILE) return 4;
    return (left + tiles_left - 1) / tiles_left;
}

/* ---- row-wise ---------------------------------------------------------------------------------------------- */

static inline vec load(const float *at) { return load_f32(at, 0); }
static inline void store(float *at, vec v) { memcpy(at, &v, sizeof v); }

/* Four running sums, then a fixed order: quick, and the same for every row. */
static inline float dot(const float *restrict a, const float *restrict b, long n) {
    vec s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    long i = 0;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH) {
        s0 = fused(s0, load(a + i), load(b + i));
        s1 = fused(s1, load(a + i + WIDTH), load(b + i + WIDTH));
        s2 = fused(s2, load(a + i + 2 * WIDTH), load(b + i + 2 * WIDTH));
        s3 = fused(s3, load(a + i + 3 * WIDTH), load(b + i + 3 * WIDTH));
    }
    for (; i + WIDTH <= n; i += WIDTH) s0 = fused(s0, load(a + i), load(b + i));
    float total = sum_of((s0 + s1) + (s2 + s3));
    for (; i < n; i++) total += a[i] * b[i];
    return total;
}

static inline void rms_norm_row(const float *x, const float *weight, float eps, long n, float *out) {
    float scale = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
    for (long i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

void slip_rms_norm(const float *x, const float *weight, float eps, long rows, long n, float *out) {
#pragma omp parallel for schedule(static) num_threads(team) if (rows > 8)
    for (long r = 0; r < rows; r++) rms_norm_row(x + r * n, weight, eps, n, out + r * n);
}

static inline vec pick(ivec which, vec a, vec b) { return (vec)((which & (ivec)a) | (~which & (ivec)b)); }

/* exp as 2^i times a polynomial; relative error below 2e-7 between -87 and 88, where it is held. */
static inline vec exp_of(vec x) {
    const vec zero = splat(0.0f), low = splat(-87.0f), high = splat(88.0f);
    x = pick(x < high, x, high);
    x = pick(x > low, x, low);
    vec t = x * splat(1.44269504f);
    ivec i = __builtin_convertvector(t + pick(t < zero, splat(-0.5f), splat(0.5f)), ivec);
    vec whole = __builtin_convertvector(i, vec);
    vec f = fused(fused(x, whole, splat(-0.693359375f)), whole, splat(2.12194440e-4f));
    vec p = splat(1.9875691500e-4f);
    p = fused(splat(1.3981999507e-3f), p, f);
    p = fused(splat(8.3334519073e-3f), p, f);
    p = fused(splat(4.1665795894e-2f), p, f);
    p = fused(splat(1.6666665459e-1f), p, f);
    p = fused(splat(5.0000001201e-1f), p, f);
    p = fused(f + splat(1.0f), p, f * f);
    return p * (vec)((i + 127) << 23);
}

static inline vec swiglu_of(vec gate, vec up) { return gate / (splat(1.0f) + exp_of(-gate)) * up; }

static void swiglu_row(const float *gate, const float *up, long n, float *out) {
    long i = 0;
    for (; i + WIDTH <= n; i += WIDTH) store(out + i, swiglu_of(load(gate + i), load(up + i)));
    for (; i < n; i++) out[i] = swiglu_of(splat(gate[i]), splat(up[i]))[0];
}

/* out[rows, n] = silu(gate) * up, with gate_up[rows, 2n]. For tests of swiglu_row, which gate_rows calls. */
void slip_swiglu(const float *gate_up, long rows, long n, float *out) {
#pragma omp parallel for schedule(static) num_threads(team) if (rows > 8)
    for (long r = 0; r < rows; r++) swiglu_row(gate_up + r * 2 * n, gate_up + r * 2 * n + n, n, out + r * n);
}

/* ---- the cache --------------------------------------------------------------------------------------------- */

/* One forward's rows. `cell` is where a row's key and value go; a row sees positions [0, prefix) of its sequence and
 * then `extra`: its ancestors in the draft, in order. So its keys come in the order of the text, draft or not. */
struct batch {
    const int32_t *pages;      /* [sequences, max_pages] */
    const int32_t *tokens;     /* [rows] */
    const int32_t *position;   /* [rows] rotary position */
    const int32_t *cell;       /* [rows] */
    const int32_t *sequence;   /* [rows] row of `pages` */
    const int32_t *prefix;     /* [rows] */
    const int32_t *wanted;     /* [outputs] rows whose outputs are wanted */
    const int32_t *extra_from; /* [rows + 1] into extra */
    const int32_t *extra;      /* cells */
    int64_t rows, outputs, max_pages, page_size, max_keys; /* max_keys: a multiple of BLOCK */
};

/* The same as Python lays it out: the lists of a batch, one after another. */
struct rows {
    const int32_t *indices;
    int64_t rows, outputs, sequences, max_pages, page_size, max_keys;
};

static struct batch batch_of(const struct rows *r) {
    const int32_t *tokens = r->indices + r->sequences * r->max_pages, *wanted = tokens + 5 * r->rows;
    const int32_t *extra_from = wanted + r->outputs;
    struct batch b = {r->indices, tokens, tokens + r->rows, tokens + 2 * r->rows, tokens + 3 * r->rows, tokens + 4 * r->rows,
                      wanted, extra_from, extra_from + r->rows + 1, r->rows, r->outputs, r->max_pages, r->page_size,
                      (r->max_keys + BLOCK - 1) / BLOCK * BLOCK};
    return b;
}

static void rotate(float *head, const float *cosine, const float *sine, long half) {
    for (long i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* What a layer's attention is made of. */
struct attention {
    int64_t heads, kv_heads, dim, window; /* window 0: a row sees everything */
    const float *cosine, *sine;           /* [positions, dim / 2] */
    const float *q_norm, *k_norm;         /* [dim], or none */
    char *k_cache, *v_cache;              /* [cells, kv_heads] vectors */
    int64_t coded;                        /* how the cache has its vectors */
    float eps;
};

/* ---- vectors of the cache: `dim` floats, or `dim` codes of a byte and behind them a scale for each 32 of them ---- */

#define CODED_TOGETHER 32
#define ALIGNED_TO 16 /* bytes */

static long vector_bytes(const struct attention *at) {
    if (!at->coded) return at->dim * sizeof(float);
    return (at->dim + at->dim / CODED_TOGETHER * sizeof(float) + ALIGNED_TO - 1) / ALIGNED_TO * ALIGNED_TO;
}

static inline __attribute__((always_inline)) float one_of(const char *vector, long i, const int coded) {
    return coded ? (float)((const int8_t *)vector)[i] : ((const float *)vector)[i];
}

/* WIDTH codes or numbers from i on, a multiple of WIDTH. */
static inline __attribute__((always_inline)) vec some_of(const char *vector, long i, const int coded) {
    return coded ? widened((const int8_t *)vector + i) : load((const float *)vector + i);
}

/* What the numbers from i on are to be multiplied with. */
static inline __attribute__((always_inline)) float scale_of(const char *vector, long i, long dim, const int coded) {
    return coded ? ((const float *)(vector + dim))[i / CODED_TOGETHER] : 1.0f;
}

/* The largest of a group is code 127 or -127. A number that is not finite makes the scale NaN, so that readers see it. */
static void encode(const float *from, long dim, char *vector) {
    int8_t *codes = (int8_t *)vector;
    float *scales = (float *)(vector + dim);
    for (long g = 0; g < dim; g += CODED_TOGETHER) {
        float top = 0.0f, poison = 0.0f;
        for (long i = g; i < g + CODED_TOGETHER; i++) {
            float size = fabsf(from[i]);
            top = size > top ? size : top;
            poison += from[i] * 0.0f;
        }
        float inverse = top > 0.0f && poison == 0.0f ? 127.0f / top : 0.0f;
        for (long i = g; i < g + CODED_TOGETHER; i++) codes[i] = inverse > 0.0f ? (int8_t)rintf(from[i] * inverse) : 0;
        scales[g / CODED_TOGETHER] = top / 127.0f + poison;
    }
}

/* The keys or the values of one row go to their cell. */
static void keep(const struct attention *at, const float *from, long cell, char *cache) {
    long size = vector_bytes(at);
    char *to = cache + cell * at->kv_heads * size;
    if (!at->coded) memcpy(to, from, at->kv_heads * size);
    else for (long h = 0; h < at->kv_heads; h++) encode(from + h * at->dim, at->dim, to + h * size);
}

/* Normalises (where q_norm is given) and rotates queries and keys of row r of qkv[rows, (heads + 2 kv_heads) * dim] in
 * place, and writes its keys and values into the cache. */
static void rope_write_row(const struct attention *at, const struct batch *batch, float *qkv, long r) {
    long heads = at->heads, kv_heads = at->kv_heads, dim = at->dim, half = dim / 2;
    float *row = qkv + r * (heads + 2 * kv_heads) * dim;
    const float *c = at->cosine + batch->position[r] * half, *s = at->sine + batch->position[r] * half;
    for (long h = 0; h < heads + kv_heads; h++) {
        const float *norm = h < heads ? at->q_norm : at->k_norm;
        if (norm) rms_norm_row(row + h * dim, norm, at->eps, dim, row + h * dim);
        rotate(row + h * dim, c, s, half);
    }
    keep(at, row + heads * dim, batch->cell[r], at->k_cache);
    keep(at, row + (heads + kv_heads) * dim, batch->cell[r], at->v_cache);
}

/* For tests of rope_write_row, which after_norm calls. */
void slip_rope_write(const struct attention *at, const struct rows *rows, float *qkv) {
    struct batch batch = batch_of(rows);
#pragma omp parallel for schedule(static) num_threads(team) if (batch.rows > 8)
    for (long r = 0; r < batch.rows; r++) rope_write_row(at, &batch, qkv, r);
}

/* The cells of the keys that row r sees, from the first to before the last, in the order of the text. */
static void list_cells(const struct batch *batch, long r, long first, long last, int32_t *cells) {
    const int32_t *pages = batch->pages + batch->sequence[r] * batch->max_pages;
    long size = batch->page_size, prefix = batch->prefix[r], end = last < prefix ? last : prefix, j = first;
    while (j < end) {
        long page = j / size, stop = (page + 1) * size < end ? (page + 1) * size : end;
        for (long cell = pages[page] * size + j % size; j < stop; j++) *cells++ = (int32_t)cell++;
    }
    for (; j < last; j++) *cells++ = batch->extra[batch->extra_from[r] + j - prefix];
}

/* The vectors of one head: that of a cell is `stride` bytes behind that of the cell before. */
struct vectors {
    const char *first;
    long stride, dim;
};

/* scores[j] = q . k[cell[j]]: four keys at a time, each with a sum of its own, so that four is as good as one. */
static inline __attribute__((always_inline)) void score_keys(const float *q, const struct vectors *k, const int32_t *cells,
                                                             long keys, float *scores, const int coded) {
    long dim = k->dim, vectors = dim / WIDTH * WIDTH, span = coded ? CODED_TOGETHER : vectors;
    float scale = 1.0f / sqrtf((float)dim);
    for (long j = 0; j < keys; j += 4) {
        const char *row[4];
        vec total[4] = {{0}, {0}, {0}, {0}};
        for (int n = 0; n < 4; n++) row[n] = k->first + cells[j + n < keys ? j + n : keys - 1] * k->stride;
        for (long g = 0; g < vectors; g += span) {
            vec s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
            for (long i = g; i < g + span; i += WIDTH) {
                vec a = load(q + i);
                s0 = fused(s0, a, some_of(row[0], i, coded));
                s1 = fused(s1, a, some_of(row[1], i, coded));
                s2 = fused(s2, a, some_of(row[2], i, coded));
                s3 = fused(s3, a, some_of(row[3], i, coded));
            }
            vec sums[4] = {s0, s1, s2, s3};
            for (int n = 0; n < 4; n++)
                total[n] = coded ? fused(total[n], sums[n], splat(scale_of(row[n], g, dim, coded))) : sums[n];
        }
        float sums[4];
        sums_of_4(total, sums);
        for (long i = vectors; i < dim; i++) /* dim of codes: whole groups */
            for (int n = 0; n < 4; n++) sums[n] += q[i] * one_of(row[n], i, coded);
        for (int n = 0; n < 4; n++) scores[j + n] = sums[n] * scale; /* there is room for whole vectors */
    }
}

static inline float largest_of(vec v) {
    float top = -INFINITY;
    for (int i = 0; i < WIDTH; i++) top = v[i] > top ? v[i] : top;
    return top;
}

/* Turns scores into weights exp(score - top), filled up with zeros to a whole vector; returns their sum. */
static float soften(float *scores, long keys) {
    for (long j = keys; j % WIDTH; j++) scores[j] = -INFINITY;
    vec tops = splat(-INFINITY), total = {0};
    for (long j = 0; j < keys; j += WIDTH) tops = pick(load(scores + j) > tops, load(scores + j), tops);
    float top = largest_of(tops);
    for (long j = 0; j < keys; j += WIDTH) {
        vec weight = exp_of(load(scores + j) - splat(top));
        for (int i = 0; j + WIDTH > keys && i < WIDTH; i++)
            if (j + i >= keys) weight[i] = 0.0f;
        store(scores + j, weight);
        total += weight;
    }
    return sum_of(total);
}

/* sums += weight * four vectors of `row` from i on. */
static inline __attribute__((always_inline)) void add_vectors(vec *sums, float weight, const char *row, long i, long dim,
                                                              const int coded) {
    for (int n = 0; n < 4; n++) {
        float own = weight * scale_of(row, i + n * WIDTH, dim, coded);
        sums[n] = fused(sums[n], some_of(row, i + n * WIDTH, coded), splat(own));
    }
}

/* out += sum of weight[j] * v[cell[j]], the even and the odd j by themselves: four vectors of the head at a time stay in
 * registers, and two sums each, so that none is waited for. */
static inline __attribute__((always_inline)) void mix(const float *weights, const int32_t *cells, long keys,
                                                      const struct vectors *v, float *out, const int coded) {
    long i = 0, dim = v->dim;
    for (; i + 4 * WIDTH <= dim; i += 4 * WIDTH) {
        vec even[4] = {{0}, {0}, {0}, {0}}, odd[4] = {{0}, {0}, {0}, {0}};
        long j = 0;
        for (; j + 2 <= keys; j += 2) {
            add_vectors(even, weights[j], v->first + cells[j] * v->stride, i, dim, coded);
            add_vectors(odd, weights[j + 1], v->first + cells[j + 1] * v->stride, i, dim, coded);
        }
        if (j < keys) add_vectors(even, weights[j], v->first + cells[j] * v->stride, i, dim, coded);
        for (int n = 0; n < 4; n++) store(out + i + n * WIDTH, load(out + i + n * WIDTH) + (even[n] + odd[n]));
    }
    for (; i < dim; i++) {
        float sum = 0.0f;
        for (long j = 0; j < keys; j++) {
            const char *row = v->first + cells[j] * v->stride;
            sum += one_of(row, i, coded) * (weights[j] * scale_of(row, i, dim, coded));
        }
        out[i] += sum;
    }
}

/* This thread's part of `count` things, in order. The parts are as even as possible. */
static void my_share(long count, long *from, long *to) {
    long thread = omp_get_thread_num(), threads = omp_get_num_threads();
    *from = count * thread / threads;
    *to = count * (thread + 1) / threads;
}

/* Several rows, and several heads of each, read SPAN keys one after the other, and then the next SPAN: 32 keys of 64 floats
 * are 8 KB, which stay in the first cache. Without this each row fetches all keys again, and waits for memory. 4 rows are
 * a draft of 3, and 4 heads the most that share keys in small models; more rows and heads are taken in turns. */
#define ROWS_TOGETHER 4
#define HEADS_TOGETHER 4
#define SPAN 32

/* What one row reads: the cells of its keys, in the order of the text; and of each head its scores, then weights. */
struct reader {
    int32_t *cells;
    float *scores; /* [heads, max_keys] */
    long keys;
};

static long reader_floats(long max_keys) { return (1 + HEADS_TOGETHER) * max_keys; }

/* Floats of room that attention takes. */
static long attend_floats(long max_keys) { return num_threads * ROWS_TOGETHER * reader_floats(max_keys); }

static struct reader reader_of(const struct attention *at, const struct batch *batch, long r, float *room) {
    struct reader reader = {(int32_t *)room, room + batch->max_keys, 0};
    long last = batch->prefix[r] + batch->extra_from[r + 1] - batch->extra_from[r];
    long first = at->window && last > at->window ? last - at->window : 0;
    reader.keys = last - first;
    list_cells(batch, r, first, last, reader.cells);
    return reader;
}

static inline long span_of(long keys, long from) { return keys - from < SPAN ? keys - from : SPAN; }

/* out[rows, heads, dim] = the values that q[rows, heads, dim] find by their keys, of some rows and of heads that have their
 * keys in common. `q_stride` and `out_stride` lead to the next row. */
static inline __attribute__((always_inline)) void attend_rows(const struct reader *readers, long rows, long heads,
                                                              const float *q, long q_stride, const struct vectors *k,
                                                              const struct vectors *v, long max_keys, float *out,
                                                              long out_stride, const int coded) {
    long dim = k->dim, most = 0;
    for (long r = 0; r < rows; r++) most = readers[r].keys > most ? readers[r].keys : most;
    for (long j = 0; j < most; j += SPAN)
        for (long r = 0; r < rows; r++)
            for (long h = 0; h < heads && j < readers[r].keys; h++)
                score_keys(q + r * q_stride + h * dim, k, readers[r].cells + j, span_of(readers[r].keys, j),
                           readers[r].scores + h * max_keys + j, coded);
    float totals[ROWS_TOGETHER][HEADS_TOGETHER];
    for (long r = 0; r < rows; r++) {
        for (long h = 0; h < heads; h++) totals[r][h] = soften(readers[r].scores + h * max_keys, readers[r].keys);
        memset(out + r * out_stride, 0, sizeof(float) * heads * dim);
    }
    for (long j = 0; j < most; j += SPAN)
        for (long r = 0; r < rows; r++)
            for (long h = 0; h < heads && j < readers[r].keys; h++)
                mix(readers[r].scores + h * max_keys + j, readers[r].cells + j, span_of(readers[r].keys, j), v,
                    out + r * out_stride + h * dim, coded);
    for (long r = 0; r < rows; r++)
        for (long h = 0; h < heads; h++) {
            float scale = 1.0f / totals[r][h], *found = out + r * out_stride + h * dim;
            for (long i = 0; i < dim; i++) found[i] *= scale;
        }
}

/* A thread's share of out[rows, heads * dim]: some heads of some rows. scratch: attend_floats */
static void attend_share(const struct attention *at, const struct batch *batch, const float *qkv, float *scratch, float *out) {
    long heads = at->heads, dim = at->dim, group = heads / at->kv_heads, size = vector_bytes(at);
    long width = (heads + 2 * at->kv_heads) * dim, max_keys = batch->max_keys, from, to, listed = -1;
    float *room = scratch + omp_get_thread_num() * ROWS_TOGETHER * reader_floats(max_keys);
    struct reader readers[ROWS_TOGETHER];
    my_share((batch->rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER * heads, &from, &to);
    for (long next = from, count; next < to; next += count) {
        long first = next / heads * ROWS_TOGETHER, h = next % heads, left = group - h % group;
        long rows = batch->rows - first < ROWS_TOGETHER ? batch->rows - first : ROWS_TOGETHER;
        count = left < HEADS_TOGETHER ? left : HEADS_TOGETHER;
        count = to - next < count ? to - next : count;
        for (long r = 0; r < rows && listed != first; r++)
            readers[r] = reader_of(at, batch, first + r, room + r * reader_floats(max_keys));
        listed = first;
        struct vectors k = {at->k_cache + h / group * size, at->kv_heads * size, dim}, v = k;
        v.first = at->v_cache + h / group * size;
        const float *q = qkv + first * width + h * dim;
        float *found = out + (first * heads + h) * dim;
        if (at->coded) attend_rows(readers, rows, count, q, width, &k, &v, max_keys, found, heads * dim, 1);
        else attend_rows(readers, rows, count, q, width, &k, &v, max_keys, found, heads * dim, 0);
    }
    meet();
}

/* Functions that take `room`, and how many floats it has, use it in this call only. Where these are too few they do nothing
 * and return how many they need; else 0. This one is for tests of attend_share, which after_norm calls. */
long slip_attend(const struct attention *at, const struct rows *rows, const float *qkv, float *out, float *room, long floats) {
    struct batch batch = batch_of(rows);
    struct meeting place = {0};
    if (attend_floats(batch.max_keys) > floats) return attend_floats(batch.max_keys);
#pragma omp parallel num_threads(team)
    {
        meeting = &place;
        attend_share(at, &batch, qkv, room, out);
    }
    return 0;
}
