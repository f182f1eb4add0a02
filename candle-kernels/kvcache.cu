// Rotary embeddings of queries and keys, and the write of keys and values to a paged cache, in one launch. Biases of
// the projections and RMS norms of the heads of queries and keys are optional. Everything is computed in f32 and rounded
// once, to the dtype of the cache. Encoded caches are also decoded here, for attention of many queries.
#include "encoded.cuh"
#include "faults.cuh"
#include "prefix.cuh"

// N pairs of elements of a head: two packs, whose elements follow each other in `of`.
template <unsigned int N>
struct Pairs {
    float of[2 * N];

    // Rotates pairs of neighbours, or of element j with element N + j.
    __device__ __forceinline__ void rotate(const float *cos, const float *sin, const bool interleaved) {
        constexpr unsigned int M = smaller(N, 4u);
        float c[N], s[N];
#pragma unroll
        for (unsigned int first = 0; first < N; first += M) {
            const auto cosines = Pack<float, M>::read(cos + first), sines = Pack<float, M>::read(sin + first);
#pragma unroll
            for (unsigned int j = 0; j < M; ++j) {
                c[first + j] = cosines[j];
                s[first + j] = sines[j];
            }
        }
        const auto turn = [&](float &x, float &y, unsigned int j) INLINE {
            const float rotated = x * c[j] - y * s[j];
            y = x * s[j] + y * c[j];
            x = rotated;
        };
        if (interleaved) {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                turn(of[2 * j], of[2 * j + 1], j);
            }
        } else {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                turn(of[j], of[N + j], j);
            }
        }
    }

    // Reads two packs.
    template <typename T>
    __device__ __forceinline__ static Pairs read(const T *first, const T *second) {
        const auto x = Pack<T, N>::read(first), y = Pack<T, N>::read(second);
        Pairs pairs;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            pairs.of[j] = (float)x[j];
            pairs.of[N + j] = (float)y[j];
        }
        return pairs;
    }

    // Calls `use` for each element.
    template <typename F>
    __device__ __forceinline__ void for_each(F use) const {
#pragma unroll
        for (const float value : of) {
            use(value);
        }
    }

    // Rounds to C and writes two packs.
    template <typename C>
    __device__ __forceinline__ void write(C *first, C *second) const {
        Pack<C, N> x, y;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            x.set(j, (C)of[j]);
            y.set(j, (C)of[N + j]);
        }
        x.write(first);
        y.write(second);
    }
    // Encodes two packs by `encode`.
    template <typename F>
    __device__ __forceinline__ void write_encoded(EncodedByte *first, EncodedByte *second, F encode) const {
        Pack<uint8_t, N> x, y;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            x.set(j, encode(of[j]));
            y.set(j, encode(of[N + j]));
        }
        x.write((uint8_t *)first);
        y.write((uint8_t *)second);
    }
};

#define PARAMETERS(T, C, S)                                                                                               \
    const unsigned int rows, const unsigned int q_heads, const unsigned int kv_heads, const unsigned int width,        \
        const unsigned int pairs, const unsigned int lanes, const unsigned int table, const unsigned int slots,        \
        const bool interleaved, const bool in_packs, const float eps, const size_t q_stride, const size_t k_stride,    \
        const size_t v_stride, const T *q, const T *k, const T *v, const T *bias, const T *q_norm, const T *k_norm,    \
        const float *cos, const float *sin, const unsigned int *position_of, const unsigned int *slot_of, C *out,      \
        S *keys, S *values
#define ARGUMENTS                                                                                                      \
    rows, q_heads, kv_heads, width, pairs, lanes, table, slots, interleaved, in_packs, eps, q_stride, k_stride,        \
        v_stride, q, k, v, bias, q_norm, k_norm, cos, sin, position_of, slot_of, out, keys, values

// `lanes` threads, a power of two, share a head of a row. x of the grid numbers heads: queries, keys, values. y strides
// over rows. An encoded cache has pairs of scales, as two bf16.
template <unsigned int N, typename T, typename C, typename S>
__device__ __forceinline__ void write_heads(PARAMETERS(T, C, S), __nv_bfloat16 *scales = nullptr, bool is_fp8 = false) {
    CANDLE_BEGIN_NEXT_LAUNCH();
    CANDLE_WAIT_FOR_LAUNCHES();
    typedef Pairs<N> P;
    const unsigned int shift = log2_of(lanes), lane = threadIdx.x & (lanes - 1), heads = q_heads + 2 * kv_heads;
    const unsigned int number = blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    // Threads past the last head take part in its sums, but write nothing.
    const unsigned int head = min(number, heads - 1);
    const bool is_query = head < q_heads, is_value = head >= q_heads + kv_heads;
    const unsigned int own = is_query ? head : head - q_heads - (is_value ? kv_heads : 0);
    const T *const from = (is_query ? q : is_value ? v : k) + (size_t)own * width;
    const size_t stride = is_query ? q_stride : is_value ? v_stride : k_stride;
    const T *const norm = is_query ? q_norm : is_value ? nullptr : k_norm;
    const unsigned int units = width / (2 * N), rotated = is_value ? 0 : pairs;
    // Offset of a unit's first pack, and distance to its second.
    const auto halves = [=](unsigned int unit) INLINE { return !interleaved && unit * N < rotated; };
    const auto start = [=](unsigned int unit) INLINE { return halves(unit) ? unit * N : 2 * unit * N; };
    const auto distance = [=](unsigned int unit) INLINE { return halves(unit) ? pairs : N; };
    for (unsigned int row = blockIdx.y; row < rows; row += gridDim.y) {
        const unsigned int slot = slot_of[row], position = position_of[row];
        const T *const x = from + row * stride;
        const auto read = [&](unsigned int unit) INLINE {
            const unsigned int first = start(unit), second = first + distance(unit);
            P values = P::read(x + first, x + second);
            if (bias) {
                const T *const summands = bias + (size_t)head * width;
                const P added = P::read(summands + first, summands + second);
#pragma unroll
                for (unsigned int j = 0; j < 2 * N; ++j) {
                    values.of[j] += added.of[j];
                }
            }
            return values;
        };
        // The first unit of each lane is read once, which is all of them for the usual widths.
        const P mine = read(min(lane, units - 1));
        float scale = 1;
        if (q_norm) {
            float sum = 0;
#pragma unroll 1
            for (unsigned int unit = lane; unit < units; unit += lanes) {
                const P values = unit == lane ? mine : read(unit);
#pragma unroll
                for (unsigned int j = 0; j < 2 * N; ++j) {
                    sum += values.of[j] * values.of[j];
                }
            }
            sum = reduce_lanes(sum, lanes, [](float a, float b) INLINE { return a + b; });
            scale = 1 / sqrtg(sum / (float)width + eps);
        }
        // Without opaque(), the bound of a report takes scalar registers in the whole loop, of which gfx9 has too few.
        const bool is_stored = is_query || names_element(slot, opaque(slots), CANDLE_FAULT_CACHE);
        const size_t angle = is_within(position, table, CANDLE_FAULT_POSITION) ? (size_t)position * pairs : 0;
        const auto prepared = [&](unsigned int unit) INLINE {
            P values = unit == lane ? mine : read(unit);
            const unsigned int first = start(unit), second = first + distance(unit);
            if (norm) {
                const P weights = P::read(norm + first, norm + second);
#pragma unroll
                for (unsigned int j = 0; j < 2 * N; ++j) {
                    values.of[j] *= scale * weights.of[j];
                }
            }
            if (unit * N < rotated) {
                values.rotate(cos + angle + unit * N, sin + angle + unit * N, interleaved);
            }
            return values;
        };
        const size_t cached = (size_t)slot * kv_heads + own;
        uint32_t magnitude = 0;
        if constexpr (IS_ENCODED<S>) {
            // Lanes of queries take part in the shuffles.
#pragma unroll 1
            for (unsigned int unit = lane; unit < units; unit += lanes) {
                prepared(unit).for_each([&](float x) INLINE { magnitude = max(magnitude, Encoding<C>::magnitude(x)); });
            }
            magnitude = largest_of_lanes(magnitude, lanes);
        }
        if (number >= heads || !is_stored) {
            continue;
        }
        const auto write = [&](auto store) INLINE {
#pragma unroll 1
            for (unsigned int unit = lane; unit < units; unit += lanes) {
                const unsigned int first = start(unit);
                store(prepared(unit), first, first + distance(unit));
            }
        };
        if constexpr (IS_ENCODED<S>) {
            if (!is_query) {
                const Encoding<C> encoding(magnitude, is_fp8);
                S *const to = (is_value ? values : keys) + cached * width;
                write([&](const P &heads, unsigned int first, unsigned int second) INLINE {
                    heads.write_encoded(to + first, to + second, [&](float x) INLINE { return encoding.encode(x); });
                });
                if (lane == 0) {
                    scales[2 * cached + is_value] = encoding.scale;
                }
                continue;
            }
        }
        C *to = out + ((size_t)row * q_heads + own) * width;
        if constexpr (!IS_ENCODED<S>) {
            to = is_query ? to : (is_value ? values : keys) + cached * width;
        }
        write([&](const P &heads, unsigned int first, unsigned int second) INLINE { heads.write(to + first, to + second); });
    }
}

#define CACHE_OP(T, C, NAME)                                                                                   \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) cache_##NAME(PARAMETERS(T, C, C)) {                \
        constexpr unsigned int N = CANDLE_PACK_BYTES / (sizeof(T) > sizeof(C) ? sizeof(T) : sizeof(C));        \
        in_packs ? write_heads<N, T, C, C>(ARGUMENTS) : write_heads<1, T, C, C>(ARGUMENTS);                    \
    }
// Encoded caches, and queries of C.
#define ENCODED_CACHE_OP(T, C, NAME)                                                                                   \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) cache_encoded_##NAME(                                  \
        PARAMETERS(T, C, EncodedByte), __nv_bfloat16 *scales, const bool is_fp8) {                                     \
        constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T);                                                      \
        in_packs ? write_heads<N, T, C, EncodedByte>(ARGUMENTS, scales, is_fp8)                                        \
                 : write_heads<1, T, C, EncodedByte>(ARGUMENTS, scales, is_fp8);                                       \
    }
#define CACHE_OPS(T, NAME)                   \
    CACHE_OP(T, __nv_bfloat16, NAME##_bf16)  \
    CACHE_OP(T, __half, NAME##_f16)          \
    CACHE_OP(T, float, NAME##_f32)
CACHE_OPS(__nv_bfloat16, bf16)
CACHE_OPS(__half, f16)
CACHE_OPS(float, f32)
ENCODED_CACHE_OP(__nv_bfloat16, __nv_bfloat16, bf16_bf16)
ENCODED_CACHE_OP(__half, __half, f16_f16)
ENCODED_CACHE_OP(float, __half, f32_f16)

// Returns eight elements of encoding E times their scale, as words of two elements.
template <typename T, typename E>
__device__ __forceinline__ uint4 decoded_words(EncodedPack pack, bool is_value) {
    const float scale = pack.template scale<E>(is_value);
    const auto pair = [&](unsigned int i) INLINE { return pack.template pair<T, E>(i, scale); };
    return uint4{pair(0), pair(2), pair(4), pair(6)};
}

// A thread decodes eight elements of a key and of its value at a time. y of the grid numbers sequences.
template <typename T>
__device__ __forceinline__ void decode_rows(const unsigned int capacity, const unsigned int left, const unsigned int pages,
                                            const unsigned int table_row, const bool is_fp8, const size_t page_word,
                                            const size_t heads_word, const size_t packs_word, const size_t page_stride,
                                            const size_t head_stride, const size_t row_stride, const EncodedByte *keys,
                                            const EncodedByte *values, const uint32_t *scales, const uint32_t *query_starts,
                                            const uint32_t *key_starts, const uint32_t *table, T *out_keys, T *out_values,
                                            uint32_t *out_table) {
    const unsigned int sequence = blockIdx.y;
    const Divisor page(page_word), heads(heads_word), packs(packs_word);
    // Attention reports lengths out of range.
    const unsigned int end = min(key_starts[sequence + 1] - key_starts[sequence], capacity);
    const unsigned int queries = query_starts[sequence + 1] - query_starts[sequence], visible = queries + left;
    const unsigned int first = queries == 0 ? end : end - min(end, visible), count = (end - first) * heads.by * packs.by;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        out_table[sequence] = sequence;
    }
    for (unsigned int unit = thread_index(); unit < count; unit += gridDim.x * blockDim.x) {
        unsigned int pack = unit, head = packs.split(pack), line = first + heads.split(head);
        const size_t to = ((size_t)sequence * capacity + line) * heads.by + head;
        const uint32_t named = table[(size_t)sequence * table_row + page.split(line)];
        const uint32_t number = is_within(named, pages, CANDLE_FAULT_PAGE) ? named : pages - 1;
        const size_t from = number * page_stride + head * head_stride + line * row_stride + pack * ENCODED_PACK;
        const uint32_t pair = scales[((size_t)number * page.by + line) * heads.by + head];
        const EncodedPack key = {EncodedBytes::read((const uint8_t *)keys + from), pair};
        const EncodedPack value = {EncodedBytes::read((const uint8_t *)values + from), pair};
        const size_t at = to * packs.by + pack;
        ((uint4 *)out_keys)[at] = is_fp8 ? decoded_words<T, Fp8>(key, false) : decoded_words<T, Int8>(key, false);
        ((uint4 *)out_values)[at] = is_fp8 ? decoded_words<T, Fp8>(value, true) : decoded_words<T, Int8>(value, true);
    }
}

#define DECODED_CACHE_OP(T, NAME)                                                                                      \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) cache_decoded_##NAME(                                   \
        const unsigned int capacity, const unsigned int left, const unsigned int pages, const unsigned int table_row,  \
        const bool is_fp8, const size_t page, const size_t heads, const size_t packs, const size_t page_stride,        \
        const size_t head_stride, const size_t row_stride, const EncodedByte *keys, const EncodedByte *values,         \
        const uint32_t *scales, const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table,       \
        T *out_keys, T *out_values, uint32_t *out_table) {                                                             \
        decode_rows(capacity, left, pages, table_row, is_fp8, page, heads, packs, page_stride, head_stride,            \
                    row_stride, keys, values, scales, query_starts, key_starts, table, out_keys, out_values,           \
                    out_table);                                                                                        \
    }
DECODED_CACHE_OP(__nv_bfloat16, bf16)
DECODED_CACHE_OP(__half, f16)

// Moves the sequences of a static cache to their next positions, at most `capacity`. `state` has their positions, the slots of
// their next keys, and the ends of their keys, of which the first is 0. One group of lanes.
extern "C" __global__ void __launch_bounds__(LANES) cache_advance(const unsigned int sequences, const unsigned int capacity,
                                                                  uint32_t *state) {
    CANDLE_BEGIN_NEXT_LAUNCH();
    CANDLE_WAIT_FOR_LAUNCHES();
    uint32_t *const positions = state, *const slots = positions + sequences, *const ends = slots + sequences;
    uint32_t end = 0;
    for (unsigned int first = 0; first < sequences; first += LANES) {
        const unsigned int at = first + threadIdx.x;
        const bool is_sequence = at < sequences;
        const uint32_t position = is_sequence ? min(positions[at] + 1, capacity) : 0;
        const uint32_t keys = is_sequence ? min(position + 1, capacity) : 0, own_end = end + sum_before(keys) + keys;
        if (is_sequence) {
            positions[at] = position;
            slots[at] = position < capacity ? at * capacity + position : ~0u;
            ends[at + 1] = own_end;
        }
        end = __shfl_sync(~0u, own_end, LANES - 1, LANES);
    }
}
