// Gradients of attention. Weights and their gradients are recomputed tile by tile from queries, keys and the
// statistics of the forward pass. Each result is accumulated by one workgroup in a fixed order, so results are
// deterministic.
//
// gradient_queries: a workgroup owns query rows and iterates over the keys that they see. gradient_keys: it owns
// keys and iterates over the queries of all heads that share them.
#include "attention.cuh"

// Tile sizes and memory layout: a workgroup owns ROWS rows and iterates over tiles of TILE_ROWS other rows.
template <typename T, unsigned int WIDTH, bool FOR_KEYS>
struct Plan {
    static constexpr unsigned int THREADS = CANDLE_BLOCK, WAVES = THREADS / WAVE, ROWS = CANDLE_ATTENTION_ROWS;
    static constexpr unsigned int OWN_TILES = ROWS / WAVES / TILE_SIDE;
    // Result columns of a workgroup.
    static constexpr bool NARROW = FOR_KEYS ? BY_LANES<T> || sizeof(T) == 4 : sizeof(T) == 4 && WIDTH > 128;
    static constexpr unsigned int MAX_COLUMNS = NARROW ? 64 : 128;
    static constexpr unsigned int COLUMNS = WIDTH < MAX_COLUMNS ? WIDTH : MAX_COLUMNS;
    // Number of transposed copies of the tile in LDS.
    static constexpr unsigned int TRANSPOSED_TILES = !VALUES_TRANSPOSED<T> ? 0 : FOR_KEYS ? 2 : 1;
    static constexpr unsigned int ROWS_IN_LDS = 40960 / ((2 * WIDTH + TRANSPOSED_TILES * COLUMNS) * sizeof(T));
    // Registers hold the accumulators of two results, or those of one result and more scores.
    static constexpr unsigned int TILE_ROWS = FOR_KEYS || ROWS_IN_LDS < 32 ? TILE_SIDE : 32;
    static constexpr unsigned int REGISTERS =
        2 * OWN_TILES * WIDTH / STEP<T> * QueryFragment<T>::LINES * QueryFragment<T>::WORDS;
    static constexpr bool OWN_IN_REGISTERS = REGISTERS <= (FOR_KEYS ? 32 : 64) && !BY_LANES<T>;

    typedef SharedTile<T, TILE_ROWS, WIDTH> Rows;
    typedef SharedTile<T, COLUMNS, TILE_ROWS> TransposedTile;
    struct Lds {
        Rows rows[2];
        TransposedTile transposed[TRANSPOSED_TILES == 0 ? 1 : TRANSPOSED_TILES];
    };
};

// Loads a tile of rows into LDS, 16 bytes at a time. TRANSPOSE: also stores COLUMNS columns transposed.
template <typename T, typename P, unsigned int WIDTH, bool TRANSPOSE>
__device__ __forceinline__ void load_tile(typename P::Rows &rows, typename P::TransposedTile &transposed, const KeyRows<T> &from,
                                      unsigned int first, unsigned int end, unsigned int width, unsigned int column) {
    constexpr unsigned int N = 16 / sizeof(T), CHUNKS = WIDTH / N, ALL = P::TILE_ROWS / 4 * CHUNKS;
    for (unsigned int unit = opaque(threadIdx.x); unit < ALL; unit += P::THREADS) {
        const unsigned int line = unit / CHUNKS * 4, at = unit % CHUNKS * N;
        Pack<T> packs[4];
#pragma unroll
        for (unsigned int j = 0; j < 4; ++j) {
            const unsigned int more = min(line + j, end - 1 - first);
            packs[j] = at < width ? Pack<T>::read(from.template at<false>(first, more, at)) : Pack<T>{};
            rows.write(P::Rows::place(line, at), j, 0, packs[j]);
        }
        if (TRANSPOSE && at >= column && at < column + P::COLUMNS) {
            struct alignas(4 * sizeof(T)) Four { T values[4]; };
#pragma unroll
            for (unsigned int c = 0; c < N; ++c) {
                *(Four *)transposed.at(P::TransposedTile::place(at - column, line), c, 0) =
                    Four{{packs[0][c], packs[1][c], packs[2][c], packs[3][c]}};
            }
        }
    }
}

// The rows that a wave owns: the operands of both products, and the accumulators of the results.
template <typename T, unsigned int WIDTH, bool FOR_KEYS>
struct GradientAccumulator {
    typedef Plan<T, WIDTH, FOR_KEYS> P;
    static constexpr unsigned int OWN_TILES = P::OWN_TILES, TILES = P::TILE_ROWS / TILE_SIDE, STEPS = WIDTH / STEP<T>;
    static constexpr unsigned int COLUMN_TILES = P::COLUMNS / TILE_SIDE, RESULTS = FOR_KEYS ? 2 : 1;
    static constexpr unsigned int I = QUERIES_PER_LANE<T>, J = KEYS_PER_LANE<T>;
    typedef Scores<T> Tiles[OWN_TILES][TILES];

    // Start of each row of both operands: keys and values, or queries and the gradient of the result.
    const T *lines[2][OWN_TILES][QueryFragment<T>::OWN];
    unsigned int width, value_width;
    QueryFragment<T> own[P::OWN_IN_REGISTERS ? 2 : 1][P::OWN_IN_REGISTERS ? OWN_TILES : 1][P::OWN_IN_REGISTERS ? STEPS : 1];
    Scores<T> out[RESULTS][OWN_TILES][COLUMN_TILES];

    __device__ __forceinline__ QueryFragment<T> read(unsigned int operand, unsigned int tile, unsigned int step) const {
        return QueryFragment<T>::gather(lines[operand][tile], step * STEP<T>, operand == 0 ? width : value_width);
    }

    // `line(operand, row)` returns the address of a row.
    template <typename L>
    __device__ __forceinline__ GradientAccumulator(unsigned int width, unsigned int value_width, L line)
        : width(width), value_width(value_width), out() {
#pragma unroll
        for (unsigned int i = 0; i < 2 * OWN_TILES * QueryFragment<T>::OWN; ++i) {
            const unsigned int operand = i % 2, tile = i / 2 / QueryFragment<T>::OWN, which = i / 2 % QueryFragment<T>::OWN;
            lines[operand][tile][which] = line(operand, tile * TILE_SIDE + QueryFragment<T>::own_line(which));
        }
        if constexpr (P::OWN_IN_REGISTERS) {
#pragma unroll
            for (unsigned int i = 0; i < 2 * OWN_TILES * STEPS; ++i) {
                own[i % 2][i / 2 / STEPS][i / 2 % STEPS] = read(i % 2, i / 2 / STEPS, i / 2 % STEPS);
            }
        }
    }

    // Multiplies the own rows of both operands with the rows in LDS.
    __device__ __forceinline__ void multiply_rows(Tiles &scores, Tiles &products, const typename P::Lds &lds) const {
#pragma unroll
        for (unsigned int i = 0; i < OWN_TILES * TILES; ++i) {
            scores[i / TILES][i % TILES] = products[i / TILES][i % TILES] = {};
        }
        constexpr unsigned int UNROLL = P::OWN_IN_REGISTERS ? STEPS : 1;
        const unsigned int steps = P::OWN_IN_REGISTERS ? STEPS : (max(width, value_width) + STEP<T> - 1) / STEP<T>;
        const unsigned int lane = opaque(P::Rows::template lane_place<KvFragment<T>>());
#pragma unroll UNROLL
        for (unsigned int step = 0; step < steps; ++step) {
#pragma unroll
            for (unsigned int operand = 0; operand < 2; ++operand) {
                QueryFragment<T> own_fragments[OWN_TILES];
#pragma unroll
                for (unsigned int t = 0; t < OWN_TILES; ++t) {
                    if constexpr (P::OWN_IN_REGISTERS) {
                        own_fragments[t] = own[operand][t][step];
                    } else {
                        own_fragments[t] = read(operand, t, step);
                    }
                }
#pragma unroll
                for (unsigned int tile = 0; tile < TILES; ++tile) {
                    const KvFragment<T> other =
                        lds.rows[operand].template read<KvFragment<T>>(lane, tile * TILE_SIDE, step * STEP<T>);
#pragma unroll
                    for (unsigned int t = 0; t < OWN_TILES; ++t) {
                        accumulate<T>(operand == 0 ? scores[t][tile] : products[t][tile], own_fragments[t], other);
                    }
                }
                asm volatile("" ::: "memory");
            }
        }
    }

    // Adds to a result the product of `tiles` with the columns of operand `which` in LDS.
    __device__ __forceinline__ void add(unsigned int result, Tiles &tiles, const typename P::Lds &lds, unsigned int which,
                                        unsigned int column, LaneExchange<T> &exchange) {
#pragma unroll
        for (unsigned int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (unsigned int t = 0; t < OWN_TILES; ++t) {
                const Weights<T> weights(tiles[t][tile], exchange);
#pragma unroll
                for (unsigned int c = 0; c < COLUMN_TILES * Weights<T>::STEPS; ++c) {
                    const unsigned int to = c / Weights<T>::STEPS, step = c % Weights<T>::STEPS;
                    const unsigned int k = tile * TILE_SIDE + step * STEP<T>;
                    KvFragment<T> columns;
                    if constexpr (VALUES_TRANSPOSED<T>) {
                        const unsigned int lane = opaque(P::TransposedTile::template lane_place<KvFragment<T>>());
                        columns = lds.transposed[which].template read<KvFragment<T>>(lane, to * TILE_SIDE, k);
                    } else {
                        const unsigned int lane = P::Rows::place(KvFragment<T>::transposed_line(), KvFragment<T>::transposed_k() + column);
                        columns = KvFragment<T>::read_transposed(lds.rows[which].at(lane, k, to * TILE_SIDE));
                    }
                    accumulate<T>(out[result][t][to], weights.values[step], columns);
                    if (c % 4 == 3) {
                        asm volatile("" ::: "memory");
                    }
                }
            }
        }
    }

    // Writes a result's rows times a factor; `line(row)` returns the address of a row, or null to skip it.
    template <typename L>
    __device__ __forceinline__ void write(unsigned int result, float factor, unsigned int column, unsigned int end, L line) {
#pragma unroll
        for (unsigned int t = 0; t < OWN_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                T *const to = line(t * TILE_SIDE + lane_query<T>(i));
                if (to == nullptr) {
                    continue;
                }
#pragma unroll
                for (unsigned int c = 0; c < COLUMN_TILES * J; c += RUN<T>) {
                    const unsigned int at = column + c / J * TILE_SIDE + lane_key<T>(c % J);
                    Pack<T, RUN<T>> pack;
#pragma unroll
                    for (unsigned int n = 0; n < RUN<T>; ++n) {
                        pack.set(n, static_cast<T>(factor * element<T>(out[result][t][c / J], i, c % J + n)));
                    }
                    if (at < end) {
                        pack.write(to + at);
                    }
                }
            }
        }
    }
};

// Attention weight of a key for a query, and the gradient of their score.
struct WeightGradient {
    float weight, score_gradient;
};
// `score` is query times key, `product` the result's gradient times the value, `log_sum` the forward pass' logarithm
// of the sum of exponentials, and `delta` the result's gradient times the result.
__device__ __forceinline__ WeightGradient weight_gradient(const MaskParams &mask_params, float score, float product,
                                                          float alibi, float log_sum, float delta) {
    const float plain = score * mask_params.scale, capped = mask_params.apply_softcap(plain);
    const float weight = candle_exp2((capped - alibi - log_sum) * LOG2_E);
    const float softcap_slope = mask_params.softcap > 0 ? 1 - capped / mask_params.softcap * (capped / mask_params.softcap) : 1.0f;
    return WeightGradient{weight, weight * (product - delta) * softcap_slope};
}

#define OPERANDS(T)                                                                                                     \
    const T *q, const T *k, const T *v, const T *grad, const float *statistics, const float *means, const float *slopes, \
        const uint32_t *query_starts, const uint32_t *key_starts, const size_t *info, const float scale,                \
        const float softcap, const unsigned int total_queries, const unsigned int total_keys
#define ARGUMENTS                                                                                                       \
    q, k, v, grad, statistics, means, slopes, query_starts, key_starts, info, scale, softcap, total_queries, total_keys

// Returns the workgroup's task; its `out` points to the gradient of the result, which is only read.
template <typename T>
__device__ __forceinline__ Task<T> task_of(OPERANDS(T)) {
    return Task<T>(q, k, v, nullptr, const_cast<T *>(grad), const_cast<float *>(statistics), slopes, query_starts, key_starts,
                   nullptr, nullptr, info, scale, softcap, total_queries, total_keys);
}
// Returns the address of a row of a result; its batch, head and row strides are words of `info` from `first` on.
template <typename T>
__device__ __forceinline__ T *row_of(T *out, const size_t *info, unsigned int first, size_t batch, unsigned int head, size_t row) {
    const auto word = [&](unsigned int i) INLINE { return ((const unsigned int *)info)[2 * i]; };
    return out + batch * word(first) + (size_t)head * word(first + 1) + row * word(first + 2);
}

template <typename T, unsigned int WIDTH>
__device__ __forceinline__ void gradient_queries(OPERANDS(T), T *out) {
    typedef Plan<T, WIDTH, false> P;
    typedef GradientAccumulator<T, WIDTH, false> S;
    __shared__ typename P::Lds lds;
    __shared__ LaneExchange<T> exchange[P::WAVES];
    Task<T> task = task_of<T>(ARGUMENTS);
    task.assign_rows(P::ROWS, P::COLUMNS);
    if (task.empty) {
        return;
    }
    const Sequence<T> &sequence = task.sequence;
    const MaskParams &mask_params = task.mask_params;
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), first_row = task.first_row + wave * (P::ROWS / P::WAVES);
    // Rows past the end read the last row; their results are not written.
    const auto row = [&](unsigned int line) INLINE { return min(first_row + line, sequence.rows - 1); };
    S accumulator(sequence.width, sequence.value_width, [&](unsigned int operand, unsigned int line) INLINE {
        const size_t head = sequence.head(row(line)), query = sequence.query(row(line));
        return operand == 0 ? sequence.q + head * sequence.q_head + query * sequence.q_row
                            : (const T *)sequence.out + head * sequence.out_head + query * sequence.out_row;
    });
    int positions[S::OWN_TILES][S::I];
    float totals[S::OWN_TILES][S::I], products[S::OWN_TILES][S::I], alibis[S::OWN_TILES][S::I];
#pragma unroll
    for (unsigned int e = 0; e < S::OWN_TILES * S::I; ++e) {
        const unsigned int t = e / S::I, i = e % S::I, at = row(t * TILE_SIDE + lane_query<T>(i));
        const unsigned int head = sequence.head(at), query = sequence.query(at);
        const float *total = sequence.statistics + (size_t)head * sequence.statistics_head + query;
        positions[t][i] = (int)query + mask_params.keys - (int)sequence.queries;
        totals[t][i] = *total;
        products[t][i] = means[total - statistics];
        alibis[t][i] = slopes == nullptr ? 0 : slopes[head];
    }
#pragma unroll 1
    for (unsigned int first = task.first_key; first < task.end_key; first += P::TILE_ROWS) {
        load_tile<T, P, WIDTH, VALUES_TRANSPOSED<T>>(lds.rows[0], lds.transposed[0], sequence.k, first, task.end_key,
                                                     sequence.width, task.column);
        load_tile<T, P, WIDTH, false>(lds.rows[1], lds.transposed[0], sequence.v, first, task.end_key, sequence.value_width, 0);
        __syncthreads();
        typename S::Tiles scores, score_gradients;
        accumulator.multiply_rows(scores, score_gradients, lds);
#pragma unroll
        for (unsigned int e = 0; e < S::OWN_TILES * S::I; ++e) {
            const unsigned int t = e / S::I, i = e % S::I;
            const auto key = [&](unsigned int j) INLINE {
                return (int)(first + j / S::J * TILE_SIDE + lane_key<T>(j % S::J));
            };
            const uint32_t visible = mask_params.template visible<S::TILES * S::J>(positions[t][i], key);
#pragma unroll
            for (unsigned int j = 0; j < S::TILES * S::J; ++j) {
                float &score_gradient = element<T>(score_gradients[t][j / S::J], i, j % S::J);
                const float alibi = alibis[t][i] * fabsf((float)(positions[t][i] - key(j)));
                const WeightGradient gradient = weight_gradient(
                    mask_params, element<T>(scores[t][j / S::J], i, j % S::J), score_gradient, alibi,
                    totals[t][i], products[t][i]);
                score_gradient = visible >> j & 1 ? gradient.score_gradient : 0;
            }
        }
        accumulator.add(0, score_gradients, lds, 0, task.column, exchange[wave]);
        __syncthreads();
    }
    accumulator.write(0, scale, task.column, sequence.width, [&](unsigned int line) INLINE -> T * {
        const unsigned int at = first_row + line;
        return at < sequence.rows ? row_of(out, info, 19, task.batch, sequence.head(at), task.query_start + sequence.query(at))
                                  : nullptr;
    });
}

template <typename T, unsigned int WIDTH>
__device__ __forceinline__ void gradient_keys(OPERANDS(T), T *out_keys, T *out_values) {
    typedef Plan<T, WIDTH, true> P;
    typedef GradientAccumulator<T, WIDTH, true> S;
    __shared__ typename P::Lds lds;
    __shared__ LaneExchange<T> exchange[P::WAVES];
    const Task<T> task = task_of<T>(ARGUMENTS);
    const Sequence<T> &sequence = task.sequence;
    const unsigned int keys = task.mask_params.keys, own = task.tile * P::ROWS, column = blockIdx.y * P::COLUMNS;
    // The grid covers `most` keys per sequence; a longer sequence is an error.
    const uint64_t most = ((const unsigned int *)info)[8];
    if (!task.fits || !is_within(keys, most + 1, CANDLE_FAULT_SEQUENCE) || own >= keys) {
        return;
    }
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), first_key = own + wave * (P::ROWS / P::WAVES);
    const int shift = (int)keys - (int)sequence.queries;
    // Seen from a key, `left` and `right` swap: which query positions see it.
    const MaskParams mask_params = {scale, softcap, task.mask_params.right, task.mask_params.left, (int)keys, nullptr, 0};
    S accumulator(sequence.width, sequence.value_width, [&](unsigned int operand, unsigned int line) INLINE {
        const KeyRows<T> &rows = operand == 0 ? sequence.k : sequence.v;
        return rows.template at<false>(min(first_key + line, keys - 1), 0, 0);
    });
    const int low = max((int)own - mask_params.left - shift, 0);
    const int high = min((int)min(own + P::ROWS, keys) + mask_params.right - shift, (int)sequence.queries);
    const unsigned int heads = sequence.queries == 0 ? 0 : sequence.rows / sequence.queries;
#pragma unroll 1
    for (unsigned int h = 0; h < heads; ++h) {
        const unsigned int head = sequence.first_head + h;
        const KeyRows<T> q_rows = {sequence.q + (size_t)head * sequence.q_head, sequence.q_row, 0, nullptr, Divisor(1), 0};
        const KeyRows<T> g_rows = {sequence.out + (size_t)head * sequence.out_head, sequence.out_row, 0, nullptr, Divisor(1), 0};
        const float *total = sequence.statistics + (size_t)head * sequence.statistics_head;
        const float *product = means + (total - statistics), slope = slopes == nullptr ? 0 : slopes[head];
#pragma unroll 1
        for (int first = low; first < high; first += P::TILE_ROWS) {
            load_tile<T, P, WIDTH, VALUES_TRANSPOSED<T>>(lds.rows[0], lds.transposed[0], q_rows, first, high, sequence.width, column);
            load_tile<T, P, WIDTH, VALUES_TRANSPOSED<T>>(lds.rows[1], lds.transposed[P::TRANSPOSED_TILES - (P::TRANSPOSED_TILES > 0)],
                                                         g_rows, first, high, sequence.value_width, column);
            __syncthreads();
            typename S::Tiles scores, score_gradients;
            accumulator.multiply_rows(scores, score_gradients, lds);
            const auto query = [&](unsigned int j) INLINE {
                return first + (int)(j / S::J * TILE_SIDE + lane_key<T>(j % S::J));
            };
            float totals[S::TILES * S::J], products[S::TILES * S::J];
#pragma unroll
            for (unsigned int j = 0; j < S::TILES * S::J; ++j) {
                totals[j] = total[min(query(j), high - 1)];
                products[j] = product[min(query(j), high - 1)];
            }
#pragma unroll
            for (unsigned int e = 0; e < S::OWN_TILES * S::I; ++e) {
                const unsigned int t = e / S::I, i = e % S::I;
                const int key = first_key + t * TILE_SIDE + lane_query<T>(i);
                const uint32_t visible = mask_params.template visible<S::TILES * S::J>(
                    key, [&](unsigned int j) INLINE { return query(j) < high ? query(j) + shift : (int)keys; });
#pragma unroll
                for (unsigned int j = 0; j < S::TILES * S::J; ++j) {
                    float &weight = element<T>(scores[t][j / S::J], i, j % S::J);
                    float &score_gradient = element<T>(score_gradients[t][j / S::J], i, j % S::J);
                    const float alibi = slope * fabsf((float)(query(j) + shift - key));
                    const WeightGradient gradient = weight_gradient(mask_params, weight, score_gradient, alibi, totals[j], products[j]);
                    weight = visible >> j & 1 ? gradient.weight : 0;
                    score_gradient = visible >> j & 1 ? gradient.score_gradient : 0;
                }
            }
            accumulator.add(0, score_gradients, lds, 0, column, exchange[wave]);
            accumulator.add(1, scores, lds, 1, column, exchange[wave]);
            __syncthreads();
        }
    }
    const auto to = [&](T *out, unsigned int words) INLINE {
        return [=, &task](unsigned int line) INLINE -> T * {
            const unsigned int key = first_key + line;
            return key < keys ? row_of(out, info, words, task.batch, task.key_head, task.key_start + key) : nullptr;
        };
    };
    accumulator.write(0, scale, column, sequence.width, to(out_keys, 19));
    accumulator.write(1, 1.0f, column, sequence.value_width, to(out_values, 22));
}

// Computes for each query row the dot product of the result's gradient and the result.
template <typename T>
__device__ __forceinline__ void gradient_means(const T *grad, const T *result, float *means, const size_t *info) {
    const auto word = [&](unsigned int i) INLINE { return ((const unsigned int *)info)[2 * i]; };
    const unsigned int heads = word(0), rows = word(1), width = word(2), all = word(3);
    const unsigned int at = blockIdx.x * (CANDLE_BLOCK / LANES) + threadIdx.x / LANES;
    const unsigned int row = min(at, all - 1), query = row % rows, head = row / rows % heads, batch = row / rows / heads;
    const auto begins = [&](const T *values, unsigned int strides) INLINE {
        return values + (size_t)batch * word(strides) + (size_t)head * word(strides + 1) + (size_t)query * word(strides + 2);
    };
    const T *a = begins(grad, 4), *b = begins(result, 7);
    float sum = 0;
    for (unsigned int i = threadIdx.x % LANES; i < width; i += LANES) {
        sum = fmaf(static_cast<float>(a[i]), static_cast<float>(b[i]), sum);
    }
    sum = reduce_lanes(sum, LANES, [](float x, float y) INLINE { return x + y; });
    if (at < all && threadIdx.x % LANES == 0) {
        means[at] = sum;
    }
}

#define GRADIENT(T, T_NAME, WIDTH)                                                                                      \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) gradient_queries_##WIDTH##_##T_NAME(                     \
        const T *q, const T *k, const T *v, const T *grad, const float *statistics, const float *means,                 \
        const float *slopes, const uint32_t *query_starts, const uint32_t *key_starts,                                  \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys, T *out) {                                                                        \
        gradient_queries<T, WIDTH>(ARGUMENTS, out);                                                                     \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) gradient_keys_##WIDTH##_##T_NAME(                        \
        const T *q, const T *k, const T *v, const T *grad, const float *statistics, const float *means,                 \
        const float *slopes, const uint32_t *query_starts, const uint32_t *key_starts,                                  \
        const size_t *info, const float scale, const float softcap, const unsigned int total_queries,                   \
        const unsigned int total_keys, T *out_keys, T *out_values) {                                                    \
        gradient_keys<T, WIDTH>(ARGUMENTS, out_keys, out_values);                                                       \
    }
#define GRADIENT_MEANS(T, T_NAME)                                                                                       \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) gradient_means_##T_NAME(                                 \
        const T *grad, const T *result, float *means, const size_t *info) {                                             \
        gradient_means<T>(grad, result, means, info);                                                                   \
    }
GRADIENT_MEANS(float, f32)
GRADIENT_MEANS(__half, f16)
GRADIENT_MEANS(__nv_bfloat16, bf16)
GRADIENT(float, f32, 64)
GRADIENT(float, f32, 128)
GRADIENT(float, f32, 256)
GRADIENT(__half, f16, 64)
GRADIENT(__half, f16, 128)
GRADIENT(__half, f16, 512)
GRADIENT(__nv_bfloat16, bf16, 64)
GRADIENT(__nv_bfloat16, bf16, 128)
GRADIENT(__nv_bfloat16, bf16, 512)
