// How kernels number elements: in 32 bits, since a launch has at most 2^31 of them, and without dividing.
#pragma once
#include <stdint.h>

// Division of numbers up to 2^31 by one that the host knows. `magic` is its multiplier, and its shift above that.
struct Divisor {
    uint32_t by, multiplier, shift;

    __device__ __forceinline__ Divisor(size_t by, size_t magic)
        : by((uint32_t)by), multiplier((uint32_t)magic), shift((uint32_t)(magic >> 32)) {}
    __device__ __forceinline__ uint32_t quotient(uint32_t n) const {
        return ((uint32_t)(((uint64_t)n * multiplier) >> 32) + n) >> shift;
    }
    // The quotient; what is left of it stays in `n`.
    __device__ __forceinline__ uint32_t split(uint32_t &n) const {
        const uint32_t whole = quotient(n);
        n -= whole * by;
        return whole;
    }
};

// Number `step` of those of this thread, when each of a workgroup's threads takes `of` of them: neighbours for neighbours.
__device__ __forceinline__ uint32_t thread_index(uint32_t step = 0, uint32_t of = 1) {
    return (blockIdx.x * of + step) * blockDim.x + threadIdx.x;
}
