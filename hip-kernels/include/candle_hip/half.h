// IEEE binary16 under CUDA's names. `_Float16` is native: every operation rounds once.
#pragma once

typedef _Float16 __half;
typedef _Float16 half;

// Bits of a half, as CUDA's fp8 conversions return them.
struct __half_raw {
    unsigned short x;
    __device__ __forceinline__ operator __half() const { return candle_bits<__half>(x); }
};

struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

CANDLE_DEVICE float __half2float(__half x) { return (float)x; }
CANDLE_DEVICE __half __float2half(float x) { return (__half)x; }
CANDLE_DEVICE __half __float2half_rn(float x) { return (__half)x; }
CANDLE_DEVICE unsigned short __half_as_ushort(__half x) { return candle_bits<unsigned short>(x); }
CANDLE_DEVICE __half __ushort_as_half(unsigned short x) { return candle_bits<__half>(x); }

CANDLE_DEVICE bool __hisnan(__half x) { return x != x; }
CANDLE_DEVICE __half __habs(__half x) { return candle_bits<__half>((unsigned short)(__half_as_ushort(x) & 0x7fff)); }
// If one operand is NaN, returns the other one; +0 is larger than -0.
CANDLE_DEVICE __half __hmax(__half x, __half y) { return (__half)fmaxf((float)x, (float)y); }
CANDLE_DEVICE __half __hmin(__half x, __half y) { return (__half)fminf((float)x, (float)y); }
// Returns CUDA's canonical NaN if either operand is NaN.
CANDLE_DEVICE __half __hmax_nan(__half x, __half y) {
    return __hisnan(x) || __hisnan(y) ? __ushort_as_half(0x7fff) : __hmax(x, y);
}
CANDLE_DEVICE __half __hmin_nan(__half x, __half y) {
    return __hisnan(x) || __hisnan(y) ? __ushort_as_half(0x7fff) : __hmin(x, y);
}
// Computed in f32 and rounded again.
CANDLE_DEVICE __half hsqrt(__half x) { return (__half)sqrtf((float)x); }
CANDLE_DEVICE __half hcos(__half x) { return (__half)cosf((float)x); }
CANDLE_DEVICE __half hsin(__half x) { return (__half)sinf((float)x); }
CANDLE_DEVICE __half hlog(__half x) { return (__half)logf((float)x); }
CANDLE_DEVICE __half hexp(__half x) { return (__half)expf((float)x); }

CANDLE_DEVICE __half2 make_half2(__half x, __half y) { return __half2{x, y}; }
CANDLE_DEVICE __half2 __halves2half2(__half x, __half y) { return __half2{x, y}; }
CANDLE_DEVICE __half2 __floats2half2_rn(float x, float y) { return __half2{(__half)x, (__half)y}; }
CANDLE_DEVICE float2 __half22float2(__half2 v) { return float2{(float)v.x, (float)v.y}; }
CANDLE_DEVICE __half __low2half(__half2 v) { return v.x; }
CANDLE_DEVICE __half __high2half(__half2 v) { return v.y; }
CANDLE_DEVICE float __low2float(__half2 v) { return (float)v.x; }
CANDLE_DEVICE float __high2float(__half2 v) { return (float)v.y; }
CANDLE_DEVICE __half2 __hadd2(__half2 a, __half2 b) { return __half2{(__half)(a.x + b.x), (__half)(a.y + b.y)}; }
CANDLE_DEVICE __half2 __hsub2(__half2 a, __half2 b) { return __half2{(__half)(a.x - b.x), (__half)(a.y - b.y)}; }
CANDLE_DEVICE __half2 __hmul2(__half2 a, __half2 b) { return __half2{(__half)(a.x * b.x), (__half)(a.y * b.y)}; }
