// Arithmetic and comparisons of two tensors for all dtypes.
// Results are those of the CPU device: every operation rounds once, integers wrap, and
//     minimum(x, y) = x > y ? y : x,    maximum(x, y) = x < y ? y : x,
// so that a NaN on the left is returned and a NaN on the right is ignored.
#include "pack.cuh"

#pragma clang fp contract(off)

#define FUNCTION(NAME, EXPRESSION)                                      \
    struct NAME {                                                       \
        template <typename T>                                           \
        static __device__ __forceinline__ T compute(T x, T y) {         \
            typedef typename WrappingType<T>::type R;                   \
            return (T)(EXPRESSION);                                     \
        }                                                               \
    };
FUNCTION(Add, (R)x + (R)y)
FUNCTION(Sub, (R)x - (R)y)
FUNCTION(Mul, (R)x * (R)y)
FUNCTION(Div, x / y)
FUNCTION(Minimum, x > y ? y : x)
FUNCTION(Maximum, x < y ? y : x)

#define COMPARISON(NAME, OP)                                                                    \
    struct NAME {                                                                               \
        template <typename T>                                                                   \
        static __device__ __forceinline__ uint8_t compute(T x, T y) { return x OP y; }          \
    };
COMPARISON(Eq, ==)
COMPARISON(Ne, !=)
COMPARISON(Lt, <)
COMPARISON(Le, <=)
COMPARISON(Gt, >)
COMPARISON(Ge, >=)

#define BINARY_OP(F, CHEAP, T, R, NAME)                                                                     \
    extern "C" __global__ void NAME(const size_t numel, const size_t num_dims, const size_t *info,          \
                                    const T *lhs, const T *rhs, R *out) {                                   \
        map<CHEAP, false, true>(numel, num_dims, info, [](T x, T y) { return F::compute(x, y); }, out, lhs, rhs); \
    }
#define BINARY_OPS(T, NAME, CHEAP)                         \
    BINARY_OP(Add, CHEAP, T, T, badd_##NAME)         BINARY_OP(Sub, CHEAP, T, T, bsub_##NAME)        \
    BINARY_OP(Mul, CHEAP, T, T, bmul_##NAME)         BINARY_OP(Div, false, T, T, bdiv_##NAME)        \
    BINARY_OP(Minimum, true, T, T, bminimum_##NAME)  BINARY_OP(Maximum, true, T, T, bmaximum_##NAME) \
    BINARY_OP(Eq, true, T, uint8_t, eq_##NAME)       BINARY_OP(Ne, true, T, uint8_t, ne_##NAME)      \
    BINARY_OP(Lt, true, T, uint8_t, lt_##NAME)       BINARY_OP(Le, true, T, uint8_t, le_##NAME)      \
    BINARY_OP(Gt, true, T, uint8_t, gt_##NAME)       BINARY_OP(Ge, true, T, uint8_t, ge_##NAME)
BINARY_OPS(uint8_t, u8, true)
BINARY_OPS(uint32_t, u32, true)
BINARY_OPS(int16_t, i16, true)
BINARY_OPS(int32_t, i32, true)
BINARY_OPS(int64_t, i64, true)
BINARY_OPS(__nv_bfloat16, bf16, true)
BINARY_OPS(__half, f16, true)
BINARY_OPS(float, f32, true)
BINARY_OPS(double, f64, true)
BINARY_OPS(__nv_fp8_e4m3, f8e4m3, false)
