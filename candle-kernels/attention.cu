// Scaled dot product attention with an online softmax: scores never leave registers. Rows of queries, those of all heads
// that share a key head behind each other, meet tiles of keys on the machine's matrix units.
//
// attention_rows: the waves of a workgroup have rows of their own, and walk over the keys together. attention_keys: they
// have the same few rows, and keys of their own; workgroups may have parts of the keys, which attention_parts puts together.
#include "attention.cuh"

// What a workgroup's rows and tiles are like. Rows and threads are the same everywhere.
template <typename T, unsigned int WIDTH, bool SPLIT>
struct Plan {
    static constexpr unsigned int THREADS = SPLIT ? CANDLE_ATTENTION_SPLIT_THREADS : CANDLE_BLOCK;
    static constexpr unsigned int ROWS = SPLIT ? TILE_SIDE : CANDLE_ATTENTION_ROWS, WAVES = THREADS / WAVE;
    static constexpr unsigned int QUERY_TILES = SPLIT ? 1 : ROWS / WAVES / TILE_SIDE;
    // Columns of values of a workgroup: heads are computed in pieces where registers cannot hold the whole.
    static constexpr unsigned int WHOLE = BY_LANES<T> || sizeof(T) == 4 ? CANDLE_ATTENTION_COLUMNS : 256;
    static constexpr unsigned int VALUES = WIDTH > WHOLE ? CANDLE_ATTENTION_COLUMNS : WIDTH;
    // Keys of a tile: as many as LDS has room for, and registers for their scores.
    static constexpr unsigned int FIT = (SPLIT || BY_LANES<T> ? 8192 : 16384) / (WIDTH * sizeof(T));
#if defined(TILES_BY_MMA)
    static constexpr unsigned int MOST = SPLIT || BY_LANES<T> || WIDTH < 128 ? 32 : 64;
#else
    static constexpr unsigned int MOST = SPLIT ? TILE_SIDE : BY_LANES<T> || WIDTH < 128 ? 32 : 64;
#endif
    static constexpr unsigned int KEYS = FIT < TILE_SIDE ? TILE_SIDE : FIT < MOST ? FIT : MOST;
    // Registers that the queries' factors would take; where they are too many, queries are read again for each tile.
    static constexpr unsigned int REGISTERS = QUERY_TILES * WIDTH / STEP<T> * Queries<T>::LINES * Queries<T>::WORDS;
#if defined(TILES_BY_WMMA)
    static constexpr bool QUERIES_STAY = REGISTERS <= 64 && WIDTH <= 128;
#else
    static constexpr bool QUERIES_STAY = REGISTERS <= 64 && WIDTH <= 256;
#endif
    // Threads that bring keys to LDS together.
    static constexpr unsigned int TEAM = SPLIT ? WAVE : THREADS;

    // Whether the next keys and values wait in registers while those in LDS are in use.
    static constexpr bool AHEAD = SPLIT && WAVE == 64;
    typedef typename Staged<T, KEYS, WIDTH, TEAM, false>::To Keys;
    typedef typename Staged<T, KEYS, VALUES, TEAM, TURNED<T>>::To Values;
    struct Lds {
        Keys keys;
        Values values;
    };
    static constexpr unsigned int LDS_BYTES = 48 * 1024;
    // Where there is no room for all, some waves have no keys.
    static constexpr unsigned int TEAMS = !SPLIT                                 ? 1
                                          : WAVES * (sizeof(Lds) + sizeof(Exchange<T>)) <= LDS_BYTES ? WAVES
                                                                                 : LDS_BYTES / (sizeof(Lds) + sizeof(Exchange<T>));
};

// Weights, and their sums, are greater by this power of 2: the least ones would lie below f16's normal numbers, which are
// less precise, and zero to gfx90a's matrix units.
template <typename T> constexpr float RAISED = 0;
template <> constexpr float RAISED<__half> = 15;

// A team's walk over keys, and what a lane has of its rows' sums.
template <typename T, typename P, unsigned int WIDTH>
struct Walk {
    static constexpr unsigned int QUERY_TILES = P::QUERY_TILES, KEY_TILES = P::KEYS / TILE_SIDE, STEPS = WIDTH / STEP<T>;
    static constexpr unsigned int COLUMN_TILES = P::VALUES / TILE_SIDE;
    static constexpr unsigned int I = HELD_QUERIES<T>, J = HELD_OTHERS<T>;

    const Sequence<T> &sequence;
    const Sight &sight;
    // The first of the wave's rows.
    unsigned int first_row;
    // What scores are multiplied by in the exponent of 2; 1 where they have been already.
    float factor;
    bool special;
    // Where the lane's queries begin.
    const T *lines[QUERY_TILES][Queries<T>::OWN];
    Queries<T> queries[P::QUERIES_STAY ? QUERY_TILES : 1][P::QUERIES_STAY ? STEPS : 1];
    int positions[QUERY_TILES][I];
    float tops[QUERY_TILES][I], sums[QUERY_TILES][I];
    Scores<T> out[QUERY_TILES][COLUMN_TILES];

    // Rows past the last are like it; what comes of them is not written.
    __device__ __forceinline__ unsigned int row(unsigned int line) const { return min(first_row + line, sequence.rows - 1); }

    __device__ __forceinline__ Queries<T> read_queries(unsigned int tile, unsigned int step) const {
        return Queries<T>::gather(lines[tile], step * STEP<T>, sequence.width);
    }

    __device__ __forceinline__ Walk(const Sequence<T> &sequence, const Sight &sight, unsigned int first_row)
        : sequence(sequence), sight(sight), first_row(first_row), out() {
        special = sight.scale <= 0 || sight.softcap > 0 || sequence.slopes != nullptr || sequence.mask != nullptr;
        factor = special ? 1.0f : sight.scale * LOG2_E;
#pragma unroll
        for (unsigned int i = 0; i < QUERY_TILES * Queries<T>::OWN; ++i) {
            const unsigned int tile = i / Queries<T>::OWN, own = i % Queries<T>::OWN;
            const unsigned int at = row(tile * TILE_SIDE + Queries<T>::own_line(own));
            lines[tile][own] =
                sequence.q + (size_t)sequence.head(at) * sequence.q_head + (size_t)sequence.query(at) * sequence.q_row;
        }
        if constexpr (P::QUERIES_STAY) {
#pragma unroll
            for (unsigned int i = 0; i < QUERY_TILES * STEPS; ++i) {
                queries[i / STEPS][i % STEPS] = read_queries(i / STEPS, i % STEPS);
            }
        }
#pragma unroll
        for (unsigned int t = 0; t < QUERY_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                positions[t][i] = (int)sequence.query(row(t * TILE_SIDE + query_line<T>(i))) + sight.keys - (int)sequence.queries;
                tops[t][i] = -INFINITY;
                sums[t][i] = 0;
            }
        }
    }

    // Scores in the exponent of 2, of products with the keys from `first` on.
    __device__ __forceinline__ void transform(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], unsigned int first) const {
#pragma unroll
        for (unsigned int t = 0; t < QUERY_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                const unsigned int at = anew(row(t * TILE_SIDE + query_line<T>(i))), head = sequence.head(at);
                const float slope = sequence.slopes == nullptr ? 0 : sequence.slopes[head];
                const T *mask = sequence.mask;
                if (mask != nullptr) {
                    mask += (size_t)head * sequence.mask_head + (size_t)sequence.query(at) * sequence.mask_row;
                }
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    float &score = element<T>(scores[t][j / J], i, j % J);
                    const unsigned int key = first + j / J * TILE_SIDE + other_line<T>(j % J);
                    float value = sight.capped(score * sight.scale) - slope * fabsf((float)(positions[t][i] - (int)key));
                    if (mask != nullptr && key < sight.keys) {
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

    __device__ __forceinline__ void hide(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], unsigned int first) const {
#pragma unroll
        for (unsigned int t = 0; t < QUERY_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                const uint32_t seen = sight.template seen<KEY_TILES * J>(positions[t][i], [&](unsigned int j) INLINE {
                    return (int)(first + j / J * TILE_SIDE + other_line<T>(j % J));
                });
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    float &score = element<T>(scores[t][j / J], i, j % J);
                    score = seen >> j & 1 ? score : -INFINITY;
                }
            }
        }
    }

    // Scores become weights relative to the highest score so far, and earlier sums are brought to it.
    __device__ __forceinline__ void weigh(Scores<T> (&scores)[QUERY_TILES][KEY_TILES]) {
#pragma unroll
        for (unsigned int t = 0; t < QUERY_TILES; ++t) {
#pragma unroll
            for (unsigned int i = 0; i < I; ++i) {
                float highest = -INFINITY;
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    highest = fmaxf(highest, element<T>(scores[t][j / J], i, j % J));
                }
                highest = across<QUERIES<T>, BY_LANES<T>>(highest, fmaxf);
                const float top = fmaxf(tops[t][i], highest);
                // Where no key was seen yet, any base makes all weights zero.
                const float highest_finite = top == -INFINITY ? 0.0f : top, base = highest_finite * factor;
                const float fade = candle_exp2(fmaf(tops[t][i], factor, -base));
                const float raised = RAISED<T> - base;
                tops[t][i] = top;
                float sum = 0;
#pragma unroll
                for (unsigned int j = 0; j < KEY_TILES * J; ++j) {
                    float &score = element<T>(scores[t][j / J], i, j % J);
                    // Of few rows, which wait for memory, the highest score has a weight of exactly a power of 2.
                    score = candle_exp2(P::TEAM == WAVE ? fmaf(score - highest_finite, factor, RAISED<T>)
                                                        : fmaf(score, factor, raised));
                    sum += score;
                }
                sums[t][i] = fmaf(sums[t][i], fade, sum);
#pragma unroll
                for (unsigned int j = 0; j < COLUMN_TILES * J; ++j) {
                    element<T>(out[t][j / J], i, j % J) *= fade;
                }
            }
        }
    }

    // The products of queries with the keys in LDS.
    __device__ __forceinline__ void score(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], const typename P::Keys &keys) const {
#pragma unroll
        for (unsigned int i = 0; i < QUERY_TILES * KEY_TILES; ++i) {
            scores[i / KEY_TILES][i % KEY_TILES] = {};
        }
        constexpr unsigned int UNROLL = P::QUERIES_STAY ? STEPS : 1;
        const unsigned int lane = anew(P::Keys::template lane_place<Others<T>>());
#pragma unroll UNROLL
        for (unsigned int step = 0; step < STEPS; ++step) {
            Queries<T> read[QUERY_TILES];
            if constexpr (!P::QUERIES_STAY) {
#pragma unroll
                for (unsigned int t = 0; t < QUERY_TILES; ++t) {
                    read[t] = read_queries(t, step);
                }
            }
#pragma unroll
            for (unsigned int tile = 0; tile < KEY_TILES; ++tile) {
                const Others<T> key = keys.template read<Others<T>>(lane, tile * TILE_SIDE, step * STEP<T>);
#pragma unroll
                for (unsigned int t = 0; t < QUERY_TILES; ++t) {
                    if constexpr (P::QUERIES_STAY) {
                        accumulate<T>(scores[t][tile], queries[t][step], key);
                    } else {
                        accumulate<T>(scores[t][tile], read[t], key);
                    }
                }
                if (BY_LANES<T>) {
                    asm volatile("" ::: "memory");
                }
            }
            // No more is read ahead than registers hold.
            asm volatile("" ::: "memory");
        }
    }

    // Adds the values in LDS by their weights.
    __device__ __forceinline__ void add(Scores<T> (&scores)[QUERY_TILES][KEY_TILES], const typename P::Values &slab,
                                        Exchange<T> &exchange) {
        const unsigned int lane = anew(lane_of_columns<T, typename P::Values>());
#pragma unroll
        for (unsigned int tile = 0; tile < KEY_TILES; ++tile) {
#pragma unroll
            for (unsigned int t = 0; t < QUERY_TILES; ++t) {
                const Weights<T> weights(scores[t][tile], exchange);
#pragma unroll
                for (unsigned int c = 0; c < COLUMN_TILES * Weights<T>::STEPS; ++c) {
                    const unsigned int column = c / Weights<T>::STEPS, step = c % Weights<T>::STEPS;
                    const Others<T> values =
                        read_columns<T>(slab, lane, column * TILE_SIDE, tile * TILE_SIDE + step * STEP<T>);
                    accumulate<T>(out[t][column], weights.of[step], values);
                    if (BY_LANES<T> || c % 4 == 3) {
                        asm volatile("" ::: "memory");
                    }
                }
            }
        }
    }

    __device__ __forceinline__ static void wait() {
        if constexpr (P::TEAM == WAVE) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    }

    // Over the keys from `first` to before `end`, P::KEYS every `stride`. `low` and `high` are the least and the greatest of
    // the wave's positions; a wave without rows has a greater low one. Values are on their way while scores are made, and the
    // next keys while values are added; where each wave has tiles of its own, both are throughout.
    __device__ __forceinline__ void run(typename P::Lds &lds, Exchange<T> &exchange, unsigned int first, unsigned int end,
                                        unsigned int stride, unsigned int column, int low, int high) {
        const unsigned int thread = threadIdx.x % P::TEAM, width = sequence.width;
        const unsigned int value_width = sequence.value_width - column;
        const KeyRows<T> &k = sequence.k;
        KeyRows<T> v = sequence.v;
        v.first += column;
        const uint2 seen = low <= high ? sight.span(low, high) : uint2{0, 0};
        Staged<T, P::KEYS, WIDTH, P::TEAM, false> keys;
        Staged<T, P::KEYS, P::VALUES, P::TEAM, TURNED<T>> values;
        if (first < end) {
            keys.start(lds.keys, k, first, end, width, thread);
            keys.finish(lds.keys, k, first, end, width, thread);
            if constexpr (P::AHEAD) {
                values.start(lds.values, v, first, end, value_width, thread);
            }
            wait();
        }
#pragma unroll 1
        for (; first < end; first += stride) {
            const unsigned int next = first + stride;
            const bool last = next >= end;
            if (!P::AHEAD) {
                values.start(lds.values, v, first, end, value_width, thread);
            } else if (!last) {
                keys.start(lds.keys, k, next, end, width, thread);
            }
            const bool some = P::AHEAD || (first < seen.y && first + P::KEYS > seen.x);
            Scores<T> scores[QUERY_TILES][KEY_TILES];
            if (some) {
                score(scores, lds.keys);
            }
            values.finish(lds.values, v, first, end, value_width, thread);
            wait();
            if (!P::AHEAD && !last) {
                keys.start(lds.keys, k, next, end, width, thread);
            }
            if (some) {
                if (special) {
                    transform(scores, first);
                }
                if (!sight.clear(low, high, first, first + P::KEYS)) {
                    hide(scores, first);
                }
                weigh(scores);
                add(scores, lds.values, exchange);
            }
            if (last) {
                break;
            }
            if constexpr (P::AHEAD) {
                wait();
                values.start(lds.values, v, next, end, value_width, thread);
            }
            keys.finish(lds.keys, k, next, end, width, thread);
            wait();
        }
#pragma unroll
        for (unsigned int i = 0; i < QUERY_TILES * I; ++i) {
            float &sum = sums[i / I][i % I];
            sum = across<QUERIES<T>, BY_LANES<T>>(sum, [](float a, float b) { return a + b; });
        }
    }
};

// The logarithm of the sum of a query's exponents.
template <typename T>
__device__ __forceinline__ float log_sum(float top, float sum, float factor) {
    return sum == 0 ? -INFINITY : (top * factor - RAISED<T>) / LOG2_E + logf(sum);
}
__device__ __forceinline__ float inverse(float sum) { return sum == 0 ? 0 : 1 / sum; }

template <typename T, unsigned int WIDTH>
__device__ __forceinline__ void attention_rows(TASK_PARAMETERS(T)) {
    typedef Plan<T, WIDTH, false> P;
    typedef Walk<T, P, WIDTH> W;
    __shared__ typename P::Lds lds;
    __shared__ Exchange<T> exchange[P::WAVES];
    Task<T> task(TASK_ARGUMENTS);
    task.take(P::ROWS, P::VALUES);
    if (task.empty) {
        return;
    }
    const Sequence<T> &sequence = task.sequence;
    constexpr unsigned int ROWS = P::ROWS / P::WAVES;
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), first_row = task.first_row + wave * ROWS;
    W walk(sequence, task.sight, first_row);
    // A wave without rows sees nothing.
    int2 positions = {1, 0};
    if (first_row < sequence.rows) {
        positions = task.positions(first_row, min(first_row + ROWS, sequence.rows) - 1);
    }
    walk.run(lds, exchange[wave], task.first_key, task.end_key, P::KEYS, task.column, positions.x, positions.y);
#pragma unroll
    for (unsigned int t = 0; t < P::QUERY_TILES; ++t) {
#pragma unroll
        for (unsigned int i = 0; i < W::I; ++i) {
            const unsigned int row = first_row + t * TILE_SIDE + query_line<T>(i);
            if (row >= sequence.rows) {
                continue;
            }
            const unsigned int head = sequence.head(row), query = sequence.query(row);
            T *to = sequence.out + (size_t)head * sequence.out_head + (size_t)query * sequence.out_row + task.column;
            const float factor = inverse(walk.sums[t][i]);
#pragma unroll
            for (unsigned int c = 0; c < W::COLUMN_TILES * W::J; c += RUN<T>) {
                const unsigned int column = c / W::J * TILE_SIDE + other_line<T>(c % W::J);
                Pack<T, RUN<T>> pack;
#pragma unroll
                for (unsigned int n = 0; n < RUN<T>; ++n) {
                    pack.set(n, static_cast<T>(factor * element<T>(walk.out[t][c / W::J], i, c % W::J + n)));
                }
                if (task.column + column < sequence.value_width) {
                    pack.write(to + column);
                }
            }
            if (sequence.statistics != nullptr && task.column == 0 && other_line<T>(0) == 0) {
                sequence.statistics[(size_t)head * sequence.statistics_head + query] =
                    log_sum<T>(walk.tops[t][i], walk.sums[t][i], walk.factor);
            }
        }
    }
}

// Sums of some of the keys, relative to the highest score, in the exponent of 2.
struct Part {
    float top, sum;
};

// Where a workgroup's part of the keys leaves its sums: of values, then a Part for each row.
__device__ __forceinline__ float *room_of(float *partial, unsigned int parts, unsigned int part, unsigned int columns) {
    const size_t block = blockIdx.x * gridDim.y + blockIdx.y;
    return partial + (block * parts + part) * (CANDLE_ATTENTION_FEW * (columns + 2));
}

template <typename T>
__device__ __forceinline__ void write_row(const Task<T> &task, unsigned int line, unsigned int column, Part all, float value) {
    const Sequence<T> &sequence = task.sequence;
    const unsigned int row = task.first_row + line, head = sequence.head(row), query = sequence.query(row);
    if (task.column + column < sequence.value_width) {
        T *to = sequence.out + (size_t)head * sequence.out_head + (size_t)query * sequence.out_row;
        to[task.column + column] = static_cast<T>(value * inverse(all.sum));
    }
    if (sequence.statistics != nullptr && task.column + column == 0) {
        sequence.statistics[(size_t)head * sequence.statistics_head + query] = log_sum<T>(all.top, all.sum, 1.0f);
    }
}

template <typename T, unsigned int WIDTH>
__device__ __forceinline__ void attention_keys(TASK_PARAMETERS(T), float *partial) {
    typedef Plan<T, WIDTH, true> P;
    typedef Walk<T, P, WIDTH> W;
    typedef Slab<float, TILE_SIDE, P::VALUES> Sums;
    union Memory {
        typename P::Lds walk;
        Sums sums;
    };
    __shared__ Memory memory[P::TEAMS];
    __shared__ Exchange<T> exchange[P::TEAMS];
    __shared__ Part of_teams[P::TEAMS][TILE_SIDE];
    Task<T> task(TASK_ARGUMENTS);
    task.take(P::ROWS, P::VALUES);
    if (task.empty) {
        return;
    }
    const Sequence<T> &sequence = task.sequence;
    const unsigned int rows = min(P::ROWS, sequence.rows - task.first_row);
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), parts = gridDim.z, part = blockIdx.z;
    if (wave < P::TEAMS) {
        W walk(sequence, task.sight, task.first_row);
        const int2 positions = task.positions(task.first_row, task.first_row + rows - 1);
        const unsigned int each = ((task.end_key - task.first_key + parts - 1) / parts + P::KEYS - 1) / P::KEYS * P::KEYS;
        const unsigned int first = task.first_key + part * each, end = min(first + each, task.end_key);
        walk.run(memory[wave].walk, exchange[wave], first + wave * P::KEYS, end, P::TEAMS * P::KEYS, task.column,
                 positions.x, positions.y);
#pragma unroll
        for (unsigned int i = 0; i < W::I; ++i) {
            const unsigned int line = query_line<T>(i);
            if (other_line<T>(0) == 0) {
                const float top = walk.tops[0][i];
                of_teams[wave][line] = Part{top == -INFINITY ? top : top * walk.factor, walk.sums[0][i]};
            }
#pragma unroll
            for (unsigned int c = 0; c < W::COLUMN_TILES * W::J; ++c) {
                *memory[wave].sums.at(Sums::place(line, c / W::J * TILE_SIDE + other_line<T>(c % W::J))) =
                    element<T>(walk.out[0][c / W::J], i, c % W::J);
            }
        }
    }
    __syncthreads();
    float *const room = room_of(partial, parts, part, P::VALUES);
    for (unsigned int e = threadIdx.x; e < rows * P::VALUES; e += P::THREADS) {
        const unsigned int line = e / P::VALUES, column = e % P::VALUES;
        Part all = {-INFINITY, 0};
#pragma unroll
        for (unsigned int team = 0; team < P::TEAMS; ++team) {
            all.top = fmaxf(all.top, of_teams[team][line].top);
        }
        const float base = all.top == -INFINITY ? 0.0f : all.top;
        float value = 0;
#pragma unroll
        for (unsigned int team = 0; team < P::TEAMS; ++team) {
            const float weight = candle_exp2(of_teams[team][line].top - base);
            all.sum = fmaf(of_teams[team][line].sum, weight, all.sum);
            value = fmaf(*memory[team].sums.at(Sums::place(line, column)), weight, value);
        }
        if (parts == 1) {
            write_row(task, line, column, all, value);
            continue;
        }
        room[line * P::VALUES + column] = value;
        if (column == 0) {
            ((Part *)(room + P::ROWS * P::VALUES))[line] = all;
        }
    }
}

template <typename T>
__device__ __forceinline__ void attention_parts(TASK_PARAMETERS(T), float *partial, unsigned int parts,
                                                unsigned int columns) {
    constexpr unsigned int ROWS = CANDLE_ATTENTION_FEW, THREADS = CANDLE_ATTENTION_PARTS;
    __shared__ float weights[THREADS];
    Task<T> task(TASK_ARGUMENTS);
    task.take(ROWS, columns);
    const unsigned int line = blockIdx.z, thread = threadIdx.x;
    if (task.empty || task.first_row + line >= task.sequence.rows) {
        return;
    }
    Part own = {-INFINITY, 0};
    if (thread < parts) {
        own = ((const Part *)(room_of(partial, parts, thread, columns) + ROWS * columns))[line];
    }
    const float top = combined<THREADS>(own.top, THREADS, fmaxf);
    const float weight = candle_exp2(own.top - (top == -INFINITY ? 0.0f : top));
    const float sum = combined<THREADS>(own.sum * weight, THREADS, [](float a, float b) INLINE { return a + b; });
    weights[thread] = weight;
    __syncthreads();
    for (unsigned int column = thread; column < columns; column += THREADS) {
        float value = 0;
#pragma unroll 8
        for (unsigned int p = 0; p < parts; ++p) {
            value = fmaf(room_of(partial, parts, p, columns)[line * columns + column], weights[p], value);
        }
        write_row(task, line, column, Part{top, sum}, value);
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
    extern "C" __global__ void __launch_bounds__(CANDLE_ATTENTION_PARTS) attention_parts_##T_NAME(                      \
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
