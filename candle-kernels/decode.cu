// Attention of a few query rows per key head, as in decoding: each key and value is read once for all rows, straight
// into registers, and multiplied in f32.
//
// A group of 8, 16 or 32 lanes holds a key, eight columns per lane, and each group iterates over its own keys. The
// workgroup's groups are merged at the end. The keys are split between workgroups (split-KV); the last one that
// has computed its own combines their results.
#include "appended.cuh"
#include "split.cuh"

// Columns of a key or value that a lane holds.
constexpr unsigned int COLUMNS = 8;
// Pairs of a key and a row whose scores are summed over the lanes together; each lane receives one of them.
constexpr unsigned int PAIRS = 8;
// Columns of a wave, of all rows, that are in LDS at a time to merge the waves.
constexpr unsigned int MERGED_COLUMNS = 512;

// Number of parts of each group of rows that have computed their own keys in the current launch. A module belongs to one stream,
// and the last part resets its number. All parts must see the same lengths.
__device__ unsigned int arrived_parts[CANDLE_ATTENTION_COUNTERS];
// Results of parts. Between launches, all words are 0.
__device__ unsigned long long exchanged[CANDLE_ATTENTION_EXCHANGED_WORDS];

// Sums 2 * HALF values over the lanes that differ in the bits of 2 * HALF - 1. Returns the sum of value `lane` % (2 * HALF).
// Each step exchanges half of the values with a lane that keeps the other half.
template <unsigned int HALF>
__device__ __forceinline__ float sum_pairs(const float *pairs, unsigned int lane) {
    if constexpr (HALF == 0) {
        return pairs[0];
    } else {
        const bool upper = (lane & HALF) != 0;
        float kept[HALF];
#pragma unroll
        for (unsigned int i = 0; i < HALF; ++i) {
            const float own = upper ? pairs[HALF + i] : pairs[i], other = upper ? pairs[i] : pairs[HALF + i];
            kept[i] = own + __shfl_xor_sync(~0u, other, HALF);
        }
        return sum_pairs<HALF / 2>(kept, lane);
    }
}
// Sums each of the pairs over the lanes of a group. Returns the sum of pair `lane` % PAIRS.
__device__ __forceinline__ float sum_pairs(const float (&pairs)[PAIRS], unsigned int lane, unsigned int lanes) {
    float sum = sum_pairs<PAIRS / 2>(pairs, lane);
    if (lanes > 8) {
        sum += __shfl_xor_sync(~0u, sum, 8);
    }
    if (lanes > 16) {
        sum += __shfl_xor_sync(~0u, sum, 16);
    }
    return sum;
}

// Reduces over the lanes of a wave whose numbers differ only in the bits from `first` on.
template <typename F>
__device__ __forceinline__ float reduce_wave(float value, unsigned int first, F f) {
#pragma unroll 1
    for (unsigned int step = first; step < WAVE; step *= 2) {
        value = f(value, __shfl_xor_sync(~0ull, value, step, WAVE));
    }
    return value;
}
__device__ __forceinline__ float add(float a, float b) { return a + b; }

// Columns of a lane of several keys or values, which are stored as S.
template <typename S, unsigned int KEYS>
struct LaneColumns {
    static constexpr unsigned int N = IS_ENCODED<S> ? ENCODED_PACK : 16 / sizeof(S), PACKS = COLUMNS / N;
    typedef Pack<S, N> P;
    P packs[KEYS][PACKS];

    // `key(i)` is the index of key i, and pages[i] its page. Columns from `width` on repeat the first ones.
    template <typename K>
    __device__ __forceinline__ void read(const KeyRows<S> &rows, const unsigned int (&pages)[KEYS], unsigned int column,
                                         unsigned int width, K key) {
#pragma unroll
        for (unsigned int i = 0; i < KEYS; ++i) {
            const unsigned int at = key(i), page = min(pages[i], rows.pages - 1);
            const S *const from = rows.first + (size_t)page * rows.page_stride +
                                  (size_t)(at - rows.page.quotient(at) * rows.page.by) * rows.stride;
#pragma unroll
            for (unsigned int p = 0; p < PACKS; ++p) {
                packs[i][p] = P::read(from + (column + p * N < width ? column + p * N : 0));
            }
        }
        // Keeps the compiler from moving the loads to their uses.
        asm volatile("" ::: "memory");
    }
    // Replaces a key or value by a row.
    __device__ __forceinline__ void replace(unsigned int key, const S *row, unsigned int column, unsigned int width) {
#pragma unroll
        for (unsigned int p = 0; p < PACKS; ++p) {
            packs[key][p] = P::read(row + (column + p * N < width ? column + p * N : 0));
        }
    }
    // Keeps the compiler from decoding a key before it has computed `result`, which takes more registers.
    __device__ __forceinline__ void decode_after(float &result, unsigned int key) {
        if constexpr (IS_ENCODED<S>) {
            result = candle_bits<float>(opaque(candle_bits<uint32_t>(result)));
            packs[key][0].make_opaque();
        }
    }
    // Returns an element, without the scale of its row.
    __device__ __forceinline__ float at(unsigned int key, unsigned int column) const {
        if constexpr (IS_ENCODED<S>) {
            return decoded<S>(candle_bits<EncodedBytes>(packs[key][0]), column);
        } else {
            return static_cast<float>(packs[key][column / N][column % N]);
        }
    }
};

// Pairs of scales of the keys of which a lane computes weights, one of each batch of keys. Other caches have none.
template <typename S, unsigned int BATCHES, bool = IS_ENCODED<S>>
struct LaneScales {
    template <typename K, typename N>
    __device__ __forceinline__ void read(const KeyRows<S> &, N, K) {}
    template <typename K>
    __device__ __forceinline__ void replace(uint32_t, K) {}
    __device__ __forceinline__ float key(float score, unsigned int) const { return score; }
    __device__ __forceinline__ float value(float weight, unsigned int) const { return weight; }
};
template <typename S, unsigned int BATCHES>
struct LaneScales<S, BATCHES, true> {
    uint32_t pairs[BATCHES];

    // `key(b)` is the index of the key of batch b, and `page(b)` its page.
    template <typename K, typename N>
    __device__ __forceinline__ void read(const KeyRows<S> &rows, N page, K key) {
#pragma unroll
        for (unsigned int b = 0; b < BATCHES; ++b) {
            const unsigned int at = key(b), number = min(page(b), rows.pages - 1);
            pairs[b] = rows.scales.pair((size_t)number * rows.page.by + (at - rows.page.quotient(at) * rows.page.by));
        }
    }
    // Replaces the pairs of the batches for which `is_replaced(b)` is true.
    template <typename K>
    __device__ __forceinline__ void replace(uint32_t pair, K is_replaced) {
#pragma unroll
        for (unsigned int b = 0; b < BATCHES; ++b) {
            pairs[b] = is_replaced(b) ? pair : pairs[b];
        }
    }
    __device__ __forceinline__ float key(float score, unsigned int b) const {
        return score * (key_scale(pairs[b]) * DECODED_FACTOR<S>);
    }
    __device__ __forceinline__ float value(float weight, unsigned int b) const {
        return weight * (value_scale(pairs[b]) * DECODED_FACTOR<S>);
    }
};

// With AppendedRows, the cache may be read before earlier launches have finished (`constant_history`).
template <typename T, unsigned int ROWS, typename S = T, typename A = NothingAppended,
          unsigned int MOST_KEYS = CANDLE_ATTENTION_DECODE_KEYS>
__device__ __forceinline__ void attention_decode(TASK_PARAMETERS(T, S), const uint32_t *scales = nullptr,
                                                 bool is_fp8 = false, A appended = A()) {
    constexpr unsigned int THREADS = CANDLE_BLOCK, WAVES = THREADS / WAVE;
    // Number of keys of a lane group per iteration, as registers allow, and those whose scores are summed together.
    constexpr unsigned int KEYS = MOST_KEYS / (sizeof(T) == 4 || (ROWS == 8 && (WAVE == 64 || IS_ENCODED<S>)) ? 2 : 1);
    constexpr unsigned int BATCH_KEYS = PAIRS / ROWS, BATCHES = KEYS / BATCH_KEYS;
    constexpr unsigned int N = 16 / sizeof(T);
    __shared__ float weights[THREADS / PAIRS][KEYS][ROWS];
    __shared__ alignas(16) float merged[WAVES][MERGED_COLUMNS];
    __shared__ SoftmaxState states[WAVES][ROWS];
    __shared__ bool is_last;
    // Queries, and the appended key and value, with their scales if they are encoded.
    __shared__ alignas(16) T prepared[A::IS_PRESENT ? ROWS + 2 : 1][CANDLE_ATTENTION_DECODE_WIDTH];
    __shared__ alignas(4) __nv_bfloat16 prepared_scales[2];
    CANDLE_BEGIN_NEXT_LAUNCH();
    bool waits_late = false;
    if constexpr (A::IS_PRESENT) {
        waits_late = appended.constant_history;
        appended.move_to_vector_registers();
    }
    if (!waits_late) {
        CANDLE_WAIT_FOR_LAUNCHES();
    }
    Task<T, S> task(TASK_ARGUMENTS, ENCODED_ARGUMENTS);
    task.assign_rows(ROWS);
    if (task.empty) {
        // It is enough that one workgroup of a launch waits.
        if (waits_late && blockIdx.z == 0) {
            CANDLE_WAIT_FOR_LAUNCHES();
        }
        return;
    }
    if constexpr (A::IS_PRESENT) {
        // As the host has checked. Equal and known numbers take no further registers.
        task.sequence.queries = 1;
        task.sequence.value_width = task.sequence.width;
        task.sequence.statistics = nullptr;
        move_to_vector_register(task.sequence.k.page_stride);
        task.sequence.v.page_stride = task.sequence.k.page_stride;
        task.sequence.v.stride = task.sequence.k.stride;
    }
    const Sequence<T, S> &sequence = task.sequence;
    const MaskParams &mask_params = task.mask_params;
    const unsigned int thread = threadIdx.x;
    unsigned int rows = min(ROWS, sequence.rows - task.first_row);
    // Needed at the end.
    move_to_vector_register(rows);
    move_to_vector_register(task.first_row);
    const unsigned int widest = max(sequence.width, sequence.value_width);
    const unsigned int lanes = widest > 16 * COLUMNS ? 32 : widest > 8 * COLUMNS ? 16 : 8;
    const unsigned int lane = thread % WAVE, wave = thread / WAVE, column = thread % lanes * COLUMNS;
    const unsigned int group = thread / lanes, groups = THREADS / lanes;
    // Parts take turns with tiles of keys. Parts without keys have nothing to do, unless there are no keys at all.
    const unsigned int tile_keys = groups * KEYS;
    const unsigned int tiles = (task.end_key - task.first_key + tile_keys - 1) / tile_keys;
    const unsigned int parts = min(gridDim.z, max(tiles, 1u)), part = blockIdx.z;
    if (part >= parts) {
        return;
    }

    // End of the keys that are read from the cache. The appended key follows it, and is in LDS.
    unsigned int stored_end = task.end_key;
    uint32_t slot = ~0u;
    bool has_slot = false;
    if constexpr (A::IS_PRESENT) {
        slot = appended.slot_of[task.query_start];
        has_slot = names_element(slot, sequence.k.pages * sequence.k.page.by, CANDLE_FAULT_CACHE);
        if (has_slot && stored_end > task.first_key) {
            --stored_end;
        }
        // Without a slot, all keys are read, also those that earlier launches have appended.
        if (stored_end == task.end_key && waits_late) {
            CANDLE_WAIT_FOR_LAUNCHES();
            waits_late = false;
        }
        move_to_vector_register(stored_end);
        move_to_vector_register(task.key_heads);
        move_to_vector_register(task.sequence.first_head);
        move_to_vector_register(slot);
    }
    const bool reads_cache = A::IS_PRESENT ? stored_end > task.first_key : tiles > 0;

    const auto key_of = [&](unsigned int tile, unsigned int i) INLINE {
        return task.first_key + (tile * KEYS + i) * groups + group;
    };
    // The row of which the lane computes weights, and the query's head and position.
    const unsigned int own_row = thread % ROWS, own_key = thread % PAIRS / ROWS;
    const unsigned int own = task.first_row + min(own_row, rows - 1), head = sequence.head(own), query = sequence.query(own);
    const int position = (int)query + mask_params.keys - (int)sequence.queries;
    const float slope = sequence.slopes == nullptr ? 0 : sequence.slopes[head];
    const T *const row_mask =
        sequence.mask == nullptr ? nullptr : sequence.mask + (size_t)head * sequence.mask_head + (size_t)query * sequence.mask_row;

    // Keys, values and pages of the next tiles are loaded while the current tile is computed.
    unsigned int pages[KEYS] = {};
    LaneColumns<S, KEYS> keys, values;
    LaneScales<S, BATCHES> lane_scales;
    const auto loaded_key = [&](unsigned int tile) INLINE {
        return [&, tile](unsigned int i) INLINE { return min(key_of(tile, i), stored_end - 1); };
    };
    const auto load_scales = [&](unsigned int tile) INLINE {
        const auto page = [&](unsigned int b) INLINE {
            // Both are read before one is selected, because an index known only at run time would move the array to memory.
            const unsigned int first = pages[b * BATCH_KEYS], last = pages[b * BATCH_KEYS + BATCH_KEYS - 1];
            return BATCH_KEYS == 2 && own_key == 1 ? last : first;
        };
        lane_scales.read(sequence.k, page, [&](unsigned int b) INLINE { return loaded_key(tile)(b * BATCH_KEYS + own_key); });
    };
    const auto load_pages = [&](unsigned int tile) INLINE {
        if (sequence.k.table != nullptr) {
#pragma unroll
            for (unsigned int i = 0; i < KEYS; ++i) {
                pages[i] = sequence.k.table[sequence.k.page.quotient(loaded_key(tile)(i))];
            }
        }
    };
    const auto check_pages = [&]() INLINE {
        if (sequence.k.table != nullptr) {
            unsigned int highest = 0;
#pragma unroll
            for (unsigned int i = 0; i < KEYS; ++i) {
                highest = max(highest, pages[i]);
            }
            is_within(highest, sequence.k.pages, CANDLE_FAULT_PAGE);
        }
    };
    if (reads_cache) {
        load_pages(part);
    }
    const auto load_first_tile = [&]() INLINE {
        if (reads_cache) {
            load_scales(part);
            keys.read(sequence.k, pages, column, sequence.width, loaded_key(part));
            values.read(sequence.v, pages, column, sequence.value_width, loaded_key(part));
            check_pages();
            load_pages(part + parts);
        }
    };
    Pack<T> queries[ROWS][COLUMNS / N];
    float sums[ROWS][COLUMNS] = {};
    // Queries of `from(row)`; columns past the end are zero.
    const auto read_queries = [&](auto from) INLINE {
#pragma unroll
        for (unsigned int i = 0; i < ROWS * (COLUMNS / N); ++i) {
            const unsigned int r = i % ROWS, at = column + i / ROWS * N;
            const Pack<T> pack = Pack<T>::read(from(min(r, rows - 1)) + (at < sequence.width ? at : 0));
            queries[r][i / ROWS] = at < sequence.width ? pack : Pack<T>{};
        }
    };
    if constexpr (A::IS_PRESENT) {
        keys = {};
        values = {};
        lane_scales = {};
        load_first_tile();
        const auto angles = appended.angles(task.query_start, column);
        if (waits_late) {
            CANDLE_WAIT_FOR_LAUNCHES();
        }
        const bool writes = has_slot && part == 0 && task.first_row == 0;
        appended.prepare_lines(prepared, prepared_scales, task, angles, rows, lanes, slot, writes);
        read_queries([&](unsigned int row) INLINE { return prepared[row]; });
    } else {
        read_queries([&](unsigned int line) INLINE {
            const unsigned int row = task.first_row + line;
            return sequence.q + (size_t)sequence.head(row) * sequence.q_head + (size_t)sequence.query(row) * sequence.q_row;
        });
        load_first_tile();
    }
    SoftmaxState own_state = {-INFINITY, 0};
#pragma unroll 1
    for (unsigned int tile = part; tile < tiles; tile += parts) {
        const unsigned int next = tile + parts;
        if constexpr (A::IS_PRESENT) {
            if (stored_end != task.end_key && tile == tiles - 1) {
#pragma unroll
                for (unsigned int i = 0; i < KEYS; ++i) {
                    if (opaque(key_of(tile, i)) == stored_end) {
                        keys.replace(i, (const S *)prepared[ROWS], column, sequence.width);
                        values.replace(i, (const S *)prepared[ROWS + 1], column, sequence.width);
                    }
                }
                lane_scales.replace(*(const uint32_t *)prepared_scales, [&](unsigned int b) INLINE {
                    return opaque(key_of(tile, b * BATCH_KEYS + own_key)) == stored_end;
                });
            }
        }
        // Queries are converted again for each tile, which takes fewer registers.
#pragma unroll
        for (unsigned int i = 0; i < ROWS * (COLUMNS / N); ++i) {
            queries[i % ROWS][i / ROWS].make_opaque();
        }
        float scores[BATCHES], highest = own_state.row_max;
#pragma unroll
        for (unsigned int b = 0; b < BATCHES; ++b) {
            float pairs[PAIRS];
#pragma unroll
            for (unsigned int i = 0; i < BATCH_KEYS; ++i) {
                keys.decode_after(b == 0 ? highest : scores[b - 1], b * BATCH_KEYS + i);
            }
#pragma unroll
            for (unsigned int i = 0; i < PAIRS; ++i) {
                pairs[i] = 0;
#pragma unroll
                for (unsigned int c = 0; c < COLUMNS; ++c) {
                    const float query = static_cast<float>(queries[i % ROWS][c / N][c % N]);
                    pairs[i] = fmaf(query, keys.at(b * BATCH_KEYS + i / ROWS, c), pairs[i]);
                }
            }
            scores[b] = lane_scales.key(sum_pairs(pairs, lane, lanes), b);
        }
        const bool reads_next = next < tiles && reads_cache;
        if (reads_next) {
            keys.read(sequence.k, pages, column, sequence.width, loaded_key(next));
        }
#pragma unroll
        for (unsigned int b = 0; b < BATCHES; ++b) {
            const unsigned int key = key_of(tile, b * BATCH_KEYS + own_key);
            const float score = mask_params.apply_softcap(scores[b] * mask_params.scale);
            float value = score - slope * fabsf((float)(position - (int)key));
            if (row_mask != nullptr && key < mask_params.keys) {
                value += static_cast<float>(row_mask[(size_t)key * sequence.mask_key]);
            }
            const bool visible = mask_params.template visible<1>(position, [&](unsigned int) INLINE { return (int)key; });
            scores[b] = visible ? value * LOG2_E : -INFINITY;
            highest = fmaxf(highest, scores[b]);
        }
#pragma unroll
        for (unsigned int step = ROWS; step < PAIRS; step *= 2) {
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
        }
        const float base = exponent_base(highest);
        // The maximum rarely changes after the first keys.
        if (candle_ballot(~0u, highest > own_state.row_max) != 0) {
            const float rescale = candle_exp2(own_state.row_max - base);
            own_state = SoftmaxState{highest, own_state.row_sum * rescale};
#pragma unroll
            for (unsigned int r = 0; r < ROWS; ++r) {
                const float factor = __shfl_sync(~0u, rescale, r, 8);
#pragma unroll
                for (unsigned int c = 0; c < COLUMNS; ++c) {
                    sums[r][c] *= factor;
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (unsigned int b = 0; b < BATCHES; ++b) {
            const float weight = candle_exp2(scores[b] - base);
            own_state.row_sum += weight;
            // Lanes with the same pair write the same weight.
            weights[group][b * BATCH_KEYS + own_key][own_row] = lane_scales.value(weight, b);
        }
        __syncwarp();
#pragma unroll
        for (unsigned int i = 0; i < KEYS; ++i) {
            values.decode_after(sums[ROWS - 1][COLUMNS - 1], i);
            float row_weights[ROWS];
#pragma unroll
            for (unsigned int r = 0; r < ROWS; r += 4) {
                const float4 four = *(const float4 *)&weights[group][i][r];
                row_weights[r] = four.x;
                row_weights[r + 1] = four.y;
                row_weights[r + 2] = four.z;
                row_weights[r + 3] = four.w;
            }
#pragma unroll
            for (unsigned int e = 0; e < ROWS * COLUMNS; ++e) {
                float &sum = sums[e / COLUMNS][e % COLUMNS];
                sum = fmaf(row_weights[e / COLUMNS], values.at(i, e % COLUMNS), sum);
            }
        }
        if (reads_next) {
            values.read(sequence.v, pages, column, sequence.value_width, loaded_key(next));
            load_scales(next);
            check_pages();
            load_pages(next + parts);
        }
    }

    // The last part to come here combines the results of all. It waits for the others, which are running already.
    unsigned int arrival = 0;
    if (parts > 1 && thread == 0) {
        arrival = atomicAdd(&arrived_parts[blockIdx.x], 1u);
    }
    // Merge the lane groups of each wave. Lanes of two groups exchange halves of their rows, until each has one row.
    const float wave_max = reduce_wave(own_state.row_max, lanes, fmaxf);
    const float rescale = candle_exp2(own_state.row_max - exponent_base(wave_max));
    // Only one of the lanes with the same pair counts.
    const float wave_sum = reduce_wave(thread % lanes < PAIRS ? own_state.row_sum * rescale : 0, ROWS, add);
    if (lane < ROWS) {
        states[wave][lane] = SoftmaxState{wave_max, wave_sum};
    }
#pragma unroll
    for (unsigned int r = 0; r < ROWS; ++r) {
        const float factor = __shfl_sync(~0u, rescale, r, 8);
#pragma unroll
        for (unsigned int c = 0; c < COLUMNS; ++c) {
            sums[r][c] *= factor;
        }
    }
    unsigned int step = lanes, first_kept = 0, kept = ROWS;
#pragma unroll
    for (unsigned int half = ROWS / 2; half > 0; half /= 2) {
        if (step < WAVE) {
            const bool upper = (lane & step) != 0;
#pragma unroll
            for (unsigned int e = 0; e < half * COLUMNS; ++e) {
                const unsigned int r = e / COLUMNS, c = e % COLUMNS;
                const float own = upper ? sums[half + r][c] : sums[r][c], other = upper ? sums[r][c] : sums[half + r][c];
                sums[r][c] = own + __shfl_xor_sync(~0ull, other, step, WAVE);
            }
            first_kept += upper ? half : 0;
            kept = half;
            step *= 2;
        }
    }
#pragma unroll 1
    for (; step < WAVE; step *= 2) {
#pragma unroll
        for (unsigned int c = 0; c < COLUMNS; ++c) {
            sums[0][c] += __shfl_xor_sync(~0ull, sums[0][c], step, WAVE);
        }
    }
    // Then the waves, as many rows at a time as fit into LDS.
    const unsigned int width = sequence.value_width, line_width = lanes * COLUMNS;
    const unsigned int rows_at_once = MERGED_COLUMNS / line_width;
    const Exchange exchange(exchanged, gridDim.z, ROWS, width);
#pragma unroll 1
    for (unsigned int first = 0; first < ROWS; first += rows_at_once) {
#pragma unroll
        for (unsigned int r = 0; r < ROWS; ++r) {
            const unsigned int line = first_kept + r - first;
            if (r < kept && line < rows_at_once) {
#pragma unroll
                for (unsigned int c = 0; c < COLUMNS; c += 4) {
                    *(float4 *)&merged[wave][line * line_width + column + c] =
                        float4{sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};
                }
            }
        }
        __syncthreads();
        for (unsigned int e = 2 * thread; e < min(rows_at_once, ROWS) * width; e += 2 * THREADS) {
            const unsigned int line = e / width, at = e % width, row = first + line;
            SoftmaxState of[WAVES], all = {-INFINITY, 0};
            float2 sum = {0, 0};
#pragma unroll
            for (unsigned int w = 0; w < WAVES; ++w) {
                of[w] = states[w][row];
                all.row_max = fmaxf(all.row_max, of[w].row_max);
            }
#pragma unroll
            for (unsigned int w = 0; w < WAVES; ++w) {
                const float factor = candle_exp2(of[w].row_max - exponent_base(all.row_max));
                const float2 one = *(const float2 *)&merged[w][line * line_width + at];
                sum = float2{fmaf(factor, one.x, sum.x), fmaf(factor, one.y, sum.y)};
                all.row_sum = fmaf(factor, of[w].row_sum, all.row_sum);
            }
            if (row >= rows) {
                continue;
            }
            if (parts == 1) {
                write_pair(task, row, at, all, sum);
            } else {
                exchange.write(part, row, at, all, sum);
            }
        }
        __syncthreads();
    }
    if (parts == 1) {
        return;
    }
    if (thread == 0) {
        is_last = arrival == parts - 1;
    }
    __syncthreads();
    if (!is_last) {
        return;
    }
    if (thread == 0) {
        atomicExch(&arrived_parts[blockIdx.x], 0u);
    }
    for (unsigned int e = 2 * thread; e < rows * width; e += 2 * THREADS) {
        combine_parts(task, exchange, parts, e / width, e % width);
    }
}

// The second bound is the number of workgroups per multiprocessor; AMD's compiler ignores it.
#define DECODE_KERNEL(NAME, T, S, ROWS, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK, 8 / ROWS) NAME(                                          \
        const T *q, const S *k, const S *v, const T *mask, T *out, float *statistics, const float *slopes,              \
        const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table, const int *ranges,             \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys, const float *sinks, ##__VA_ARGS__)
#define ATTENTION_DECODE(T, T_NAME, ROWS)                                                                               \
    DECODE_KERNEL(attention_decode_##ROWS##_##T_NAME, T, T, ROWS) {                                                     \
        attention_decode<T, ROWS>(TASK_ARGUMENTS);                                                                      \
    }
// Attention over an encoded cache.
#define ATTENTION_DECODE_ENCODED(T, T_NAME, S, S_NAME, ROWS)                                                            \
    DECODE_KERNEL(attention_decode_##ROWS##_##T_NAME##_##S_NAME, T, S, ROWS, ENCODED_PARAMETERS) {                      \
        attention_decode<T, ROWS>(TASK_ARGUMENTS, ENCODED_ARGUMENTS);                                                   \
    }

// Attention that first appends a row of each sequence to the cache.
#define APPENDED_PARAMETERS                                                                                             \
    const void *own_k, const void *own_v, const void *bias, const void *q_norm, const void *k_norm, const float *cos,   \
        const float *sin, const uint32_t *position_of, const uint32_t *slot_of, const unsigned int q_stride,            \
        const unsigned int k_stride, const unsigned int v_stride, const unsigned int pairs,                             \
        const unsigned int positions, const bool is_f32, const bool interleaved, const bool constant_history,           \
        const float eps
#define APPENDED_ARGUMENTS                                                                                              \
    q, own_k, own_v, bias, q_norm, k_norm, cos, sin, position_of, slot_of, q_stride, k_stride, v_stride, pairs,         \
        positions, is_f32, interleaved, constant_history, eps
#define ATTENTION_APPEND(T, T_NAME, ROWS, KEYS)                                                                         \
    DECODE_KERNEL(attention_append_##ROWS##_##KEYS##_##T_NAME, T, T, ROWS, APPENDED_PARAMETERS) {                       \
        const AppendedRows<T> appended = {APPENDED_ARGUMENTS};                                                          \
        attention_decode<T, ROWS, T, AppendedRows<T>, KEYS>(TASK_ARGUMENTS, nullptr, false, appended);                  \
    }
#define ATTENTION_APPEND_ENCODED(T, T_NAME, S, S_NAME, ROWS, KEYS)                                                      \
    DECODE_KERNEL(attention_append_##ROWS##_##KEYS##_##T_NAME##_##S_NAME, T, S, ROWS, ENCODED_PARAMETERS,               \
                  APPENDED_PARAMETERS) {                                                                                \
        const AppendedRows<T, S> appended = {APPENDED_ARGUMENTS};                                                       \
        attention_decode<T, ROWS, S, AppendedRows<T, S>, KEYS>(TASK_ARGUMENTS, ENCODED_ARGUMENTS, appended);            \
    }

// Kernels of 16-bit floats: all numbers of rows, and of keys of a group of lanes.
#define FOR_SIZES(F, ...) F(__VA_ARGS__, 4, 2) F(__VA_ARGS__, 4, 4) F(__VA_ARGS__, 8, 2) F(__VA_ARGS__, 8, 4)
#define ATTENTION_KERNELS_ENCODED(T, T_NAME, S, S_NAME)       \
    ATTENTION_DECODE_ENCODED(T, T_NAME, S, S_NAME, 4)         \
    ATTENTION_DECODE_ENCODED(T, T_NAME, S, S_NAME, 8)         \
    FOR_SIZES(ATTENTION_APPEND_ENCODED, T, T_NAME, S, S_NAME)
#define ATTENTION_KERNELS(T, T_NAME)                  \
    ATTENTION_DECODE(T, T_NAME, 4)                    \
    ATTENTION_DECODE(T, T_NAME, 8)                    \
    FOR_SIZES(ATTENTION_APPEND, T, T_NAME)            \
    ATTENTION_KERNELS_ENCODED(T, T_NAME, Int8, int8)  \
    ATTENTION_KERNELS_ENCODED(T, T_NAME, Fp8, fp8)
ATTENTION_DECODE(float, f32, 4)
ATTENTION_APPEND(float, f32, 4, 4)
ATTENTION_KERNELS(__half, f16)
ATTENTION_KERNELS(__nv_bfloat16, bf16)
