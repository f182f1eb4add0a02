// Indices out of range: a kernel writes down the first one, for the host to find when it next waits, and goes on.
#pragma once
#include <stdint.h>

// Read by the host after it has waited for the stream; `op == 0` means no fault. Host memory, so that it can be read
// without a copy.
struct CandleFault {
    uint32_t op;
    // How many faults the host has taken: whose turn it is to write the record.
    uint32_t turn;
    int64_t index;
    uint64_t bound;
};

// Set by the host once after loading the module; null switches the records off.
extern "C" __device__ CandleFault *candle_fault;
__device__ CandleFault *candle_fault = nullptr;

// The turn after the last one that a lane of this module took. In device memory: not every link to the host's carries
// atomic operations. Kernels of other modules come before or after on the stream, and see what stands in the record.
__device__ uint32_t turn_taken = 0;

// The largest value of an index type stands for "no element": reads give 0, writes are left out.
template <typename I>
struct NoElement;
template <>
struct NoElement<uint8_t> {
    static constexpr uint8_t value = 0xff;
};
template <>
struct NoElement<int16_t> {
    static constexpr int16_t value = 0x7fff;
};
template <>
struct NoElement<int32_t> {
    static constexpr int32_t value = 0x7fffffff;
};
template <>
struct NoElement<uint32_t> {
    static constexpr uint32_t value = 0xffffffffu;
};
template <>
struct NoElement<int64_t> {
    static constexpr int64_t value = 0x7fffffffffffffffll;
};

// Only one lane of all finds the turn that the host knows not yet taken, so that no two write the record at once.
__device__ __forceinline__ void report(int64_t index, uint64_t bound, uint32_t op) {
    volatile CandleFault *fault = candle_fault;
    if (fault->op != 0) {
        return;
    }
    const uint32_t next = fault->turn + 1;
    if (atomicMax(&turn_taken, next) >= next) {
        return;
    }
    fault->index = index;
    fault->bound = bound;
    __threadfence_system();
    fault->op = op;
}

// True if `id` names one of `bound` elements. Reports it if it is neither that nor "no element".
template <typename I>
__device__ __forceinline__ bool names_element(I id, size_t bound, uint32_t op) {
    // A negative id becomes a huge number.
    if ((uint64_t)(int64_t)id < (uint64_t)bound && id != NoElement<I>::value) {
        return true;
    }
    if (id != NoElement<I>::value && candle_fault != nullptr) {
        report((int64_t)id, bound, op);
    }
    return false;
}

// The same of an index for which no value stands for "no element".
__device__ __forceinline__ bool is_within(uint64_t index, uint64_t bound, uint32_t op) {
    if (index >= bound && candle_fault != nullptr) {
        report((int64_t)index, bound, op);
    }
    return index < bound;
}
