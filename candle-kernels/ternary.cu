// out = condition ? t : f. Elements are only moved, so there is one kernel per size of element, and the backend uses it
// for every dtype of that size.
#include "cuda_utils.cuh"
#include <stdint.h>

template <typename T, typename C>
__device__ void where(const size_t numel, const size_t num_dims, const size_t *info, const C *condition, const T *t,
                      const T *f, T *out) {
    const size_t *dims = info, *strides = info + num_dims, *t_strides = strides + num_dims, *f_strides = t_strides + num_dims;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < numel; i += blockDim.x * gridDim.x) {
        if (num_dims == 0) {
            out[i] = condition[i] ? t[i] : f[i];
            continue;
        }
        unsigned int rest = i;
        size_t at = 0, t_at = 0, f_at = 0;
        for (int d = (int)num_dims - 1; d > 0; --d) {
            const unsigned int size = (unsigned int)dims[d], digit = rest % size;
            at += digit * strides[d];
            t_at += digit * t_strides[d];
            f_at += digit * f_strides[d];
            rest /= size;
        }
        const T *from = condition[at + rest * strides[0]] ? t + t_at + rest * t_strides[0] : f + f_at + rest * f_strides[0];
        out[i] = *from;
    }
}

#define WHERE_OP(C, C_NAME, T, NAME)                                                                               \
    extern "C" __global__ void where_##C_NAME##_##NAME(const size_t numel, const size_t num_dims,                  \
                                                       const size_t *info, const C *ids, const T *t, const T *f,   \
                                                       T *out) {                                                   \
        where(numel, num_dims, info, ids, t, f, out);                                                              \
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
