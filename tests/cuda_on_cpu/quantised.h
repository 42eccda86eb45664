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
