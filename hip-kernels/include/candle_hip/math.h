// Mathematical functions under their CUDA names, from the target's device library. Their error is 1 to 4 ulp; division
// and square root are correctly rounded.
#pragma once

CANDLE_LIBRARY1(cos) CANDLE_LIBRARY1(sin) CANDLE_LIBRARY1(tan) CANDLE_LIBRARY1(cospi) CANDLE_LIBRARY1(sinpi)
CANDLE_LIBRARY1(tanh) CANDLE_LIBRARY1(erf) CANDLE_LIBRARY1(exp) CANDLE_LIBRARY1(exp2) CANDLE_LIBRARY1(log)
CANDLE_LIBRARY1(log2) CANDLE_LIBRARY1(ncdf) CANDLE_LIBRARY1(rsqrt) CANDLE_LIBRARY2(pow)

// One row per function: CUDA's f32 name, CUDA's f64 name, and the f32 and f64 implementations.
#define CANDLE_MATH1(NAME32, NAME64, IMPL32, IMPL64)             \
    CANDLE_DEVICE float NAME32(float x) { return IMPL32(x); }    \
    CANDLE_DEVICE double NAME64(double x) { return IMPL64(x); }
#define CANDLE_MATH2(NAME32, NAME64, IMPL32, IMPL64)                          \
    CANDLE_DEVICE float NAME32(float x, float y) { return IMPL32(x, y); }     \
    CANDLE_DEVICE double NAME64(double x, double y) { return IMPL64(x, y); }
#define CANDLE_OCML1(NAME) CANDLE_MATH1(NAME##f, NAME, CANDLE_LIBRARY_F32(NAME), CANDLE_LIBRARY_F64(NAME))
#define CANDLE_BUILTIN1(NAME) CANDLE_MATH1(NAME##f, NAME, __builtin_##NAME##f, __builtin_##NAME)
#define CANDLE_BUILTIN2(NAME) CANDLE_MATH2(NAME##f, NAME, __builtin_##NAME##f, __builtin_##NAME)
CANDLE_OCML1(cos) CANDLE_OCML1(sin) CANDLE_OCML1(tan) CANDLE_OCML1(cospi) CANDLE_OCML1(sinpi) CANDLE_OCML1(tanh)
CANDLE_OCML1(erf) CANDLE_OCML1(exp) CANDLE_OCML1(exp2) CANDLE_OCML1(log) CANDLE_OCML1(log2)
CANDLE_MATH1(normcdff, normcdf, CANDLE_LIBRARY_F32(ncdf), CANDLE_LIBRARY_F64(ncdf)) CANDLE_OCML1(rsqrt)
CANDLE_BUILTIN1(sqrt) CANDLE_BUILTIN1(ceil) CANDLE_BUILTIN1(floor) CANDLE_BUILTIN1(round) CANDLE_BUILTIN1(rint)
CANDLE_BUILTIN1(trunc) CANDLE_BUILTIN1(fabs) CANDLE_MATH2(powf, pow, CANDLE_LIBRARY_F32(pow), CANDLE_LIBRARY_F64(pow))
// As in CUDA and IEEE 754-2008 maxNum: if one operand is NaN, returns the other one.
CANDLE_BUILTIN2(fmax) CANDLE_BUILTIN2(fmin) CANDLE_BUILTIN2(copysign)
#undef CANDLE_OCML1
#undef CANDLE_BUILTIN1
#undef CANDLE_BUILTIN2
#undef CANDLE_MATH1
#undef CANDLE_MATH2
#undef CANDLE_LIBRARY1
#undef CANDLE_LIBRARY2

CANDLE_DEVICE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
CANDLE_DEVICE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }

CANDLE_DEVICE bool isnan(float x) { return __builtin_isnan(x); }
CANDLE_DEVICE bool isnan(double x) { return __builtin_isnan(x); }
CANDLE_DEVICE bool isinf(float x) { return __builtin_isinf(x); }
CANDLE_DEVICE bool isinf(double x) { return __builtin_isinf(x); }
CANDLE_DEVICE bool signbit(float x) { return __builtin_signbit(x); }
CANDLE_DEVICE bool signbit(double x) { return __builtin_signbit(x); }

CANDLE_DEVICE unsigned int __float_as_uint(float x) { return candle_bits<unsigned int>(x); }
CANDLE_DEVICE int __float_as_int(float x) { return candle_bits<int>(x); }
CANDLE_DEVICE float __uint_as_float(unsigned int x) { return candle_bits<float>(x); }
CANDLE_DEVICE float __int_as_float(int x) { return candle_bits<float>(x); }
CANDLE_DEVICE long long __double_as_longlong(double x) { return candle_bits<long long>(x); }
CANDLE_DEVICE double __longlong_as_double(long long x) { return candle_bits<double>(x); }

#define CANDLE_MINMAX(T)                                            \
    CANDLE_DEVICE T min(T x, T y) { return y < x ? y : x; }         \
    CANDLE_DEVICE T max(T x, T y) { return x < y ? y : x; }
CANDLE_MINMAX(int)
CANDLE_MINMAX(unsigned int)
CANDLE_MINMAX(long)
CANDLE_MINMAX(unsigned long)
CANDLE_MINMAX(long long)
CANDLE_MINMAX(unsigned long long)
#undef CANDLE_MINMAX
// A signed and an unsigned argument are compared as unsigned, as in CUDA.
CANDLE_DEVICE unsigned int min(int x, unsigned int y) { return min((unsigned int)x, y); }
CANDLE_DEVICE unsigned int min(unsigned int x, int y) { return min(x, (unsigned int)y); }
CANDLE_DEVICE unsigned int max(int x, unsigned int y) { return max((unsigned int)x, y); }
CANDLE_DEVICE unsigned int max(unsigned int x, int y) { return max(x, (unsigned int)y); }
CANDLE_DEVICE float min(float x, float y) { return fminf(x, y); }
CANDLE_DEVICE float max(float x, float y) { return fmaxf(x, y); }
CANDLE_DEVICE double min(double x, double y) { return fmin(x, y); }
CANDLE_DEVICE double max(double x, double y) { return fmax(x, y); }

// Upstream's extrema for the integer types that its cuda_utils.cuh omits. They must be declared before its templates,
// which look them up at their definition.
CANDLE_DEVICE int16_t ming(int16_t x, int16_t y) { return y < x ? y : x; }
CANDLE_DEVICE int16_t maxg(int16_t x, int16_t y) { return x < y ? y : x; }
CANDLE_DEVICE int32_t ming(int32_t x, int32_t y) { return min(x, y); }
CANDLE_DEVICE int32_t maxg(int32_t x, int32_t y) { return max(x, y); }
