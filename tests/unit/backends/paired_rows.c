/* After the kernels' own source: prints a hash of the bits of each product, for every layout and 1 to 27 rows. */
#include <stdio.h>
#include <stdlib.h>

#define INPUTS 512
#define OUTPUTS 37
#define ROWS 27
#define TILES ((OUTPUTS + QUANT_TILE - 1) / QUANT_TILE)
#define SCALES (TILES * INPUTS / 16 * QUANT_TILE)

static uint32_t state = 1;
static uint32_t number(void) { return (state = state * 1664525u + 1013904223u) >> 8; }
static float unit(void) { return (float)number() / (1 << 24); }

int main(void) {
    static float x[ROWS * INPUTS], y[ROWS * OUTPUTS], supers[SCALES], minimums_of_supers[SCALES];
    static uint8_t codes[TILES * INPUTS * QUANT_TILE];
    static uint16_t scales[SCALES], minimums[SCALES]; /* finite as halves, and any bytes */
    slip_set_threads(1);
    for (int i = 0; i < ROWS * INPUTS; i++) x[i] = unit() * 4 - 2;
    for (int kind = 0; kind < (int)(sizeof quants / sizeof *quants); kind++) {
        for (long i = 0; i < (long)sizeof codes; i++) codes[i] = (uint8_t)number();
        for (int i = 0; i < SCALES; i++) {
            scales[i] = 0x1000 | (number() & 0x8fff), minimums[i] = 0x1000 | (number() & 0x8fff);
            supers[i] = unit(), minimums_of_supers[i] = unit();
        }
        struct part p = {codes, scales, quants[kind].minimum == MINIMUM ? minimums : 0, supers, minimums_of_supers,
                         0, OUTPUTS, 8, -8.0f, kind + FLOAT_LAYOUTS};
        struct linear w = {&p, 1, INPUTS, OUTPUTS, 0, 1};
        for (long rows = 1; rows <= ROWS; rows++) {
            long floats = slip_linear(&w, x, rows, 0, y, 0, 0);
            float *room = aligned_alloc(64, (floats * 4 + 127) / 64 * 64);
            slip_linear(&w, x, rows, 0, y, room, floats);
            free(room);
            uint64_t hash = 1469598103934665603u;
            for (long i = 0; i < rows * OUTPUTS; i++) {
                uint32_t bits;
                memcpy(&bits, y + i, 4);
                hash = (hash ^ bits) * 1099511628211u;
                if ((i + 1) % OUTPUTS == 0) printf("%d %ld %ld %016llx\n", kind, rows, i / OUTPUTS, (unsigned long long)hash);
                if ((i + 1) % OUTPUTS == 0) hash = 1469598103934665603u;
            }
        }
    }
}
