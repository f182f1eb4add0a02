// Arithmetic and comparisons of two tensors for all dtypes.
// Results are the CPU device's: every operation rounds once, integers wrap, and
//     minimum(x, y) = x > y ? y : x,    maximum(x, y) = x < y ? y : x,
// so that a NaN on the left stays and one on the right gives way.
#include "cuda_utils.cuh"
#include <stdint.h>

#pragma clang fp contract(off)

// What sums, differences and products are computed in: integers that do not fit wrap.
template <typename T>
struct Ring { typedef T type; };
template <> struct Ring<int16_t> { typedef uint32_t type; };
template <> struct Ring<int32_t> { typedef uint32_t type; };
template <> struct Ring<int64_t> { typedef uint64_t type; };

#define FUNCTION(NAME, EXPRESSION)                                      \
    struct NAME {                                                       \
        template <typename T>                                           \
        static __device__ __forceinline__ T of(T x, T y) {              \
            typedef typename Ring<T>::type R;                           \
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
        static __device__ __forceinline__ uint8_t of(T x, T y) { return x OP y; }               \
    };
COMPARISON(Eq, ==)
COMPARISON(Ne, !=)
COMPARISON(Lt, <)
COMPARISON(Le, <=)
COMPARISON(Gt, >)
COMPARISON(Ge, >=)

// As many elements as one access moves.
template <typename T>
struct alignas(CANDLE_PACK_BYTES) Pack { T v[CANDLE_PACK_BYTES / sizeof(T)]; };

template <typename F, typename T, typename R>
__device__ void zip(const size_t numel, const size_t num_dims, const size_t *info, const T *lhs, const T *rhs, R *out) {
    const unsigned int step = blockDim.x * gridDim.x;
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (num_dims != 0) {
        const size_t *dims = info, *lhs_strides = info + num_dims, *rhs_strides = info + 2 * num_dims;
        for (; i < numel; i += step) {
            unsigned int rest = i;
            size_t l = 0, r = 0;
            for (int d = (int)num_dims - 1; d > 0; --d) {
                const unsigned int size = (unsigned int)dims[d], at = rest % size;
                l += at * lhs_strides[d];
                r += at * rhs_strides[d];
                rest /= size;
            }
            out[i] = F::of(lhs[l + rest * lhs_strides[0]], rhs[r + rest * rhs_strides[0]]);
        }
        return;
    }
    if constexpr (sizeof(T) == sizeof(R)) {
        if (is_aligned_16(lhs) && is_aligned_16(rhs) && is_aligned_16(out)) {
            constexpr unsigned int width = CANDLE_PACK_BYTES / sizeof(T);
            const unsigned int packs = (unsigned int)numel / width;
            for (; i < packs; i += step) {
                const Pack<T> x = ((const Pack<T> *)lhs)[i], y = ((const Pack<T> *)rhs)[i];
                Pack<R> result;
                for (unsigned int j = 0; j < width; ++j) {
                    result.v[j] = F::of(x.v[j], y.v[j]);
                }
                ((Pack<R> *)out)[i] = result;
            }
            i = packs * width + blockIdx.x * blockDim.x + threadIdx.x;
        }
    }
    for (; i < numel; i += step) {
        out[i] = F::of(lhs[i], rhs[i]);
    }
}

#define BINARY_OP(F, T, R, NAME)                                                                            \
    extern "C" __global__ void NAME(const size_t numel, const size_t num_dims, const size_t *info,          \
                                    const T *lhs, const T *rhs, R *out) {                                   \
        zip<F>(numel, num_dims, info, lhs, rhs, out);                                                       \
    }
#define BINARY_OPS(T, NAME)                         \
    BINARY_OP(Add, T, T, badd_##NAME)               \
    BINARY_OP(Sub, T, T, bsub_##NAME)               \
    BINARY_OP(Mul, T, T, bmul_##NAME)               \
    BINARY_OP(Div, T, T, bdiv_##NAME)               \
    BINARY_OP(Minimum, T, T, bminimum_##NAME)       \
    BINARY_OP(Maximum, T, T, bmaximum_##NAME)       \
    BINARY_OP(Eq, T, uint8_t, eq_##NAME)            \
    BINARY_OP(Ne, T, uint8_t, ne_##NAME)            \
    BINARY_OP(Lt, T, uint8_t, lt_##NAME)            \
    BINARY_OP(Le, T, uint8_t, le_##NAME)            \
    BINARY_OP(Gt, T, uint8_t, gt_##NAME)            \
    BINARY_OP(Ge, T, uint8_t, ge_##NAME)
BINARY_OPS(uint8_t, u8)
BINARY_OPS(uint32_t, u32)
BINARY_OPS(int16_t, i16)
BINARY_OPS(int32_t, i32)
BINARY_OPS(int64_t, i64)
BINARY_OPS(__nv_bfloat16, bf16)
BINARY_OPS(__half, f16)
BINARY_OPS(float, f32)
BINARY_OPS(double, f64)
BINARY_OPS(__nv_fp8_e4m3, f8e4m3)
