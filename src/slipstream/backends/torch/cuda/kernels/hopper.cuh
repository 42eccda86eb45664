/* What kernels for Hopper have in common: instructions that C++ has no words for. Tests run kernels on a CPU, with their own. */
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

struct alignas(64) TensorMap {
    u64 opaque[16];
};

#define WARPGROUP 128 /* threads */

#ifndef EMULATED

static __device__ __forceinline__ u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }

static __device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

static __device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;}" ::"r"(barrier), "r"(parity) : "memory");
}

/* A box of a matrix: rows from `row` on, and a number of times 64 columns from `sixty_fourth` times 64 on. */
static __device__ __forceinline__ void copy_box(u32 to, const TensorMap *map, int row, int sixty_fourth, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(map), "r"(0), "r"(row), "r"(sixty_fourth), "r"(barrier) : "memory");
}

/* ---- products of the tensor cores, by groups of four warps ---- */

#if FLOAT16
#define TYPES ".f32.f16.f16"
#else
#define TYPES ".f32.bf16.bf16"
#endif
#define FOUR(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, (i) + 4), FOUR(d, (i) + 8), FOUR(d, (i) + 12)

/* Registers of a thread, of which groups of warps have more or fewer: from here on. */
template <int COUNT> static __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> static __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* How the tensor cores find a matrix in shared memory. `far`: bytes from one panel to the next where the matrix is read
 * across its rows; 8 rows of a panel are 1,024 bytes. */
static __device__ __forceinline__ u64 matrix(u32 address, u32 far) {
    return (u64)((address & 0x3FFFF) >> 4) | (u64)(far >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

static __device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

static __device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Until at most so many of the products asked for are still under way. */
template <int LEFT> static __device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Products write registers behind the compiler's back: it may not move what reads or writes them across this. */
template <int COUNT> static __device__ __forceinline__ void stays(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#endif
