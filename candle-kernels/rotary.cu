// Rotary embeddings: each pair of a row's elements is turned by the angle of its place in the row and the row's
// position. A row's pairs are neighbours, or the elements of its first half with those of its second.
#include "cuda_utils.cuh"
#include <stdint.h>

// Each product and each sum rounds to the dtype, as on the CPU device.
#pragma clang fp contract(off)

// I counts the pairs.
template <bool HALVES, typename I, typename T>
__device__ void turn(const I numel, const unsigned int half, const unsigned int rows, const unsigned int inner,
                     const unsigned int positions, const unsigned int batch_stride, const T *src, const T *cos,
                     const T *sin, T *dst) {
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < numel; i += (I)blockDim.x * gridDim.x) {
        const I row = i / half, batch = row / rows;
        const unsigned int column = (unsigned int)(i - row * half);
        const unsigned int position = (unsigned int)(row / inner % positions);
        const size_t angle = (size_t)batch * batch_stride + (size_t)position * half + column;
        const T c = cos[angle], s = sin[angle];
        const size_t first = (size_t)row * 2 * half + (HALVES ? column : 2 * column);
        const size_t second = first + (HALVES ? half : 1);
        const T x = src[first], y = src[second];
        dst[first] = x * c - y * s;
        dst[second] = x * s + y * c;
    }
}

// 32 bits count whatever they can: they divide several times as fast.
template <bool HALVES, typename T>
__device__ void rope(const size_t numel, const unsigned int half, const unsigned int rows, const unsigned int inner,
                     const unsigned int positions, const unsigned int batch_stride, const T *src, const T *cos,
                     const T *sin, T *dst) {
    if (numel <= 0x7fffffff) {
        turn<HALVES>((unsigned int)numel, half, rows, inner, positions, batch_stride, src, cos, sin, dst);
    } else {
        turn<HALVES>(numel, half, rows, inner, positions, batch_stride, src, cos, sin, dst);
    }
}

#define ROPE_OP(HALVES, T, NAME)                                                                                \
    extern "C" __global__ void rope_##NAME(const size_t numel, const unsigned int half, const unsigned int rows, \
                                           const unsigned int inner, const unsigned int positions,              \
                                           const unsigned int batch_stride, const T *src, const T *cos,         \
                                           const T *sin, T *dst) {                                              \
        rope<HALVES>(numel, half, rows, inner, positions, batch_stride, src, cos, sin, dst);                    \
    }
#define ROPE_OPS(T, NAME)                    \
    ROPE_OP(false, T, neighbours_##NAME)     \
    ROPE_OP(true, T, halves_##NAME)
ROPE_OPS(__nv_bfloat16, bf16)
ROPE_OPS(__half, f16)
ROPE_OPS(float, f32)
ROPE_OPS(double, f64)
