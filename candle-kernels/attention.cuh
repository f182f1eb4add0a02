// Masking and work assignment shared by the attention kernels.
#pragma once
#include "faults.cuh"
#include "slabs.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// Scale, softcap and visibility of the scores. The last query has the position of the last key.
struct MaskParams {
    float scale, softcap;
    int left, right, keys;
    // Half-open ranges of positions of this batch; all positions within a range see each other.
    const int *ranges;
    unsigned int range_count;

    // Returns a bit mask of the keys key(0) to key(COUNT - 1), COUNT <= 32, that a query at `position` sees.
    template <unsigned int COUNT, typename K>
    __device__ __forceinline__ uint32_t visible(int position, K key) const {
        const auto bits_within = [&](int from, int end) INLINE {
            uint32_t bits = 0;
            const unsigned int visible_range = max(min(end, keys) - from, 0);
#pragma unroll
            for (unsigned int j = 0; j < COUNT; ++j) {
                bits |= (uint32_t)((unsigned int)(key(j) - from) < visible_range) << j;
            }
            return bits;
        };
        uint32_t bits = bits_within(position - left, position + right + 1);
#pragma unroll 1
        for (unsigned int i = 0; i < range_count; ++i) {
            const int start = ranges[2 * i], end = ranges[2 * i + 1];
            if (position >= start && position < end) {
                bits |= bits_within(max(start, 0), end);
            }
        }
        return bits;
    }
    // Returns the half-open range [x, y) of keys that any query position in [first, last] sees.
    __device__ __forceinline__ uint2 visible_range(int first, int last) const {
        int from = first - left, end = last + right + 1;
#pragma unroll 1
        for (unsigned int i = 0; i < range_count; ++i) {
            const int start = ranges[2 * i], stop = ranges[2 * i + 1];
            if (last >= start && first < stop) {
                from = min(from, start);
                end = max(end, stop);
            }
        }
        from = max(from, 0);
        return uint2{(unsigned int)from, (unsigned int)max(min(end, keys), from)};
    }
    // Returns true if every position in [first, last] sees every key in [key, end).
    __device__ __forceinline__ bool all_visible(int first, int last, int key, int end) const {
        return key >= last - left && end <= first + right + 1 && end <= keys;
    }
    __device__ __forceinline__ float apply_softcap(float score) const {
        if (softcap <= 0) {
            return score;
        }
        // The difference below cancels for small scores, which use the Taylor series of tanh instead.
        const float x = score / softcap, square = x * x;
        const float series = fmaf(fmaf(fmaf(62.0f / 2835, square, -17.0f / 315), square, 2.0f / 15), square, -1.0f / 3);
        const float large = 1 - 2 * candle_reciprocal(1 + candle_exp2(x * (2 * LOG2_E)));
        return softcap * (fabsf(x) < 0.25f ? fmaf(series * square, x, x) : large);
    }
};

// Moves uniform numbers and pointers out of scalar registers, of which gfx9 has too few.
__device__ __forceinline__ void move_to_vector_register(unsigned int &number) {
#if defined(__GFX9__)
    number = opaque(number);
#endif
}
template <typename T>
__device__ __forceinline__ void move_to_vector_register(T *&pointer) {
#if defined(__GFX9__)
    const uint2 halves = candle_bits<uint2>(pointer);
    pointer = candle_bits<T *>(uint2{opaque(halves.x), opaque(halves.y)});
#endif
}

// Pointers, strides and sizes of one sequence, whose keys and values are stored as S.
template <typename T, typename S = T>
struct Sequence {
    const T *q;
    KeyRows<S> k, v;
    T *out;
    const T *mask;
    const float *slopes, *sinks;
    float *statistics;
    unsigned int q_head, q_row, out_head, out_row, mask_head, mask_row, mask_key, statistics_head;
    unsigned int first_head, queries, rows, width, value_width;

    // Avoids the division for a single query, the usual case of split-KV.
    __device__ __forceinline__ unsigned int head(unsigned int row) const { return first_head + (queries == 1 ? row : row / queries); }
    __device__ __forceinline__ unsigned int query(unsigned int row) const { return queries == 1 ? 0 : row % queries; }
    // Returns the weight of a head's sink, times 2^exponent: a key that all queries see, and whose value is zero.
    __device__ __forceinline__ float sink_weight(unsigned int head, float exponent) const {
        return sinks == nullptr ? 0 : candle_exp2(fmaf(sinks[head], LOG2_E, exponent));
    }
};

// The work of a workgroup.
template <typename T, typename S = T>
struct Task {
    Sequence<T, S> sequence;
    MaskParams mask_params;
    // Index of the row tile in the sequence, its first row, the first value column, and the half-open range of keys
    // that any of the rows sees.
    unsigned int tile, first_row, column, first_key, end_key;
    // Batch index and first query and key of the sequence in dense operands.
    size_t batch, query_start, key_start;
    unsigned int key_head, key_heads;
    // `fits`: the sequence lengths are valid. `empty`: there is nothing to do.
    bool fits, empty;

    // Returns the smallest and the largest position of the rows in [first, last].
    __device__ __forceinline__ int2 positions(unsigned int first, unsigned int last) const {
        const int shift = mask_params.keys - (int)sequence.queries;
        const bool one_head = sequence.head(first) == sequence.head(last);
        const unsigned int low = one_head ? sequence.query(first) : 0;
        const unsigned int high = one_head ? sequence.query(last) : sequence.queries - 1;
        return int2{(int)low + shift, (int)high + shift};
    }

    __device__ __forceinline__ Task(const T *q, const S *k, const S *v, const T *mask, T *out, float *statistics,
                                    const float *slopes, const uint32_t *query_starts, const uint32_t *key_starts,
                                    const uint32_t *table, const int *ranges, const size_t *info, float scale,
                                    float softcap, unsigned int total_queries, unsigned int total_keys,
                                    const float *sinks = nullptr, const uint32_t *scales = nullptr, bool is_fp8 = false) {
        // All words are below 2^32, so that their lower halves suffice.
        const auto word = [&](unsigned int i) INLINE { return ((const unsigned int *)info)[2 * i]; };
        key_heads = word(1);
        const unsigned int heads = word(0), pairs = key_heads * word(2);
        const unsigned int pair = blockIdx.x % pairs, number = pair / key_heads;
        const unsigned int sharing = heads / key_heads, page = word(23);
        unsigned int queries = word(3), keys = word(4), q_first = 0, k_first = 0;
        batch = number;
        key_head = pair % key_heads;
        fits = true;
        if (query_starts != nullptr) {
            q_first = query_starts[number];
            k_first = key_starts[number];
            const unsigned int q_end = query_starts[number + 1], k_end = key_starts[number + 1];
            queries = q_end - q_first;
            keys = k_end - k_first;
            batch = 0;
            const unsigned int room = table == nullptr ? total_keys : k_first + word(25) * page;
            // The first check that fails is reported.
            uint64_t index = queries, bound = (uint64_t)word(3) + 1;
            const auto also_within = [&](uint64_t next, uint64_t end) INLINE {
                const bool within = index < bound;
                index = within ? next : index;
                bound = within ? end + 1 : bound;
            };
            also_within(q_end, total_queries);
            also_within(k_end, room);
            also_within(q_first, q_end);
            also_within(k_first, k_end);
            fits = is_within(index, bound, CANDLE_FAULT_SEQUENCE);
        }
        // The last rows come first: they see the most keys under a causal mask and take longest.
        tile = gridDim.x / pairs - 1 - blockIdx.x / pairs;
        query_start = q_first;
        key_start = k_first;
        sequence.first_head = key_head * sharing;
        sequence.queries = queries;
        sequence.rows = sharing * queries;
        sequence.width = word(5);
        sequence.value_width = word(6);
        empty = !fits;
        if (empty) {
            return;
        }
        sequence.q = q + batch * word(7) + (size_t)q_first * word(9);
        sequence.q_head = word(8);
        sequence.q_row = word(9);
        const bool paged = table != nullptr;
        const uint32_t *pages = paged ? table + number * word(25) : nullptr;
        const auto rows_of = [&](const S *from, unsigned int strides) INLINE {
            const unsigned int batch_stride = word(strides), row = word(strides + 2);
            from += (size_t)key_head * word(strides + 1) + (paged ? 0 : batch * batch_stride + (size_t)k_first * row);
            KeyRows<S> rows = {from, row, batch_stride, pages, Divisor(info[23]), word(24)};
            if constexpr (IS_ENCODED<S>) {
                rows.scales = {scales + key_head, key_heads, strides == 13, is_fp8};
                move_to_vector_register(rows.scales.first);
                move_to_vector_register(rows.scales.stride);
            }
            return rows;
        };
        sequence.k = rows_of(k, 10);
        sequence.v = rows_of(v, 13);
        sequence.out = out + batch * word(16) + (size_t)q_first * word(18);
        sequence.out_head = word(17);
        sequence.out_row = word(18);
        sequence.mask = mask == nullptr ? nullptr : mask + number * word(19);
        sequence.mask_head = word(20);
        sequence.mask_row = word(21);
        sequence.mask_key = word(22);
        sequence.slopes = slopes;
        sequence.sinks = sinks;
        sequence.statistics = statistics == nullptr ? nullptr : statistics + batch * word(26) + q_first;
        sequence.statistics_head = word(27);
        const unsigned int range_count = ranges == nullptr ? 0 : word(30);
        mask_params = MaskParams{scale, softcap, (int)word(28), (int)word(29), (int)keys, ranges + number * word(31), range_count};
        // These are needed late or rarely.
        move_to_vector_register(sequence.out);
        move_to_vector_register(sequence.out_head);
        move_to_vector_register(sequence.out_row);
        move_to_vector_register(sequence.statistics);
        move_to_vector_register(sequence.statistics_head);
        move_to_vector_register(sequence.mask);
        move_to_vector_register(sequence.slopes);
        if (CANDLE_FEW_REGISTERS(true, sizeof(T) < 4)) {
            move_to_vector_register(sequence.sinks);
        }
        move_to_vector_register(sequence.mask_head);
        move_to_vector_register(sequence.mask_row);
        move_to_vector_register(sequence.mask_key);
    }

    // Assigns the workgroup its rows, value columns and keys; every workgroup has the same number of rows and
    // columns.
    __device__ __forceinline__ void assign_rows(unsigned int rows_each, unsigned int columns_each = 0) {
        first_row = tile * rows_each;
        column = blockIdx.y * columns_each;
        empty = empty || first_row >= sequence.rows;
        if (empty) {
            return;
        }
        const int2 row_positions = positions(first_row, min(first_row + rows_each, sequence.rows) - 1);
        const uint2 visible = mask_params.visible_range(row_positions.x, row_positions.y);
        first_key = visible.x;
        end_key = visible.y;
    }

    // Reports page numbers out of range. The loads clamp them.
    __device__ __forceinline__ void check_pages(unsigned int first, unsigned int end) const {
        if (sequence.k.table == nullptr) {
            return;
        }
        const Divisor &page = sequence.k.page;
        for (unsigned int i = page.quotient(first) + threadIdx.x; i * page.by < end; i += blockDim.x) {
            is_within(sequence.k.table[i], sequence.k.pages, CANDLE_FAULT_PAGE);
        }
    }
};

#define TASK_PARAMETERS(T, S)                                                                                           \
    const T *q, const S *k, const S *v, const T *mask, T *out, float *statistics, const float *slopes,                  \
        const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table, const int *ranges,             \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys, const float *sinks
#define TASK_ARGUMENTS                                                                                                  \
    q, k, v, mask, out, statistics, slopes, query_starts, key_starts, table, ranges, info, scale, softcap,              \
        total_queries, total_keys, sinks
// Arguments of kernels that read an encoded cache.
#define ENCODED_PARAMETERS const uint32_t *scales, const bool is_fp8
#define ENCODED_ARGUMENTS scales, is_fp8
