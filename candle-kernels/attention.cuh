// What kernels of attention share: which keys a query sees, and what a workgroup works on.
#pragma once
#include "faults.cuh"
#include "slabs.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// What makes scores of products, and which keys a query sees. Positions are those of keys: the last query stands at the
// last key.
struct Sight {
    float scale, softcap;
    int left, right, keys;
    // Of the batch: pairs of positions, from the first one to before the second, within which all see each other.
    const int *ranges;
    unsigned int range_count;

    // Which of the keys key(0) to key(COUNT - 1), at most 32, a query sees, as bits.
    template <unsigned int COUNT, typename K>
    __device__ __forceinline__ uint32_t seen(int position, K key) const {
        const auto among = [&](int from, int end) INLINE {
            uint32_t bits = 0;
            const unsigned int span = max(min(end, keys) - from, 0);
#pragma unroll
            for (unsigned int j = 0; j < COUNT; ++j) {
                bits |= (uint32_t)((unsigned int)(key(j) - from) < span) << j;
            }
            return bits;
        };
        uint32_t bits = among(position - left, position + right + 1);
#pragma unroll 1
        for (unsigned int i = 0; i < range_count; ++i) {
            const int start = ranges[2 * i], end = ranges[2 * i + 1];
            if (position >= start && position < end) {
                bits |= among(max(start, 0), end);
            }
        }
        return bits;
    }
    // The keys that any query from `first` to `last` sees: from x to before y.
    __device__ __forceinline__ uint2 span(int first, int last) const {
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
    // Whether all of these see all keys from `key` to before `end`.
    __device__ __forceinline__ bool clear(int first, int last, int key, int end) const {
        return key >= last - left && end <= first + right + 1 && end <= keys;
    }
    __device__ __forceinline__ float capped(float score) const {
        if (softcap <= 0) {
            return score;
        }
        // The difference below loses the digits of small scores: their tanh is x - x^3/3 + 2x^5/15 - 17x^7/315 + 62x^9/2835.
        const float x = score / softcap, square = x * x;
        const float series = fmaf(fmaf(fmaf(62.0f / 2835, square, -17.0f / 315), square, 2.0f / 15), square, -1.0f / 3);
        const float large = 1 - 2 * candle_reciprocal(1 + candle_exp2(x * (2 * LOG2_E)));
        return softcap * (fabsf(x) < 0.25f ? fmaf(series * square, x, x) : large);
    }
};

// Numbers and pointers that all lanes have the same, moved out of scalar registers: gfx9 has too few for all of them.
__device__ __forceinline__ void park(unsigned int &number) {
#if defined(__GFX9__)
    number = anew(number);
#endif
}
template <typename T>
__device__ __forceinline__ void park(T *&pointer) {
#if defined(__GFX9__)
    const uint2 halves = candle_bits<uint2>(pointer);
    pointer = candle_bits<T *>(uint2{anew(halves.x), anew(halves.y)});
#endif
}

// One sequence's queries and keys.
template <typename T>
struct Sequence {
    const T *q;
    KeyRows<T> k, v;
    T *out;
    const T *mask;
    const float *slopes;
    float *statistics;
    unsigned int q_head, q_row, out_head, out_row, mask_head, mask_row, mask_key, statistics_head;
    unsigned int first_head, queries, rows, width, value_width;

    // Mostly there is one query when keys are shared out.
    __device__ __forceinline__ unsigned int head(unsigned int row) const { return first_head + (queries == 1 ? row : row / queries); }
    __device__ __forceinline__ unsigned int query(unsigned int row) const { return queries == 1 ? 0 : row % queries; }
};

// What a workgroup works on.
template <typename T>
struct Task {
    Sequence<T> sequence;
    Sight sight;
    // Which of the sequence's tiles it has; rows from the first on, columns of values from this one on, and keys that any of
    // the rows sees.
    unsigned int tile, first_row, column, first_key, end_key;
    // Where the sequence's rows and keys begin in dense operands.
    size_t batch, query_start, key_start;
    unsigned int key_head;
    // Whether lengths are as they have to be, and whether there is nothing to do.
    bool fits, empty;

    // The least and the greatest position of rows from `first` to `last`.
    __device__ __forceinline__ int2 positions(unsigned int first, unsigned int last) const {
        const int shift = sight.keys - (int)sequence.queries;
        const bool one_head = sequence.head(first) == sequence.head(last);
        const unsigned int low = one_head ? sequence.query(first) : 0;
        const unsigned int high = one_head ? sequence.query(last) : sequence.queries - 1;
        return int2{(int)low + shift, (int)high + shift};
    }

    __device__ __forceinline__ Task(const T *q, const T *k, const T *v, const T *mask, T *out, float *statistics,
                                    const float *slopes, const uint32_t *query_starts, const uint32_t *key_starts,
                                    const uint32_t *table, const int *ranges, const size_t *info, float scale,
                                    float softcap, unsigned int total_queries, unsigned int total_keys) {
        // Each is less than 2^32: half of a word's bits.
        const auto word = [&](unsigned int i) INLINE { return ((const unsigned int *)info)[2 * i]; };
        const unsigned int heads = word(0), key_heads = word(1), pairs = key_heads * word(2);
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
            fits = is_within(queries, (uint64_t)word(3) + 1, CANDLE_FAULT_SEQUENCE) &&
                   is_within(q_end, (uint64_t)total_queries + 1, CANDLE_FAULT_SEQUENCE) &&
                   is_within(k_end, (uint64_t)room + 1, CANDLE_FAULT_SEQUENCE) &&
                   is_within(q_first, (uint64_t)q_end + 1, CANDLE_FAULT_SEQUENCE) &&
                   is_within(k_first, (uint64_t)k_end + 1, CANDLE_FAULT_SEQUENCE);
        }
        // The last rows, which see most keys under a causal mask, come first.
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
        const auto rows_of = [&](const T *from, unsigned int strides) INLINE {
            const unsigned int batch_stride = word(strides), row = word(strides + 2);
            from += (size_t)key_head * word(strides + 1) + (paged ? 0 : batch * batch_stride + (size_t)k_first * row);
            return KeyRows<T>{from, row, batch_stride, pages, page, word(24)};
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
        sequence.statistics = statistics == nullptr ? nullptr : statistics + batch * word(26) + q_first;
        sequence.statistics_head = word(27);
        const unsigned int range_count = ranges == nullptr ? 0 : word(30);
        sight = Sight{scale, softcap, (int)word(28), (int)word(29), (int)keys, ranges + number * word(31), range_count};
        // What is needed at the end, or seldom.
        park(sequence.out);
        park(sequence.out_head);
        park(sequence.out_row);
        park(sequence.statistics);
        park(sequence.statistics_head);
        park(sequence.mask);
        park(sequence.slopes);
        park(sequence.mask_head);
        park(sequence.mask_row);
        park(sequence.mask_key);
    }

    // So many rows and columns of values each.
    __device__ __forceinline__ void take(unsigned int rows_each, unsigned int columns_each) {
        first_row = tile * rows_each;
        column = blockIdx.y * columns_each;
        empty = empty || first_row >= sequence.rows;
        if (empty) {
            return;
        }
        const int2 seen_from = positions(first_row, min(first_row + rows_each, sequence.rows) - 1);
        const uint2 seen = sight.span(seen_from.x, seen_from.y);
        first_key = seen.x;
        end_key = seen.y;
        if (sequence.k.table != nullptr) {
            const unsigned int page = sequence.k.page;
            for (unsigned int i = first_key / page + threadIdx.x; i * page < end_key; i += blockDim.x) {
                is_within(sequence.k.table[i], sequence.k.pages, CANDLE_FAULT_PAGE);
            }
        }
    }
};

#define TASK_PARAMETERS(T)                                                                                              \
    const T *q, const T *k, const T *v, const T *mask, T *out, float *statistics, const float *slopes,                  \
        const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table, const int *ranges,             \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys
#define TASK_ARGUMENTS                                                                                                  \
    q, k, v, mask, out, statistics, slopes, query_starts, key_starts, table, ranges, info, scale, softcap,              \
        total_queries, total_keys
