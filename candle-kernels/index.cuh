// 32-bit element indices (a launch has at most 2^31 elements), and division by multiplication.
#pragma once
#include <stdint.h>

constexpr uint32_t smaller(uint32_t x, uint32_t y) { return x < y ? x : y; }
constexpr uint32_t larger(uint32_t x, uint32_t y) { return x < y ? y : x; }

// Division of numbers below 2^31 by a divisor known to the host, which passes the divisor in the lower and a
// multiplier in the upper 32 bits (Granlund and Montgomery, "Division by invariant integers using multiplication").
struct Divisor {
    uint32_t by, multiplier, shift;

    __device__ __forceinline__ explicit Divisor(size_t word)
        : by((uint32_t)word), multiplier((uint32_t)(word >> 32)), shift(by > 1 ? 32 - __builtin_clz(by - 1) : 0) {}
    __device__ __forceinline__ Divisor(size_t, size_t word) : Divisor(word) {}
    __device__ __forceinline__ uint32_t quotient(uint32_t n) const {
        return ((uint32_t)(((uint64_t)n * multiplier) >> 32) + n) >> shift;
    }
    // Returns the quotient and leaves the remainder in `n`.
    __device__ __forceinline__ uint32_t split(uint32_t &n) const {
        const uint32_t whole = quotient(n);
        n -= whole * by;
        return whole;
    }
};

// Returns the index of element `step` of the `of` elements of this thread, interleaved with its neighbours.
__device__ __forceinline__ uint32_t thread_index(uint32_t step = 0, uint32_t of = 1) {
    return (blockIdx.x * of + step) * blockDim.x + threadIdx.x;
}
