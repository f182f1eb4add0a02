// Arithmetic and comparisons of two tensors for all dtypes.
// Results are those of the CPU device: every operation rounds once, integers wrap, and
//     minimum(x, y) = x > y ? y : x,    maximum(x, y) = x < y ? y : x,
// so that a NaN on the left is returned and a NaN on the right is ignored.
#include "pack.cuh"

#pragma clang fp contract(off)

#define FUNCTION(NAME, EXPRESSION)                                      \
    struct NAME {                                                       \
        template <typename T>                                           \
        __device__ __forceinline__ T operator()(T x, T y) const {       \
            typedef typename WrappingType<T>::type R;                   \
            return (T)(EXPRESSION);                                     \
        }                                                               \
    };
FUNCTION(Add, (R)x + (R)y)
FUNCTION(Subtract, (R)x - (R)y)
FUNCTION(Multiply, (R)x * (R)y)
FUNCTION(Divide, x / y)
FUNCTION(Minimum, x > y ? y : x)
FUNCTION(Maximum, x < y ? y : x)

// In the order of the contract's CANDLE_ADD and so on.
typedef Choice<Add, Subtract, Multiply, Minimum, Maximum> Arithmetic;

// Returns 1 if the bit of the relation between x and y is set; NaN is neither less nor equal.
struct Relation {
    uint8_t less, equal, other;

    __device__ __forceinline__ explicit Relation(size_t bits)
        : less(bits / CANDLE_LESS % 2), equal(bits / CANDLE_EQUAL % 2), other(bits / CANDLE_NEITHER % 2) {}
    template <typename T>
    __device__ __forceinline__ uint8_t operator()(T x, T y) const { return x < y ? less : x == y ? equal : other; }
};

#define BINARY_OP(NAME, CHEAP, T, R, F)                                                                     \
    extern "C" __global__ void NAME(const size_t numel, const size_t num_dims, const size_t *info,          \
                                    const size_t function,       const T *lhs, const T *rhs, R *out) {      \
        map<CHEAP, false, true>(numel, num_dims, info, F, out, lhs, rhs);                                   \
    }
#define BINARY_OPS(T, NAME, CHEAP)                                         \
    BINARY_OP(arithmetic_##NAME, CHEAP, T, T, Arithmetic{(unsigned int)function})        \
    BINARY_OP(divide_##NAME, false, T, T, Divide())                        \
    BINARY_OP(compare_##NAME, CHEAP, T, uint8_t, Relation(function))
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
