// Batched loads, and reductions over the lanes that share a result.
#pragma once
#include "cuda_utils.cuh"
#include "pack.cuh"

// Returns the logarithm of a power of two.
__device__ __forceinline__ unsigned int log2_of(unsigned int n) { return __builtin_ctz(n); }

// Returns the number of elements before the first one that is aligned to packs of N.
template <unsigned int N, typename T>
__device__ __forceinline__ unsigned int elements_before_packs(const T *row, unsigned int elements) {
    const unsigned int past = (unsigned int)((uintptr_t)row % (N * sizeof(T))) / sizeof(T);
    return past == 0 ? 0 : min(N - past, elements);
}

// For lambdas passed to functions: inlining keeps their captures in registers.
#define INLINE __attribute__((always_inline))

// Calls `use(load(i), i)` for i = first, first + step, ... below end, with COUNT loads in flight.
template <unsigned int COUNT, typename L, typename F>
__device__ __forceinline__ void for_each_prefetched(unsigned int first, unsigned int end, unsigned int step, L load, F use) {
    for (unsigned int i = first; i < end; i += COUNT * step) {
        decltype(load(i)) loaded[COUNT];
#pragma unroll
        for (unsigned int k = 0; k < COUNT; ++k) {
            // Loads past the end read the last element, which is not used.
            loaded[k] = load(min(i + k * step, end - 1));
        }
        // Keeps the compiler from moving loads to their uses.
        asm volatile("" ::: "memory");
#pragma unroll
        for (unsigned int k = 0; k < COUNT; ++k) {
            if (k == 0 || i + k * step < end) {
                use(loaded[k], i + k * step);
            }
        }
    }
}

// Number of lanes that shuffles combine; it divides the wave size of every GPU.
constexpr unsigned int LANES = 32;

// Reduces over `lanes` neighbouring lanes, a power of two; all of them receive the result.
template <typename V, typename F>
__device__ __forceinline__ V reduce_lanes(V value, unsigned int lanes, F f) {
    if (lanes >= LANES) {
#pragma unroll
        for (unsigned int step = LANES / 2; step > 0; step /= 2) {
            value = f(value, __shfl_xor_sync(~0u, value, step, LANES));
        }
    } else {
#pragma unroll 1
        for (unsigned int step = lanes / 2; step > 0; step /= 2) {
            value = f(value, __shfl_xor_sync(~0u, value, step, LANES));
        }
    }
    return value;
}

// Reduces over `width` neighbouring threads, a power of two; all of them receive the result. f must be commutative.
// All threads of the workgroup (up to THREADS) must call this. Consecutive calls of a kernel must differ in V, F or
// PLACE, which select the LDS: the barrier of the next call separates the reads from later writes.
template <unsigned int THREADS, unsigned int PLACE = 0, typename V, typename F>
__device__ __forceinline__ V reduce_threads(V value, unsigned int width, F f) {
    value = reduce_lanes(value, width, f);
    if (width > LANES) {
        __shared__ V shared[THREADS / LANES];
        const unsigned int groups = width / LANES, group = threadIdx.x / LANES;
        if (threadIdx.x % LANES == 0) {
            shared[group] = value;
        }
        __syncthreads();
        value = reduce_lanes(shared[(group & ~(groups - 1)) + (threadIdx.x & (groups - 1))], groups, f);
    }
    return value;
}
