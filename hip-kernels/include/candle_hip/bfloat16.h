// bfloat16 under CUDA's names: the upper half of an f32. Arithmetic is done in f32 and rounded to nearest even after
// every operation. Clang's __bf16 is used only for conversions, because it keeps intermediate results in f32.
#pragma once

struct __nv_bfloat16 {
    unsigned short __x;

    __nv_bfloat16() = default;
    __device__ __forceinline__ __nv_bfloat16(float value) : __x(round(value)) {}
    __device__ __forceinline__ __nv_bfloat16(double value) : __x(round(to_odd(value))) {}
    __device__ __forceinline__ __nv_bfloat16(__half value) : __x(round((float)value)) {}
    // Integers go through f32, as on the CPU device.
    __device__ __forceinline__ __nv_bfloat16(int value) : __x(round((float)value)) {}
    __device__ __forceinline__ __nv_bfloat16(unsigned int value) : __x(round((float)value)) {}
    __device__ __forceinline__ __nv_bfloat16(long value) : __x(round((float)value)) {}
    __device__ __forceinline__ __nv_bfloat16(unsigned long value) : __x(round((float)value)) {}
    __device__ __forceinline__ __nv_bfloat16(long long value) : __x(round((float)value)) {}
    __device__ __forceinline__ __nv_bfloat16(unsigned long long value) : __x(round((float)value)) {}

    __device__ __forceinline__ operator float() const { return (float)candle_bits<__bf16>(__x); }

  private:
    // Rounds to nearest even and keeps NaN. A single instruction on gfx950, gfx12.5 and sm_80.
    static __device__ __forceinline__ unsigned short round(float value) {
        return candle_bits<unsigned short>((__bf16)value);
    }
    // Rounds to odd: an inexact result has its last bit set, so that rounding it again rounds the original correctly.
    static __device__ __forceinline__ float to_odd(double value) {
        const float nearest = (float)value;
        if ((double)nearest == value || isnan(value)) {
            return nearest;
        }
        unsigned int bits = candle_bits<unsigned int>(nearest);
        if (fabs((double)nearest) > fabs(value)) {
            bits -= 1;
        }
        return candle_bits<float>(bits | 1);
    }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

CANDLE_DEVICE float __bfloat162float(__nv_bfloat16 x) { return x; }
CANDLE_DEVICE __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
CANDLE_DEVICE __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
CANDLE_DEVICE unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.__x; }
CANDLE_DEVICE __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return candle_bits<__nv_bfloat16>(x); }

#define CANDLE_BF16_ARITHMETIC(OP)                                                                             \
    CANDLE_DEVICE __nv_bfloat16 operator OP(__nv_bfloat16 a, __nv_bfloat16 b) {                                \
        return __nv_bfloat16((float)a OP (float)b);                                                            \
    }                                                                                                          \
    CANDLE_DEVICE __nv_bfloat16 &operator OP##=(__nv_bfloat16 &a, __nv_bfloat16 b) { return a = a OP b; }
#define CANDLE_BF16_COMPARISON(OP) \
    CANDLE_DEVICE bool operator OP(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a OP (float)b; }
CANDLE_BF16_ARITHMETIC(+)
CANDLE_BF16_ARITHMETIC(-)
CANDLE_BF16_ARITHMETIC(*)
CANDLE_BF16_ARITHMETIC(/)
CANDLE_BF16_COMPARISON(==)
CANDLE_BF16_COMPARISON(!=)
CANDLE_BF16_COMPARISON(<)
CANDLE_BF16_COMPARISON(<=)
CANDLE_BF16_COMPARISON(>)
CANDLE_BF16_COMPARISON(>=)
#undef CANDLE_BF16_ARITHMETIC
#undef CANDLE_BF16_COMPARISON
CANDLE_DEVICE __nv_bfloat16 operator-(__nv_bfloat16 a) { return __ushort_as_bfloat16(a.__x ^ 0x8000); }

CANDLE_DEVICE bool __hisnan(__nv_bfloat16 x) { return (x.__x & 0x7fff) > 0x7f80; }
CANDLE_DEVICE __nv_bfloat16 __habs(__nv_bfloat16 x) { return __ushort_as_bfloat16(x.__x & 0x7fff); }
CANDLE_DEVICE __nv_bfloat16 __hmax(__nv_bfloat16 x, __nv_bfloat16 y) { return fmaxf((float)x, (float)y); }
CANDLE_DEVICE __nv_bfloat16 __hmin(__nv_bfloat16 x, __nv_bfloat16 y) { return fminf((float)x, (float)y); }
// Returns CUDA's canonical NaN if either operand is NaN.
CANDLE_DEVICE __nv_bfloat16 __hmax_nan(__nv_bfloat16 x, __nv_bfloat16 y) {
    return __hisnan(x) || __hisnan(y) ? __ushort_as_bfloat16(0x7fff) : __hmax(x, y);
}
CANDLE_DEVICE __nv_bfloat16 __hmin_nan(__nv_bfloat16 x, __nv_bfloat16 y) {
    return __hisnan(x) || __hisnan(y) ? __ushort_as_bfloat16(0x7fff) : __hmin(x, y);
}
CANDLE_DEVICE __nv_bfloat16 hsqrt(__nv_bfloat16 x) { return sqrtf((float)x); }
CANDLE_DEVICE __nv_bfloat16 hcos(__nv_bfloat16 x) { return cosf((float)x); }
CANDLE_DEVICE __nv_bfloat16 hsin(__nv_bfloat16 x) { return sinf((float)x); }
CANDLE_DEVICE __nv_bfloat16 hlog(__nv_bfloat16 x) { return logf((float)x); }
CANDLE_DEVICE __nv_bfloat16 hexp(__nv_bfloat16 x) { return expf((float)x); }

CANDLE_DEVICE __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x + b.x, a.y + b.y}; }
CANDLE_DEVICE __nv_bfloat162 __hsub2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x - b.x, a.y - b.y}; }
CANDLE_DEVICE __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x * b.x, a.y * b.y}; }
