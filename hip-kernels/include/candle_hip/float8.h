// The 8-bit float E4M3 under CUDA's names: 4 exponent bits (bias 7), 3 mantissa bits, no infinities, one NaN
// (0x7f, with either sign), largest value 448. Narrowing rounds to nearest even and saturates.
#pragma once

enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

struct __nv_fp8_e4m3 {
    unsigned char __x;

    __nv_fp8_e4m3() = default;
    __device__ __forceinline__ explicit __nv_fp8_e4m3(double value) : __x(encode(value)) {}
    // These types are exact in f64, or round as on the CPU device when converted through f32.
    __device__ __forceinline__ explicit __nv_fp8_e4m3(float value) : __x(encode(value)) {}
    __device__ __forceinline__ explicit __nv_fp8_e4m3(__half value) : __x(encode((float)value)) {}
    __device__ __forceinline__ explicit __nv_fp8_e4m3(__nv_bfloat16 value) : __x(encode((float)value)) {}
    __device__ __forceinline__ explicit __nv_fp8_e4m3(int value) : __x(encode((float)value)) {}
    __device__ __forceinline__ explicit __nv_fp8_e4m3(unsigned int value) : __x(encode((float)value)) {}
    __device__ __forceinline__ explicit __nv_fp8_e4m3(long value) : __x(encode((float)value)) {}
    __device__ __forceinline__ explicit __nv_fp8_e4m3(unsigned long value) : __x(encode((float)value)) {}
    __device__ __forceinline__ explicit __nv_fp8_e4m3(long long value) : __x(encode((float)value)) {}
    __device__ __forceinline__ explicit __nv_fp8_e4m3(unsigned long long value) : __x(encode((float)value)) {}

    __device__ __forceinline__ explicit operator float() const {
        const unsigned int magnitude = __x & 0x7f, sign = (unsigned int)(__x & 0x80) << 24;
        // Changes the exponent bias from 7 to 127, which is exact for subnormal numbers too.
        const float value = candle_bits<float>(magnitude << 20) * 0x1p120f;
        return candle_bits<float>((magnitude == 0x7f ? 0x7fc00000 : candle_bits<unsigned int>(value)) | sign);
    }

  private:
    static __device__ __forceinline__ unsigned char encode(float value) {
        const unsigned int bits = candle_bits<unsigned int>(value);
        const unsigned int magnitude = bits & 0x7fffffff;
        // Without branches, which would be taken for each element. Larger numbers become 448.
        const unsigned int size = magnitude < 0x43e00000 ? magnitude : 0x43e00000;
        const unsigned int normal = ((size + 0x7ffff + ((size >> 20) & 1)) >> 20) - ((127 - 7) << 3);
        // Below 2^-6, results are multiples of 2^-9: adding 2^14 puts them into the last mantissa bits, rounded to
        // nearest even by the addition.
        const unsigned int small = candle_bits<unsigned int>(candle_bits<float>(size) + 16384.0f) & 0xf;
        const unsigned int number = size < 0x3c800000 ? small : normal;
        return (unsigned char)((magnitude > 0x7f800000 ? 0x7f : number) | (bits >> 24 & 0x80));
    }
    static __device__ __forceinline__ unsigned char encode(double value) {
        // Rounds to odd in f32 first, which makes the second rounding correct.
        const float nearest = (float)value;
        unsigned int bits = candle_bits<unsigned int>(nearest);
        if ((double)nearest != value && !isnan(value)) {
            if (fabs((double)nearest) > fabs(value)) {
                bits -= 1;
            }
            bits |= 1;
        }
        return encode(candle_bits<float>(bits));
    }
};

// Exact, because every E4M3 value is representable as a half.
CANDLE_DEVICE __half_raw __nv_cvt_fp8_to_halfraw(unsigned char bits, __nv_fp8_interpretation_t) {
    return __half_raw{__half_as_ushort((__half)(float)candle_bits<__nv_fp8_e4m3>(bits))};
}

// Arithmetic is done in f32 and rounded after every operation; comparisons are exact.
#define CANDLE_F8_ARITHMETIC(OP)                                              \
    CANDLE_DEVICE __nv_fp8_e4m3 operator OP(__nv_fp8_e4m3 a, __nv_fp8_e4m3 b) { \
        return __nv_fp8_e4m3((float)a OP (float)b);                           \
    }
#define CANDLE_F8_COMPARISON(OP) \
    CANDLE_DEVICE bool operator OP(__nv_fp8_e4m3 a, __nv_fp8_e4m3 b) { return (float)a OP (float)b; }
CANDLE_F8_ARITHMETIC(+)
CANDLE_F8_ARITHMETIC(-)
CANDLE_F8_ARITHMETIC(*)
CANDLE_F8_ARITHMETIC(/)
CANDLE_F8_COMPARISON(==)
CANDLE_F8_COMPARISON(!=)
CANDLE_F8_COMPARISON(<)
CANDLE_F8_COMPARISON(<=)
CANDLE_F8_COMPARISON(>)
CANDLE_F8_COMPARISON(>=)
#undef CANDLE_F8_ARITHMETIC
#undef CANDLE_F8_COMPARISON
CANDLE_DEVICE __nv_fp8_e4m3 operator-(__nv_fp8_e4m3 a) {
    return candle_bits<__nv_fp8_e4m3>((unsigned char)(a.__x ^ 0x80));
}
