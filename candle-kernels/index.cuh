// How kernels number elements: in 32 bits, since a launch has at most 2^31 of them, and without dividing.
#pragma once
#include <stdint.h>

constexpr uint32_t smaller(uint32_t x, uint32_t y) { return x < y ? x : y; }
constexpr uint32_t larger(uint32_t x, uint32_t y) { return x < y ? y : x; }

// Division of numbers below 2^31 by one that the host knows: its word holds the number below bit 32 and above it what to
// multiply by instead (Granlund and Montgomery, "Division by invariant integers using multiplication").
struct Divisor {
    uint32_t by, multiplier, shift;

    __device__ __forceinline__ explicit Divisor(size_t word)
        : by((uint32_t)word), multiplier((uint32_t)(word >> 32)), shift(by > 1 ? 32 - __builtin_clz(by - 1) : 0) {}
    __device__ __forceinline__ Divisor(size_t, size_t word) : Divisor(word) {}
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
