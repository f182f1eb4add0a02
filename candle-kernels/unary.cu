// Functions of one element for all dtypes. Results are those of the CPU device: each operation rounds to the dtype
// (functions of narrow floats are computed in f32), with NaN and signed zeros as in Rust's functions.
#include "cuda_utils.cuh"
#include "pack.cuh"

#pragma clang fp contract(off)

// Combines a magnitude with the sign of x, by bits: clang's product of two f32 converted to f16 loses the sign of
// zero.
template <typename T>
__device__ __forceinline__ T with_sign_of(T x, float size) {
    typedef typename Bits<sizeof(T)>::type B;
    constexpr B sign = (B)1 << (sizeof(T) * 8 - 1);
    return candle_bits<T>((B)(candle_bits<B>((T)size) | (candle_bits<B>(x) & sign)));
}

// For narrow floats: fewer instructions than the library, with a relative error of 1e-5, far below the rounding
// error.
template <typename T>
__device__ __forceinline__ T narrow_exp(T x) { return (T)exp2f((float)x * 1.44269504f); }
// (1 - e) / (1 + e) with e = exp(-2 |x|), or the Taylor series where the difference would cancel.
template <typename T>
__device__ __forceinline__ T narrow_tanh(T x) {
    const float a = fabsf((float)x), e = candle_exp2(a * -2.88539008f);
    const float difference = a < 0.02f ? a * fmaf(a, fmaf(a, 1.33333333f, -2.0f), 2.0f) : 1.0f - e;
    return with_sign_of(x, difference * candle_reciprocal(1.0f + e));
}

#define FUNCTION(NAME, EXPRESSION)                                      \
    template <typename T>                                               \
    struct NAME {                                                       \
        static __device__ __forceinline__ T of(T x) {                   \
            typedef typename Wide<T>::type W;                           \
            return EXPRESSION;                                          \
        }                                                               \
        __device__ __forceinline__ T operator()(T x) const { return of(x); } \
    };
#define WIDE(CALL) (T)(W)CALL((W)x)
#define NARROW_FUNCTION(NAME, CALL, NARROW)                             \
    template <typename T>                                               \
    struct NAME {                                                       \
        static __device__ __forceinline__ T of(T x) {                   \
            typedef typename Wide<T>::type W;                           \
            if constexpr (sizeof(T) <= 2) {                             \
                return NARROW(x);                                       \
            } else {                                                    \
                return CALL((W)x);                                      \
            }                                                           \
        }                                                               \
    };
FUNCTION(Neg, -x)
FUNCTION(Recip, (T)((W)1 / (W)x))
NARROW_FUNCTION(Exp, expg, narrow_exp)
FUNCTION(Log, WIDE(logg))
FUNCTION(Sin, WIDE(sing))
FUNCTION(Cos, WIDE(cosg))
NARROW_FUNCTION(Tanh, tanhg, narrow_tanh)
FUNCTION(Erf, WIDE(erfg))
FUNCTION(Ceil, WIDE(ceilg))
FUNCTION(Floor, WIDE(floorg))
FUNCTION(Round, WIDE(roundg))
FUNCTION(Abs, WIDE(absg))
FUNCTION(Sqrt, WIDE(sqrtg))
FUNCTION(Sqr, x * x)
// Returns x / y for y >= 1. Narrow floats use a reciprocal, which must not underflow to 0.
template <typename T>
__device__ __forceinline__ T divide(T x, T y) {
    if constexpr (sizeof(T) == 2) {
        const float scale = (float)y > 0x1p64f ? 0x1p-64f : 1.0f;
        return (T)((float)x * scale * candle_reciprocal((float)y * scale));
    } else {
        return x / y;
    }
}
FUNCTION(Silu, divide(x, (T)1.0f + Exp<T>::of(-x)))
FUNCTION(Sigmoid, divide((T)1.0f, Exp<T>::of(-x) + (T)1.0f))
FUNCTION(Sign, (T)((float)(x > (T)0.0f) - (float)(x < (T)0.0f)))
FUNCTION(Gelu, (T)0.5f * x * ((T)1.0f + Tanh<T>::of((T)0.79788456080286535588 * x *
                                                     ((T)1.0f + (T)0.044715 * x * x))))

// max(x, 0), which is 0 for NaN. The CPU device turns -0 into +0 for f32 and f64 but not for narrow floats, and
// returns NaN for f8e4m3.
FUNCTION(Relu, sizeof(T) >= 4 ? (x > (T)0 ? x : (T)0) : ((sizeof(T) == 2 && x != x) || x < (T)0 ? (T)0 : x))
// For integers: |x| of the smallest one wraps to itself.
FUNCTION(IntegerAbs, x < 0 ? (T)(0 - (uint64_t)x) : x)
FUNCTION(IntegerSign, (T)((x > 0) - (x < 0)))

// x times the normal cumulative distribution function, with a relative error of 2e-6: exp(-x * x / 2) times a
// polynomial (fitted over 0 to 15) in t = 1 / (1 + |x| / 5) (compare Abramowitz and Stegun 26.2.17).
template <typename T>
__device__ __forceinline__ T narrow_gelu(T x) {
    const float a = fabsf((float)x), t = candle_reciprocal(fmaf(0.2f, a, 1.0f));
    const float terms[] = {-0.3843737f, 0.44333814f, -0.12046009f, 0.13141753f, 0.07132815f, 0.08033026f, 0.0f};
    float sum = 0.27841998f;
#pragma unroll
    for (const float term : terms) {
        sum = fmaf(sum, t, term);
    }
    const float tail = exp2f(a * a * -0.72134752f) * sum;
    return with_sign_of(x, a * (x > (T)0.0f ? 1.0f - tail : tail));
}
// x * (1 + erf(x / sqrt(2))) / 2. The CPU device computes 16-bit floats in f64; narrow_gelu is as exact.
template <typename W>
__device__ __forceinline__ W wide_gelu(W x) { return (erfg(x * (W)M_SQRT1_2) + (W)1) * (W)0.5 * x; }
NARROW_FUNCTION(GeluErf, wide_gelu, narrow_gelu)

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

// CHEAP: the function takes only a few instructions.
#define UNARY_OP(F, CHEAP, T, NAME)                                                                         \
    extern "C" __global__ void NAME(const size_t numel, const size_t num_dims, const size_t *info,          \
                                    const T *inp, T *out) {                                                 \
        map<CHEAP, false, false>(numel, num_dims, info, [](T x) { return F<T>::of(x); }, out, inp);         \
    }
// Functions of few instructions, in the order of the contract's CANDLE_ABS and so on.
#define SIMPLE_OP(T, NAME, CHEAP, ...)                                                                      \
    extern "C" __global__ void usimple_##NAME(const size_t numel, const size_t num_dims, const size_t *info, \
                                              const size_t function, const T *inp, T *out) {          \
        map<CHEAP, false, false>(numel, num_dims, info, Choice<__VA_ARGS__>{(unsigned int)function}, out, inp);           \
    }
#define UNARY_OP1(F, T, NAME)                                                                               \
    extern "C" __global__ void NAME(const size_t numel, const size_t num_dims, const size_t *info,          \
                                    const T param, const T *inp, T *out) {                                  \
        map<false, false, false>(numel, num_dims, info, [param](T x) { return F<T>::of(x, param); }, out, inp); \
    }

#define FLOAT_OPS(T, NAME, CHEAP)                      \
    SIMPLE_OP(T, NAME, CHEAP, Abs<T>, Relu<T>, Sign<T>, Neg<T>, Sqr<T>, Ceil<T>, Floor<T>, Round<T>)   \
    UNARY_OP(Recip, false, T, urecip_##NAME)         UNARY_OP(Sqrt, false, T, usqrt_##NAME)        \
    UNARY_OP(Exp, false, T, uexp_##NAME)             UNARY_OP(Log, false, T, ulog_##NAME)          \
    UNARY_OP(Sin, false, T, usin_##NAME)             UNARY_OP(Cos, false, T, ucos_##NAME)          \
    UNARY_OP(Tanh, false, T, utanh_##NAME)           UNARY_OP(Erf, false, T, uerf_##NAME)          \
    UNARY_OP(Gelu, false, T, ugelu_##NAME)           UNARY_OP(GeluErf, false, T, ugelu_erf_##NAME) \
    UNARY_OP(Silu, false, T, usilu_##NAME)           UNARY_OP1(Elu, T, uelu_##NAME)                \
    UNARY_OP1(Powf, T, upowf_##NAME)
FLOAT_OPS(__nv_bfloat16, bf16, true)
FLOAT_OPS(__half, f16, true)
FLOAT_OPS(float, f32, true)
FLOAT_OPS(double, f64, true)
FLOAT_OPS(__nv_fp8_e4m3, f8e4m3, false)

UNARY_OP(Sigmoid, false, __nv_bfloat16, usigmoid_bf16)
UNARY_OP(Sigmoid, false, __half, usigmoid_f16)
UNARY_OP(Sigmoid, false, float, usigmoid_f32)
UNARY_OP(Sigmoid, false, double, usigmoid_f64)

// The activation is rounded before the product.
#define GATED(NAME, ACTIVATION, T, T_NAME)                                                                  \
    extern "C" __global__ void NAME##_##T_NAME(const size_t numel, const size_t num_dims,                   \
                                               const size_t *info, const T *lhs, const T *rhs, T *out) {    \
        map<false, false, true>(numel, num_dims, info, [](T x, T y) { return ACTIVATION<T>::of(x) * y; }, out, lhs, rhs); \
    }
#define GATED_OPS(T, T_NAME)           \
    GATED(swiglu, Silu, T, T_NAME)     \
    GATED(geglu, GeluErf, T, T_NAME)
GATED_OPS(__nv_bfloat16, bf16)
GATED_OPS(__half, f16)
GATED_OPS(float, f32)
GATED_OPS(double, f64)
GATED_OPS(__nv_fp8_e4m3, f8e4m3)

// Copies exist once per element size, named after one dtype of that size.
#define COPY_OP(T, NAME)                                                                                    \
    extern "C" __global__ void NAME(const size_t numel, const size_t num_dims, const size_t *info,          \
                                    const T *inp, T *out) {                                                 \
        map<true, false, true>(numel, num_dims, info, [](T x) { return x; }, out, inp);                     \
    }
COPY_OP(uint8_t, ucopy_u8)
COPY_OP(uint16_t, ucopy_f16)
COPY_OP(uint32_t, ucopy_u32)
COPY_OP(uint64_t, ucopy_i64)

#define INTEGER_OPS(T, NAME) SIMPLE_OP(T, NAME, true, IntegerAbs<T>, Relu<T>, IntegerSign<T>)
INTEGER_OPS(uint8_t, u8)
INTEGER_OPS(uint32_t, u32)
INTEGER_OPS(int16_t, i16)
INTEGER_OPS(int32_t, i32)
INTEGER_OPS(int64_t, i64)
