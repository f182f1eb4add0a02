// Constants and copies of rows. Elements are only moved, so there is one kernel per size of element, and the backend
// uses it for every dtype of that size.
#include "cuda_utils.cuh"
#include <stdint.h>

// Writes `value` to every element that the layout shows.
template <typename T>
__device__ void const_set(const size_t numel, const size_t num_dims, const size_t *info, const T value, T *out) {
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < numel; i += blockDim.x * gridDim.x) {
        out[candle_offset(i, num_dims, info, info + num_dims)] = value;
    }
}

// d1 rows of d2 elements, each side with its own distance between rows.
template <typename T>
__device__ void copy2d(const T *src, T *dst, uint32_t d1, uint32_t d2, uint64_t src_s, uint64_t dst_s) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < d1 * d2; i += blockDim.x * gridDim.x) {
        const uint32_t row = i / d2, column = i - row * d2;
        dst[row * dst_s + column] = src[row * src_s + column];
    }
}

#define FILL_OPS(T, NAME)                                                                                         \
    extern "C" __global__ void const_set_##NAME(const size_t numel, const size_t num_dims, const size_t *info,    \
                                                const T value, T *out) {                                          \
        const_set(numel, num_dims, info, value, out);                                                             \
    }                                                                                                             \
    extern "C" __global__ void copy2d_##NAME(const T *src, T *dst, uint32_t d1, uint32_t d2, uint64_t src_s,      \
                                             uint64_t dst_s) {                                                    \
        copy2d(src, dst, d1, d2, src_s, dst_s);                                                                   \
    }
FILL_OPS(uint8_t, u8)
FILL_OPS(uint16_t, f16)
FILL_OPS(uint32_t, u32)
FILL_OPS(uint64_t, i64)
