/* The instructions that streamed.cu has in PTX. A copy is there at once; who waits at a barrier lets others run. */
#include <map>

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
struct TensorMap; /* its first words: where the tensor is, its rows and columns, rows of a box */

alignas(1024) static char ring_arena[256 << 10];
static char *ring_memory() { return ring_arena; }
static u32 shared_address(const void *at) { return (u32)((const char *)at - ring_arena); }
static char *at_address(u32 address) { return ring_arena + (int)address; }

struct TransactionBarrier { int members, missing, bytes, phase; };
static std::map<u32, TransactionBarrier> transaction_barriers;

static void arrived_at(TransactionBarrier &b) {
    if (!b.missing && !b.bytes) b.missing = b.members, b.phase ^= 1;
}
static void barrier_init(u32 barrier, u32 count) { transaction_barriers[barrier] = {(int)count, (int)count, 0, 0}; }
static void barriers_are_set() {}
static void barrier_arrive(u32 barrier) {
    TransactionBarrier &b = transaction_barriers[barrier];
    b.missing--;
    arrived_at(b);
}
static void barrier_expect(u32 barrier, u32 bytes) {
    transaction_barriers[barrier].bytes += bytes;
    barrier_arrive(barrier);
}
static void barrier_wait(u32 barrier, u32 parity) {
    int own = threadIdx.x;
    while (transaction_barriers[barrier].phase == (int)parity) swapcontext(&fibers[own], &scheduler);
}

static void copy_box(u32 to, const TensorMap *map, int row, int sixty_fourth, u32 barrier) {
    const u64 *words = (const u64 *)map;
    const char *tensor = (const char *)words[0];
    long rows = words[1], columns = words[2], lines = words[3];
    for (long d = 0; d < DEPTH; d++)
        for (long r = 0; r < lines; r++)
            for (long piece = 0; piece < 8; piece++) {
                long column = (sixty_fourth + d) * 64 + piece * 8;
                char *place = at_address(to) + (d * lines + r) * 128 + (piece ^ r % 8) * 16;
                if (row + r < rows && column < columns) memcpy(place, tensor + ((row + r) * columns + column) * 2, 16);
                else memset(place, 0, 16);
            }
    TransactionBarrier &b = transaction_barriers[barrier];
    b.bytes -= DEPTH * lines * 128;
    arrived_at(b);
}

/* Matrices of 8 by 8: lane 8 m + r says where row r of the m-th is, and a lane gets two numbers of row lane / 4 of each. */
static void load_matrices(u32 *d, int count, u32 at) {
    int warp = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    shared_words[threadIdx.x][0] = at;
    meet();
    for (int m = 0; m < count; m++) d[m] = *(u32 *)(at_address(shared_words[warp + 8 * m + lane / 4][0]) + lane % 4 * 4);
    meet();
}
static void load_four(u32 d[4], u32 at) { load_matrices(d, 4, at); }
static void load_two(u32 d[2], u32 at) { load_matrices(d, 2, at); }

static u16 narrow(float x) {
    unsigned bits = bits_of<unsigned>(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static float widen(u16 h) { return bits_of<float>((unsigned)h << 16); }
static float divided(float a, float b) { return a / b; }
static float inverse_root(float x) { return 1.0f / sqrtf(x); }
static float power_of_two(float x) { return exp2f(x); }

/* Number k of a row of the weights (words 0 to 3 of a lane) or of a row of activations (4 and 5). */
static float number_of(int row, int k, int first_word, int apart) {
    u32 word = shared_words[threadIdx.x / 32 * 32 + row % 8 * 4 + k % 8 / 2][first_word + k / 8 * apart];
    return widen(word >> k % 2 * 16);
}

static void multiply(float d[4], const u32 a[4], const u32 b[2]) {
    int lane = threadIdx.x % 32;
    unsigned *own = shared_words[threadIdx.x];
    for (int i = 0; i < 4; i++) own[i] = a[i];
    own[4] = b[0], own[5] = b[1];
    meet();
    for (int i = 0; i < 4; i++) {
        double sum = d[i];
        for (int k = 0; k < 16; k++)
            sum += (double)number_of(lane / 4, k, i / 2, 2) * number_of(lane % 4 * 2 + i % 2, k, 4, 1);
        d[i] = (float)sum;
    }
    meet();
}
