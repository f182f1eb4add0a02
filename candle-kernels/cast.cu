// Conversions between all dtypes, as on the CPU device (Rust's `as`): floats to integers towards zero, out-of-range
// values to the nearest integer, NaN to 0.
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

// Elements that a thread converts at once: as many as one access moves on the wider side, CANDLE_CAST_PACK at most.
template <typename From, typename To>
struct CastPack {
    static constexpr unsigned int wider = sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To);
    static constexpr unsigned int widest = CANDLE_PACK_BYTES / wider;
    static constexpr unsigned int width = widest < CANDLE_CAST_PACK ? widest : CANDLE_CAST_PACK;
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

#define CAST_BOTH(A, A_NAME, B, B_NAME)     \
    CAST_OP(A, A_NAME, B, B_NAME)           \
    CAST_OP(B, B_NAME, A, A_NAME)

// A dtype with all that stand before it: every pair once in each direction, and none with itself.
#define CAST_u32(T, NAME) \
    CAST_BOTH(T, NAME, uint8_t, u8)
#define CAST_i16(T, NAME) \
    CAST_u32(T, NAME) \
    CAST_BOTH(T, NAME, uint32_t, u32)
#define CAST_i32(T, NAME) \
    CAST_i16(T, NAME) \
    CAST_BOTH(T, NAME, int16_t, i16)
#define CAST_i64(T, NAME) \
    CAST_i32(T, NAME) \
    CAST_BOTH(T, NAME, int32_t, i32)
#define CAST_bf16(T, NAME) \
    CAST_i64(T, NAME) \
    CAST_BOTH(T, NAME, int64_t, i64)
#define CAST_f16(T, NAME) \
    CAST_bf16(T, NAME) \
    CAST_BOTH(T, NAME, __nv_bfloat16, bf16)
#define CAST_f32(T, NAME) \
    CAST_f16(T, NAME) \
    CAST_BOTH(T, NAME, __half, f16)
#define CAST_f64(T, NAME) \
    CAST_f32(T, NAME) \
    CAST_BOTH(T, NAME, float, f32)
#define CAST_f8e4m3(T, NAME) \
    CAST_f64(T, NAME) \
    CAST_BOTH(T, NAME, double, f64)

CAST_u32(uint32_t, u32)
CAST_i16(int16_t, i16)
CAST_i32(int32_t, i32)
CAST_i64(int64_t, i64)
CAST_bf16(__nv_bfloat16, bf16)
CAST_f16(__half, f16)
CAST_f32(float, f32)
CAST_f64(double, f64)
CAST_f8e4m3(__nv_fp8_e4m3, f8e4m3)
