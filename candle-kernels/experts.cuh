// Routing of mixtures of experts: each product selects a matrix of a stack. Product i multiplies row order[i] / per
// of the activations and writes row order[i] of the output, times factors[order[i]]. Without `order`, order[i] is i.
#pragma once
#include "faults.cuh"

struct Routing {
    const uint32_t *experts, *order;
    const float *factors;
    unsigned int count, stack, rows_per_activation;

    __device__ __forceinline__ unsigned int place(unsigned int i) const { return order == nullptr ? i : order[i]; }
    __device__ __forceinline__ unsigned int line(unsigned int i) const { return rows_per_activation == 1 ? place(i) : place(i) / rows_per_activation; }
    __device__ __forceinline__ float factor(unsigned int place) const { return factors == nullptr ? 1 : factors[place]; }
};

// Calls `f(matrix, begin, end, there)` for each run of up to ROWS consecutive products with the same matrix, whose
// weights are read once. Iterates over y with a grid stride. An invalid expert is reported and has there = false.
template <unsigned int ROWS, typename F>
__device__ __forceinline__ void each_run(const Routing &routing, F f) {
    for (size_t chunk = (size_t)blockIdx.y * ROWS; chunk < routing.count; chunk += (size_t)gridDim.y * ROWS) {
        const unsigned int end = (unsigned int)min(chunk + ROWS, (size_t)routing.count);
        for (unsigned int begin = (unsigned int)chunk, next; begin < end; begin = next) {
            const uint32_t expert = routing.experts == nullptr ? 0 : routing.experts[begin];
            next = routing.experts == nullptr ? end : begin + 1;
            while (next < end && routing.experts[next] == expert) {
                ++next;
            }
            const bool there = is_within(expert, routing.stack, CANDLE_FAULT_EXPERT);
            f((size_t)(there ? expert : 0), begin, next, there);
            // The next sums reuse the LDS.
            __syncthreads();
        }
    }
}
