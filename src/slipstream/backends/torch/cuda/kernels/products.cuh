/* What kernels of products do with a sum, rounded in the same places as in linear.py. */
#define PLAIN 0 /* norm(x) times the weight */
#define GATED 1 /* the same, with SwiGLU */
#define QKV 2   /* the same, rotated; keys and values go into the cache */
#define ADDED 3 /* x times the weight, added to the residual stream */

#define SQUARES_UNIT 268435456.0f /* as in linear.py */

struct Residual {
    u16 *x, *scaled;   /* [rows, outputs] */
    const float *gain; /* [outputs], of the norm that reads it next */
    u64 *squares;      /* [rows], added to */
};

#ifndef EMULATED

static __device__ __forceinline__ char *ring_memory() {
    extern __shared__ char shared[];
    return shared;
}

static __device__ __forceinline__ void start_next_kernel() { asm volatile("griddepcontrol.launch_dependents;"); }

static __device__ __forceinline__ void wait_for_last_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

static __device__ __forceinline__ void barriers_are_set() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ u16 narrow(float x) {
    u16 h;
#if FLOAT16
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
#endif
    return h;
}

static __device__ __forceinline__ float widen(u16 h) {
#if FLOAT16
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
#else
    return __uint_as_float((u32)h << 16);
#endif
}

static __device__ __forceinline__ float divided(float a, float b) {
    float c;
    asm("div.full.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

static __device__ __forceinline__ float inverse_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

/* What a row is multiplied by, from the sum of its squares. */
static __device__ __forceinline__ float norm_factor(u64 squares, int inputs, float eps) {
    return inverse_root(divided((float)(long long)squares * (1.0f / SQUARES_UNIT), (float)inputs) + eps);
}

static __device__ __forceinline__ float normed(float sum, float factor, bool has_bias, float bias) {
    return has_bias ? __fmaf_rn(sum, factor, bias) : sum * factor;
}

static __device__ __forceinline__ float gated(float gate, float up) {
    return gate * divided(1.0f, 1.0f + power_of_two(gate * -1.4426950408889634f)) * up;
}

/* The residual stream with a sum added: itself, what the next norm reads, and its square as a whole number: those add up
 * in any order. */
struct Added {
    u16 x, scaled;
    u64 square;
};

static __device__ __forceinline__ Added added(float old, float sum, float gain) {
    const u16 now = narrow(old + sum);
    const float x = widen(now);
    return {now, narrow(x * gain), (u64)(long long)(x * x * SQUARES_UNIT)};
}
