// Conversions between all dtypes, in place of upstream's: same names and arguments. Upstream lacks most pairs
// with i16, i32 and f8e4m3, and leaves floats that an integer cannot hold undefined. Here they convert as on
// the CPU device (Rust's `as`): towards zero, out-of-range values to the nearest integer, NaN to 0.
#include "cuda_utils.cuh"
#include <stdint.h>

// The range of an integer type in f64, whose upper end may be one beyond: 2^63 for int64_t.
template <typename To>
__device__ __forceinline__ To float_to_integer(double value) {
    constexpr double lowest = (double)::cuda::std::numeric_limits<To>::lowest();
    constexpr double highest = (double)::cuda::std::numeric_limits<To>::max();
    if (isnan(value)) {
        return 0;
    }
    if (value <= lowest) {
        return ::cuda::std::numeric_limits<To>::lowest();
    }
    return value >= highest ? ::cuda::std::numeric_limits<To>::max() : (To)value;
}

// The same within f32, whose range ends are powers of two or exact.
template <typename To>
__device__ __forceinline__ To float_to_integer(float value) {
    constexpr float lowest = (float)::cuda::std::numeric_limits<To>::lowest();
    constexpr float highest = (float)::cuda::std::numeric_limits<To>::max();
    if (isnan(value)) {
        return 0;
    }
    if (value <= lowest) {
        return ::cuda::std::numeric_limits<To>::lowest();
    }
    return value >= highest ? ::cuda::std::numeric_limits<To>::max() : (To)value;
}

// What a dtype is computed in on the way: narrow floats and integers to narrow floats go through f32.
template <typename T>
struct Wide {
    static constexpr bool is_float = false;
    typedef T type;
};
#define WIDE_FLOAT(T, WIDE)                     \
    template <>                                 \
    struct Wide<T> {                            \
        static constexpr bool is_float = true;  \
        typedef WIDE type;                      \
    };
WIDE_FLOAT(float, float)
WIDE_FLOAT(double, double)
WIDE_FLOAT(__half, float)
WIDE_FLOAT(__nv_bfloat16, float)
WIDE_FLOAT(__nv_fp8_e4m3, float)

template <typename To, typename From>
__device__ __forceinline__ To convert(From value) {
    const typename Wide<From>::type wide = (typename Wide<From>::type)value;
    if constexpr (Wide<From>::is_float && !Wide<To>::is_float) {
        return float_to_integer<To>(wide);
    } else if constexpr (!Wide<From>::is_float && sizeof(To) < sizeof(float) && Wide<To>::is_float) {
        return (To)(float)wide;
    } else {
        return (To)wide;
    }
}

// Elements that a thread converts at once: accesses of 16 bytes on the wider side, 8 elements at most.
template <typename From, typename To>
struct CastPack {
    static constexpr unsigned int wider = sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To);
    static constexpr unsigned int width = wider == 1 ? 8 : 16 / wider;
};

template <typename T, unsigned int N>
struct alignas(N * sizeof(T)) Elements { T v[N]; };

template <typename From, typename To>
__device__ void cast(const size_t numel, const size_t num_dims, const size_t *info, const From *inp, To *out) {
    constexpr unsigned int width = CastPack<From, To>::width;
    const unsigned int step = blockDim.x * gridDim.x;
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (num_dims == 0) {
        // The rest are the elements after the last whole pack, or all of them.
        unsigned int packed = 0;
        if ((size_t)inp % (width * sizeof(From)) == 0 && (size_t)out % (width * sizeof(To)) == 0) {
            const unsigned int packs = (unsigned int)numel / width;
            for (; i < packs; i += step) {
                const Elements<From, width> from = ((const Elements<From, width> *)inp)[i];
                Elements<To, width> to;
                for (unsigned int j = 0; j < width; ++j) {
                    to.v[j] = convert<To>(from.v[j]);
                }
                ((Elements<To, width> *)out)[i] = to;
            }
            packed = packs * width;
        }
        for (i = packed + blockIdx.x * blockDim.x + threadIdx.x; i < numel; i += step) {
            out[i] = convert<To>(inp[i]);
        }
        return;
    }
    for (; i < numel; i += step) {
        out[i] = convert<To>(inp[candle_offset(i, num_dims, info, info + num_dims)]);
    }
}

#define CAST_OP(FROM, FROM_NAME, TO, TO_NAME)                                                                      \
    extern "C" __global__ void cast_##FROM_NAME##_##TO_NAME(const size_t numel, const size_t num_dims,             \
                                                            const size_t *info, const FROM *inp, TO *out) {        \
        cast(numel, num_dims, info, inp, out);                                                                     \
    }

#define CAST_FROM(FROM, FROM_NAME)                  \
    CAST_OP(FROM, FROM_NAME, uint8_t, u8)           \
    CAST_OP(FROM, FROM_NAME, uint32_t, u32)         \
    CAST_OP(FROM, FROM_NAME, int16_t, i16)          \
    CAST_OP(FROM, FROM_NAME, int32_t, i32)          \
    CAST_OP(FROM, FROM_NAME, int64_t, i64)          \
    CAST_OP(FROM, FROM_NAME, __nv_bfloat16, bf16)   \
    CAST_OP(FROM, FROM_NAME, __half, f16)           \
    CAST_OP(FROM, FROM_NAME, float, f32)            \
    CAST_OP(FROM, FROM_NAME, double, f64)           \
    CAST_OP(FROM, FROM_NAME, __nv_fp8_e4m3, f8e4m3)

CAST_FROM(uint8_t, u8)
CAST_FROM(uint32_t, u32)
CAST_FROM(int16_t, i16)
CAST_FROM(int32_t, i32)
CAST_FROM(int64_t, i64)
CAST_FROM(__nv_bfloat16, bf16)
CAST_FROM(__half, f16)
CAST_FROM(float, f32)
CAST_FROM(double, f64)
CAST_FROM(__nv_fp8_e4m3, f8e4m3)
