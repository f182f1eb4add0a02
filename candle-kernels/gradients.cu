// Gradients of attention. Weights and their gradients are made anew from queries, keys and the statistics of the forward
// pass, tile by tile; each result is summed up by one workgroup, in one order.
//
// gradient_queries: a workgroup has rows of queries and walks over the keys that they see. gradient_keys: it has keys, and
// walks over the queries of all heads that share them.
#include "attention.cuh"

// What a workgroup's own rows and the tiles that it walks over are like.
template <typename T, unsigned int WIDTH, bool OF_KEYS>
struct Plan {
    static constexpr unsigned int THREADS = CANDLE_BLOCK, WAVES = THREADS / WAVE, ROWS = CANDLE_ATTENTION_ROWS;
    static constexpr unsigned int OWN_TILES = ROWS / WAVES / TILE_SIDE;
    // Columns of the results of a workgroup.
    static constexpr bool NARROW = OF_KEYS ? BY_LANES<T> || sizeof(T) == 4 : sizeof(T) == 4 && WIDTH > 128;
    static constexpr unsigned int MOST_COLUMNS = NARROW ? 64 : 128;
    static constexpr unsigned int COLUMNS = WIDTH < MOST_COLUMNS ? WIDTH : MOST_COLUMNS;
    // Slabs of walked rows that are turned.
    static constexpr unsigned int TURNS = !TURNED<T> ? 0 : OF_KEYS ? 2 : 1;
    static constexpr unsigned int FIT = 40960 / ((2 * WIDTH + TURNS * COLUMNS) * sizeof(T));
    // Registers hold the sums of two results, or of one and more scores.
    static constexpr unsigned int WALKED = OF_KEYS || FIT < 32 ? TILE_SIDE : 32;
    static constexpr unsigned int REGISTERS =
        2 * OWN_TILES * WIDTH / STEP<T> * Queries<T>::LINES * Queries<T>::WORDS;
    static constexpr bool OWN_STAY = REGISTERS <= (OF_KEYS ? 32 : 64) && !BY_LANES<T>;

    typedef Slab<T, WALKED, WIDTH> Rows;
    typedef Slab<T, COLUMNS, WALKED> Turned;
    struct Lds {
        Rows rows[2];
        Turned turned[TURNS == 0 ? 1 : TURNS];
    };
};

// Rows that are walked over, 16 bytes at a time, to one slab as they are and, of COLUMNS columns from `column` on, to another
// one turned.
template <typename T, typename P, unsigned int WIDTH, bool TURN>
__device__ __forceinline__ void bring(typename P::Rows &rows, typename P::Turned &turned, const KeyRows<T> &from,
                                      unsigned int first, unsigned int end, unsigned int width, unsigned int column) {
    constexpr unsigned int N = 16 / sizeof(T), CHUNKS = WIDTH / N, ALL = P::WALKED / 4 * CHUNKS;
    for (unsigned int unit = anew(threadIdx.x); unit < ALL; unit += P::THREADS) {
        const unsigned int line = unit / CHUNKS * 4, at = unit % CHUNKS * N;
        Pack<T> packs[4];
#pragma unroll
        for (unsigned int j = 0; j < 4; ++j) {
            const unsigned int more = min(line + j, end - 1 - first);
            packs[j] = at < width ? Pack<T>::read(from.template at<false>(first, more, at)) : Pack<T>{};
            rows.write(P::Rows::place(line, at), j, 0, packs[j]);
        }
        if (TURN && at >= column && at < column + P::COLUMNS) {
            struct alignas(4 * sizeof(T)) Four { T of[4]; };
#pragma unroll
            for (unsigned int c = 0; c < N; ++c) {
                *(Four *)turned.at(P::Turned::place(at - column, line), c, 0) =
                    Four{{packs[0][c], packs[1][c], packs[2][c], packs[3][c]}};
            }
        }
    }
}

// A wave's own rows: operands of both products, and sums of results.
template <typename T, unsigned int WIDTH, bool OF_KEYS>
struct Sweep {
    typedef Plan<T, WIDTH, OF_KEYS> P;
    static constexpr unsigned int OWN_TILES = P::OWN_TILES, TILES = P::WALKED / TILE_SIDE, STEPS = WIDTH / STEP<T>;
    static constexpr unsigned int COLUMN_TILES = P::COLUMNS / TILE_SIDE, RESULTS = OF_KEYS ? 2 : 1;
    static constexpr unsigned int I = HELD_QUERIES<T>, J = HELD_OTHERS<T>;
    typedef Scores<T> Tiles[OWN_TILES][TILES];

    // Of keys and values, or of queries and their results' gradients.
    const T *lines[2][OWN_TILES][Queries<T>::OWN];
    unsigned int width, value_width;
    Queries<T> own[P::OWN_STAY ? 2 : 1][P::OWN_STAY ? OWN_TILES : 1][P::OWN_STAY ? STEPS : 1];
    Scores<T> out[RESULTS][OWN_TILES][COLUMN_TILES];

    __device__ __forceinline__ Queries<T> read(unsigned int operand, unsigned int tile, unsigned int step) const {
        return Queries<T>::gather(lines[operand][tile], step * STEP<T>, operand == 0 ? width : value_width);
    }

    // `line(operand, row)` is where an own row begins.
    template <typename L>
    __device__ __forceinline__ Sweep(unsigned int width, unsigned int value_width, L line)
        : width(width), value_width(value_width), out() {
#pragma unroll
        for (unsigned int i = 0; i < 2 * OWN_TILES * Queries<T>::OWN; ++i) {
            const unsigned int operand = i % 2, tile = i / 2 / Queries<T>::OWN, which = i / 2 % Queries<T>::OWN;
            lines[operand][tile][which] = line(operand, tile * TILE_SIDE + Queries<T>::own_line(which));
        }
        if constexpr (P::OWN_STAY) {
#pragma unroll
            for (unsigned int i = 0; i < 2 * OWN_TILES * STEPS; ++i) {
                own[i % 2][i / 2 / STEPS][i / 2 % STEPS] = read(i % 2, i / 2 / STEPS, i / 2 % STEPS);
            }
        }
    }

    // The products of own rows and those in LDS, of both operands.
    __device__ __forceinline__ void multiply_rows(Tiles &scores, Tiles &slopes, const typename P::Lds &lds) const {
#pragma unroll
        for (unsigned int i = 0; i < OWN_TILES * TILES; ++i) {
            scores[i / TILES][i % TILES] = slopes[i / TILES][i % TILES] = {};
        }
        constexpr unsigned int UNROLL = P::OWN_STAY ? STEPS : 1;
        const unsigned int lane = anew(P::Rows::template lane_place<Others<T>>());
#pragma unroll UNROLL
        for (unsigned int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (unsigned int operand = 0; operand < 2; ++operand) {
                Queries<T> mine[OWN_TILES];
#pragma unroll
                for (unsigned int t = 0; t < OWN_TILES; ++t) {
                    if constexpr (P::OWN_STAY) {
                        mine[t] = own[operand][t][step];
                    } else {
                        mine[t] = read(operand, t, step);
                    }
                }
#pragma unroll
                for (unsigned int tile = 0; tile < TILES; ++tile) {
                    const Others<T> other =
                        lds.rows[operand].template read<Others<T>>(lane, tile * TILE_SIDE, step * STEP<T>);
#pragma unroll
                    for (unsigned int t = 0; t < OWN_TILES; ++t) {
                        accumulate<T>(operand == 0 ? scores[t][tile] : slopes[t][tile], mine[t], other);
                    }
                }
                asm volatile("" ::: "memory");
            }
        }
    }

    // Adds products along the rows in LDS to a result: factors in `tiles`, columns of operand `which` of the walked rows.
    __device__ __forceinline__ void add(unsigned int result, Tiles &tiles, const typename P::Lds &lds, unsigned int which,
                                        unsigned int column, Exchange<T> &exchange) {
#pragma unroll
        for (unsigned int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (unsigned int t = 0; t < OWN_TILES; ++t) {
                const Weights<T> weights(tiles[t][tile], exchange);
#pragma unroll
                for (unsigned int c = 0; c < COLUMN_TILES * Weights<T>::STEPS; ++c) {
                    const unsigned int to = c / Weights<T>::STEPS, step = c % Weights<T>::STEPS;
                    const unsigned int k = tile * TILE_SIDE + step * STEP<T>;
                    Others<T> columns;
                    if constexpr (TURNED<T>) {
                        const unsigned int lane = anew(P::Turned::template lane_place<Others<T>>());
                        columns = lds.turned[which].template read<Others<T>>(lane, to * TILE_SIDE, k);
                    } else {
                        const unsigned int lane = P::Rows::place(Others<T>::turned_line(), Others<T>::turned_k() + column);
                        columns = Others<T>::turned(lds.rows[which].at(lane, k, to * TILE_SIDE));
                    }
                    accumulate<T>(out[result][t][to], weights.of[step], columns);
                    if (c % 4 == 3) {
                        asm volatile("" ::: "memory");
                    }
                }
            }
        }
    }

    // Writes a result's rows, times a factor: `line(row)` is where one begins, or null.
    template <typename L>
    __device__ __forceinline__ void write(unsigned int result, float factor, unsigned int column, unsigned int end, L line) {
#pragma unroll
        for (unsigned int t = 0; t < OWN_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                T *const to = line(t * TILE_SIDE + query_line<T>(i));
                if (to == nullptr) {
                    continue;
                }
#pragma unroll
                for (unsigned int c = 0; c < COLUMN_TILES * J; c += RUN<T>) {
                    const unsigned int at = column + c / J * TILE_SIDE + other_line<T>(c % J);
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

// The weight of a key for a query, and its gradient's share that goes to the product of both.
struct Weighed {
    float weight, slope;
};
// `score` is the product, `slope` that of the result's gradient and the value; `total` is the logarithm of the sum of exponents and
// `mean` the result's gradient times the result.
__device__ __forceinline__ Weighed weigh(const Sight &sight, float score, float slope, float alibi, float total, float mean) {
    const float plain = score * sight.scale, capped = sight.capped(plain);
    const float weight = candle_exp2((capped - alibi - total) * LOG2_E);
    const float bent = sight.softcap > 0 ? 1 - capped / sight.softcap * (capped / sight.softcap) : 1.0f;
    return Weighed{weight, weight * (slope - mean) * bent};
}

#define OPERANDS(T)                                                                                                     \
    const T *q, const T *k, const T *v, const T *grad, const float *statistics, const float *means, const float *slopes, \
        const uint32_t *query_starts, const uint32_t *key_starts, const size_t *info, const float scale,                \
        const float softcap, const unsigned int total_queries, const unsigned int total_keys
#define ARGUMENTS                                                                                                       \
    q, k, v, grad, statistics, means, slopes, query_starts, key_starts, info, scale, softcap, total_queries, total_keys

// The sequence and its workgroup's tile; what is read in place of the results are their gradients.
template <typename T>
__device__ __forceinline__ Task<T> task_of(OPERANDS(T)) {
    return Task<T>(q, k, v, nullptr, const_cast<T *>(grad), const_cast<float *>(statistics), slopes, query_starts, key_starts,
                   nullptr, nullptr, info, scale, softcap, total_queries, total_keys);
}
// Where a row of a result begins, whose strides of batches, heads and rows are words from the first on.
template <typename T>
__device__ __forceinline__ T *row_of(T *out, const size_t *info, unsigned int first, size_t batch, unsigned int head, size_t row) {
    const auto word = [&](unsigned int i) INLINE { return ((const unsigned int *)info)[2 * i]; };
    return out + batch * word(first) + (size_t)head * word(first + 1) + row * word(first + 2);
}

template <typename T, unsigned int WIDTH>
__device__ __forceinline__ void gradient_queries(OPERANDS(T), T *out) {
    typedef Plan<T, WIDTH, false> P;
    typedef Sweep<T, WIDTH, false> S;
    __shared__ typename P::Lds lds;
    __shared__ Exchange<T> exchange[P::WAVES];
    Task<T> task = task_of<T>(ARGUMENTS);
    task.take(P::ROWS, P::COLUMNS);
    if (task.empty) {
        return;
    }
    const Sequence<T> &sequence = task.sequence;
    const Sight &sight = task.sight;
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), first_row = task.first_row + wave * (P::ROWS / P::WAVES);
    // Rows past the last are like it; what comes of them is not written.
    const auto row = [&](unsigned int line) INLINE { return min(first_row + line, sequence.rows - 1); };
    S sweep(sequence.width, sequence.value_width, [&](unsigned int operand, unsigned int line) INLINE {
        const size_t head = sequence.head(row(line)), query = sequence.query(row(line));
        return operand == 0 ? sequence.q + head * sequence.q_head + query * sequence.q_row
                            : (const T *)sequence.out + head * sequence.out_head + query * sequence.out_row;
    });
    int positions[S::OWN_TILES][S::I];
    float totals[S::OWN_TILES][S::I], products[S::OWN_TILES][S::I], alibis[S::OWN_TILES][S::I];
#pragma unroll
    for (unsigned int e = 0; e < S::OWN_TILES * S::I; ++e) {
        const unsigned int t = e / S::I, i = e % S::I, at = row(t * TILE_SIDE + query_line<T>(i));
        const unsigned int head = sequence.head(at), query = sequence.query(at);
        const float *total = sequence.statistics + (size_t)head * sequence.statistics_head + query;
        positions[t][i] = (int)query + sight.keys - (int)sequence.queries;
        totals[t][i] = *total;
        products[t][i] = means[total - statistics];
        alibis[t][i] = slopes == nullptr ? 0 : slopes[head];
    }
#pragma unroll 1
    for (unsigned int first = task.first_key; first < task.end_key; first += P::WALKED) {
        bring<T, P, WIDTH, TURNED<T>>(lds.rows[0], lds.turned[0], sequence.k, first, task.end_key, sequence.width, task.column);
        bring<T, P, WIDTH, false>(lds.rows[1], lds.turned[0], sequence.v, first, task.end_key, sequence.value_width, 0);
        __syncthreads();
        typename S::Tiles scores, shares;
        sweep.multiply_rows(scores, shares, lds);
#pragma unroll
        for (unsigned int e = 0; e < S::OWN_TILES * S::I; ++e) {
            const unsigned int t = e / S::I, i = e % S::I;
            const auto key = [&](unsigned int j) INLINE {
                return (int)(first + j / S::J * TILE_SIDE + other_line<T>(j % S::J));
            };
            const uint32_t seen = sight.template seen<S::TILES * S::J>(positions[t][i], key);
#pragma unroll
            for (unsigned int j = 0; j < S::TILES * S::J; ++j) {
                float &share = element<T>(shares[t][j / S::J], i, j % S::J);
                const float alibi = alibis[t][i] * fabsf((float)(positions[t][i] - key(j)));
                const Weighed weighed = weigh(sight, element<T>(scores[t][j / S::J], i, j % S::J), share, alibi,
                                              totals[t][i], products[t][i]);
                share = seen >> j & 1 ? weighed.slope : 0;
            }
        }
        sweep.add(0, shares, lds, 0, task.column, exchange[wave]);
        __syncthreads();
    }
    sweep.write(0, scale, task.column, sequence.width, [&](unsigned int line) INLINE -> T * {
        const unsigned int at = first_row + line;
        return at < sequence.rows ? row_of(out, info, 19, task.batch, sequence.head(at), task.query_start + sequence.query(at))
                                  : nullptr;
    });
}

template <typename T, unsigned int WIDTH>
__device__ __forceinline__ void gradient_keys(OPERANDS(T), T *out_keys, T *out_values) {
    typedef Plan<T, WIDTH, true> P;
    typedef Sweep<T, WIDTH, true> S;
    __shared__ typename P::Lds lds;
    __shared__ Exchange<T> exchange[P::WAVES];
    const Task<T> task = task_of<T>(ARGUMENTS);
    const Sequence<T> &sequence = task.sequence;
    const unsigned int keys = task.sight.keys, own = task.tile * P::ROWS, column = blockIdx.y * P::COLUMNS;
    // Keys beyond those that the grid has would have no gradient.
    const uint64_t most = ((const unsigned int *)info)[8];
    if (!task.fits || !is_within(keys, most + 1, CANDLE_FAULT_SEQUENCE) || own >= keys) {
        return;
    }
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), first_key = own + wave * (P::ROWS / P::WAVES);
    const int shift = (int)keys - (int)sequence.queries;
    // From a key's place: which positions see it.
    const Sight sight = {scale, softcap, task.sight.right, task.sight.left, (int)keys, nullptr, 0};
    S sweep(sequence.width, sequence.value_width, [&](unsigned int operand, unsigned int line) INLINE {
        const KeyRows<T> &rows = operand == 0 ? sequence.k : sequence.v;
        return rows.template at<false>(min(first_key + line, keys - 1), 0, 0);
    });
    const int low = max((int)own - sight.left - shift, 0);
    const int high = min((int)min(own + P::ROWS, keys) + sight.right - shift, (int)sequence.queries);
    const unsigned int heads = sequence.queries == 0 ? 0 : sequence.rows / sequence.queries;
#pragma unroll 1
    for (unsigned int h = 0; h < heads; ++h) {
        const unsigned int head = sequence.first_head + h;
        const KeyRows<T> q_rows = {sequence.q + (size_t)head * sequence.q_head, sequence.q_row, 0, nullptr, 0, 0};
        const KeyRows<T> g_rows = {sequence.out + (size_t)head * sequence.out_head, sequence.out_row, 0, nullptr, 0, 0};
        const float *total = sequence.statistics + (size_t)head * sequence.statistics_head;
        const float *product = means + (total - statistics), slope = slopes == nullptr ? 0 : slopes[head];
#pragma unroll 1
        for (int first = low; first < high; first += P::WALKED) {
            bring<T, P, WIDTH, TURNED<T>>(lds.rows[0], lds.turned[0], q_rows, first, high, sequence.width, column);
            bring<T, P, WIDTH, TURNED<T>>(lds.rows[1], lds.turned[P::TURNS - (P::TURNS > 0)], g_rows, first, high,
                                          sequence.value_width, column);
            __syncthreads();
            typename S::Tiles scores, shares;
            sweep.multiply_rows(scores, shares, lds);
            const auto query = [&](unsigned int j) INLINE {
                return first + (int)(j / S::J * TILE_SIDE + other_line<T>(j % S::J));
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
                const int key = first_key + t * TILE_SIDE + query_line<T>(i);
                const uint32_t seen = sight.template seen<S::TILES * S::J>(
                    key, [&](unsigned int j) INLINE { return query(j) < high ? query(j) + shift : (int)keys; });
#pragma unroll
                for (unsigned int j = 0; j < S::TILES * S::J; ++j) {
                    float &weight = element<T>(scores[t][j / S::J], i, j % S::J);
                    float &share = element<T>(shares[t][j / S::J], i, j % S::J);
                    const float alibi = slope * fabsf((float)(query(j) + shift - key));
                    const Weighed weighed = weigh(sight, weight, share, alibi, totals[j], products[j]);
                    weight = seen >> j & 1 ? weighed.weight : 0;
                    share = seen >> j & 1 ? weighed.slope : 0;
                }
            }
            sweep.add(0, shares, lds, 0, column, exchange[wave]);
            sweep.add(1, scores, lds, 1, column, exchange[wave]);
            __syncthreads();
        }
    }
    const auto to = [&](T *out, unsigned int words) INLINE {
        return [=, &task](unsigned int line) INLINE -> T * {
            const unsigned int key = first_key + line;
            return key < keys ? row_of(out, info, words, task.batch, task.key_head, task.key_start + key) : nullptr;
        };
    };
    sweep.write(0, scale, column, sequence.width, to(out_keys, 19));
    sweep.write(1, 1.0f, column, sequence.value_width, to(out_values, 22));
}

// Of each row of queries, its result's gradient times the result.
template <typename T>
__device__ __forceinline__ void gradient_means(const T *grad, const T *result, float *means, const size_t *info) {
    const auto word = [&](unsigned int i) INLINE { return ((const unsigned int *)info)[2 * i]; };
    const unsigned int heads = word(0), rows = word(1), width = word(2), all = word(3);
    const unsigned int at = blockIdx.x * (CANDLE_BLOCK / LANES) + threadIdx.x / LANES;
    const unsigned int row = min(at, all - 1), query = row % rows, head = row / rows % heads, batch = row / rows / heads;
    const auto begins = [&](const T *of, unsigned int strides) INLINE {
        return of + (size_t)batch * word(strides) + (size_t)head * word(strides + 1) + (size_t)query * word(strides + 2);
    };
    const T *a = begins(grad, 4), *b = begins(result, 7);
    float sum = 0;
    for (unsigned int i = threadIdx.x % LANES; i < width; i += LANES) {
        sum = fmaf(static_cast<float>(a[i]), static_cast<float>(b[i]), sum);
    }
    sum = combined_by_lanes(sum, LANES, [](float x, float y) INLINE { return x + y; });
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
GRADIENT(__half, f16, 256)
GRADIENT(__half, f16, 512)
GRADIENT(__nv_bfloat16, bf16, 64)
GRADIENT(__nv_bfloat16, bf16, 128)
GRADIENT(__nv_bfloat16, bf16, 256)
GRADIENT(__nv_bfloat16, bf16, 512)
