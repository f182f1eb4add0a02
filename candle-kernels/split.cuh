// Partial results of attention whose keys are split between workgroups (split-KV), and their combination.
#pragma once
#include "attention.cuh"

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

// Combines the results of `parts` parts for two columns of a row, in a fixed order, and writes the row. `load` reads the state and
// the values of a part, and returns 0 if a word of them has not been written. `clear` is called for each part that has been read.
template <typename T, typename S, typename L, typename C>
__device__ __forceinline__ void combine_parts(const Task<T, S> &task, unsigned int parts, unsigned int line, unsigned int column,
                                              L load, C clear) {
    // Number of parts whose loads are in flight.
    constexpr unsigned int COUNT = 16;
    SoftmaxState all = {-INFINITY, 0};
    float2 sum = {0, 0};
#pragma unroll 1
    for (unsigned int first = 0; first < parts; first += COUNT) {
        SoftmaxState states[COUNT];
        float2 values[COUNT];
        // Not a condition, which would take scalar registers.
        uint32_t written;
        do {
            written = 1;
            // Hidden from the compiler, which would keep the addresses of all parts in registers.
            const unsigned int from = opaque(first);
#pragma unroll
            for (unsigned int i = 0; i < COUNT; ++i) {
                written = min(written, load(min(from + i, parts - 1), states[i], values[i]));
            }
            asm volatile("" ::: "memory");
        } while (written == 0);
#pragma unroll 1
        for (unsigned int part = first; part < min(first + COUNT, parts); ++part) {
            clear(part);
        }
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

// Combines partial results of an earlier launch.
template <typename T, typename S>
__device__ __forceinline__ void combine_parts(const Task<T, S> &task, const Partials &partials, unsigned int parts,
                                              unsigned int line, unsigned int column) {
    combine_parts(task, parts, line, column, [&](unsigned int part, SoftmaxState &state, float2 &value) INLINE {
        state = *partials.state(part, line);
        value = *(const float2 *)(partials.row(part, line) + column);
        return 1u;
    }, [](unsigned int) INLINE {});
}

// Partial results that a part waits for: for each two columns of a row their values, and the state of the row. Words of 4 bytes are
// stored inverted, so that 0 is a word that has not been written, and not the number 0.
struct Exchange {
    unsigned long long *first;
    unsigned int rows, columns;

    __device__ __forceinline__ Exchange(unsigned long long *words, unsigned int parts, unsigned int rows, unsigned int columns)
        : first(words + (size_t)blockIdx.x * parts * rows * columns), rows(rows), columns(columns) {}
    __device__ __forceinline__ unsigned long long *at(unsigned int part, unsigned int line, unsigned int column) const {
        return first + (size_t)(part * rows + line) * columns + column;
    }
    // Inverts two floats. NaN may have all bits set, and then loses one.
    __device__ __forceinline__ static unsigned long long inverted(float2 pair) {
        const uint2 bits = candle_bits<uint2>(pair);
        return candle_bits<unsigned long long>(uint2{max(~bits.x, 1u), max(~bits.y, 1u)});
    }
    __device__ __forceinline__ static void store(unsigned long long *to, unsigned long long pair) {
#if defined(__NVPTX__)
        __scoped_atomic_store_n(to, pair, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
#else
        // On AMD GPUs, an atomic store is the instruction of a plain one, so that the software GPU reports a race.
        __scoped_atomic_exchange_n(to, pair, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
#endif
    }
    __device__ __forceinline__ void write(unsigned int part, unsigned int line, unsigned int column, SoftmaxState state,
                                          float2 values) const {
        unsigned long long *const to = at(part, line, column);
        store(to, inverted(values));
        store(to + 1, inverted(float2{state.row_max, state.row_sum}));
    }
};

// Waits for the partial results of all parts, combines and clears them.
template <typename T, typename S>
__device__ __forceinline__ void combine_parts(const Task<T, S> &task, const Exchange &exchange, unsigned int parts,
                                              unsigned int line, unsigned int column) {
    combine_parts(task, parts, line, column, [&](unsigned int part, SoftmaxState &state, float2 &value) INLINE {
        const unsigned long long *const from = exchange.at(part, line, column);
        const auto values = candle_bits<uint2>(load_coherent(from)), of_row = candle_bits<uint2>(load_coherent(from + 1));
        value = candle_bits<float2>(uint2{~values.x, ~values.y});
        state = candle_bits<SoftmaxState>(uint2{~of_row.x, ~of_row.y});
        return min(min(values.x, values.y), min(of_row.x, of_row.y));
    }, [&](unsigned int part) INLINE {
        exchange.store(exchange.at(part, line, column), 0);
        exchange.store(exchange.at(part, line, column) + 1, 0);
    });
}
