/* Starts the kernel, given as cuLaunchKernel takes its arguments. Comes after hopper_products.cu. */
template <class T> static T value_of(void *at) { return *(T *)at; }

extern "C" void start(void **a, int width, int height, int threads, int cluster) {
    run(width, height, threads, [&] {
        product(value_of<TensorMap>(a[0]), value_of<TensorMap>(a[1]), value_of<Task>(a[2]), value_of<Residual>(a[3]),
                value_of<void *>(a[4]), value_of<int>(a[5]));
    }, cluster);
}
