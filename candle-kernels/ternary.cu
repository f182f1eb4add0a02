// Operations of three tensors.
// out = condition ? t : f. Elements are only moved, so there is one kernel per element size, which the backend
// uses for every dtype of that size.
#include "pack.cuh"

#define WHERE_OP(C, C_NAME, T, NAME)                                                                               \
    extern "C" __global__ void CANDLE_FEW_REGISTERS_BOUNDS where_##C_NAME##_##NAME(const size_t numel, const size_t num_dims,                  \
                                                       const size_t *info, const C *ids, const T *t, const T *f,   \
                                                       T *out) {                                                   \
        const auto choose = [](C condition, T yes, T no) { return condition ? yes : no; };                         \
        map<true, false, true>(numel, num_dims, info, choose, out, ids, t, f);                                     \
    }
#define WHERE_OPS(C, C_NAME)                  \
    WHERE_OP(C, C_NAME, uint8_t, u8)          \
    WHERE_OP(C, C_NAME, uint16_t, f16)        \
    WHERE_OP(C, C_NAME, uint32_t, u32)        \
    WHERE_OP(C, C_NAME, uint64_t, i64)
WHERE_OPS(uint8_t, u8)
WHERE_OPS(uint32_t, u32)
WHERE_OPS(int16_t, i16)
WHERE_OPS(int32_t, i32)
WHERE_OPS(int64_t, i64)

// out = a + b + c, or a + b * c, computed in f32 and rounded once.
#define MULTIPLY_ADD(T, NAME)                                                                                        \
    extern "C" __global__ void multiply_add_##NAME(const size_t numel, const size_t num_dims, const size_t *info,    \
                                                   const bool multiplies, const T *a, const T *b, const T *c,        \
                                                   T *out) {                                                         \
        const auto combine = [=](T x, T y, T z) {                                                                    \
            return (T)((float)x + (multiplies ? (float)y * (float)z : (float)y + (float)z));                         \
        };                                                                                                           \
        map<true, false, true>(numel, num_dims, info, combine, out, a, b, c);                                        \
    }
MULTIPLY_ADD(__nv_bfloat16, bf16)
MULTIPLY_ADD(__half, f16)
MULTIPLY_ADD(float, f32)
