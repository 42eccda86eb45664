/* The instructions that streamed.cu has in PTX. */
#include "hopper.h"

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
