// Conversions between all dtypes, as on the CPU device (Rust's `as`): floats to integers towards zero, out-of-range
// values to the nearest integer, NaN to 0.
#include "pack.cuh"

// Saturates in f64 or f32. An inexact upper limit such as 2^63 - 1 rounds up to one past the range.
template <typename To, typename From>
__device__ __forceinline__ To float_to_integer(From value) {
    typedef ::cuda::std::numeric_limits<To> Limits;
    if (isnan(value)) {
        return 0;
    }
    if (value <= (From)Limits::lowest()) {
        return Limits::lowest();
    }
    return value >= (From)Limits::max() ? Limits::max() : (To)value;
}

template <typename T> constexpr bool is_float = false;
template <> constexpr bool is_float<float> = true;
template <> constexpr bool is_float<double> = true;
template <> constexpr bool is_float<__half> = true;
template <> constexpr bool is_float<__nv_bfloat16> = true;
template <> constexpr bool is_float<__nv_fp8_e4m3> = true;

// Conversions from narrow floats, and from integers to narrow floats, go through f32.
template <typename To, typename From>
__device__ __forceinline__ To convert(From value) {
    if constexpr (is_float<From>) {
        const auto wide = (typename Wide<From>::type)value;
        if constexpr (is_float<To>) {
            return (To)wide;
        } else {
            return float_to_integer<To>(wide);
        }
    } else if constexpr (is_float<To> && sizeof(To) < sizeof(float)) {
        return (To)(float)value;
    } else {
        return (To)value;
    }
}

// Conversions of f8e4m3 take many instructions.
template <typename T> constexpr bool is_f8 = false;
template <> constexpr bool is_f8<__nv_fp8_e4m3> = true;

#define CAST_OP(FROM, FROM_NAME, TO, TO_NAME)                                                                      \
    extern "C" __global__ void cast_##FROM_NAME##_##TO_NAME(const size_t numel, const size_t num_dims,             \
                                                            const size_t *info, const FROM *inp, TO *out) {        \
        map<!is_f8<FROM> && !is_f8<TO>, false, true>(numel, num_dims, info, convert<TO, FROM>, out, inp);                \
    }

#define CAST_BOTH(A, A_NAME, B, B_NAME)     \
    CAST_OP(A, A_NAME, B, B_NAME)           \
    CAST_OP(B, B_NAME, A, A_NAME)

// Each dtype with all dtypes before it: every pair in both directions, and none with itself.
#define CAST_u32(T, NAME) CAST_BOTH(T, NAME, uint8_t, u8)
#define CAST_i16(T, NAME) CAST_u32(T, NAME) CAST_BOTH(T, NAME, uint32_t, u32)
#define CAST_i32(T, NAME) CAST_i16(T, NAME) CAST_BOTH(T, NAME, int16_t, i16)
#define CAST_i64(T, NAME) CAST_i32(T, NAME) CAST_BOTH(T, NAME, int32_t, i32)
#define CAST_bf16(T, NAME) CAST_i64(T, NAME) CAST_BOTH(T, NAME, int64_t, i64)
#define CAST_f16(T, NAME) CAST_bf16(T, NAME) CAST_BOTH(T, NAME, __nv_bfloat16, bf16)
#define CAST_f32(T, NAME) CAST_f16(T, NAME) CAST_BOTH(T, NAME, __half, f16)
#define CAST_f64(T, NAME) CAST_f32(T, NAME) CAST_BOTH(T, NAME, float, f32)
#define CAST_f8e4m3(T, NAME) CAST_f64(T, NAME) CAST_BOTH(T, NAME, double, f64)

CAST_u32(uint32_t, u32)
CAST_i16(int16_t, i16)
CAST_i32(int32_t, i32)
CAST_i64(int64_t, i64)
CAST_bf16(__nv_bfloat16, bf16)
CAST_f16(__half, f16)
CAST_f32(float, f32)
CAST_f64(double, f64)
CAST_f8e4m3(__nv_fp8_e4m3, f8e4m3)
