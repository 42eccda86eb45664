/* The instructions of hopper.cuh and products.cuh. A copy is there at once; who waits at a barrier lets others run. */
#include <map>

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
struct TensorMap; /* its first words: where the tensor is, its rows and columns, and rows (or pairs of 8) of a box */
#ifndef DEPTH
#define DEPTH 1
#endif

/* ---- shared memory: an address is that of the own block, or begins with the number of another, from 1 on ---- */
static const u32 ARENA = 256 << 10;
alignas(1024) static char arenas[4][ARENA];
static char *ring_memory() { return arenas[own_block()]; }
static u32 shared_address(const void *at) { return (u32)((const char *)at - ring_memory()); }
static u32 at_block(u32 address, int block) { return (block + 1) * ARENA + address; }
static int block_of(u32 address) { return address >= ARENA && address < 5 * ARENA ? address / ARENA - 1 : own_block(); }
static char *at_address(u32 address) { return arenas[block_of(address)] + address % ARENA; }

struct TransactionBarrier { int members, missing, bytes, phase; };
static std::map<u64, TransactionBarrier> transaction_barriers;
static TransactionBarrier &barrier_at(u32 address) {
    return transaction_barriers[(u64)block_of(address) << 32 | address % ARENA];
}

static void arrived_at(TransactionBarrier &b) {
    if (!b.missing && !b.bytes) b.missing = b.members, b.phase ^= 1;
}
static void barrier_init(u32 barrier, u32 count) { barrier_at(barrier) = {(int)count, (int)count, 0, 0}; }
static void barriers_are_set() {}
static void barrier_arrive(u32 barrier) {
    TransactionBarrier &b = barrier_at(barrier);
    b.missing--;
    arrived_at(b);
}
static void barrier_expect(u32 barrier, u32 bytes) {
    barrier_at(barrier).bytes += bytes;
    barrier_arrive(barrier);
}
static void barrier_wait(u32 barrier, u32 parity) {
    while (barrier_at(barrier).phase == (int)parity) let_others_run();
}
static void brought(u32 barrier, int bytes) {
    TransactionBarrier &b = barrier_at(barrier);
    b.bytes -= bytes;
    arrived_at(b);
}

/* 64 columns of a row, to a line of a box: pieces of 16 bytes are exchanged by the number of the line. */
static void copy_line(u32 to, long line, const u64 *words, long row, long sixty_fourth) {
    const char *tensor = (const char *)words[0];
    long rows = words[1], columns = words[2];
    for (long piece = 0; piece < 8; piece++) {
        long column = sixty_fourth * 64 + piece * 8;
        char *place = at_address(to) + line * 128 + (piece ^ line % 8) * 16;
        if (row < rows && column < columns) memcpy(place, tensor + (row * columns + column) * 2, 16);
        else memset(place, 0, 16);
    }
}

static void copy_box(u32 to, const TensorMap *map, int row, int sixty_fourth, u32 barrier) {
    const u64 *words = (const u64 *)map;
    long lines = words[3];
    for (long d = 0; d < DEPTH; d++)
        for (long r = 0; r < lines; r++) copy_line(to, d * lines + r, words, row + r, sixty_fourth + d);
    brought(barrier, DEPTH * lines * 128);
}

static u16 narrow(float x) {
    unsigned bits = bits_of<unsigned>(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static float widen(u16 h) { return bits_of<float>((unsigned)h << 16); }
static float divided(float a, float b) { return a / b; }
static float inverse_root(float x) { return 1.0f / sqrtf(x); }
static float power_of_two(float x) { return exp2f(x); }
