// Computes scale * x / (scale + |x|). Compiled separately, see docs/how-to/write-your-own-kernel.md.
template <typename T>
__device__ void softsign(const size_t numel, const float scale, const T *in, T *out) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    // The last workgroup may extend beyond the end.
    if (i < numel) {
        const float x = static_cast<float>(in[i]);
        out[i] = static_cast<T>(scale * x / (scale + fabsf(x)));
    }
}

// extern "C" prevents name mangling, since the host looks kernels up by name.
extern "C" __global__ void softsign_f32(const size_t numel, const float scale, const float *in, float *out) {
    softsign(numel, scale, in, out);
}
extern "C" __global__ void softsign_f16(const size_t numel, const float scale, const __half *in, __half *out) {
    softsign(numel, scale, in, out);
}
