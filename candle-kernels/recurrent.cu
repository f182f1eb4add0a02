// Recurrent layers over the rows of sequences: a causal convolution, and the gated delta rule with the norm after it. Each
// sequence has a slot with a state, which is read and written in place. A sequence whose first row has position 0 begins
// with a state of zeros, so that slots need no initialization. The largest slot number is no slot: its state is not kept.
#include "faults.cuh"
#include "lanes.cuh"

__device__ __forceinline__ float exponential(float x) { return candle_exp2(x * 1.44269504f); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// Rows and slot of a sequence.
struct Rows {
    unsigned int first, end, slot;
    // True if the slot holds a state, and true if the sequence continues from it.
    bool has_slot, continues;

    __device__ __forceinline__ Rows(const unsigned int *rows_of, const unsigned int *slot_of,
                                    const unsigned int *position_of, unsigned int sequence, unsigned int slots)
        : first(rows_of[sequence]), end(rows_of[sequence + 1]), slot(slot_of[sequence]) {
        has_slot = names_element(slot, slots, CANDLE_FAULT_CACHE);
        continues = has_slot && first < end && position_of[first] > 0;
    }
};

// A thread convolves pieces of CANDLE_CONV_ROWS rows of a channel: x of the grid numbers channels, y sequences, z pieces.
// The thread of the first piece reads and writes the state, which consists of the last inputs, so that no other thread
// depends on it.
template <typename T>
__device__ __forceinline__ void causal_conv(const T *x, const float *weight, const unsigned int *rows_of,
                                            const unsigned int *slot_of, const unsigned int *position_of, T *states,
                                            T *out, const unsigned int channels, const unsigned int slots,
                                            const size_t x_stride) {
    constexpr unsigned int KEPT = CANDLE_CONV_WIDTH - 1;
    const unsigned int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) {
        return;
    }
    float weights[CANDLE_CONV_WIDTH];
#pragma unroll
    for (unsigned int j = 0; j < CANDLE_CONV_WIDTH; ++j) {
        weights[j] = weight[(size_t)channel * CANDLE_CONV_WIDTH + j];
    }
    const Rows rows(rows_of, slot_of, position_of, blockIdx.y, slots);
    const auto input = [&](unsigned int row) INLINE { return x[row * x_stride + channel]; };
    unsigned int from = rows.first + blockIdx.z * CANDLE_CONV_ROWS;
    for (; from < rows.end; from += gridDim.z * CANDLE_CONV_ROWS) {
        // The inputs before the current row, oldest first.
        T before[KEPT];
        T *const state = states + (size_t)rows.slot * KEPT * channels + channel;
#pragma unroll
        for (unsigned int j = 0; j < KEPT; ++j) {
            if (from > rows.first) {
                before[j] = input(from - KEPT + j);
            } else {
                before[j] = rows.continues ? state[j * channels] : (T)0.0f;
            }
        }
        if (from == rows.first && rows.has_slot) {
            const unsigned int count = rows.end - rows.first;
#pragma unroll
            for (unsigned int j = 0; j < KEPT; ++j) {
                T last = before[j];
#pragma unroll
                for (unsigned int skipped = 1; skipped <= KEPT; ++skipped) {
                    if (skipped == min(count, KEPT)) {
                        last = j + skipped < KEPT ? before[smaller(j + skipped, KEPT - 1)]
                                                  : input(rows.end - KEPT + j);
                    }
                }
                state[j * channels] = last;
            }
        }
        const unsigned int end = min(from + CANDLE_CONV_ROWS, rows.end);
#pragma unroll 1
        for (unsigned int row = from; row < end; ++row) {
            const T current = input(row);
            float sum = weights[KEPT] * (float)current;
#pragma unroll
            for (unsigned int j = 0; j < KEPT; ++j) {
                sum += weights[j] * (float)before[j];
                before[j] = j + 1 < KEPT ? before[smaller(j + 1, KEPT - 1)] : current;
            }
            out[(size_t)row * channels + channel] = (T)(sum * sigmoid(sum));
        }
    }
}

// Threads that share a column of a state.
constexpr unsigned int LANES_OF_COLUMN = CANDLE_DELTA_LANES;
// Summand of the squared length of keys and queries.
constexpr float LENGTH_EPSILON = 1e-6f;

// Factors of a row.
struct DeltaFactors {
    float decay, learning_rate;
};

__device__ __forceinline__ float sum_of_column(float value) {
#pragma unroll
    for (unsigned int step = LANES_OF_COLUMN / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(~0u, value, step, LANES);
    }
    return value;
}

// A workgroup computes a head of a sequence: x of the grid numbers heads of values, y sequences. The state is a matrix of
// `value_width` columns of `key_width` elements, a column for each group of LANES_OF_COLUMN threads, which keep it in
// registers over all rows: PACKS packs of each. The results of CANDLE_DELTA_ROWS rows are in LDS until they are normalized.
template <unsigned int PACKS, typename T>
__device__ __forceinline__ void gated_delta(const T *qkv, const T *a, const T *b, const T *z, const float *rate,
                                            const float *dt_bias, const T *norm, const unsigned int *rows_of,
                                            const unsigned int *slot_of, const unsigned int *position_of,
                                            float *states, T *out, const unsigned int key_heads,
                                            const unsigned int value_heads, const unsigned int value_width,
                                            const unsigned int slots, const float eps, const unsigned int a_stride,
                                            const unsigned int b_stride, const unsigned int z_stride,
                                            float (*results)[CANDLE_DELTA_WIDTH], DeltaFactors *factors) {
    typedef Pack<T, 4> P;
    typedef Pack<float, 4> S;
    constexpr unsigned int KEY_WIDTH = PACKS * 4 * LANES_OF_COLUMN;
    const Rows rows(rows_of, slot_of, position_of, blockIdx.y, slots);
    if (rows.first >= rows.end) {
        return;
    }
    const unsigned int head = blockIdx.x, key_head = head / (value_heads / key_heads);
    const unsigned int lane = threadIdx.x % LANES_OF_COLUMN, column = threadIdx.x / LANES_OF_COLUMN;
    const unsigned int keys = key_heads * KEY_WIDTH, values = value_heads * value_width, channels = 2 * keys + values;
    // Packs of a thread are LANES_OF_COLUMN packs apart.
    constexpr unsigned int DISTANCE = 4 * LANES_OF_COLUMN;
    float *const own = states + (((size_t)rows.slot * value_heads + head) * value_width + column) * KEY_WIDTH + lane * 4;
    S state[PACKS];
#pragma unroll
    for (unsigned int p = 0; p < PACKS; ++p) {
        if (rows.continues) {
            state[p] = S::read(own + p * DISTANCE);
        } else {
#pragma unroll
            for (unsigned int j = 0; j < 4; ++j) {
                state[p].set(j, 0.0f);
            }
        }
    }
    // The elements of the first row that this thread reads and writes.
    const T *query = qkv + (size_t)rows.first * channels + key_head * KEY_WIDTH + lane * 4, *key_at = query + keys;
    const T *value_at = qkv + (size_t)rows.first * channels + 2 * keys + head * value_width + column;
    // A thread computes decay and learning rate of a row.
    a += (size_t)(rows.first + threadIdx.x) * a_stride + head;
    b += (size_t)(rows.first + threadIdx.x) * b_stride + head;
    // LANES threads share a row of the norm.
    const unsigned int first_element = threadIdx.x % LANES, first_row = threadIdx.x / LANES;
    const T *gates = z + (size_t)(rows.first + first_row) * z_stride + head * value_width + first_element;
    T *normed = out + (size_t)(rows.first + first_row) * values + head * value_width + first_element;
    norm += first_element;
    for (unsigned int left = rows.end - rows.first; left > 0; left -= min(left, CANDLE_DELTA_ROWS)) {
        const unsigned int count = min(left, CANDLE_DELTA_ROWS);
        if (threadIdx.x < count) {
            const float step = (float)*a + dt_bias[head];
            const float softplus = step > 20.0f ? step : logf(1.0f + exponential(step));
            factors[threadIdx.x] = {exponential(rate[head] * softplus), sigmoid((float)*b)};
        }
        __syncthreads();
#pragma unroll 1
        for (unsigned int index = 0; index < count; ++index) {
            const float value = (float)*value_at, decay = factors[index].decay;
            P key[PACKS];
            float state_key = 0, state_query = 0, key_query = 0, key_key = 0, query_query = 0;
#pragma unroll
            for (unsigned int p = 0; p < PACKS; ++p) {
                const P queries = P::read(query + p * DISTANCE);
                key[p] = P::read(key_at + p * DISTANCE);
#pragma unroll
                for (unsigned int j = 0; j < 4; ++j) {
                    const float q = (float)queries[j], k = (float)key[p][j], s = state[p][j];
                    state_key += s * k;
                    state_query += s * q;
                    key_query += k * q;
                    key_key += k * k;
                    query_query += q * q;
                }
            }
            // Both vectors are divided by their lengths.
            const float of_key = 1 / sqrtg(sum_of_column(key_key) + LENGTH_EPSILON);
            const float of_query = 1 / sqrtg((sum_of_column(query_query) + LENGTH_EPSILON) * KEY_WIDTH);
            const float change = (value - decay * of_key * sum_of_column(state_key)) * factors[index].learning_rate;
            const float result =
                of_query * (decay * sum_of_column(state_query) + of_key * change * sum_of_column(key_query));
#pragma unroll
            for (unsigned int p = 0; p < PACKS; ++p) {
#pragma unroll
                for (unsigned int j = 0; j < 4; ++j) {
                    state[p].set(j, state[p][j] * decay + of_key * change * (float)key[p][j]);
                }
            }
            if (lane == 0) {
                // Rounded like the results of separate operations.
                results[index][column] = (float)(T)result;
            }
            query += channels;
            key_at += channels;
            value_at += channels;
        }
        __syncthreads();
        const T *gate_at = gates;
        T *to = normed;
        for (unsigned int index = first_row; index < count; index += blockDim.x / LANES) {
            float squares = 0;
            for (unsigned int i = first_element; i < value_width; i += LANES) {
                squares += results[index][i] * results[index][i];
            }
            squares = reduce_lanes(squares, LANES, [](float x, float y) INLINE { return x + y; });
            const float factor = 1 / sqrtg(squares / (float)value_width + eps);
            for (unsigned int i = 0; i + first_element < value_width; i += LANES) {
                const float gate = (float)gate_at[i];
                const float scaled = (float)(T)(results[index][i + first_element] * factor * (float)norm[i]);
                to[i] = (T)(scaled * gate * sigmoid(gate));
            }
            gate_at += (size_t)(blockDim.x / LANES) * z_stride;
            to += (size_t)(blockDim.x / LANES) * values;
        }
        a += (size_t)CANDLE_DELTA_ROWS * a_stride;
        b += (size_t)CANDLE_DELTA_ROWS * b_stride;
        gates += (size_t)CANDLE_DELTA_ROWS * z_stride;
        normed += (size_t)CANDLE_DELTA_ROWS * values;
        __syncthreads();
    }
    if (rows.has_slot) {
#pragma unroll
        for (unsigned int p = 0; p < PACKS; ++p) {
            state[p].write(own + p * DISTANCE);
        }
    }
}

#define RECURRENT_OPS(T, NAME)                                                                                         \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) causal_conv_##NAME(                                     \
        const T *x, const float *weight, const unsigned int *rows_of, const unsigned int *slot_of,                     \
        const unsigned int *position_of, T *states, T *out, const unsigned int channels, const unsigned int slots,     \
        const size_t x_stride) {                                                                                       \
        causal_conv(x, weight, rows_of, slot_of, position_of, states, out, channels, slots, x_stride);                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(CANDLE_DELTA_BLOCK) gated_delta_##NAME(                               \
        const T *qkv, const T *a, const T *b, const T *z, const float *rate, const float *dt_bias, const T *norm,      \
        const unsigned int *rows_of, const unsigned int *slot_of, const unsigned int *position_of, float *states,      \
        T *out, const unsigned int key_heads, const unsigned int value_heads, const unsigned int key_width,            \
        const unsigned int value_width, const unsigned int slots, const float eps, const unsigned int a_stride,        \
        const unsigned int b_stride, const unsigned int z_stride) {                                                    \
        __shared__ float results[CANDLE_DELTA_ROWS][CANDLE_DELTA_WIDTH];                                               \
        __shared__ DeltaFactors factors[CANDLE_DELTA_ROWS];                                                            \
        const auto computed = [&](auto packs) INLINE {                                                                 \
            gated_delta<sizeof(packs)>(qkv, a, b, z, rate, dt_bias, norm, rows_of, slot_of, position_of, states, out,  \
                                       key_heads, value_heads, value_width, slots, eps, a_stride, b_stride, z_stride,  \
                                       results, factors);                                                              \
        };                                                                                                             \
        switch (key_width / (4 * LANES_OF_COLUMN)) {                                                                   \
        case 1:                                                                                                        \
            return computed((uint8_t)0);                                                                               \
        case 2:                                                                                                        \
            return computed((uint16_t)0);                                                                              \
        case 4:                                                                                                        \
            return computed((uint32_t)0);                                                                              \
        default:                                                                                                       \
            return computed((uint64_t)0);                                                                              \
        }                                                                                                              \
    }
RECURRENT_OPS(__nv_bfloat16, bf16)
RECURRENT_OPS(__half, f16)
RECURRENT_OPS(float, f32)
