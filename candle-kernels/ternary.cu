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
