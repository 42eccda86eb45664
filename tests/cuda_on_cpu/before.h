/* What kernels need to run on a CPU: a fiber for each thread, one block after the other, or those of a cluster at once.
 * Comes before them. */
#include <cmath>
#include <cstring>
#include <ucontext.h>

#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __grid_constant__

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct ushort4 { unsigned short x, y, z, w; };
struct dim { int x, y; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static T min(T a, T b) { return a < b ? a : b; }
template <class T> static T max(T a, T b) { return a > b ? a : b; }
template <class T> static T __ldg(const T *at) { return *at; }
static inline void start_next_kernel() {}
static inline void wait_for_last_kernel() {}
static int __popc(unsigned v) { return __builtin_popcount(v); }
template <class T> static T atomicAdd(T *at, T value) { T old = *at; return *at += value, old; }

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
static const int MAX_THREADS = 4 * 384, STACK = 1 << 18;
static int threads_of_a_block, blocks_of_a_cluster;
static int own; /* the fiber that runs: a thread of a block of the cluster */
static dim threadIdx, blockIdx, blockDim, gridDim;
static ucontext_t scheduler, fibers[MAX_THREADS];
static bool is_done[MAX_THREADS];
static void (*body)(void *);
static void *body_argument;

static void let_others_run() {
    int self = own;
    swapcontext(&fibers[self], &scheduler);
}

struct Barrier { int members, arrived, generation; };
static Barrier cluster_barrier, block_barriers[MAX_THREADS / 32], warp_barriers[MAX_THREADS / 32];
static unsigned shared_words[MAX_THREADS][8]; /* what the lanes of a warp show each other */

static void wait_at(Barrier &b) {
    int mine = b.generation;
    if (++b.arrived == b.members) {
        b.arrived = 0;
        b.generation++;
    }
    while (b.generation == mine) let_others_run();
}
static int own_block() { return own / threads_of_a_block; }
static void __syncthreads() { wait_at(block_barriers[own_block()]); }
static void meet() { wait_at(warp_barriers[own / 32]); }

static void __syncwarp() { meet(); }

template <class T> static T __shfl_xor_sync(unsigned, T value, int step) {
    memcpy(shared_words[own], &value, sizeof value);
    meet();
    T other;
    memcpy(&other, shared_words[own ^ step], sizeof other);
    meet();
    return other;
}

static unsigned __ballot_sync(unsigned, bool value) {
    unsigned all = 0;
    shared_words[own][0] = value;
    meet();
    for (int i = 0; i < 32; i++) all |= shared_words[own / 32 * 32 + i][0] << i;
    meet();
    return all;
}

static void fiber() {
    body(body_argument);
    is_done[own] = true;
}

static void run_cluster(int x, int y) {
    static char stacks[MAX_THREADS][STACK];
    int threads = threads_of_a_block * blocks_of_a_cluster;
    cluster_barrier = {threads, 0, 0};
    for (Barrier &b : block_barriers) b = {threads_of_a_block, 0, 0};
    for (Barrier &b : warp_barriers) b = {32, 0, 0};
    for (int i = 0; i < threads; i++) {
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = stacks[i], fibers[i].uc_stack.ss_size = STACK, fibers[i].uc_link = &scheduler;
        makecontext(&fibers[i], fiber, 0);
        is_done[i] = false;
    }
    for (int left = threads; left;) {
        left = 0;
        for (int i = 0; i < threads; i++)
            if (!is_done[i]) {
                own = i;
                threadIdx.x = i % threads_of_a_block, blockIdx = {x + i / threads_of_a_block, y};
                swapcontext(&scheduler, &fibers[i]);
                left += !is_done[i];
            }
    }
}

template <class F> static void run(int width, int height, int threads, F kernel, int cluster = 1) {
    threads_of_a_block = threads, blocks_of_a_cluster = cluster;
    body = [](void *f) { (*(F *)f)(); };
    body_argument = &kernel;
    blockDim = {threads_of_a_block, 1}, gridDim = {width, height};
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x += cluster) run_cluster(x, y);
}
