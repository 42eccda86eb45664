/* Starts a kernel, given as cuLaunchKernel takes its arguments. Comes after quantised.cu. */
template <class T> static T value_of(void *at) { return *(T *)at; }

#ifdef BITS
extern "C" void start_product(void (*kernel)(Part, const char *, Outcome), void **a, int width, int height) {
    run(width, height, 256, [&] { kernel(value_of<Part>(a[0]), value_of<const char *>(a[1]), value_of<Outcome>(a[2])); });
}
extern "C" void start_embed(void (*kernel)(Part, const int *, int, float *), void **a, int width, int height) {
    run(width, height, 256, [&] {
        kernel(value_of<Part>(a[0]), value_of<const int *>(a[1]), value_of<int>(a[2]), value_of<float *>(a[3]));
    });
}
extern "C" void start_unpack(void (*kernel)(Part, int, int, u16 *), void **a, int width, int height) {
    run(width, height, 256, [&] {
        kernel(value_of<Part>(a[0]), value_of<int>(a[1]), value_of<int>(a[2]), value_of<u16 *>(a[3]));
    });
}
#else
extern "C" void start_quantise(void (*kernel)(const void *, const float *, float, int, int, int, int, char *), void **a,
                               int width, int height) {
    run(width, height, 256, [&] {
        kernel(value_of<const void *>(a[0]), value_of<const float *>(a[1]), value_of<float>(a[2]), value_of<int>(a[3]),
               value_of<int>(a[4]), value_of<int>(a[5]), value_of<int>(a[6]), value_of<char *>(a[7]));
    });
}
#endif
