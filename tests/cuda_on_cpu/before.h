/* What quantised.cu needs to run on a CPU: a fiber for each thread, one block after the other. Comes before it. */
#include <cmath>
#include <cstring>
#include <ucontext.h>

#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct ushort4 { unsigned short x, y, z, w; };
struct dim { int x, y; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static T min(T a, T b) { return a < b ? a : b; }
template <class T> static T max(T a, T b) { return a > b ? a : b; }
template <class T> static T __ldg(const T *at) { return *at; }
static inline void start_next_kernel() {}
static inline void wait_for_last_kernel() {}

template <class To, class From> static To bits_of(From value) {
    To out;
    memcpy(&out, &value, sizeof out);
    return out;
}
static float __uint_as_float(unsigned v) { return bits_of<float>(v); }
static float __int_as_float(int v) { return bits_of<float>(v); }
static unsigned __float_as_uint(float v) { return bits_of<unsigned>(v); }
static int __float_as_int(float v) { return bits_of<int>(v); }
static float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
#define __expf expf
static float rsqrtf(float v) { return 1.0f / sqrtf(v); }
static unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    unsigned long long both = (unsigned long long)high << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(both >> (selector >> (4 * i) & 7) * 8 & 255) << (8 * i);
    return out;
}

/* ---- threads ---- */
static const int THREADS_OF_A_BLOCK = 256, STACK = 1 << 18;
static dim threadIdx, blockIdx, blockDim, gridDim;
static ucontext_t scheduler, fibers[THREADS_OF_A_BLOCK];
static bool is_done[THREADS_OF_A_BLOCK];
static void (*body)(void *);
static void *body_argument;

struct Barrier { int members, arrived, generation; };
static Barrier block_barrier, warp_barriers[THREADS_OF_A_BLOCK / 32];
static unsigned shared_words[THREADS_OF_A_BLOCK][8]; /* what the lanes of a warp show each other */

static void wait_at(Barrier &b) {
    int mine = b.generation, own = threadIdx.x;
    if (++b.arrived == b.members) {
        b.arrived = 0;
        b.generation++;
    }
    while (b.generation == mine) swapcontext(&fibers[own], &scheduler);
}
static void __syncthreads() { wait_at(block_barrier); }
static void meet() { wait_at(warp_barriers[threadIdx.x / 32]); }

template <class T> static T __shfl_xor_sync(unsigned, T value, int step) {
    shared_words[threadIdx.x][0] = bits_of<unsigned>(value);
    meet();
    T other = bits_of<T>(shared_words[threadIdx.x ^ step][0]);
    meet();
    return other;
}

static void fiber() {
    body(body_argument);
    is_done[threadIdx.x] = true;
}

static void run_block() {
    static char stacks[THREADS_OF_A_BLOCK][STACK];
    block_barrier = {THREADS_OF_A_BLOCK, 0, 0};
    for (Barrier &b : warp_barriers) b = {32, 0, 0};
    for (int i = 0; i < THREADS_OF_A_BLOCK; i++) {
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = stacks[i], fibers[i].uc_stack.ss_size = STACK, fibers[i].uc_link = &scheduler;
        makecontext(&fibers[i], fiber, 0);
        is_done[i] = false;
    }
    for (int left = THREADS_OF_A_BLOCK; left;) {
        left = 0;
        for (int i = 0; i < THREADS_OF_A_BLOCK; i++)
            if (!is_done[i]) {
                threadIdx.x = i;
                swapcontext(&scheduler, &fibers[i]);
                left += !is_done[i];
            }
    }
}

template <class F> static void run(int width, int height, F kernel) {
    body = [](void *f) { (*(F *)f)(); };
    body_argument = &kernel;
    blockDim = {THREADS_OF_A_BLOCK, 1}, gridDim = {width, height};
    for (blockIdx.y = 0; blockIdx.y < height; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < width; blockIdx.x++) run_block();
}

/* ---- the instructions that quantised.cu has in PTX ---- */
static uint4 stream_16(const char *at) { return *(const uint4 *)at; }

static float half_float(unsigned bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

static unsigned bf16_of(float value) { /* to the nearest, ties to even; no NaN here */
    unsigned bits = bits_of<unsigned>(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static unsigned two_bf16(float low, float high) { return bf16_of(high) << 16 | bf16_of(low); }

static int byte_of(int lane, int word, int byte) {
    return (signed char)(shared_words[threadIdx.x / 32 * 32 + lane][word] >> 8 * byte);
}

/* d[i]: output lane / 4 (+ 8 from d[2] on), row 2 (lane % 4) + i % 2, over `inputs`. Words 0 to 3 of a lane are its codes of
 * the weight, 4 and 5 those of the row. */
static void multiply(int d[4], int inputs, int c0, int c1) {
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        d[i] = i % 2 ? c1 : c0;
        for (int k = 0; k < inputs; k++) {
            int a = byte_of(lane / 4 * 4 + k % 16 / 4, k / 16 * 2 + i / 2, k % 4);
            d[i] += a * byte_of((lane % 4 * 2 + i % 2) * 4 + k % 16 / 4, 4 + k / 16, k % 4);
        }
    }
}

static void multiply_32(int d[4], const unsigned a[4], unsigned b0, unsigned b1, int c0, int c1) {
    unsigned *own = shared_words[threadIdx.x];
    own[0] = a[0], own[1] = a[1], own[2] = a[2], own[3] = a[3], own[4] = b0, own[5] = b1;
    meet();
    multiply(d, 32, c0, c1);
    meet();
}

static void multiply_16(int d[4], const unsigned a[2], unsigned b, int c0, int c1) {
    unsigned *own = shared_words[threadIdx.x];
    own[0] = a[0], own[1] = a[1], own[4] = b;
    meet();
    multiply(d, 16, c0, c1);
    meet();
}
