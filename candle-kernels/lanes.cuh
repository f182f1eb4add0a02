// Loads that are under way together, and values combined over the lanes that share a result.
#pragma once
#include "cuda_utils.cuh"
#include "pack.cuh"

// Of a power of two.
__device__ __forceinline__ unsigned int log2_of(unsigned int n) { return __builtin_ctz(n); }

// The elements of a row before the first that packs of N are aligned at.
template <unsigned int N, typename T>
__device__ __forceinline__ unsigned int before_packs(const T *row, unsigned int elements) {
    const unsigned int past = (unsigned int)((uintptr_t)row % (N * sizeof(T))) / sizeof(T);
    return past == 0 ? 0 : min(N - past, elements);
}

// Functions that are passed on are part of their caller: what they capture stays in registers.
#define INLINE __attribute__((always_inline))

// `use(load(i), i)` for i = first, first + step, ... below end, with COUNT loads under way at a time.
template <unsigned int COUNT, typename L, typename F>
__device__ __forceinline__ void in_flight(unsigned int first, unsigned int end, unsigned int step, L load, F use) {
    for (unsigned int i = first; i < end; i += COUNT * step) {
        decltype(load(i)) loaded[COUNT];
#pragma unroll
        for (unsigned int k = 0; k < COUNT; ++k) {
            // What lies beyond the end is read from the last place, and not used.
            loaded[k] = load(min(i + k * step, end - 1));
        }
        // No load is moved to where it is used, behind another.
        asm volatile("" ::: "memory");
#pragma unroll
        for (unsigned int k = 0; k < COUNT; ++k) {
            if (k == 0 || i + k * step < end) {
                use(loaded[k], i + k * step);
            }
        }
    }
}

// Lanes that combine values by shuffles: it divides the wave of every GPU.
constexpr unsigned int LANES = 32;

// Of `lanes` neighbours, a power of two.
template <typename V, typename F>
__device__ __forceinline__ V combined_by_lanes(V value, unsigned int lanes, F f) {
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

// One value of those of `width` neighbouring threads, a power of two, the same in each of them; f takes its arguments
// in either order. All threads of the workgroup, of up to THREADS, take part. A kernel's calls in a row have different
// types V or F, or another PLACE in LDS: the next but one comes after a barrier behind which all have read.
template <unsigned int THREADS, unsigned int PLACE = 0, typename V, typename F>
__device__ __forceinline__ V combined(V value, unsigned int width, F f) {
    value = combined_by_lanes(value, width, f);
    if (width > LANES) {
        __shared__ V shared[THREADS / LANES];
        const unsigned int groups = width / LANES, group = threadIdx.x / LANES;
        if (threadIdx.x % LANES == 0) {
            shared[group] = value;
        }
        __syncthreads();
        value = combined_by_lanes(shared[(group & ~(groups - 1)) + (threadIdx.x & (groups - 1))], groups, f);
    }
    return value;
}
