// Mathematical functions under their CUDA names, from the machine's device library. Accuracy is the library's
// (1 to 4 ulp); division and square root are correctly rounded.
#pragma once

CANDLE_LIBRARY1(cos)
CANDLE_LIBRARY1(sin)
CANDLE_LIBRARY1(tan)
CANDLE_LIBRARY1(cospi)
CANDLE_LIBRARY1(sinpi)
CANDLE_LIBRARY1(tanh)
CANDLE_LIBRARY1(erf)
CANDLE_LIBRARY1(exp)
CANDLE_LIBRARY1(exp2)
CANDLE_LIBRARY1(log)
CANDLE_LIBRARY1(log2)
CANDLE_LIBRARY1(ncdf)
CANDLE_LIBRARY1(rsqrt)
CANDLE_LIBRARY2(pow)

// One row per function: CUDA's f32 name, CUDA's f64 name, and the f32 and f64 implementations.
#define CANDLE_MATH1(NAME32, NAME64, IMPL32, IMPL64)             \
    CANDLE_DEVICE float NAME32(float x) { return IMPL32(x); }    \
    CANDLE_DEVICE double NAME64(double x) { return IMPL64(x); }
#define CANDLE_MATH2(NAME32, NAME64, IMPL32, IMPL64)                          \
    CANDLE_DEVICE float NAME32(float x, float y) { return IMPL32(x, y); }     \
    CANDLE_DEVICE double NAME64(double x, double y) { return IMPL64(x, y); }
CANDLE_MATH1(cosf, cos, CANDLE_LIBRARY_F32(cos), CANDLE_LIBRARY_F64(cos))
CANDLE_MATH1(sinf, sin, CANDLE_LIBRARY_F32(sin), CANDLE_LIBRARY_F64(sin))
CANDLE_MATH1(tanf, tan, CANDLE_LIBRARY_F32(tan), CANDLE_LIBRARY_F64(tan))
CANDLE_MATH1(cospif, cospi, CANDLE_LIBRARY_F32(cospi), CANDLE_LIBRARY_F64(cospi))
CANDLE_MATH1(sinpif, sinpi, CANDLE_LIBRARY_F32(sinpi), CANDLE_LIBRARY_F64(sinpi))
CANDLE_MATH1(tanhf, tanh, CANDLE_LIBRARY_F32(tanh), CANDLE_LIBRARY_F64(tanh))
CANDLE_MATH1(erff, erf, CANDLE_LIBRARY_F32(erf), CANDLE_LIBRARY_F64(erf))
CANDLE_MATH1(expf, exp, CANDLE_LIBRARY_F32(exp), CANDLE_LIBRARY_F64(exp))
CANDLE_MATH1(exp2f, exp2, CANDLE_LIBRARY_F32(exp2), CANDLE_LIBRARY_F64(exp2))
CANDLE_MATH1(logf, log, CANDLE_LIBRARY_F32(log), CANDLE_LIBRARY_F64(log))
CANDLE_MATH1(log2f, log2, CANDLE_LIBRARY_F32(log2), CANDLE_LIBRARY_F64(log2))
CANDLE_MATH1(normcdff, normcdf, CANDLE_LIBRARY_F32(ncdf), CANDLE_LIBRARY_F64(ncdf))
CANDLE_MATH1(rsqrtf, rsqrt, CANDLE_LIBRARY_F32(rsqrt), CANDLE_LIBRARY_F64(rsqrt))
CANDLE_MATH1(sqrtf, sqrt, __builtin_sqrtf, __builtin_sqrt)
CANDLE_MATH1(ceilf, ceil, __builtin_ceilf, __builtin_ceil)
CANDLE_MATH1(floorf, floor, __builtin_floorf, __builtin_floor)
CANDLE_MATH1(roundf, round, __builtin_roundf, __builtin_round)
CANDLE_MATH1(rintf, rint, __builtin_rintf, __builtin_rint)
CANDLE_MATH1(truncf, trunc, __builtin_truncf, __builtin_trunc)
CANDLE_MATH1(fabsf, fabs, __builtin_fabsf, __builtin_fabs)
CANDLE_MATH2(powf, pow, CANDLE_LIBRARY_F32(pow), CANDLE_LIBRARY_F64(pow))
// As in CUDA and IEEE 754-2008 maxNum: a NaN gives way to a number.
CANDLE_MATH2(fmaxf, fmax, __builtin_fmaxf, __builtin_fmax)
CANDLE_MATH2(fminf, fmin, __builtin_fminf, __builtin_fmin)
CANDLE_MATH2(copysignf, copysign, __builtin_copysignf, __builtin_copysign)
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

// Upstream's own names for extrema, of the integers that its cuda_utils.cuh leaves out. They stand here
// because its templates look them up where they are defined.
CANDLE_DEVICE int16_t ming(int16_t x, int16_t y) { return y < x ? y : x; }
CANDLE_DEVICE int16_t maxg(int16_t x, int16_t y) { return x < y ? y : x; }
CANDLE_DEVICE int32_t ming(int32_t x, int32_t y) { return min(x, y); }
CANDLE_DEVICE int32_t maxg(int32_t x, int32_t y) { return max(x, y); }
