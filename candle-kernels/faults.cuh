// Reporting of indices out of range: a kernel records the first one and continues.
#pragma once
#include <stdint.h>

// Fault record in host memory, so that the host reads it without a copy after synchronizing; `op == 0` means no
// fault.
struct CandleFault {
    uint32_t op;
    // Number of faults that the host has collected.
    uint32_t turn;
    int64_t index;
    uint64_t bound;
};

// Set by the host once after loading the module; null disables fault records.
extern "C" __device__ CandleFault *candle_fault;
__device__ CandleFault *candle_fault = nullptr;

// Highest turn that a lane of this module has claimed. It is in device memory because not every link to the host
// supports atomic operations. Kernels of other modules run before or after on the stream and see the record.
__device__ uint32_t turn_taken = 0;

// The largest value of an index type means "no element": reads return 0 and writes are skipped.
template <typename I> struct NoElement;
template <> struct NoElement<uint8_t> { static constexpr uint8_t value = 0xff; };
template <> struct NoElement<int16_t> { static constexpr int16_t value = 0x7fff; };
template <> struct NoElement<int32_t> { static constexpr int32_t value = 0x7fffffff; };
template <> struct NoElement<uint32_t> { static constexpr uint32_t value = 0xffffffffu; };
template <> struct NoElement<int64_t> { static constexpr int64_t value = 0x7fffffffffffffffll; };

// Writes the fault record. Only the lane that claims the next turn writes, so that no two lanes write concurrently.
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

// Returns true if `id` is a valid index below `bound`. Reports it if it is neither valid nor "no element".
template <typename I>
__device__ __forceinline__ bool names_element(I id, size_t bound, uint32_t op) {
    // Negative ids become large unsigned numbers.
    if ((uint64_t)(int64_t)id < (uint64_t)bound && id != NoElement<I>::value) {
        return true;
    }
    if (id != NoElement<I>::value && candle_fault != nullptr) {
        report((int64_t)id, bound, op);
    }
    return false;
}

// Like names_element, for indices without a "no element" value.
__device__ __forceinline__ bool is_within(uint64_t index, uint64_t bound, uint32_t op) {
    if (index >= bound && candle_fault != nullptr) {
        report((int64_t)index, bound, op);
    }
    return index < bound;
}
