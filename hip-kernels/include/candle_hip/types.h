// Fixed-width integers, vector types and numeric limits.
#pragma once

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;

#define memcpy(destination, source, bytes) __builtin_memcpy(destination, source, bytes)

#define INFINITY __builtin_huge_valf()
#define NAN __builtin_nanf("")
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define M_2_SQRTPI 1.12837916709551257390

// Reinterprets the bits of a value of the same size.
template <typename To, typename From>
static __attribute__((device)) inline __attribute__((always_inline)) To candle_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "candle_bits needs types of one size");
    return __builtin_bit_cast(To, value);
}

// Alignment as in CUDA, so that one 16-byte access can load a float4.
#define CANDLE_VECTOR2(NAME, SCALAR) struct alignas(2 * sizeof(SCALAR)) NAME { SCALAR x, y; };
#define CANDLE_VECTOR3(NAME, SCALAR) struct NAME { SCALAR x, y, z; };
#define CANDLE_VECTOR4(NAME, SCALAR, ALIGN) struct alignas(ALIGN) NAME { SCALAR x, y, z, w; };
CANDLE_VECTOR2(char2, signed char)
CANDLE_VECTOR2(uchar2, unsigned char)
CANDLE_VECTOR2(short2, short)
CANDLE_VECTOR2(int2, int)
CANDLE_VECTOR2(uint2, unsigned int)
CANDLE_VECTOR2(float2, float)
CANDLE_VECTOR2(double2, double)
CANDLE_VECTOR3(float3, float)
CANDLE_VECTOR4(char4, signed char, 4)
CANDLE_VECTOR4(uchar4, unsigned char, 4)
CANDLE_VECTOR4(int4, int, 16)
CANDLE_VECTOR4(uint4, unsigned int, 16)
CANDLE_VECTOR4(float4, float, 16)
#undef CANDLE_VECTOR2
#undef CANDLE_VECTOR3
#undef CANDLE_VECTOR4

CANDLE_DEVICE float2 make_float2(float x, float y) { return float2{x, y}; }
CANDLE_DEVICE float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
CANDLE_DEVICE int2 make_int2(int x, int y) { return int2{x, y}; }

// cuda::std::numeric_limits, for the initial values of reductions.
namespace cuda {
namespace std {
template <typename T>
struct numeric_limits;

#define CANDLE_LIMITS(T, LOWEST, MAX)                              \
    template <>                                                    \
    struct numeric_limits<T> {                                     \
        static __device__ constexpr T lowest() { return LOWEST; }  \
        static __device__ constexpr T min() { return LOWEST; }     \
        static __device__ constexpr T max() { return MAX; }        \
    };
CANDLE_LIMITS(uint8_t, 0, 0xff)
CANDLE_LIMITS(int8_t, -0x80, 0x7f)
CANDLE_LIMITS(int16_t, -0x8000, 0x7fff)
CANDLE_LIMITS(uint16_t, 0, 0xffff)
CANDLE_LIMITS(int32_t, -__INT32_MAX__ - 1, __INT32_MAX__)
CANDLE_LIMITS(uint32_t, 0, __UINT32_MAX__)
CANDLE_LIMITS(int64_t, -__INT64_MAX__ - 1, __INT64_MAX__)
CANDLE_LIMITS(uint64_t, 0, __UINT64_MAX__)
#undef CANDLE_LIMITS
} // namespace std
} // namespace cuda
