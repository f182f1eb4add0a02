// out = inp * mul + add in the tensor's dtype. The product is rounded before the sum, as on the CPU device; integers
// wrap.
#include "cuda_utils.cuh"
#include <stdint.h>

#pragma clang fp contract(off)

// What integers are computed in: a product that does not fit wraps, where a signed one would be undefined.
template <typename T>
struct Ring { typedef T type; };
template <> struct Ring<int16_t> { typedef uint32_t type; };
template <> struct Ring<int32_t> { typedef uint32_t type; };
template <> struct Ring<int64_t> { typedef uint64_t type; };

template <typename T>
__device__ void affine(const size_t numel, const size_t num_dims, const size_t *info, const T *inp, T *out,
                       const T mul, const T add) {
    typedef typename Ring<T>::type R;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < numel; i += blockDim.x * gridDim.x) {
        const R product = (R)inp[candle_offset(i, num_dims, info, info + num_dims)] * (R)mul;
        out[i] = (T)(product + (R)add);
    }
}

#define AFFINE_OP(T, NAME)                                                                                        \
    extern "C" __global__ void affine_##NAME(const size_t numel, const size_t num_dims, const size_t *info,       \
                                             const T *inp, T *out, const T mul, const T add) {                    \
        affine(numel, num_dims, info, inp, out, mul, add);                                                        \
    }
AFFINE_OP(uint8_t, u8)
AFFINE_OP(uint32_t, u32)
AFFINE_OP(int16_t, i16)
AFFINE_OP(int32_t, i32)
AFFINE_OP(int64_t, i64)
AFFINE_OP(__nv_bfloat16, bf16)
AFFINE_OP(__half, f16)
AFFINE_OP(float, f32)
AFFINE_OP(double, f64)
AFFINE_OP(__nv_fp8_e4m3, f8e4m3)
