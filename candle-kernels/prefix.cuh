// Prefix sums over the lanes of a group.
#pragma once
#include "lanes.cuh"

// Returns the sum of the values of the lanes before this one in its group (exclusive prefix sum).
template <typename V>
__device__ __forceinline__ V sum_before(V value) {
    V sum = value;
#pragma unroll
    for (unsigned int step = 1; step < LANES; step *= 2) {
        const V other = __shfl_up_sync(~0u, sum, step, LANES);
        sum += threadIdx.x % LANES < step ? 0 : other;
    }
    return sum - value;
}
