// Scaled dot product attention with an online softmax: scores stay in registers. The query rows of all heads that
// share a key head are concatenated and multiplied with tiles of keys on the matrix units.
//
// attention_rows: each wave has its own query rows, and all waves of the workgroup iterate over the same keys.
// attention_keys (split-KV): the waves share a few query rows and divide the keys. The keys may also be split
// between workgroups, whose partial results attention_parts combines.
#include "attention.cuh"

// Tile sizes and memory layout of a workgroup. The numbers of rows and threads are the same on every GPU.
template <typename T, unsigned int WIDTH, bool SPLIT>
struct Plan {
    static constexpr unsigned int THREADS = SPLIT ? CANDLE_ATTENTION_SPLIT_THREADS : CANDLE_BLOCK;
    static constexpr unsigned int ROWS = SPLIT ? TILE_SIDE : CANDLE_ATTENTION_ROWS, WAVES = THREADS / WAVE;
    static constexpr unsigned int QUERY_TILES = SPLIT ? 1 : ROWS / WAVES / TILE_SIDE;
    // Value columns of a workgroup: a head is computed in pieces if its accumulators do not fit into registers.
    static constexpr unsigned int MAX_VALUES = BY_LANES<T> || sizeof(T) == 4 ? CANDLE_ATTENTION_COLUMNS : 256;
    static constexpr unsigned int VALUES = WIDTH > MAX_VALUES ? CANDLE_ATTENTION_COLUMNS : WIDTH;
    // Keys of a tile, limited by the size of LDS and by the registers for their scores.
    static constexpr unsigned int KEYS_IN_LDS = (SPLIT || BY_LANES<T> ? 8192 : 16384) / (WIDTH * sizeof(T));
#if defined(TILES_BY_MMA)
    static constexpr unsigned int MAX_KEYS = SPLIT || BY_LANES<T> || WIDTH < 128 ? 32 : 64;
#else
    static constexpr unsigned int MAX_KEYS = SPLIT ? TILE_SIDE : BY_LANES<T> || WIDTH < 128 ? 32 : 64;
#endif
    static constexpr unsigned int KEYS = KEYS_IN_LDS < TILE_SIDE ? TILE_SIDE : KEYS_IN_LDS < MAX_KEYS ? KEYS_IN_LDS : MAX_KEYS;
    // Registers for the query fragments. If they are too many, queries are read again for each tile of keys.
    static constexpr unsigned int REGISTERS = QUERY_TILES * WIDTH / STEP<T> * QueryFragment<T>::LINES * QueryFragment<T>::WORDS;
#if defined(TILES_BY_WMMA)
    static constexpr bool QUERIES_IN_REGISTERS = REGISTERS <= 64 && WIDTH <= 128;
#else
    static constexpr bool QUERIES_IN_REGISTERS = REGISTERS <= 64 && WIDTH <= 256;
#endif
    // Number of threads that load a tile of keys or values together.
    static constexpr unsigned int LOAD_GROUP = SPLIT ? WAVE : THREADS;
    // True if the next keys and values are prefetched into registers while those in LDS are in use.
    static constexpr bool PREFETCH_NEXT = SPLIT && WAVE == 64;
    typedef typename StagedTile<T, KEYS, WIDTH, LOAD_GROUP, false>::To Keys;
    typedef typename StagedTile<T, KEYS, VALUES, LOAD_GROUP, VALUES_TRANSPOSED<T>>::To Values;
    struct Lds {
        Keys keys;
        Values values;
    };
    static constexpr unsigned int LDS_BYTES = 48 * 1024;
    // If LDS is too small for all waves, some waves have no keys.
    static constexpr unsigned int LOAD_GROUPS = !SPLIT                                 ? 1
                                          : WAVES * (sizeof(Lds) + sizeof(LaneExchange<T>)) <= LDS_BYTES ? WAVES
                                                                                 : LDS_BYTES / (sizeof(Lds) + sizeof(LaneExchange<T>));
};

// Exponent of the power of two that scales weights and their sums. Without it, the smallest weights would be f16
// subnormals, which are less precise and which gfx90a's matrix units flush to zero.
template <typename T> constexpr float WEIGHT_EXPONENT_BIAS = 0;
template <> constexpr float WEIGHT_EXPONENT_BIAS<__half> = 15;

// Iterates over the tiles of keys and holds a lane's part of the softmax state and accumulators.
template <typename T, typename P, unsigned int WIDTH>
struct KvIterator {
    static constexpr unsigned int QUERY_TILES = P::QUERY_TILES, KEY_TILES = P::KEYS / TILE_SIDE, STEPS = WIDTH / STEP<T>;
    static constexpr unsigned int COLUMN_TILES = P::VALUES / TILE_SIDE;
    static constexpr unsigned int I = QUERIES_PER_LANE<T>, J = KEYS_PER_LANE<T>;

    const Sequence<T> &sequence;
    const MaskParams &mask_params;
    // First query row of the wave.
    unsigned int first_row;
    // Factor of the scores in exp2; 1 if scale_scores() has applied it already.
    float factor;
    bool special;
    // Start of each query row that the lane reads.
    const T *lines[QUERY_TILES][QueryFragment<T>::OWN];
    QueryFragment<T> queries[P::QUERIES_IN_REGISTERS ? QUERY_TILES : 1][P::QUERIES_IN_REGISTERS ? STEPS : 1];
    int positions[QUERY_TILES][I];
    float row_max[QUERY_TILES][I], row_sum[QUERY_TILES][I];
    Scores<T> out[QUERY_TILES][COLUMN_TILES];

    // Rows past the end read the last row; their results are not written.
    __device__ __forceinline__ unsigned int row(unsigned int line) const { return min(first_row + line, sequence.rows - 1); }

    __device__ __forceinline__ QueryFragment<T> read_queries(unsigned int tile, unsigned int step) const {
        return QueryFragment<T>::gather(lines[tile], step * STEP<T>, sequence.width);
    }

    __device__ __forceinline__ KvIterator(const Sequence<T> &sequence, const MaskParams &mask_params, unsigned int first_row)
        : sequence(sequence), mask_params(mask_params), first_row(first_row), out() {
        special = mask_params.scale <= 0 || mask_params.softcap > 0 || sequence.slopes != nullptr || sequence.mask != nullptr;
        factor = special ? 1.0f : mask_params.scale * LOG2_E;
#pragma unroll
        for (unsigned int i = 0; i < QUERY_TILES * QueryFragment<T>::OWN; ++i) {
            const unsigned int tile = i / QueryFragment<T>::OWN, own = i % QueryFragment<T>::OWN;
            const unsigned int at = row(tile * TILE_SIDE + QueryFragment<T>::own_line(own));
            lines[tile][own] =
                sequence.q + (size_t)sequence.head(at) * sequence.q_head + (size_t)sequence.query(at) * sequence.q_row;
        }
        if constexpr (P::QUERIES_IN_REGISTERS) {
#pragma unroll
            for (unsigned int i = 0; i < QUERY_TILES * STEPS; ++i) {
                queries[i / STEPS][i % STEPS] = read_queries(i / STEPS, i % STEPS);
            }
        }
#pragma unroll
        for (unsigned int t = 0; t < QUERY_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                positions[t][i] = (int)sequence.query(row(t * TILE_SIDE + lane_query<T>(i))) + mask_params.keys - (int)sequence.queries;
                row_max[t][i] = -INFINITY;
                row_sum[t][i] = 0;
            }
        }
    }

    // Applies scale, softcap, ALiBi and mask to the scores of the keys from `first` on, in units of log2(e).
    __device__ __forceinline__ void scale_scores(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], unsigned int first) const {
#pragma unroll
        for (unsigned int t = 0; t < QUERY_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                const unsigned int at = opaque(row(t * TILE_SIDE + lane_query<T>(i))), head = sequence.head(at);
                const float slope = sequence.slopes == nullptr ? 0 : sequence.slopes[head];
                const T *mask = sequence.mask;
                if (mask != nullptr) {
                    mask += (size_t)head * sequence.mask_head + (size_t)sequence.query(at) * sequence.mask_row;
                }
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    float &score = element<T>(scores[t][j / J], i, j % J);
                    const unsigned int key = first + j / J * TILE_SIDE + lane_key<T>(j % J);
                    float value =
                        mask_params.apply_softcap(score * mask_params.scale) - slope * fabsf((float)(positions[t][i] - (int)key));
                    if (mask != nullptr && key < mask_params.keys) {
                        value += static_cast<float>(mask[(size_t)key * sequence.mask_key]);
                    }
                    score = value * LOG2_E;
                    if (j % 8 == 7) {
                        asm volatile("" ::: "memory");
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void apply_mask(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], unsigned int first) const {
#pragma unroll
        for (unsigned int t = 0; t < QUERY_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                const uint32_t visible = mask_params.template visible<KEY_TILES * J>(positions[t][i], [&](unsigned int j) INLINE {
                    return (int)(first + j / J * TILE_SIDE + lane_key<T>(j % J));
                });
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    float &score = element<T>(scores[t][j / J], i, j % J);
                    score = visible >> j & 1 ? score : -INFINITY;
                }
            }
        }
    }

    // Online softmax: turns scores into weights relative to the new row maximum and rescales earlier sums.
    __device__ __forceinline__ void update_softmax(Scores<T> (&scores)[QUERY_TILES][KEY_TILES]) {
#pragma unroll
        for (unsigned int t = 0; t < QUERY_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                float highest = -INFINITY;
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    highest = fmaxf(highest, element<T>(scores[t][j / J], i, j % J));
                }
                highest = reduce_over_lanes<QUERY_SIDE<T>, BY_LANES<T>>(highest, fmaxf);
                const float max_score = fmaxf(row_max[t][i], highest);
                // If no key has been visible yet, any finite base gives zero weights.
                const float highest_finite = max_score == -INFINITY ? 0.0f : max_score, base = highest_finite * factor;
                const float rescale = candle_exp2(fmaf(row_max[t][i], factor, -base));
                const float exponent_offset = WEIGHT_EXPONENT_BIAS<T> - base;
                row_max[t][i] = max_score;
                float sum = 0;
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    float &score = element<T>(scores[t][j / J], i, j % J);
                    // With few rows, which are memory-bound, the weight of the highest score is an exact power of 2.
                    score = candle_exp2(P::LOAD_GROUP == WAVE ? fmaf(score - highest_finite, factor, WEIGHT_EXPONENT_BIAS<T>)
                                                        : fmaf(score, factor, exponent_offset));
                    sum += score;
                }
                row_sum[t][i] = fmaf(row_sum[t][i], rescale, sum);
#pragma unroll
                for (unsigned int j = 0; j < COLUMN_TILES * J; ++j) {
                    element<T>(out[t][j / J], i, j % J) *= rescale;
                }
            }
        }
    }

    // Multiplies the queries with the keys in LDS.
    __device__ __forceinline__ void score(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], const typename P::Keys &keys) const {
#pragma unroll
        for (unsigned int i = 0; i < QUERY_TILES * KEY_TILES; ++i) {
            scores[i / KEY_TILES][i % KEY_TILES] = {};
        }
        constexpr unsigned int UNROLL = P::QUERIES_IN_REGISTERS ? STEPS : 1;
        const unsigned int lane = opaque(P::Keys::template lane_place<KvFragment<T>>());
#pragma unroll UNROLL
        for (unsigned int step = 0; step < STEPS; ++step) {
            QueryFragment<T> read[QUERY_TILES];
            if constexpr (!P::QUERIES_IN_REGISTERS) {
#pragma unroll
                for (unsigned int t = 0; t < QUERY_TILES; ++t) {
                    read[t] = read_queries(t, step);
                }
            }
#pragma unroll
            for (unsigned int tile = 0; tile < KEY_TILES; ++tile) {
                const KvFragment<T> key = keys.template read<KvFragment<T>>(lane, tile * TILE_SIDE, step * STEP<T>);
#pragma unroll
                for (unsigned int t = 0; t < QUERY_TILES; ++t) {
                    if constexpr (P::QUERIES_IN_REGISTERS) {
                        accumulate<T>(scores[t][tile], queries[t][step], key);
                    } else {
                        accumulate<T>(scores[t][tile], read[t], key);
                    }
                }
                if (BY_LANES<T>) {
                    asm volatile("" ::: "memory");
                }
            }
            // Keeps the compiler from prefetching more than registers hold.
            asm volatile("" ::: "memory");
        }
    }

    // Adds the values in LDS, multiplied by their weights, to the accumulators.
    __device__ __forceinline__ void add_values(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], const typename P::Values &tile_values,
                                        LaneExchange<T> &exchange) {
        const unsigned int lane = opaque(lane_of_columns<T, typename P::Values>());
#pragma unroll
        for (unsigned int tile = 0; tile < KEY_TILES; ++tile) {
#pragma unroll
            for (unsigned int t = 0; t < QUERY_TILES; ++t) {
                const Weights<T> weights(scores[t][tile], exchange);
#pragma unroll
                for (unsigned int c = 0; c < COLUMN_TILES * Weights<T>::STEPS; ++c) {
                    const unsigned int column = c / Weights<T>::STEPS, step = c % Weights<T>::STEPS;
                    const KvFragment<T> values =
                        read_columns<T>(tile_values, lane, column * TILE_SIDE, tile * TILE_SIDE + step * STEP<T>);
                    accumulate<T>(out[t][column], weights.values[step], values);
                    if (BY_LANES<T> || c % 4 == 3) {
                        asm volatile("" ::: "memory");
                    }
                }
            }
        }
    }

    __device__ __forceinline__ static void sync_group() {
        if constexpr (P::LOAD_GROUP == WAVE) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    }

    // Iterates over the keys in [first, end), a tile of P::KEYS every `stride` keys. `low` and `high` are the
    // smallest and largest position of the wave's rows; low > high if it has none. Values are loaded while scores
    // are computed, and the next keys while values are added. With PREFETCH_NEXT, both loads are always in flight.
    __device__ __forceinline__ void run(typename P::Lds &lds, LaneExchange<T> &exchange, unsigned int first, unsigned int end,
                                        unsigned int stride, unsigned int column, int low, int high) {
        const unsigned int thread = threadIdx.x % P::LOAD_GROUP, width = sequence.width;
        const unsigned int value_width = sequence.value_width - column;
        const KeyRows<T> &k = sequence.k;
        KeyRows<T> v = sequence.v;
        v.first += column;
        const uint2 visible = low <= high ? mask_params.visible_range(low, high) : uint2{0, 0};
        StagedTile<T, P::KEYS, WIDTH, P::LOAD_GROUP, false> keys;
        StagedTile<T, P::KEYS, P::VALUES, P::LOAD_GROUP, VALUES_TRANSPOSED<T>> values;
        if (first < end) {
            keys.start(lds.keys, k, first, end, width, thread);
            keys.finish(lds.keys, k, first, end, width, thread);
            if constexpr (P::PREFETCH_NEXT) {
                values.start(lds.values, v, first, end, value_width, thread);
            }
            sync_group();
        }
#pragma unroll 1
        for (; first < end; first += stride) {
            const unsigned int next = first + stride;
            const bool last = next >= end;
            if (!P::PREFETCH_NEXT) {
                values.start(lds.values, v, first, end, value_width, thread);
            } else if (!last) {
                keys.start(lds.keys, k, next, end, width, thread);
            }
            const bool has_visible_keys = P::PREFETCH_NEXT || (first < visible.y && first + P::KEYS > visible.x);
            Scores<T> scores[QUERY_TILES][KEY_TILES];
            if (has_visible_keys) {
                score(scores, lds.keys);
            }
            values.finish(lds.values, v, first, end, value_width, thread);
            sync_group();
            if (!P::PREFETCH_NEXT && !last) {
                keys.start(lds.keys, k, next, end, width, thread);
            }
            if (has_visible_keys) {
                if (special) {
                    scale_scores(scores, first);
                }
                if (!mask_params.all_visible(low, high, first, first + P::KEYS)) {
                    apply_mask(scores, first);
                }
                update_softmax(scores);
                add_values(scores, lds.values, exchange);
            }
            if (last) {
                break;
            }
            if constexpr (P::PREFETCH_NEXT) {
                sync_group();
                values.start(lds.values, v, next, end, value_width, thread);
            }
            keys.finish(lds.keys, k, next, end, width, thread);
            sync_group();
        }
#pragma unroll
        for (unsigned int i = 0; i < QUERY_TILES * I; ++i) {
            float &sum = row_sum[i / I][i % I];
            sum = reduce_over_lanes<QUERY_SIDE<T>, BY_LANES<T>>(sum, [](float a, float b) { return a + b; });
        }
    }
};

// Returns the logarithm of the sum of exponentials of a query's scores.
template <typename T>
__device__ __forceinline__ float log_sum(float row_max, float row_sum, float factor) {
    return row_sum == 0 ? -INFINITY : (row_max * factor - WEIGHT_EXPONENT_BIAS<T>) / LOG2_E + logf(row_sum);
}
__device__ __forceinline__ float inverse(float sum) { return sum == 0 ? 0 : 1 / sum; }

template <typename T, unsigned int WIDTH>
__device__ __forceinline__ void attention_rows(TASK_PARAMETERS(T)) {
    typedef Plan<T, WIDTH, false> P;
    typedef KvIterator<T, P, WIDTH> W;
    __shared__ typename P::Lds lds;
    __shared__ LaneExchange<T> exchange[P::WAVES];
    Task<T> task(TASK_ARGUMENTS);
    task.assign_rows(P::ROWS, P::VALUES);
    if (task.empty) {
        return;
    }
    const Sequence<T> &sequence = task.sequence;
    constexpr unsigned int ROWS = P::ROWS / P::WAVES;
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), first_row = task.first_row + wave * ROWS;
    W kv_iterator(sequence, task.mask_params, first_row);
    // An empty range for a wave without rows.
    int2 positions = {1, 0};
    if (first_row < sequence.rows) {
        positions = task.positions(first_row, min(first_row + ROWS, sequence.rows) - 1);
    }
    kv_iterator.run(lds, exchange[wave], task.first_key, task.end_key, P::KEYS, task.column, positions.x, positions.y);
#pragma unroll
    for (unsigned int t = 0; t < P::QUERY_TILES; ++t) {
#pragma unroll
        for (unsigned int i = 0; i < W::I; ++i) {
            const unsigned int row = first_row + t * TILE_SIDE + lane_query<T>(i);
            if (row >= sequence.rows) {
                continue;
            }
            const unsigned int head = sequence.head(row), query = sequence.query(row);
            T *to = sequence.out + (size_t)head * sequence.out_head + (size_t)query * sequence.out_row + task.column;
            const float factor = inverse(kv_iterator.row_sum[t][i]);
#pragma unroll
            for (unsigned int c = 0; c < W::COLUMN_TILES * W::J; c += RUN<T>) {
                const unsigned int column = c / W::J * TILE_SIDE + lane_key<T>(c % W::J);
                Pack<T, RUN<T>> pack;
#pragma unroll
                for (unsigned int n = 0; n < RUN<T>; ++n) {
                    pack.set(n, static_cast<T>(factor * element<T>(kv_iterator.out[t][c / W::J], i, c % W::J + n)));
                }
                if (task.column + column < sequence.value_width) {
                    pack.write(to + column);
                }
            }
            if (sequence.statistics != nullptr && task.column == 0 && lane_key<T>(0) == 0) {
                sequence.statistics[(size_t)head * sequence.statistics_head + query] =
                    log_sum<T>(kv_iterator.row_max[t][i], kv_iterator.row_sum[t][i], kv_iterator.factor);
            }
        }
    }
}

// Softmax state over some of the keys: the row maximum in units of log2(e), and the sum of weights relative to it.
struct SoftmaxState {
    float row_max, row_sum;
};

// Returns the workspace of a split of the keys: the accumulators, followed by one SoftmaxState per row.
__device__ __forceinline__ float *partial_of(float *partial, unsigned int parts, unsigned int part, unsigned int columns) {
    const size_t block = blockIdx.x * gridDim.y + blockIdx.y;
    return partial + (block * parts + part) * (CANDLE_ATTENTION_SPLIT_ROWS * (columns + 2));
}

template <typename T>
__device__ __forceinline__ void write_row(const Task<T> &task, unsigned int line, unsigned int column, SoftmaxState all, float value) {
    const Sequence<T> &sequence = task.sequence;
    const unsigned int row = task.first_row + line, head = sequence.head(row), query = sequence.query(row);
    if (task.column + column < sequence.value_width) {
        T *to = sequence.out + (size_t)head * sequence.out_head + (size_t)query * sequence.out_row;
        to[task.column + column] = static_cast<T>(value * inverse(all.row_sum));
    }
    if (sequence.statistics != nullptr && task.column + column == 0) {
        sequence.statistics[(size_t)head * sequence.statistics_head + query] = log_sum<T>(all.row_max, all.row_sum, 1.0f);
    }
}

template <typename T, unsigned int WIDTH>
__device__ __forceinline__ void attention_keys(TASK_PARAMETERS(T), float *partial) {
    typedef Plan<T, WIDTH, true> P;
    typedef KvIterator<T, P, WIDTH> W;
    typedef SharedTile<float, TILE_SIDE, P::VALUES> Sums;
    union Memory {
        typename P::Lds lds;
        Sums values;
    };
    __shared__ Memory memory[P::LOAD_GROUPS];
    __shared__ LaneExchange<T> exchange[P::LOAD_GROUPS];
    __shared__ SoftmaxState group_states[P::LOAD_GROUPS][TILE_SIDE];
    Task<T> task(TASK_ARGUMENTS);
    task.assign_rows(P::ROWS, P::VALUES);
    if (task.empty) {
        return;
    }
    const Sequence<T> &sequence = task.sequence;
    const unsigned int rows = min(P::ROWS, sequence.rows - task.first_row);
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), parts = gridDim.z, part = blockIdx.z;
    if (wave < P::LOAD_GROUPS) {
        W kv_iterator(sequence, task.mask_params, task.first_row);
        const int2 positions = task.positions(task.first_row, task.first_row + rows - 1);
        const unsigned int each = ((task.end_key - task.first_key + parts - 1) / parts + P::KEYS - 1) / P::KEYS * P::KEYS;
        const unsigned int first = task.first_key + part * each, end = min(first + each, task.end_key);
        kv_iterator.run(memory[wave].lds, exchange[wave], first + wave * P::KEYS, end, P::LOAD_GROUPS * P::KEYS, task.column,
                 positions.x, positions.y);
#pragma unroll
        for (unsigned int i = 0; i < W::I; ++i) {
            const unsigned int line = lane_query<T>(i);
            if (lane_key<T>(0) == 0) {
                const float max_score = kv_iterator.row_max[0][i];
                group_states[wave][line] =
                    SoftmaxState{max_score == -INFINITY ? max_score : max_score * kv_iterator.factor, kv_iterator.row_sum[0][i]};
            }
#pragma unroll
            for (unsigned int c = 0; c < W::COLUMN_TILES * W::J; ++c) {
                *memory[wave].values.at(Sums::place(line, c / W::J * TILE_SIDE + lane_key<T>(c % W::J))) =
                    element<T>(kv_iterator.out[0][c / W::J], i, c % W::J);
            }
        }
    }
    __syncthreads();
    float *const destination = partial_of(partial, parts, part, P::VALUES);
    for (unsigned int e = threadIdx.x; e < rows * P::VALUES; e += P::THREADS) {
        const unsigned int line = e / P::VALUES, column = e % P::VALUES;
        SoftmaxState all = {-INFINITY, 0};
#pragma unroll
        for (unsigned int load_group = 0; load_group < P::LOAD_GROUPS; ++load_group) {
            all.row_max = fmaxf(all.row_max, group_states[load_group][line].row_max);
        }
        const float base = all.row_max == -INFINITY ? 0.0f : all.row_max;
        float value = 0;
#pragma unroll
        for (unsigned int load_group = 0; load_group < P::LOAD_GROUPS; ++load_group) {
            const float weight = candle_exp2(group_states[load_group][line].row_max - base);
            all.row_sum = fmaf(group_states[load_group][line].row_sum, weight, all.row_sum);
            value = fmaf(*memory[load_group].values.at(Sums::place(line, column)), weight, value);
        }
        if (parts == 1) {
            write_row(task, line, column, all, value);
            continue;
        }
        destination[line * P::VALUES + column] = value;
        if (column == 0) {
            ((SoftmaxState *)(destination + P::ROWS * P::VALUES))[line] = all;
        }
    }
}

template <typename T>
__device__ __forceinline__ void attention_parts(TASK_PARAMETERS(T), float *partial, unsigned int parts,
                                                unsigned int columns) {
    constexpr unsigned int ROWS = CANDLE_ATTENTION_SPLIT_ROWS, THREADS = CANDLE_ATTENTION_MAX_SPLITS;
    __shared__ float weights[THREADS];
    Task<T> task(TASK_ARGUMENTS);
    task.assign_rows(ROWS, columns);
    const unsigned int line = blockIdx.z, thread = threadIdx.x;
    if (task.empty || task.first_row + line >= task.sequence.rows) {
        return;
    }
    SoftmaxState own = {-INFINITY, 0};
    if (thread < parts) {
        own = ((const SoftmaxState *)(partial_of(partial, parts, thread, columns) + ROWS * columns))[line];
    }
    const float max_score = reduce_threads<THREADS>(own.row_max, THREADS, fmaxf);
    const float weight = candle_exp2(own.row_max - (max_score == -INFINITY ? 0.0f : max_score));
    const float sum = reduce_threads<THREADS>(own.row_sum * weight, THREADS, [](float a, float b) INLINE { return a + b; });
    weights[thread] = weight;
    __syncthreads();
    for (unsigned int column = thread; column < columns; column += THREADS) {
        float value = 0;
#pragma unroll 8
        for (unsigned int p = 0; p < parts; ++p) {
            value = fmaf(partial_of(partial, parts, p, columns)[line * columns + column], weights[p], value);
        }
        write_row(task, line, column, SoftmaxState{max_score, sum}, value);
    }
}

#define ATTENTION(T, T_NAME, WIDTH)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) attention_rows_##WIDTH##_##T_NAME(                       \
        const T *q, const T *k, const T *v, const T *mask, T *out, float *statistics, const float *slopes,              \
        const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table, const int *ranges,             \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys) {                                                                                \
        attention_rows<T, WIDTH>(TASK_ARGUMENTS);                                                                       \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(CANDLE_ATTENTION_SPLIT_THREADS)                                        \
        attention_keys_##WIDTH##_##T_NAME(                                                                              \
            const T *q, const T *k, const T *v, const T *mask, T *out, float *statistics, const float *slopes,          \
            const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table, const int *ranges,         \
            const size_t *info, const float scale, const float softcap, const unsigned int total_queries,               \
            const unsigned int total_keys, float *partial) {                                                            \
        attention_keys<T, WIDTH>(TASK_ARGUMENTS, partial);                                                              \
    }
#define ATTENTION_PARTS(T, T_NAME)                                                                                      \
    extern "C" __global__ void __launch_bounds__(CANDLE_ATTENTION_MAX_SPLITS) attention_parts_##T_NAME(                      \
        const T *q, const T *k, const T *v, const T *mask, T *out, float *statistics, const float *slopes,              \
        const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table, const int *ranges,             \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys, float *partial, const unsigned int parts, const unsigned int columns) {          \
        attention_parts<T>(TASK_ARGUMENTS, partial, parts, columns);                                                    \
    }
#define ATTENTION_WIDTHS(T, T_NAME) \
    ATTENTION_PARTS(T, T_NAME)      \
    ATTENTION(T, T_NAME, 64)        \
    ATTENTION(T, T_NAME, 128)       \
    ATTENTION(T, T_NAME, 256)       \
    ATTENTION(T, T_NAME, 512)

ATTENTION_WIDTHS(float, f32)
ATTENTION_WIDTHS(__half, f16)
ATTENTION_WIDTHS(__nv_bfloat16, bf16)
