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

// A conversion between the bits of two dtypes.
template <typename From, typename To>
struct Conversion {
    typedef typename Bits<sizeof(From)>::type In;
    typedef typename Bits<sizeof(To)>::type Out;
    __device__ __forceinline__ Out operator()(In x) const { return candle_bits<Out>(convert<To>(candle_bits<From>(x))); }
};

// A kernel for each pair of element sizes. `pair` chooses the dtypes of these sizes, in the order of the contract:
// it is the number of the first dtype times the count of second dtypes, plus the number of the second. Conversions of
// f8e4m3 take many instructions and have kernels of their own.
#define CAST_OP(FROM, TO, IN, OUT, CHEAP, ...)                                                                     \
    extern "C" __global__ void cast_##FROM##_##TO(const size_t numel, const size_t num_dims, const size_t *info,   \
                                                  const size_t pair, const IN *inp, OUT *out) {              \
        map<CHEAP, false, true>(numel, num_dims, info, Choice<__VA_ARGS__>{(unsigned int)pair}, out, inp);                       \
    }

#define TO_u8(FROM) Conversion<FROM, uint8_t>
#define TO_f8e4m3(FROM) Conversion<FROM, __nv_fp8_e4m3>
#define TO_b2(FROM) Conversion<FROM, int16_t>, Conversion<FROM, __nv_bfloat16>, Conversion<FROM, __half>
#define TO_b4(FROM) Conversion<FROM, uint32_t>, Conversion<FROM, int32_t>, Conversion<FROM, float>
#define TO_b8(FROM) Conversion<FROM, int64_t>, Conversion<FROM, double>

#define FROM_u8(TO, OUT, CHEAP) CAST_OP(u8, TO, uint8_t, OUT, CHEAP, TO_##TO(uint8_t))
#define FROM_f8e4m3(TO, OUT) CAST_OP(f8e4m3, TO, uint8_t, OUT, false, TO_##TO(__nv_fp8_e4m3))
#define FROM_b2(TO, OUT, CHEAP) CAST_OP(b2, TO, uint16_t, OUT, CHEAP, TO_##TO(int16_t), TO_##TO(__nv_bfloat16), TO_##TO(__half))
#define FROM_b4(TO, OUT, CHEAP) CAST_OP(b4, TO, uint32_t, OUT, CHEAP, TO_##TO(uint32_t), TO_##TO(int32_t), TO_##TO(float))
#define FROM_b8(TO, OUT, CHEAP) CAST_OP(b8, TO, uint64_t, OUT, CHEAP, TO_##TO(int64_t), TO_##TO(double))
#define FROM_WIDE(TO, OUT, CHEAP) FROM_b2(TO, OUT, CHEAP) FROM_b4(TO, OUT, CHEAP) FROM_b8(TO, OUT, CHEAP)
#define FROM_BYTES(TO, OUT) FROM_u8(TO, OUT, true) FROM_f8e4m3(TO, OUT)

FROM_WIDE(u8, uint8_t, true)
FROM_WIDE(f8e4m3, uint8_t, false)
FROM_WIDE(b2, uint16_t, true)
FROM_WIDE(b4, uint32_t, true)
FROM_WIDE(b8, uint64_t, true)
FROM_BYTES(b2, uint16_t)
FROM_BYTES(b4, uint32_t)
FROM_BYTES(b8, uint64_t)
FROM_u8(f8e4m3, uint8_t, false)
FROM_f8e4m3(u8, uint8_t)
