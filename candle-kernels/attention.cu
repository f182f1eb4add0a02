// Scaled dot product attention with an online softmax: scores stay in registers. The query rows of all heads that
// share a key head are concatenated and multiplied with tiles of keys on the matrix units.
//
// attention_rows: each wave has its own query rows, and all waves of the workgroup iterate over the same keys. The keys
// may be split between workgroups (split-KV), whose partial results attention_parts combines. decode.cu has the kernel
// for few rows.
#include "split.cuh"

// Returns the number of columns of a line in LDS, whose layout needs a power of two.
constexpr unsigned int pitch(unsigned int width) { return width > 256 ? 512 : width > 128 ? 256 : width > 64 ? 128 : 64; }

// Bytes of keys in LDS if lanes multiply. bf16 has fewer keys than f16, because it needs more registers.
template <typename T, unsigned int WIDTH> constexpr unsigned int LANES_KEY_BYTES = 8192;
template <> constexpr unsigned int LANES_KEY_BYTES<__nv_bfloat16, 128> = 4096;

// Tile sizes and memory layout of a workgroup, of keys and values that are stored as S. The numbers of rows and threads are
// the same on every GPU.
template <typename T, unsigned int WIDTH, typename S>
struct Plan {
    static constexpr unsigned int THREADS = CANDLE_BLOCK, ROWS = CANDLE_ATTENTION_ROWS, WAVES = THREADS / WAVE;
    static constexpr unsigned int QUERY_TILES = ROWS / WAVES / TILE_SIDE;
    // Value columns of a workgroup: a head is computed in pieces if its accumulators do not fit into registers.
    static constexpr unsigned int MAX_VALUES = BY_LANES<T> || sizeof(T) == 4 ? CANDLE_ATTENTION_COLUMNS : 256;
    static constexpr unsigned int VALUES = WIDTH > MAX_VALUES ? CANDLE_ATTENTION_COLUMNS : WIDTH;
    // Products of warpgroups. They read queries from LDS, and tiles of keys and values while the next ones are loaded.
    static constexpr bool WARPGROUPS = BY_WARPGROUPS<T> && WIDTH <= MAX_VALUES && !IS_ENCODED<S>;
    static constexpr unsigned int BUFFERS = WARPGROUPS ? 2 : 1;
    // Rows whose waves skip tiles of keys together.
    static constexpr unsigned int GROUP_ROWS = WARPGROUPS ? WARPGROUP_ROWS : ROWS / WAVES;
    // Keys of a tile, limited by the size of LDS and by the registers for their scores.
    static constexpr unsigned int KEYS_IN_LDS = (BY_LANES<T> ? LANES_KEY_BYTES<T, WIDTH> : 16384) / (pitch(WIDTH) * sizeof(T));
    static constexpr unsigned int MAX_KEYS = BY_LANES<T> || IS_ENCODED<S> || pitch(WIDTH) < 128 ? 32 : 64;
    static constexpr unsigned int KEYS = WARPGROUPS               ? WARPGROUP_COLUMNS
                                         : KEYS_IN_LDS < TILE_SIDE ? TILE_SIDE
                                         : KEYS_IN_LDS < MAX_KEYS  ? KEYS_IN_LDS
                                                                   : MAX_KEYS;
    // Registers for the query fragments. If they are too many, queries are read again for each tile of keys.
    static constexpr unsigned int REGISTERS = QUERY_TILES * WIDTH / STEP<T> * QueryFragment<T>::LINES * QueryFragment<T>::WORDS;
#if defined(TILES_BY_WMMA)
    static constexpr bool QUERIES_IN_REGISTERS = REGISTERS <= 64 && WIDTH <= 128;
#else
    static constexpr bool QUERIES_IN_REGISTERS = REGISTERS <= 64 && WIDTH <= 256 && !WARPGROUPS;
#endif
    typedef StagedTile<T, KEYS, pitch(WIDTH), THREADS, false, WARPGROUPS, S> StagedKeys;
    typedef StagedTile<T, KEYS, pitch(VALUES), THREADS, VALUES_TRANSPOSED<T>, WARPGROUPS, S> StagedValues;
    struct Lds {
        typename StagedKeys::To keys[BUFFERS];
        typename StagedValues::To values[BUFFERS];
        // Without products of warpgroups, it has no elements.
        SharedTile<T, WARPGROUPS ? ROWS : 0, pitch(WIDTH), WARPGROUPS> queries;
    };
};

// Exponent of the power of two that scales weights and their sums. Without it, the smallest weights would be f16
// subnormals, which are less precise and which gfx90a's matrix units flush to zero.
template <typename T> constexpr float WEIGHT_EXPONENT_BIAS = 0;
template <> constexpr float WEIGHT_EXPONENT_BIAS<__half> = 15;

// Iterates over the tiles of keys and holds a lane's part of the softmax state and accumulators.
template <typename T, typename P, unsigned int WIDTH, typename S>
struct KvIterator {
    static constexpr unsigned int QUERY_TILES = P::QUERY_TILES, KEY_TILES = P::KEYS / TILE_SIDE, STEPS = WIDTH / STEP<T>;
    static constexpr unsigned int COLUMN_TILES = P::VALUES / TILE_SIDE;
    static constexpr unsigned int I = QUERIES_PER_LANE<T>, J = KEYS_PER_LANE<T>;

    const Sequence<T, S> &sequence;
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

    // Stores the wave's queries to LDS.
    template <typename L>
    __device__ __forceinline__ void store_queries(L &queries) const {
        const unsigned int line = threadIdx.x / WAVE * TILE_SIDE;
#pragma unroll
        for (unsigned int step = 0; step < STEPS; ++step) {
            read_queries(0, step).store([&](unsigned int own, unsigned int k) INLINE {
                return queries.at(L::place(line + QueryFragment<T>::own_line(own), step * STEP<T> + k));
            });
        }
    }

    __device__ __forceinline__ KvIterator(const Sequence<T, S> &sequence, const MaskParams &mask_params, unsigned int first_row)
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
                const unsigned int at = CANDLE_FEW_REGISTERS(opaque(row(t * TILE_SIDE + lane_query<T>(i))), row(opaque(t * TILE_SIDE + lane_query<T>(i)))), head = sequence.head(at);
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
                const uint32_t visible = mask_params.template visible<KEY_TILES * J>(CANDLE_FEW_REGISTERS(positions[t][i], (int)opaque(positions[t][i])), [&](unsigned int j) INLINE {
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
                const float base = max_score == -INFINITY ? 0.0f : max_score * factor;
                const float rescale = candle_exp2(fmaf(row_max[t][i], factor, -base));
                const float exponent_offset = WEIGHT_EXPONENT_BIAS<T> - base;
                row_max[t][i] = max_score;
                float sum = 0;
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    float &score = element<T>(scores[t][j / J], i, j % J);
                    score = candle_exp2(fmaf(score, factor, exponent_offset));
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
    __device__ __forceinline__ void score(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], const typename P::Lds &lds,
                                          unsigned int buffer) const {
        const typename P::StagedKeys::To &keys = lds.keys[buffer];
#if defined(TILES_BY_WGMMA)
        if constexpr (P::WARPGROUPS) {
            const unsigned int rows = lds.queries.position(threadIdx.x / WARPGROUP * WARPGROUP_ROWS), columns = keys.position();
            start_products(scores[0]);
#pragma unroll
            for (unsigned int k = 0; k < WIDTH; k += STEP<T>) {
                multiply_by_warpgroup(scores[0], lds.queries.operand(rows, 0, k), keys.operand(columns, 0, k), k > 0, T());
            }
            finish_products(scores[0]);
            return;
        }
#endif
#pragma unroll
        for (unsigned int i = 0; i < QUERY_TILES * KEY_TILES; ++i) {
            scores[i / KEY_TILES][i % KEY_TILES] = {};
        }
        constexpr unsigned int UNROLL = P::QUERIES_IN_REGISTERS ? STEPS : 1;
        const unsigned int steps = P::QUERIES_IN_REGISTERS ? STEPS : (sequence.width + STEP<T> - 1) / STEP<T>;
        const unsigned int lane = opaque(P::StagedKeys::To::template lane_place<KvFragment<T>>());
#pragma unroll UNROLL
        for (unsigned int step = 0; step < steps; ++step) {
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
    __device__ __forceinline__ void add_values(Scores<T> (&scores)[QUERY_TILES][KEY_TILES],
                                               const typename P::StagedValues::To &tile_values,
                                               LaneExchange<T> &exchange) {
#if defined(TILES_BY_WGMMA)
        if constexpr (P::WARPGROUPS) {
            constexpr unsigned int PANEL_TILES = P::StagedValues::To::PANEL / TILE_SIDE, LAST = COLUMN_TILES % PANEL_TILES;
            QueryFragment<T> weights[KEY_TILES];
#pragma unroll
            for (unsigned int tile = 0; tile < KEY_TILES; ++tile) {
                weights[tile] = Weights<T>(scores[0][tile], exchange).values[0];
            }
            const unsigned int position = tile_values.position();
            start_products(out[0]);
#pragma unroll
            for (unsigned int tile = 0; tile < KEY_TILES; ++tile) {
                const Words4 rows = weights[tile].words[0];
                unsigned int column = 0;
#pragma unroll
                for (; column + PANEL_TILES <= COLUMN_TILES; column += PANEL_TILES) {
                    multiply_by_warpgroup<PANEL_TILES>(out[0] + column, rows, tile_values.operand(position, tile * TILE_SIDE, column * TILE_SIDE), T());
                }
                if constexpr (LAST > 0) {
                    multiply_by_warpgroup<LAST>(out[0] + column, rows, tile_values.operand(position, tile * TILE_SIDE, column * TILE_SIDE), T());
                }
            }
            finish_products(out[0]);
            return;
        }
#endif
        const unsigned int lane = opaque(lane_of_columns<T, typename P::StagedValues::To>());
#pragma unroll
        for (unsigned int tile = 0; tile < KEY_TILES; ++tile) {
#pragma unroll
            for (unsigned int t = 0; t < QUERY_TILES; ++t) {
                const Weights<T> weights(scores[t][tile], exchange);
#pragma unroll
                for (unsigned int c = 0; c < COLUMN_TILES * Weights<T>::STEPS; ++c) {
                    const unsigned int column = CANDLE_FEW_REGISTERS(c / Weights<T>::STEPS, c % COLUMN_TILES), step = CANDLE_FEW_REGISTERS(c % Weights<T>::STEPS, c / COLUMN_TILES);
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

    // Iterates over the keys in [first, end). `low` and `high` are the smallest and largest position of the wave's rows;
    // low > high if it has none. Values are loaded while scores are computed, and the next keys while values are added.
    __device__ __forceinline__ void run(typename P::Lds &lds, LaneExchange<T> &exchange, unsigned int first, unsigned int end,
                                        unsigned int column, int low, int high) {
        const unsigned int thread = threadIdx.x, width = sequence.width;
        const unsigned int value_width = sequence.value_width - column;
        const KeyRows<S> &k = sequence.k;
        KeyRows<S> v = sequence.v;
        v.first += column;
        const uint2 visible = low <= high ? mask_params.visible_range(low, high) : uint2{0, 0};
        typename P::StagedKeys keys;
        typename P::StagedValues values;
        constexpr bool AHEAD = P::BUFFERS > 1;
        unsigned int buffer = 0;
        if constexpr (P::WARPGROUPS) {
            store_queries(lds.queries);
        }
        if (first < end) {
            keys.start(lds.keys[0], k, first, end, width, thread);
            if constexpr (AHEAD) {
                values.start(lds.values[0], v, first, end, value_width, thread);
            }
        }
#pragma unroll 1
        for (; first < end; first += P::KEYS) {
            // With asynchronous copies, this waits for the values as well.
            keys.finish(lds.keys[buffer], k, first, end, width, thread);
            __syncthreads();
            const unsigned int next = first + P::KEYS, next_buffer = (buffer + 1) % P::BUFFERS;
            if (!AHEAD) {
                values.start(lds.values[0], v, first, end, value_width, thread);
            } else if (next < end) {
                keys.start(lds.keys[next_buffer], k, next, end, width, thread);
                values.start(lds.values[next_buffer], v, next, end, value_width, thread);
            }
            const bool has_visible_keys = first < visible.y && next > visible.x;
            Scores<T> scores[QUERY_TILES][KEY_TILES];
            if (has_visible_keys) {
                score(scores, lds, buffer);
            }
            if constexpr (!AHEAD) {
                values.finish(lds.values[0], v, first, end, value_width, thread);
                __syncthreads();
                if (next < end) {
                    keys.start(lds.keys[0], k, next, end, width, thread);
                }
            }
            if (has_visible_keys) {
                if (special) {
                    scale_scores(scores, first);
                }
                if (!mask_params.all_visible(low, high, first, next)) {
                    apply_mask(scores, first);
                }
                update_softmax(scores);
                add_values(scores, lds.values[buffer], exchange);
            }
            buffer = next_buffer;
        }
#pragma unroll
        for (unsigned int i = 0; i < QUERY_TILES * I; ++i) {
            float &sum = row_sum[i / I][i % I];
            sum = reduce_over_lanes<QUERY_SIDE<T>, BY_LANES<T>>(sum, [](float a, float b) { return a + b; });
        }
    }
};

// Holds the work of a workgroup in LDS if SHARED: without scalar registers, every lane would keep a copy.
template <typename V, bool SHARED>
struct SharedTask {
    __device__ __forceinline__ const V &share(const V &own) { return own; }
};
template <typename V>
struct SharedTask<V, true> {
    alignas(V) char bytes[sizeof(V)];
    __device__ __forceinline__ const V &share(const V &own) {
        if (threadIdx.x == 0) {
            *(V *)bytes = own;
        }
        __syncthreads();
        return *(const V *)bytes;
    }
};

template <typename T, unsigned int WIDTH, typename S = T>
__device__ __forceinline__ void attention_rows(TASK_PARAMETERS(T, S), float *partial, const uint32_t *scales = nullptr,
                                               bool is_fp8 = false) {
    typedef Plan<T, WIDTH, S> P;
    typedef KvIterator<T, P, WIDTH, S> W;
    __shared__ typename P::Lds lds;
    __shared__ LaneExchange<T> exchange[P::WAVES];
    __shared__ SharedTask<Task<T, S>, P::WARPGROUPS> shared_task;
    Task<T, S> own(TASK_ARGUMENTS, ENCODED_ARGUMENTS);
    own.assign_rows(P::ROWS, P::VALUES);
    const Task<T, S> &task = shared_task.share(own);
    if (task.empty) {
        return;
    }
    const Sequence<T, S> &sequence = task.sequence;
    constexpr unsigned int ROWS = P::ROWS / P::WAVES;
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), first_row = task.first_row + wave * ROWS;
    // Null if the keys are not split. It is needed late.
    Partials partials(partial, P::ROWS, P::VALUES, blockIdx.z, gridDim.z);
    partials.first = gridDim.z > 1 ? partials.first : nullptr;
    move_to_vector_register(partials.first);
    const unsigned int each = keys_of_part(task.end_key - task.first_key, gridDim.z, P::KEYS);
    const unsigned int first_key = task.first_key + blockIdx.z * each, end_key = min(first_key + each, task.end_key);
    task.check_pages(first_key, end_key);
    W kv_iterator(sequence, task.mask_params, first_row);
    // An empty range for a wave without rows.
    int2 positions = {1, 0};
    const unsigned int group_row = first_row - wave * ROWS % P::GROUP_ROWS;
    if (group_row < sequence.rows) {
        positions = task.positions(group_row, min(group_row + P::GROUP_ROWS, sequence.rows) - 1);
    }
    kv_iterator.run(lds, exchange[wave], first_key, end_key, task.column, positions.x, positions.y);
    const bool split = partials.first != nullptr;
#pragma unroll
    for (unsigned int t = 0; t < P::QUERY_TILES; ++t) {
#pragma unroll
        for (unsigned int i = 0; i < W::I; ++i) {
            const unsigned int row = CANDLE_FEW_REGISTERS(first_row, opaque(first_row)) + t * TILE_SIDE + lane_query<T>(i);
            if (row >= sequence.rows) {
                continue;
            }
            const float max_score = kv_iterator.row_max[t][i];
            const float scaled = max_score == -INFINITY ? max_score : max_score * kv_iterator.factor;
            const unsigned int head = sequence.head(row), query = sequence.query(row), line = row - task.first_row;
            float sum = kv_iterator.row_sum[t][i];
            if (!split) {
                sum += sequence.sink_weight(head, WEIGHT_EXPONENT_BIAS<T> - exponent_base(scaled));
            }
            T *const to = sequence.out + (size_t)head * sequence.out_head + (size_t)query * sequence.out_row + task.column;
            float *const to_part = partials.row(0, line);
            const float factor = split ? candle_exp2(-WEIGHT_EXPONENT_BIAS<T>) : inverse(sum);
#pragma unroll
            for (unsigned int c = 0; c < W::COLUMN_TILES * W::J; c += RUN<T>) {
                const unsigned int column = c / W::J * TILE_SIDE + lane_key<T>(c % W::J);
                Pack<T, RUN<T>> pack;
#pragma unroll
                for (unsigned int n = 0; n < RUN<T>; ++n) {
                    const float value = factor * element<T>(kv_iterator.out[t][c / W::J], i, c % W::J + n);
                    if (split) {
                        to_part[column + n] = value;
                    }
                    pack.set(n, static_cast<T>(value));
                }
                if (!split && task.column + column < sequence.value_width) {
                    pack.write(to + column);
                }
            }
            if (lane_key<T>(0) == 0) {
                const SoftmaxState state = {scaled, sum * candle_exp2(-WEIGHT_EXPONENT_BIAS<T>)};
                if (split) {
                    *partials.state(0, line) = state;
                } else if (sequence.statistics != nullptr && task.column == 0) {
                    sequence.statistics[(size_t)head * sequence.statistics_head + query] = log_sum(state);
                }
            }
        }
    }
}

template <typename T>
__device__ __forceinline__ void attention_parts(TASK_PARAMETERS(T, T), const float *partial, unsigned int parts,
                                                unsigned int columns) {
    Task<T> task(TASK_ARGUMENTS);
    task.assign_rows(CANDLE_ATTENTION_ROWS, columns);
    const unsigned int line = blockIdx.z, column = 2 * threadIdx.x;
    if (task.empty || task.first_row + line >= task.sequence.rows || column >= columns) {
        return;
    }
    const Partials partials(const_cast<float *>(partial), CANDLE_ATTENTION_ROWS, columns, 0, parts);
    combine_parts(task, partials, parts, line, column);
}

// Minimum number of waves per SIMD, which limits the registers; gfx908's accumulation registers do not count.
#if defined(__GFX9__) && !defined(__gfx908__) && !defined(__gfx906__) && !defined(__gfx9_generic__)
#define RESIDENT_WAVES(COUNT) __attribute__((amdgpu_waves_per_eu(COUNT)))
#else
#define RESIDENT_WAVES(COUNT)
#endif
// Minimum number of workgroups that share a multiprocessor: of narrow heads two, so that one multiplies while the other
// computes weights.
#if defined(TILES_BY_WGMMA)
#define RESIDENT_GROUPS(T, WIDTH) , BY_WARPGROUPS<T> && WIDTH <= 64 ? 2 : 1
#else
#define RESIDENT_GROUPS(T, WIDTH)
#endif
#define ATTENTION(T, T_NAME, WIDTH)                                                                                     \
    extern "C" RESIDENT_WAVES(WIDTH > 128 ? 1 : 2) __global__ void __launch_bounds__(CANDLE_BLOCK RESIDENT_GROUPS(T, WIDTH)) \
        attention_rows_##WIDTH##_##T_NAME(                                                                              \
        const T *q, const T *k, const T *v, const T *mask, T *out, float *statistics, const float *slopes,              \
        const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table, const int *ranges,             \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys, const float *sinks, float *partial) {                                                                \
        attention_rows<T, WIDTH>(TASK_ARGUMENTS, partial);                                                              \
    }
// Attention over an encoded cache.
#define ATTENTION_ENCODED(T, T_NAME, WIDTH)                                                                             \
    extern "C" RESIDENT_WAVES(WIDTH > 128 ? 1 : 2) __global__ void __launch_bounds__(CANDLE_BLOCK)                      \
        attention_rows_##WIDTH##_##T_NAME##_encoded(                                                                    \
        const T *q, const EncodedByte *k, const EncodedByte *v, const T *mask, T *out, float *statistics,               \
        const float *slopes, const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table,           \
        const int *ranges, const size_t *info, const float scale, const float softcap,                                  \
        const unsigned int total_queries, const unsigned int total_keys, const float *sinks, float *partial,            \
        ENCODED_PARAMETERS) {                                                                                           \
        attention_rows<T, WIDTH>(TASK_ARGUMENTS, partial, ENCODED_ARGUMENTS);                                           \
    }
#define ATTENTION_PARTS(T, T_NAME)                                                                                      \
    extern "C" __global__ void __launch_bounds__(CANDLE_ATTENTION_COLUMNS) attention_parts_##T_NAME(                    \
        const T *q, const T *k, const T *v, const T *mask, T *out, float *statistics, const float *slopes,              \
        const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *table, const int *ranges,             \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys, const float *sinks, const float *partial, const unsigned int parts,              \
        const unsigned int columns) {    \
        attention_parts<T>(TASK_ARGUMENTS, partial, parts, columns);                                                    \
    }
// Also for heads of 40, 80 and 96 columns, as image models have.
#define ATTENTION_HALVES(T, T_NAME) \
    ATTENTION_PARTS(T, T_NAME)      \
    ATTENTION(T, T_NAME, 48)        \
    ATTENTION(T, T_NAME, 64)        \
    ATTENTION(T, T_NAME, 96)        \
    ATTENTION(T, T_NAME, 128)       \
    ATTENTION(T, T_NAME, 256)       \
    ATTENTION(T, T_NAME, 512)
#define ATTENTIONS_ENCODED(T, T_NAME)  \
    ATTENTION_ENCODED(T, T_NAME, 64)   \
    ATTENTION_ENCODED(T, T_NAME, 128)  \
    ATTENTION_ENCODED(T, T_NAME, 256)

ATTENTION_PARTS(float, f32)
ATTENTION(float, f32, 64)
ATTENTION(float, f32, 128)
ATTENTION(float, f32, 512)
ATTENTION_HALVES(__half, f16)
ATTENTION_HALVES(__nv_bfloat16, bf16)
ATTENTIONS_ENCODED(__half, f16)
ATTENTIONS_ENCODED(__nv_bfloat16, bf16)
