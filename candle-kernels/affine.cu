// out = inp * mul + add in the tensor's dtype. The product is rounded before the sum; integers wrap. And
// out = minimum(maximum(inp, low), high), with the NaN rules of binary.cu.
#include "pack.cuh"

#pragma clang fp contract(off)

template <typename T>
__device__ __forceinline__ T affine(T x, T mul, T add) {
    typedef typename WrappingType<T>::type R;
    const R product = (R)x * (R)mul;
    return (T)(product + (R)add);
}

template <typename T>
__device__ __forceinline__ T clamp(T x, T low, T high) {
    const T raised = x < low ? low : x;
    return raised > high ? high : raised;
}

#define AFFINE_OP(T, NAME, CHEAP)                                                                                 \
    extern "C" __global__ void CANDLE_FEW_REGISTERS_BOUNDS affine_##NAME(const size_t numel, const size_t num_dims, const size_t *info,       \
                                             const T *inp, T *out, const T mul, const T add) {                    \
        map<CHEAP, false, true>(numel, num_dims, info, [=](T x) { return affine(x, mul, add); }, out, inp);       \
    }                                                                                                             \
    extern "C" __global__ void clamp_##NAME(const size_t numel, const size_t num_dims, const size_t *info,        \
                                            const T *inp, T *out, const T low, const T high) {                    \
        map<CHEAP, false, true>(numel, num_dims, info, [=](T x) { return clamp(x, low, high); }, out, inp);       \
    }
AFFINE_OP(uint8_t, u8, true)
AFFINE_OP(uint32_t, u32, true)
AFFINE_OP(int16_t, i16, true)
AFFINE_OP(int32_t, i32, true)
AFFINE_OP(int64_t, i64, true)
AFFINE_OP(__nv_bfloat16, bf16, true)
AFFINE_OP(__half, f16, true)
AFFINE_OP(float, f32, true)
AFFINE_OP(double, f64, true)
AFFINE_OP(__nv_fp8_e4m3, f8e4m3, false)
