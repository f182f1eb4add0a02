// Functions of one element for all dtypes. Results are the CPU device's: each operation rounds to the dtype (functions
// of narrow floats are computed in f32), NaN and zeros as Rust's functions have them.
#include "cuda_utils.cuh"
#include <stdint.h>

#pragma clang fp contract(off)

// What functions are computed in.
template <typename T>
struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };

#define FUNCTION(NAME, EXPRESSION)                                      \
    template <typename T>                                               \
    struct NAME {                                                       \
        static __device__ __forceinline__ T of(T x) {                   \
            typedef typename Wide<T>::type W;                           \
            return EXPRESSION;                                          \
        }                                                               \
    };
#define WIDE(CALL) (T)(W)CALL((W)x)
FUNCTION(Copy, x)
FUNCTION(Neg, -x)
FUNCTION(Recip, (T)((W)1 / (W)x))
FUNCTION(Exp, WIDE(expg))
FUNCTION(Log, WIDE(logg))
FUNCTION(Sin, WIDE(sing))
FUNCTION(Cos, WIDE(cosg))
FUNCTION(Tanh, WIDE(tanhg))
FUNCTION(Erf, WIDE(erfg))
FUNCTION(Ceil, WIDE(ceilg))
FUNCTION(Floor, WIDE(floorg))
FUNCTION(Round, WIDE(roundg))
FUNCTION(Abs, WIDE(absg))
FUNCTION(Sqrt, WIDE(sqrtg))
FUNCTION(Sqr, x * x)
FUNCTION(Silu, x / ((T)1.0f + Exp<T>::of(-x)))
FUNCTION(Sigmoid, Recip<T>::of(Exp<T>::of(-x) + (T)1.0f))
FUNCTION(Sign, (T)((float)(x > (T)0.0f) - (float)(x < (T)0.0f)))
FUNCTION(Gelu, (T)0.5f * x * ((T)1.0f + Tanh<T>::of((T)0.79788456080286535588 * x *
                                                     ((T)1.0f + (T)0.044715 * x * x))))

// max(x, 0): a NaN gives way to the number. The CPU's f32 and f64 make -0 positive, its narrow floats do not, and
// its f8e4m3 keeps NaN.
template <typename T>
struct Relu {
    static __device__ __forceinline__ T of(T x) { return x > 0 ? x : 0; }
};
#define NARROW_RELU(T, ISNAN)                                                                                 \
    template <>                                                                                               \
    struct Relu<T> {                                                                                          \
        static __device__ __forceinline__ T of(T x) { return ISNAN || x < (T)0.0f ? (T)0.0f : x; }            \
    };
NARROW_RELU(__half, x != x)
NARROW_RELU(__nv_bfloat16, x != x)
NARROW_RELU(__nv_fp8_e4m3, false)

// x * (1 + erf(x / sqrt(2))) / 2. The CPU computes the 16-bit floats in f64; the distribution function is as exact
// where the sum would cancel.
template <typename T>
struct GeluErf {
    static __device__ __forceinline__ T of(T x) {
        typedef typename Wide<T>::type W;
        return (T)((erfg((W)x * (W)M_SQRT1_2) + (W)1) * (W)0.5 * (W)x);
    }
};
#define PRECISE_GELU_ERF(T)                                                                                   \
    template <>                                                                                               \
    struct GeluErf<T> {                                                                                       \
        static __device__ __forceinline__ T of(T x) { return (T)((float)x * normcdff((float)x)); }            \
    };
PRECISE_GELU_ERF(__half)
PRECISE_GELU_ERF(__nv_bfloat16)

template <typename T>
struct Elu {
    static __device__ __forceinline__ T of(T x, T alpha) {
        typedef typename Wide<T>::type W;
        return signbit((W)x) ? (Exp<T>::of(x) - (T)1.0f) * alpha : x;
    }
};
template <typename T>
struct Powf {
    static __device__ __forceinline__ T of(T x, T exponent) {
        typedef typename Wide<T>::type W;
        return (T)powg((W)x, (W)exponent);
    }
};

// Integers: |x| of the lowest one wraps to itself.
template <typename T>
struct IntegerAbs {
    static __device__ __forceinline__ T of(T x) { return x < 0 ? (T)(0 - (uint64_t)x) : x; }
};
template <typename T>
struct IntegerSign {
    static __device__ __forceinline__ T of(T x) { return (T)((x > 0) - (x < 0)); }
};

// As many elements as one access moves.
template <typename T>
struct alignas(CANDLE_PACK_BYTES) Pack { T v[CANDLE_PACK_BYTES / sizeof(T)]; };

// PACKED: the function is cheap enough to repeat for every element of a pack.
template <bool PACKED, typename T, typename F>
__device__ __forceinline__ void map(const size_t numel, const size_t num_dims, const size_t *info, const T *inp, T *out,
                                    F f) {
    const unsigned int step = blockDim.x * gridDim.x;
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if constexpr (PACKED) {
        if (num_dims == 0 && is_aligned_16(inp) && is_aligned_16(out)) {
            constexpr unsigned int width = CANDLE_PACK_BYTES / sizeof(T);
            const unsigned int packs = (unsigned int)numel / width;
            for (; i < packs; i += step) {
                Pack<T> pack = ((const Pack<T> *)inp)[i];
                for (unsigned int j = 0; j < width; ++j) {
                    pack.v[j] = f(pack.v[j]);
                }
                ((Pack<T> *)out)[i] = pack;
            }
            i = packs * width + blockIdx.x * blockDim.x + threadIdx.x;
        }
    }
    for (; i < numel; i += step) {
        out[i] = f(inp[candle_offset(i, num_dims, info, info + num_dims)]);
    }
}

template <bool PACKED, typename F, typename T>
__device__ void map1(const size_t numel, const size_t num_dims, const size_t *info, const T *inp, T *out) {
    map<PACKED>(numel, num_dims, info, inp, out, [](T x) { return F::of(x); });
}
template <typename F, typename T>
__device__ void map2(const size_t numel, const size_t num_dims, const size_t *info, const T param, const T *inp, T *out) {
    map<false>(numel, num_dims, info, inp, out, [param](T x) { return F::of(x, param); });
}

#define UNARY_OP(F, PACKED, T, NAME)                                                                        \
    extern "C" __global__ void NAME(const size_t numel, const size_t num_dims, const size_t *info,          \
                                    const T *inp, T *out) {                                                 \
        map1<PACKED, F<T>>(numel, num_dims, info, inp, out);                                                \
    }
#define UNARY_OP1(F, T, NAME)                                                                               \
    extern "C" __global__ void NAME(const size_t numel, const size_t num_dims, const size_t *info,          \
                                    const T param, const T *inp, T *out) {                                  \
        map2<F<T>>(numel, num_dims, info, param, inp, out);                                                 \
    }

#define FLOAT_OPS(T, NAME)                             \
    UNARY_OP(Neg, true, T, uneg_##NAME)                \
    UNARY_OP(Abs, true, T, uabs_##NAME)                \
    UNARY_OP(Sqr, true, T, usqr_##NAME)                \
    UNARY_OP(Relu, true, T, urelu_##NAME)              \
    UNARY_OP(Sign, false, T, usign_##NAME)             \
    UNARY_OP(Recip, false, T, urecip_##NAME)           \
    UNARY_OP(Sqrt, false, T, usqrt_##NAME)             \
    UNARY_OP(Exp, false, T, uexp_##NAME)               \
    UNARY_OP(Log, false, T, ulog_##NAME)               \
    UNARY_OP(Sin, false, T, usin_##NAME)               \
    UNARY_OP(Cos, false, T, ucos_##NAME)               \
    UNARY_OP(Tanh, false, T, utanh_##NAME)             \
    UNARY_OP(Erf, false, T, uerf_##NAME)               \
    UNARY_OP(Ceil, false, T, uceil_##NAME)             \
    UNARY_OP(Floor, false, T, ufloor_##NAME)           \
    UNARY_OP(Round, false, T, uround_##NAME)           \
    UNARY_OP(Gelu, false, T, ugelu_##NAME)             \
    UNARY_OP(GeluErf, false, T, ugelu_erf_##NAME)      \
    UNARY_OP(Silu, false, T, usilu_##NAME)             \
    UNARY_OP1(Elu, T, uelu_##NAME)                     \
    UNARY_OP1(Powf, T, upowf_##NAME)
FLOAT_OPS(__nv_bfloat16, bf16)
FLOAT_OPS(__half, f16)
FLOAT_OPS(float, f32)
FLOAT_OPS(double, f64)
FLOAT_OPS(__nv_fp8_e4m3, f8e4m3)

UNARY_OP(Sigmoid, false, __nv_bfloat16, usigmoid_bf16)
UNARY_OP(Sigmoid, false, __half, usigmoid_f16)
UNARY_OP(Sigmoid, false, float, usigmoid_f32)
UNARY_OP(Sigmoid, false, double, usigmoid_f64)

// A copy only moves elements: one kernel per size, named by the dtype that carries it. Ceil, floor and round of
// integers are copies.
UNARY_OP(Copy, true, uint8_t, ucopy_u8)
UNARY_OP(Copy, true, uint16_t, ucopy_f16)
UNARY_OP(Copy, true, uint32_t, ucopy_u32)
UNARY_OP(Copy, true, uint64_t, ucopy_i64)

UNARY_OP(IntegerSign, false, uint8_t, usign_u8)
UNARY_OP(IntegerSign, false, uint32_t, usign_u32)
#define SIGNED_OPS(T, NAME)                            \
    UNARY_OP(IntegerSign, false, T, usign_##NAME)      \
    UNARY_OP(IntegerAbs, false, T, uabs_##NAME)        \
    UNARY_OP(Relu, false, T, urelu_##NAME)
SIGNED_OPS(int16_t, i16)
SIGNED_OPS(int32_t, i32)
SIGNED_OPS(int64_t, i64)
