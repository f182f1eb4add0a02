// Projections of a decoding step that attention itself prepares and appends to the cache: biases, norms and rotary
// embeddings of the heads, as in kvcache.cu.
#pragma once
#include "attention.cuh"
#include "lanes.cuh"

// No rows are appended: the cache has all keys.
struct NothingAppended {
    static constexpr bool IS_PRESENT = false;
};

// Projections to one query row, key and value of each sequence, with biases and weights of norms: all of T, or all f32. The
// cache stores S.
template <typename T, typename S = T>
struct AppendedRows {
    static constexpr bool IS_PRESENT = true;
    // Columns of a lane, and packs of them.
    static constexpr unsigned int COLUMNS = 8, N = 16 / sizeof(T), PACKS = COLUMNS / N;
    typedef float Columns[COLUMNS];

    const void *q, *k, *v, *bias, *q_norm, *k_norm;
    const float *cos, *sin;
    const uint32_t *position_of, *slot_of;
    unsigned int q_stride, k_stride, v_stride, pairs, positions;
    bool is_f32, interleaved, constant_history;
    float eps;

    // gfx9 has too few scalar registers for the operands of the preparation beside those of attention.
    __device__ __forceinline__ void move_to_vector_registers() {
        move_to_vector_register(q);
        move_to_vector_register(k);
        move_to_vector_register(v);
        move_to_vector_register(bias);
        move_to_vector_register(q_norm);
        move_to_vector_register(k_norm);
        move_to_vector_register(q_stride);
        move_to_vector_register(k_stride);
        move_to_vector_register(v_stride);
        move_to_vector_register(pairs);
        move_to_vector_register(positions);
        move_to_vector_register(cos);
        move_to_vector_register(sin);
        move_to_vector_register(position_of);
        move_to_vector_register(slot_of);
    }

    // Cosines and sines of a lane's columns; of pairs of neighbours, the first half.
    struct Angles {
        Columns cos, sin;
    };

    template <typename P>
    __device__ __forceinline__ static void read_packs(Columns &to, const P *from) {
        constexpr unsigned int EACH = 16 / sizeof(P);
#pragma unroll
        for (unsigned int first = 0; first < COLUMNS; first += EACH) {
            const auto pack = Pack<P, EACH>::read(from + first);
#pragma unroll
            for (unsigned int i = 0; i < EACH; ++i) {
                to[first + i] = static_cast<float>(pack[i]);
            }
        }
    }
    // Reads columns of an operand from an element on.
    __device__ __forceinline__ void read(Columns &to, const void *operand, size_t element) const {
        if (is_f32) {
            read_packs(to, (const float *)operand + element);
        } else {
            read_packs(to, (const T *)operand + element);
        }
    }
    __device__ __forceinline__ bool is_rotated(unsigned int column) const { return column < 2 * pairs; }
    // Returns the first of the columns that are rotated with those from `column` on.
    __device__ __forceinline__ unsigned int other(unsigned int column) const {
        return interleaved || !is_rotated(column) ? column : column < pairs ? column + pairs : column - pairs;
    }
    __device__ __forceinline__ Angles angles(unsigned int row, unsigned int column) const {
        const unsigned int position = position_of[row];
        const size_t line = is_within(position, positions, CANDLE_FAULT_POSITION) ? (size_t)position * pairs : 0;
        const unsigned int first = !is_rotated(column) ? 0 : interleaved ? column / 2 : min(column, other(column));
        Angles angles;
#pragma unroll
        for (unsigned int i = 0; i < COLUMNS; i += 4) {
            // Pairs of neighbours have only four angles, which are read twice.
            const unsigned int at = first + (interleaved ? 0 : i);
            const auto c = Pack<float, 4>::read(cos + line + at), s = Pack<float, 4>::read(sin + line + at);
#pragma unroll
            for (unsigned int j = 0; j < 4; ++j) {
                angles.cos[i + j] = c[j];
                angles.sin[i + j] = s[j];
            }
        }
        return angles;
    }
    __device__ __forceinline__ void rotate(Columns &x, const Columns &others, const Angles &angles, unsigned int column) const {
        if (interleaved) {
#pragma unroll
            for (unsigned int i = 0; i < COLUMNS; i += 2) {
                const float c = angles.cos[i / 2], s = angles.sin[i / 2], first = x[i];
                x[i] = first * c - x[i + 1] * s;
                x[i + 1] = first * s + x[i + 1] * c;
            }
        } else {
#pragma unroll
            for (unsigned int i = 0; i < COLUMNS; ++i) {
                const float c = angles.cos[i], s = angles.sin[i];
                // Rounded as in kvcache.cu.
                x[i] = column < pairs ? x[i] * c - others[i] * s : others[i] * s + x[i] * c;
            }
        }
    }

    // Adds biases, normalizes and rotates a lane's columns of a head, which starts at an element of `from`, and whose biases start
    // at `biases`. Lanes past its end repeat its first columns. All lanes of the wave call this.
    __device__ __forceinline__ void prepare_head(Columns &x, const void *from, size_t element, size_t biases, const void *norm,
                                            const Angles &angles, unsigned int column, unsigned int lanes, unsigned int width,
                                            bool is_value) const {
        const bool is_inside = column < width;
        const unsigned int at = is_inside ? column : 0, with = other(at);
        Columns others;
        read(x, from, element + at);
        read(others, from, element + with);
        const auto combine = [&](const void *operand, size_t first, auto f) INLINE {
            Columns own, of_others;
            read(own, operand, first + at);
            read(of_others, operand, first + with);
#pragma unroll
            for (unsigned int i = 0; i < COLUMNS; ++i) {
                x[i] = f(x[i], own[i]);
                others[i] = f(others[i], of_others[i]);
            }
        };
        if (bias != nullptr) {
            combine(bias, biases, [](float a, float b) INLINE { return a + b; });
        }
        if (q_norm != nullptr) {
            float sum = 0;
#pragma unroll
            for (unsigned int i = 0; i < COLUMNS; ++i) {
                sum += x[i] * x[i];
            }
            sum = reduce_lanes(is_inside ? sum : 0.0f, lanes, [](float a, float b) INLINE { return a + b; });
            const float scale = 1 / sqrtf(sum / (float)width + eps);
            if (!is_value) {
                combine(norm, 0, [=](float a, float b) INLINE { return a * (scale * b); });
            }
        }
        if (!is_value && is_rotated(column)) {
            rotate(x, others, angles, column);
        }
    }

    // Prepares lines in LDS: the queries of the workgroup, then the sequence's key and value. For an encoded cache, these are
    // encoded, and `scales` receives their scales. Also writes key and value to their slot of the cache if `writes`. A group of
    // lanes prepares a line. Ends with a barrier.
    template <unsigned int LINES, unsigned int WIDTH>
    __device__ __forceinline__ void prepare_lines(T (&line)[LINES][WIDTH], __nv_bfloat16 (&scales)[2], const Task<T, S> &task,
                                            const Angles &angles, unsigned int rows, unsigned int lanes, uint32_t slot,
                                            bool writes) const {
        const Sequence<T, S> &sequence = task.sequence;
        const unsigned int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = blockDim.x / lanes;
        const unsigned int column = lane * COLUMNS, width = sequence.width, row = task.query_start;
        const unsigned int sharing = sequence.rows, key_heads = task.key_heads, heads = sharing * key_heads;
#pragma unroll 1
        for (unsigned int first = 0; first < LINES; first += groups) {
            const unsigned int number = first + group;
            const bool is_key = number == LINES - 2, is_value = number >= LINES - 1;
            const unsigned int head = sequence.head(task.first_row + min(number, rows - 1));
            const void *const from = is_value ? v : is_key ? k : q;
            const unsigned int stride = is_value ? v_stride : is_key ? k_stride : q_stride;
            const size_t element = (size_t)row * stride + (is_key || is_value ? task.key_head : head) * width;
            const unsigned int place = is_value ? heads + key_heads + task.key_head : is_key ? heads + task.key_head : head;
            Columns x;
            prepare_head(x, from, element, (size_t)place * width, is_key ? k_norm : q_norm, angles, column, lanes, width, is_value);
            uint32_t magnitude = 0;
            if constexpr (IS_ENCODED<S>) {
#pragma unroll
                for (const float value : x) {
                    magnitude = max(magnitude, Encoding<T>::magnitude(value));
                }
                magnitude = largest_of_lanes(column < width ? magnitude : 0, lanes);
            }
            if (number >= LINES || column >= width) {
                continue;
            }
            const KeyRows<S> &cache = is_value ? sequence.v : sequence.k;
            const unsigned int page = cache.page.quotient(slot);
            S *const stored = const_cast<S *>(cache.first) + (size_t)page * cache.page_stride +
                              (size_t)(slot - page * cache.page.by) * cache.stride + column;
            if constexpr (IS_ENCODED<S>) {
                if (is_key || is_value) {
                    const Encoding<T> encoding(magnitude, IS_FP8<S>);
                    EncodedBytes codes;
#pragma unroll
                    for (unsigned int i = 0; i < COLUMNS; ++i) {
                        codes.set(i, encoding.encode(x[i]));
                    }
                    codes.write((uint8_t *)line[number] + column);
                    if (writes) {
                        codes.write((uint8_t *)stored);
                    }
                    if (lane == 0) {
                        scales[is_value] = encoding.scale;
                        if (writes) {
                            sequence.k.scales.write(slot, is_value, encoding.scale);
                        }
                    }
                    continue;
                }
            }
#pragma unroll
            for (unsigned int p = 0; p < PACKS; ++p) {
                Pack<T, N> pack;
#pragma unroll
                for (unsigned int i = 0; i < N; ++i) {
                    pack.set(i, static_cast<T>(x[p * N + i]));
                }
                pack.write(line[number] + column + p * N);
                if constexpr (!IS_ENCODED<S>) {
                    if (writes && number >= LINES - 2) {
                        pack.write(stored + p * N);
                    }
                }
            }
        }
        __syncthreads();
    }
};
