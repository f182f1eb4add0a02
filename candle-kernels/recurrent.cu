// Recurrent layers over the rows of sequences: a causal convolution, the gated delta rule with the norm after it, and selective
// state spaces of Mamba 1 and 2. Each sequence continues from the state of a slot. The state after a row is written to the slot that
// keeps it, which may be the same one. A sequence whose first row has position 0 begins with a state of zeros, so that slots need no
// initialization. The largest slot number is no slot.
#include "faults.cuh"
#include "lanes.cuh"

__device__ __forceinline__ float exponential(float x) { return candle_exp2(x * 1.44269504f); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// Rows and slot of a sequence.
struct Rows {
    unsigned int first, end, slot;
    // True if the sequence continues from the state of the slot.
    bool continues;

    // Bounds that do not fit in `rows` rows are reported; the sequence then has no rows.
    __device__ __forceinline__ Rows(const unsigned int *rows_of, const unsigned int *slot_of,
                                    const unsigned int *position_of, unsigned int sequence, unsigned int slots,
                                    unsigned int rows)
        : first(rows_of[sequence]), end(rows_of[sequence + 1]), slot(slot_of[sequence]) {
        if (!is_within(end, (uint64_t)rows + 1, CANDLE_FAULT_SEQUENCE) ||
            !is_within(first, (uint64_t)end + 1, CANDLE_FAULT_SEQUENCE)) {
            first = end = 0;
        }
        const bool has_slot = names_element(slot, slots, CANDLE_FAULT_CACHE);
        continues = has_slot && first < end && position_of[first] > 0;
    }
};

// A thread convolves pieces of CANDLE_CONV_ROWS rows of a channel: x of the grid numbers channels, y sequences, z pieces.
// The thread of the first piece reads and writes states, which consist of the last inputs, so that no other thread depends on
// them. It writes those after its own rows and after the last row.
template <typename T>
__device__ __forceinline__ void causal_conv(const T *x, const float *weight, const float *bias,
                                            const unsigned int *rows_of, const unsigned int *slot_of,
                                            const unsigned int *position_of, const unsigned int *kept_of, T *states,
                                            T *out, const unsigned int row_count, const unsigned int channels,
                                            const unsigned int slots, const size_t x_stride) {
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
    const float summand = bias ? bias[channel] : 0.0f;
    const Rows rows(rows_of, slot_of, position_of, blockIdx.y, slots, row_count);
    const auto input = [&](unsigned int row) INLINE { return x[row * x_stride + channel]; };
    unsigned int from = rows.first + blockIdx.z * CANDLE_CONV_ROWS;
    for (; from < rows.end; from += gridDim.z * CANDLE_CONV_ROWS) {
        // The inputs before the current row, oldest first.
        T before[KEPT];
        const T *const state = states + (size_t)rows.slot * KEPT * channels + channel;
#pragma unroll
        for (unsigned int j = 0; j < KEPT; ++j) {
            if (from > rows.first) {
                before[j] = input(from - KEPT + j);
            } else {
                before[j] = rows.continues ? state[j * channels] : (T)0.0f;
            }
        }
        const auto keep = [&](unsigned int row, const auto &last) INLINE {
            const unsigned int slot = kept_of[row];
            if (names_element(slot, slots, CANDLE_FAULT_CACHE)) {
                T *const kept = states + (size_t)slot * KEPT * channels + channel;
#pragma unroll
                for (unsigned int j = 0; j < KEPT; ++j) {
                    kept[j * channels] = last(j);
                }
            }
        };
        const bool is_first = from == rows.first;
        if (is_first && rows.end - rows.first > CANDLE_CONV_ROWS) {
            keep(rows.end - 1, [&](unsigned int j) INLINE { return input(rows.end - KEPT + j); });
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
            if (is_first) {
                keep(row, [&](unsigned int j) INLINE { return before[j]; });
            }
            sum += summand;
            out[(size_t)row * channels + channel] = (T)(sum * sigmoid(sum));
        }
    }
}

// Threads that share a column of a state.
constexpr unsigned int LANES_OF_COLUMN = CANDLE_DELTA_LANES;
// Summand of the squared length of keys and queries.
constexpr float LENGTH_EPSILON = 1e-6f;

// Factors of a row: of the state, and of what the row adds to it; and the slot that keeps the state after it.
struct RowFactors {
    float decay, weight;
    unsigned int kept;
};

// Operands of both recurrences.
template <typename T> struct HeadOperands {
    const T *qkv, *a, *z;
    const float *rate, *dt_bias;
    const unsigned int *rows_of, *slot_of, *position_of, *kept_of;
    float *states;
    T *out;
    unsigned int rows, key_heads, value_heads, value_width, slots, a_stride, z_stride;
};

// Gated delta rule: a key and its value replace what the state has for the key. The results are normalized.
template <typename T> struct DeltaRule {
    static constexpr bool IS_DELTA = true, STEPS_OF_ELEMENTS = false;
    const T *b, *norm;
    float eps;
    unsigned int b_stride;
    float (*results)[CANDLE_DELTA_WIDTH];

    __device__ __forceinline__ void begin(unsigned int row, unsigned int head) { b += (size_t)row * b_stride + head; }
    __device__ __forceinline__ void advance(unsigned int rows) { b += (size_t)rows * b_stride; }
    __device__ __forceinline__ float limited(float step) const { return step; }
    __device__ __forceinline__ float weight(float) const { return sigmoid((float)*b); }
};

// Selective state space: a key and its value are added to the state, times the step. In Mamba 1, each element of a value has a
// step and a factor of its own, and each element of the state a rate.
template <bool IS_MAMBA1> struct SelectiveRule {
    static constexpr bool IS_DELTA = false, STEPS_OF_ELEMENTS = IS_MAMBA1;
    const float *skip;
    float min_step, max_step;
    // Factor of the values in the results.
    float value_factor;

    __device__ __forceinline__ void begin(unsigned int, unsigned int place) { value_factor = skip[place]; }
    __device__ __forceinline__ void advance(unsigned int) {}
    __device__ __forceinline__ float limited(float step) const {
        // NaN stays NaN.
        return step < min_step ? min_step : step > max_step ? max_step : step;
    }
    __device__ __forceinline__ float weight(float step) const { return step; }
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
// registers over all rows: PACKS packs of each. The results of CANDLE_DELTA_ROWS rows of the delta rule are in LDS until they
// are normalized.
template <unsigned int PACKS, typename T, typename Rule>
__device__ __forceinline__ void recurrent_heads(const HeadOperands<T> &operands, Rule rule, RowFactors *factors) {
    typedef Pack<T, 4> P;
    typedef Pack<float, 4> S;
    constexpr unsigned int KEY_WIDTH = PACKS * 4 * LANES_OF_COLUMN;
    const unsigned int value_heads = operands.value_heads, value_width = operands.value_width;
    const Rows rows(operands.rows_of, operands.slot_of, operands.position_of, blockIdx.y, operands.slots,
                    operands.rows);
    if (rows.first >= rows.end) {
        return;
    }
    const unsigned int head = blockIdx.x, key_head = head / (value_heads / operands.key_heads);
    const unsigned int lane = threadIdx.x % LANES_OF_COLUMN, column = threadIdx.x / LANES_OF_COLUMN;
    const unsigned int keys = operands.key_heads * KEY_WIDTH, values = value_heads * value_width;
    const unsigned int channels = 2 * keys + values;
    // Packs of a thread are LANES_OF_COLUMN packs apart.
    constexpr unsigned int DISTANCE = 4 * LANES_OF_COLUMN;
    const auto own = [&](unsigned int slot) INLINE {
        return operands.states + (((size_t)slot * value_heads + head) * value_width + column) * KEY_WIDTH + lane * 4;
    };
    S state[PACKS];
#pragma unroll
    for (unsigned int p = 0; p < PACKS; ++p) {
        if (rows.continues) {
            state[p] = S::read(own(rows.slot) + p * DISTANCE);
        } else {
#pragma unroll
            for (unsigned int j = 0; j < 4; ++j) {
                state[p].set(j, 0.0f);
            }
        }
    }
    // The elements of the first row that this thread reads and writes.
    const T *query = operands.qkv + (size_t)rows.first * channels + key_head * KEY_WIDTH + lane * 4;
    const T *key_at = query + keys;
    const T *value_at = operands.qkv + (size_t)rows.first * channels + 2 * keys + head * value_width + column;
    // The place of a step among those of a row. A thread computes the factors of a row for all threads, unless they differ.
    constexpr bool STEPS_OF_ELEMENTS = Rule::STEPS_OF_ELEMENTS;
    const unsigned int place = STEPS_OF_ELEMENTS ? head * value_width + column : head;
    const unsigned int step_row = rows.first + (STEPS_OF_ELEMENTS ? 0 : threadIdx.x);
    // A thread reads the slots of the rows whose factors it computes, or of all rows.
    const unsigned int *kept_at = operands.kept_of + step_row;
    const T *a = operands.a + (size_t)step_row * operands.a_stride + place;
    const float dt_bias = operands.dt_bias[place];
    rule.begin(step_row, place);
    const auto step_at = [&](const T *at) INLINE {
        const float input = (float)*at + dt_bias;
        return rule.limited(input > 20.0f ? input : logf(1.0f + exponential(input)));
    };
    S rates[STEPS_OF_ELEMENTS ? PACKS : 1];
    if constexpr (STEPS_OF_ELEMENTS) {
#pragma unroll
        for (unsigned int p = 0; p < PACKS; ++p) {
            rates[p] = S::read(operands.rate + (size_t)place * KEY_WIDTH + lane * 4 + p * DISTANCE);
        }
    }
    // LANES threads share a row of the norm. Without one, the first thread of a column writes its results.
    const unsigned int first_element = Rule::IS_DELTA ? threadIdx.x % LANES : column;
    const unsigned int first_row = Rule::IS_DELTA ? threadIdx.x / LANES : 0;
    const T *gates =
        operands.z + (size_t)(rows.first + first_row) * operands.z_stride + head * value_width + first_element;
    T *out = operands.out + (size_t)(rows.first + first_row) * values + head * value_width + first_element;
    for (unsigned int left = rows.end - rows.first; left > 0; left -= min(left, CANDLE_DELTA_ROWS)) {
        const unsigned int count = min(left, CANDLE_DELTA_ROWS);
        if constexpr (!STEPS_OF_ELEMENTS) {
            if (threadIdx.x < count) {
                const float step = step_at(a);
                factors[threadIdx.x] = {exponential(operands.rate[head] * step), rule.weight(step), *kept_at};
            }
            __syncthreads();
        }
#pragma unroll 1
        for (unsigned int index = 0; index < count; ++index) {
            const float value = (float)*value_at;
            float decay = 1.0f, weight;
            if constexpr (STEPS_OF_ELEMENTS) {
                weight = step_at(a);
                a += operands.a_stride;
            } else {
                decay = factors[index].decay;
                weight = factors[index].weight;
            }
            P key[PACKS];
            float state_key = 0, state_query = 0, key_query = 0, key_key = 0, query_query = 0;
#pragma unroll
            for (unsigned int p = 0; p < PACKS; ++p) {
                const P queries = P::read(query + p * DISTANCE);
                key[p] = P::read(key_at + p * DISTANCE);
#pragma unroll
                for (unsigned int j = 0; j < 4; ++j) {
                    const float q = (float)queries[j], k = (float)key[p][j];
                    float s = state[p][j];
                    if constexpr (STEPS_OF_ELEMENTS) {
                        s *= exponential(rates[p][j] * weight);
                        state[p].set(j, s);
                    }
                    state_query += s * q;
                    key_query += k * q;
                    if constexpr (Rule::IS_DELTA) {
                        state_key += s * k;
                        key_key += k * k;
                        query_query += q * q;
                    }
                }
            }
            // The factor of the key that is added to the state.
            float added;
            if constexpr (Rule::IS_DELTA) {
                // Both vectors are divided by their lengths.
                const float of_key = 1 / sqrtg(sum_of_column(key_key) + LENGTH_EPSILON);
                const float of_query = 1 / sqrtg((sum_of_column(query_query) + LENGTH_EPSILON) * KEY_WIDTH);
                added = of_key * ((value - decay * of_key * sum_of_column(state_key)) * weight);
                const float result =
                    of_query * (decay * sum_of_column(state_query) + added * sum_of_column(key_query));
                if (lane == 0) {
                    // Rounded like the results of separate operations.
                    rule.results[index][column] = (float)(T)result;
                }
            } else {
                added = value * weight;
                const float result = decay * sum_of_column(state_query) + added * sum_of_column(key_query);
                if (lane == 0) {
                    const float gate = operands.z ? (float)*gates : 0.0f;
                    const float factor = operands.z ? gate * sigmoid(gate) : 1.0f;
                    *out = (T)((result + rule.value_factor * value) * factor);
                }
                gates += operands.z_stride;
                out += values;
            }
#pragma unroll
            for (unsigned int p = 0; p < PACKS; ++p) {
#pragma unroll
                for (unsigned int j = 0; j < 4; ++j) {
                    state[p].set(j, state[p][j] * decay + added * (float)key[p][j]);
                }
            }
            const unsigned int kept = STEPS_OF_ELEMENTS ? *kept_at++ : factors[index].kept;
            if (names_element(kept, operands.slots, CANDLE_FAULT_CACHE)) {
#pragma unroll
                for (unsigned int p = 0; p < PACKS; ++p) {
                    state[p].write(own(kept) + p * DISTANCE);
                }
            }
            query += channels;
            key_at += channels;
            value_at += channels;
        }
        if constexpr (!STEPS_OF_ELEMENTS) {
            __syncthreads();
        }
        if constexpr (Rule::IS_DELTA) {
            const T *gate_at = gates;
            T *to = out;
            for (unsigned int index = first_row; index < count; index += blockDim.x / LANES) {
                const float *const results = rule.results[index];
                float squares = 0;
                for (unsigned int i = first_element; i < value_width; i += LANES) {
                    squares += results[i] * results[i];
                }
                squares = reduce_lanes(squares, LANES, [](float x, float y) INLINE { return x + y; });
                const float factor = 1 / sqrtg(squares / (float)value_width + rule.eps);
                for (unsigned int i = 0; i + first_element < value_width; i += LANES) {
                    const float gate = (float)gate_at[i];
                    const unsigned int element = i + first_element;
                    const float scaled = (float)(T)(results[element] * factor * (float)rule.norm[element]);
                    to[i] = (T)(scaled * gate * sigmoid(gate));
                }
                gate_at += (size_t)(blockDim.x / LANES) * operands.z_stride;
                to += (size_t)(blockDim.x / LANES) * values;
            }
            gates += (size_t)CANDLE_DELTA_ROWS * operands.z_stride;
            out += (size_t)CANDLE_DELTA_ROWS * values;
            __syncthreads();
        }
        if constexpr (!STEPS_OF_ELEMENTS) {
            a += (size_t)CANDLE_DELTA_ROWS * operands.a_stride;
            kept_at += CANDLE_DELTA_ROWS;
            rule.advance(CANDLE_DELTA_ROWS);
        }
    }
}

// Selects the code for the width of keys.
template <typename T, typename Rule>
__device__ __forceinline__ void recurrent_heads(const HeadOperands<T> &operands, const Rule &rule, RowFactors *factors,
                                                unsigned int key_width) {
    switch (key_width / (4 * LANES_OF_COLUMN)) {
    case 1:
        return recurrent_heads<1>(operands, rule, factors);
    case 2:
        return recurrent_heads<2>(operands, rule, factors);
    case 4:
        return recurrent_heads<4>(operands, rule, factors);
    default:
        return recurrent_heads<8>(operands, rule, factors);
    }
}

// Parameters of both recurrences, of which each reads those that it has.
#define HEAD_PARAMETERS(T)                                                                                             \
    const T *qkv, const T *a, const T *b, const T *z, const float *rate, const float *dt_bias, const T *norm,          \
        const float *skip, const unsigned int *rows_of, const unsigned int *slot_of, const unsigned int *position_of,  \
        const unsigned int *kept_of, float *states, T *out, const unsigned int rows, const unsigned int key_heads,     \
        const unsigned int value_heads, const unsigned int key_width, const unsigned int value_width, const unsigned int slots, const float eps,       \
        const float min_step, const float max_step, const unsigned int a_stride, const unsigned int b_stride,          \
        const unsigned int z_stride, const bool is_mamba1
#define HEAD_OPERANDS(T)                                                                                               \
    HeadOperands<T> {                                                                                                  \
        qkv, a, z, rate, dt_bias, rows_of, slot_of, position_of, kept_of, states, out, rows, key_heads, value_heads,   \
            value_width, slots, a_stride, z_stride                                                                     \
    }

#define RECURRENT_OPS(T, NAME)                                                                                         \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) causal_conv_##NAME(                                     \
        const T *x, const float *weight, const float *bias, const unsigned int *rows_of, const unsigned int *slot_of,  \
        const unsigned int *position_of, const unsigned int *kept_of, T *states, T *out, const unsigned int rows,      \
        const unsigned int channels, const unsigned int slots, const size_t x_stride) {                                \
        causal_conv(x, weight, bias, rows_of, slot_of, position_of, kept_of, states, out, rows, channels, slots,       \
                    x_stride);                                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(CANDLE_DELTA_BLOCK) gated_delta_##NAME(HEAD_PARAMETERS(T)) {          \
        __shared__ float results[CANDLE_DELTA_ROWS][CANDLE_DELTA_WIDTH];                                               \
        __shared__ RowFactors factors[CANDLE_DELTA_ROWS];                                                              \
        const HeadOperands<T> operands = HEAD_OPERANDS(T);                                                             \
        recurrent_heads(operands, DeltaRule<T>{b, norm, eps, b_stride, results}, factors, key_width);                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(CANDLE_DELTA_BLOCK) selective_scan_##NAME(HEAD_PARAMETERS(T)) {       \
        __shared__ RowFactors factors[CANDLE_DELTA_ROWS];                                                              \
        const HeadOperands<T> operands = HEAD_OPERANDS(T);                                                             \
        if (is_mamba1) {                                                                                               \
            recurrent_heads<CANDLE_MAMBA1_WIDTH / (4 * LANES_OF_COLUMN)>(                                              \
                operands, SelectiveRule<true>{skip, min_step, max_step, 0.0f}, factors);                               \
        } else {                                                                                                       \
            recurrent_heads(operands, SelectiveRule<false>{skip, min_step, max_step, 0.0f}, factors, key_width);       \
        }                                                                                                              \
    }
RECURRENT_OPS(__nv_bfloat16, bf16)
RECURRENT_OPS(__half, f16)
RECURRENT_OPS(float, f32)
