/* What kernels for Hopper have in common: instructions that C++ has no words for. Tests run kernels on a CPU, with their own. */
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

struct alignas(64) TensorMap {
    u64 opaque[16];
};

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

#endif
