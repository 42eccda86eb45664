/* The instructions that hopper_products.cu has in PTX. A product is there at once. */
#include "hopper.h"

static void fetch_map(const TensorMap *) {}
static void cluster_meets() { wait_at(cluster_barrier); }
static void arrive_there(u32 barrier) { barrier_arrive(barrier); }
static void send_four(u32 to, const float *d) { memcpy(at_address(to), d, 16); }
static void receive_four(float *d, u32 at) { memcpy(d, at_address(at), 16); }
template <int> static void give_registers() {}
template <int> static void take_registers() {}
static void products_begin() {}
static void products_end() {}
template <int> static void wait_for_products() {}
template <int COUNT> static void stays(float (&)[COUNT]) {}

static void copy_box_to(u16 blocks, u32 to, const TensorMap *map, int row, int sixty_fourth, u32 barrier) {
    for (int block = 0; block < 4; block++)
        if (blocks >> block & 1) copy_box(at_block(to, block), map, row, sixty_fourth, at_block(barrier, block));
}

static void copy_pairs_to(u16 blocks, u32 to, const TensorMap *map, int pair, int sixty_fourth, u32 barrier) {
    const u64 *words = (const u64 *)map;
    long half = words[1] / 2, pairs = words[3];
    for (int block = 0; block < 4; block++) {
        if (!(blocks >> block & 1)) continue;
        for (long line = 0; line < pairs * 16; line++) {
            long row = (pair + line / 16) * 8 + line % 8;
            long from = row < half ? line / 8 % 2 * half + row : words[1]; /* beyond the end: zeros */
            copy_line(at_block(to, block), line, words, from, sixty_fourth);
        }
        brought(at_block(barrier, block), pairs * 16 * 128);
    }
}

static u64 matrix(u32 address, u32) { return address; }

/* Number k of a row of a matrix whose pieces of 16 bytes are exchanged by the row. */
static float number_of(u64 matrix, int row, int k) {
    u32 at = (u32)matrix + row / 8 * 1024 + row % 8 * 128 + k * 2;
    return widen(*(u16 *)at_address(at ^ (at >> 7 & 7) << 4));
}

/* The lane's sums of the group's 64 rows. */
static void multiply(float (&d)[OUTPUTS / 2], u64 a, u64 b) {
    int thread = threadIdx.x % 128;
    for (int i = 0; i < OUTPUTS / 2; i++) {
        int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, output = i / 4 * 8 + thread % 4 * 2 + i % 2;
        double sum = d[i];
        for (int k = 0; k < 16; k++) sum += (double)number_of(a, row, k) * number_of(b, output, k);
        d[i] = (float)sum;
    }
}
