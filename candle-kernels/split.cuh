// Partial results of attention whose keys are split between workgroups (split-KV), and their combination.
#pragma once
#include "attention.cuh"

// Orders earlier writes of the workgroup's threads, up to their last barrier, before later ones for the whole device, and
// later reads after earlier ones.
__device__ __forceinline__ void fence_device() {
#if defined(__NVPTX__)
    // The membar instructions of this target are sequentially consistent, and take longer.
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#else
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent");
#endif
}
// Loads 8 bytes that another workgroup of the launch may have written; caches that they do not share are bypassed.
template <typename T>
__device__ __forceinline__ T load_coherent(const T *address) {
    return candle_bits<T>(
        __scoped_atomic_load_n((const unsigned long long *)address, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE));
}

// Softmax state over some of the keys: the maximum score in units of log2(e), and the sum of weights relative to it.
struct SoftmaxState {
    float row_max, row_sum;
};

// Returns the logarithm of the sum of exponentials of a query's scores.
__device__ __forceinline__ float log_sum(SoftmaxState state) {
    return state.row_sum == 0 ? -INFINITY : state.row_max / LOG2_E + logf(state.row_sum);
}
__device__ __forceinline__ float inverse(float sum) { return sum == 0 ? 0 : 1 / sum; }
// Returns the base of the exponents. If no key has been visible yet, any finite base gives zero weights.
__device__ __forceinline__ float exponent_base(float row_max) { return row_max == -INFINITY ? 0.0f : row_max; }

// Returns the number of keys of a part, a multiple of `tile`; uniform.
__device__ __forceinline__ unsigned int keys_of_part(unsigned int keys, unsigned int parts, unsigned int tile) {
    return candle_uniform(((keys + parts - 1) / parts + tile - 1) / tile * tile);
}

// Partial results from a part of this workgroup's rows on: for each part `columns` unnormalized values of each row, then
// the rows' states.
struct Partials {
    float *first;
    unsigned int rows, columns;

    __device__ __forceinline__ Partials(float *partial, unsigned int rows, unsigned int columns, unsigned int part, unsigned int parts)
        : first(partial), rows(rows), columns(columns) {
        first = row((blockIdx.x * gridDim.y + blockIdx.y) * parts + part, 0);
    }
    __device__ __forceinline__ float *row(unsigned int part, unsigned int line) const {
        return first + (size_t)part * rows * (columns + 2) + line * columns;
    }
    __device__ __forceinline__ SoftmaxState *state(unsigned int part, unsigned int line) const {
        return (SoftmaxState *)row(part, rows) + line;
    }
};

// Writes two columns of a row of the result, and the row's statistic.
template <typename T, typename S>
__device__ __forceinline__ void write_pair(const Task<T, S> &task, unsigned int line, unsigned int column, SoftmaxState all,
                                           float2 value) {
    const Sequence<T, S> &sequence = task.sequence;
    const unsigned int row = task.first_row + line, head = sequence.head(row), query = sequence.query(row);
    column += task.column;
    all.row_sum += sequence.sink_weight(head, -exponent_base(all.row_max));
    if (column < sequence.value_width) {
        const float factor = inverse(all.row_sum);
        Pack<T, 2> pack;
        pack.set(0, static_cast<T>(value.x * factor));
        pack.set(1, static_cast<T>(value.y * factor));
        pack.write(sequence.out + (size_t)head * sequence.out_head + (size_t)query * sequence.out_row + column);
    }
    if (sequence.statistics != nullptr && column == 0) {
        sequence.statistics[(size_t)head * sequence.statistics_head + query] = log_sum(all);
    }
}

// Combines the first `parts` partial results of two columns of a row, in a fixed order, and writes the result. Other
// workgroups of the same launch may have written them.
template <typename T, typename S>
__device__ __forceinline__ void combine_parts(const Task<T, S> &task, const Partials &partials, unsigned int parts,
                                              unsigned int line, unsigned int column) {
    // Number of parts whose loads are in flight.
    constexpr unsigned int COUNT = 16;
    SoftmaxState all = {-INFINITY, 0};
    float2 sum = {0, 0};
#pragma unroll 1
    for (unsigned int first = 0; first < parts; first += COUNT) {
        SoftmaxState states[COUNT];
        float2 values[COUNT];
#pragma unroll
        for (unsigned int i = 0; i < COUNT; ++i) {
            const unsigned int part = min(first + i, parts - 1);
            states[i] = load_coherent(partials.state(part, line));
            values[i] = load_coherent((const float2 *)(partials.row(part, line) + column));
        }
        asm volatile("" ::: "memory");
        float highest = all.row_max;
#pragma unroll
        for (unsigned int i = 0; i < COUNT; ++i) {
            highest = fmaxf(highest, states[i].row_max);
        }
        const float base = exponent_base(highest), rescale = candle_exp2(all.row_max - base);
        all = SoftmaxState{highest, all.row_sum * rescale};
        sum = float2{sum.x * rescale, sum.y * rescale};
#pragma unroll
        for (unsigned int i = 0; i < COUNT; ++i) {
            if (first + i < parts) {
                const float weight = candle_exp2(states[i].row_max - base);
                all.row_sum = fmaf(states[i].row_sum, weight, all.row_sum);
                sum = float2{fmaf(values[i].x, weight, sum.x), fmaf(values[i].y, weight, sum.y)};
            }
        }
    }
    write_pair(task, line, column, all, sum);
}
