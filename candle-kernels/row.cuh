// Products of one row of activations with matrices, with the operations around them in a decoder layer: RMS norm before;
// bias, gate and residual after.
//
// A workgroup computes consecutive results. A group of lanes shares a row of a matrix. A lane multiplies the same part of
// each row of its group, so that it holds its part of the activations in registers, and it loads the parts of later rows
// ahead. The sums of waves are combined in LDS, after one barrier for all rows. The norm is a factor of the whole row:
// it is computed beside the products and applied at the end.
#pragma once
#include "activations.cuh"

constexpr unsigned int ROW_THREADS = CANDLE_ROW_PRODUCT_BLOCK, ROW_GROUPS = ROW_THREADS / LANES;

// Up to three matrices, whose rows are numbered consecutively.
struct RowMatrices {
    const uint8_t *weights[3];
    void *out[3];
    unsigned int ends[3];

    __device__ __forceinline__ const uint8_t *row(unsigned int row, size_t row_bytes) const {
        const unsigned int before = row < ends[0] ? 0 : row < ends[1] ? ends[0] : ends[1];
        return (row < ends[0] ? weights[0] : row < ends[1] ? weights[1] : weights[2]) + (row - before) * row_bytes;
    }
    __device__ __forceinline__ void store(unsigned int row, unsigned int dtype, float value) const {
        const unsigned int before = row < ends[0] ? 0 : row < ends[1] ? ends[0] : ends[1];
        store_float(row < ends[0] ? out[0] : row < ends[1] ? out[1] : out[2], dtype, row - before, value);
    }
};

// The row of activations: x, or silu(x) * gate, times the weights of the norm.
struct RowInput {
    const void *x, *gate, *norm;
    unsigned int dtype, k;

    // Returns elements from each place on, and adds their squares before the weights of the norm. T is the dtype; GATED:
    // there may be a gate.
    template <typename T, bool GATED, unsigned int COUNT, unsigned int N>
    __device__ __forceinline__ void load(float (&values)[COUNT][N], const unsigned int (&at)[COUNT],
                                         const bool (&inside)[COUNT], float &squares) const {
        // All loads are issued before the first is used. Without a norm, the second ones repeat the first.
        const T *row = (const T *)x, *weights = norm != nullptr ? (const T *)norm : row;
        float factors[COUNT][N];
#pragma unroll
        for (unsigned int c = 0; c < COUNT; ++c) {
            load_floats(values[c], row + at[c]);
        }
#pragma unroll
        for (unsigned int c = 0; c < COUNT; ++c) {
            load_floats(factors[c], weights + at[c]);
        }
        if (GATED && gate != nullptr) {
#pragma unroll
            for (unsigned int c = 0; c < COUNT; ++c) {
                float gates[N];
                load_floats(gates, (const T *)gate + at[c]);
#pragma unroll
                for (unsigned int i = 0; i < N; ++i) {
                    values[c][i] = silu(values[c][i]) * gates[i];
                }
            }
        }
        if (norm != nullptr) {
#pragma unroll
            for (unsigned int c = 0; c < COUNT; ++c) {
                float sum = 0;
#pragma unroll
                for (unsigned int i = 0; i < N; ++i) {
                    sum += values[c][i] * values[c][i];
                    values[c][i] *= factors[c][i];
                }
                squares += inside[c] ? sum : 0;
            }
        }
    }
};

// What follows the product. With an activation, the first matrix is the gate and the second is up.
struct RowEpilogue {
    const void *bias, *summand;
    unsigned int results, summand_dtype, out_dtype, activation;
    float eps;
};

// Lanes of a group, and the place of this lane in its row.
struct RowLanes {
    unsigned int lanes, lane, units;

    __device__ __forceinline__ unsigned int unit(unsigned int segment, unsigned int u) const {
        return segment + lane + u * lanes;
    }
    __device__ __forceinline__ bool is_inside(unsigned int segment, unsigned int u) const {
        return unit(segment, u) < units;
    }
    // Units past the end read the last one, which is not used.
    __device__ __forceinline__ unsigned int clamped(unsigned int segment, unsigned int u) const {
        return min(unit(segment, u), units - 1);
    }
};

__device__ __forceinline__ float activate(unsigned int activation, float x) {
    if (activation == CANDLE_ACTIVATION_SILU) {
        return silu(x);
    }
    return 0.5f * x * (1.0f + tanhf(0.79788456f * x * (1.0f + 0.044715f * x * x)));
}

// Sums of the waves of each task, and of the squares of the row, in LDS.
struct RowSums {
    float tasks[CANDLE_ROW_PRODUCT_SUMS], squares[ROW_GROUPS];
};

// M multiplies a lane's part: a unit is what it multiplies at once, and UNITS of them are in registers.
template <typename M>
__device__ __forceinline__ void row_product(const RowMatrices &matrices, const RowInput &input, const RowEpilogue &after,
                                            const unsigned int lanes, RowSums &sums, M &part) {
    const bool is_gated = after.activation != CANDLE_ACTIVATION_NONE;
    const unsigned int first = blockIdx.x * after.results;
    const unsigned int count = min(after.results, (is_gated ? matrices.ends[0] : matrices.ends[2]) - first);
    // A task is a row of a matrix.
    const unsigned int tasks = is_gated ? 2 * count : count, up = matrices.ends[0] - count;
    const size_t row_bytes = M::row_bytes(input.k);
    const auto row_of = [=](unsigned int task) INLINE { return first + task + (task < count ? 0 : up); };

    // Groups of less than LANES lanes are a power of two; others are whole multiples.
    const bool is_wide = lanes >= LANES;
    const unsigned int wave = threadIdx.x / LANES, waves = is_wide ? lanes / LANES : 1, shift = log2_of(lanes);
    const unsigned int groups = is_wide ? ROW_GROUPS / waves : ROW_THREADS >> shift;
    const unsigned int group = is_wide ? wave / waves : threadIdx.x >> shift;
    const RowLanes place = {lanes, is_wide ? threadIdx.x - group * lanes : threadIdx.x & (lanes - 1), M::units(input.k)};
    // The first group of the lanes that shuffle together, so that they run the same number of iterations.
    const unsigned int leader = is_wide ? (group < groups ? group : tasks) : wave * (LANES >> shift);
    const auto read = [=](unsigned int task, unsigned int segment) INLINE {
        return M::read(matrices.row(row_of(min(task, tasks - 1)), row_bytes), place, segment);
    };

    float squared = 0;
    for (unsigned int segment = 0; segment < place.units; segment += lanes * M::UNITS) {
        typename M::Raw ahead[M::AHEAD];
#pragma unroll
        for (unsigned int i = 0; i < M::AHEAD; ++i) {
            if (leader + i * groups < tasks) {
                ahead[i] = read(group + i * groups, segment);
            }
        }
        // Keeps these loads before the others.
        asm volatile("" ::: "memory");
        if (segment == 0) {
            part.prepare(input, squared);
        }
        const typename M::Activations x = part.activations(input, place, segment, squared);
#pragma unroll 1
        for (unsigned int done = 0; leader + done < tasks; done += M::AHEAD * groups) {
#pragma unroll
            for (unsigned int i = 0; i < M::AHEAD; ++i) {
                const unsigned int before = done + i * groups;
                if (leader + before < tasks) {
                    float sum = M::product(ahead[i], x, place, segment);
                    if (leader + before + M::AHEAD * groups < tasks) {
                        ahead[i] = read(group + before + M::AHEAD * groups, segment);
                    }
                    sum = reduce_lanes(sum, min(lanes, LANES), [](float a, float b) INLINE { return a + b; });
                    const unsigned int task = group + before;
                    if (place.lane % LANES == 0 && task < tasks) {
                        float &to = sums.tasks[task * waves + place.lane / LANES];
                        to = segment == 0 ? sum : to + sum;
                    }
                }
            }
        }
    }
    if (input.norm != nullptr) {
        // Only the first group counts if each group has loaded the row.
        squared = M::LOADS_BY_GROUP && group > 0 ? 0 : squared;
        squared = reduce_lanes(squared, LANES, [](float a, float b) INLINE { return a + b; });
        if (threadIdx.x % LANES == 0) {
            sums.squares[wave] = squared;
        }
    }
    __syncthreads();

    float factor = 1;
    if (input.norm != nullptr) {
        float sum = 0;
#pragma unroll
        for (unsigned int i = 0; i < ROW_GROUPS; ++i) {
            sum += sums.squares[i];
        }
        factor = 1 / sqrtf(sum / (float)input.k + after.eps);
    }
    for (unsigned int i = threadIdx.x; i < count; i += ROW_THREADS) {
        const auto total = [&](unsigned int task) INLINE {
            float sum = 0;
            for (unsigned int w = 0; w < waves; ++w) {
                sum += sums.tasks[task * waves + w];
            }
            sum = input.norm != nullptr ? sum * factor : sum;
            return after.bias != nullptr ? sum + load_float(after.bias, input.dtype, row_of(task)) : sum;
        };
        float result = total(i);
        if (is_gated) {
            result = activate(after.activation, result) * total(count + i);
        }
        if (after.summand != nullptr) {
            result += load_float(after.summand, after.summand_dtype, first + i);
        }
        matrices.store(first + i, after.out_dtype, result);
    }
}

// Rows of floats; a unit is a pack.
template <typename T>
struct FloatRow {
    static constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T), UNITS = CANDLE_ROW_FLOAT_UNITS, AHEAD = 2;
    static constexpr bool LOADS_BY_GROUP = true;
    struct Raw { Pack<T, N> packs[UNITS]; };
    struct Activations { float values[UNITS][N]; };

    __device__ __forceinline__ static size_t row_bytes(unsigned int k) { return k * sizeof(T); }
    __device__ __forceinline__ static unsigned int units(unsigned int k) { return k / N; }
    __device__ __forceinline__ static Raw read(const uint8_t *row, const RowLanes &place, unsigned int segment) {
        Raw raw;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            raw.packs[u] = Pack<T, N>::read((const T *)row + place.clamped(segment, u) * N);
        }
        return raw;
    }
    __device__ __forceinline__ void prepare(const RowInput &, float &) {}
    __device__ __forceinline__ Activations activations(const RowInput &input, const RowLanes &place, unsigned int segment,
                                                       float &squares) const {
        Activations x;
        unsigned int at[UNITS];
        bool inside[UNITS];
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            at[u] = place.clamped(segment, u) * N;
            inside[u] = place.is_inside(segment, u);
        }
        input.load<T, false>(x.values, at, inside, squares);
        return x;
    }
    __device__ __forceinline__ static float product(const Raw &raw, const Activations &x, const RowLanes &place,
                                                    unsigned int segment) {
        float sum = 0;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            float part = 0;
#pragma unroll
            for (unsigned int i = 0; i < N; ++i) {
                part += x.values[u][i] * (float)raw.packs[u][i];
            }
            sum += place.is_inside(segment, u) ? part : 0;
        }
        return sum;
    }
};

// The row as bytes in LDS with a scale for each piece. Each workgroup quantizes it itself, which saves a launch.
struct QuantizedInput {
    uint8_t *bytes;
    Scale *scales;

    __device__ __forceinline__ void prepare(const RowInput &input, float &squares) {
        if (input.dtype == CANDLE_FLOAT_F32) {
            prepare_from<float>(input, squares);
        } else if (input.dtype == CANDLE_FLOAT_F16) {
            prepare_from<__half>(input, squares);
        } else {
            prepare_from<__nv_bfloat16>(input, squares);
        }
        __syncthreads();
    }
    template <typename T>
    __device__ __forceinline__ void prepare_from(const RowInput &input, float &squares) {
        constexpr unsigned int N = 8, AT_ONCE = 2;
        for (unsigned int begin = 0; begin < input.k; begin += AT_ONCE * N * ROW_THREADS) {
            float values[AT_ONCE][N];
            unsigned int at[AT_ONCE];
            bool inside[AT_ONCE];
#pragma unroll
            for (unsigned int i = 0; i < AT_ONCE; ++i) {
                const unsigned int own = begin + (i * ROW_THREADS + threadIdx.x) * N;
                inside[i] = own < input.k;
                at[i] = inside[i] ? own : 0;
            }
            input.load<T, sizeof(T) == 4>(values, at, inside, squares);
#pragma unroll
            for (unsigned int i = 0; i < AT_ONCE; ++i) {
                // Threads past the end take part in the shuffles of their wave.
                if (begin + i * ROW_THREADS * N < input.k) {
                    const unsigned int own = begin + (i * ROW_THREADS + threadIdx.x) * N;
                    quantize<N / 4, PIECE>(values[i], own / N, inside[i], (uint32_t *)(bytes + own), scales);
                }
            }
        }
    }
};

// Rows of blocks; a unit is one piece, or two neighbouring pieces of a large block.
template <typename F>
struct BlockRow : QuantizedInput {
    static constexpr unsigned int PIECES = F::PIECES > 1 ? 2 : 1, UNITS = F::PIECES > 1 ? 1 : 2;
    static constexpr bool LOADS_BY_GROUP = false;
    struct Raw { typename F::Raw raw[UNITS][PIECES]; };
    // As many as fit into registers.
    static constexpr unsigned int AHEAD = UNITS * PIECES * F::BYTES > 40 * F::PIECES || F::SCALED == RUN ? 2 : 3;
    struct Run { int words[RUN / 4]; float scale, scaled_sum; int offset; };
    struct Activations { Run runs[UNITS][PIECES][RUNS]; };

    __device__ __forceinline__ static size_t row_bytes(unsigned int k) { return (size_t)(k / F::WEIGHTS) * F::BYTES; }
    __device__ __forceinline__ static unsigned int units(unsigned int k) { return k / (PIECE * PIECES); }
    __device__ __forceinline__ static Raw read(const uint8_t *row, const RowLanes &place, unsigned int segment) {
        Raw read;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            const unsigned int piece = place.clamped(segment, u) * PIECES;
            const uint8_t *block = row + (size_t)(piece / F::PIECES) * F::BYTES;
#pragma unroll
            for (unsigned int i = 0; i < PIECES; ++i) {
                read.raw[u][i] = F::read(block, piece % F::PIECES + i);
            }
        }
        return read;
    }
    __device__ __forceinline__ Activations activations(const RowInput &, const RowLanes &place, unsigned int segment,
                                                       float &) const {
        typedef int Four __attribute__((ext_vector_type(4)));
        Activations x;
#pragma unroll
        for (unsigned int i = 0; i < UNITS * PIECES * RUNS; ++i) {
            const unsigned int u = i / (PIECES * RUNS), p = i / RUNS % PIECES, run = i % RUNS;
            const unsigned int piece = place.clamped(segment, u) * PIECES + p, inner = piece % F::PIECES;
            const unsigned int column = (piece - inner) * PIECE + F::column(inner, run);
            const Four words = *(const Four *)(bytes + column);
            const Scale scale = scales[column / PIECE];
            const int sum = column % PIECE == 0 ? scale.sums[0] : scale.sums[1];
            Run &to = x.runs[u][p][run];
            to = {{words[0], words[1], words[2], words[3]}, scale.scale, scale.scale * (float)sum, F::OFFSET * sum};
        }
        return x;
    }
    __device__ __forceinline__ static float product(const Raw &raw, const Activations &x, const RowLanes &place,
                                                    unsigned int segment) {
        float total = 0;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            const unsigned int first = place.clamped(segment, u) * PIECES % F::PIECES;
            float sum = 0, minimum = 0;
            Piece weights[PIECES];
#pragma unroll
            for (unsigned int p = 0; p < PIECES; ++p) {
                weights[p] = F::unpack(raw.raw[u][p], first + p);
            }
            // Runs that share the scales of weights and activations are added as integers: those of a piece, or the
            // same run of neighbouring pieces.
            constexpr bool BY_PIECE = F::DISTANCE == RUN;
            constexpr unsigned int OUTER = BY_PIECE ? PIECES : RUNS, INNER = BY_PIECE ? RUNS : PIECES;
#pragma unroll
            for (unsigned int outer = 0; outer < OUTER; ++outer) {
                int dot = 0;
                float scaled_sum = 0;
#pragma unroll
                for (unsigned int inner = 0; inner < INNER; ++inner) {
                    const unsigned int p = BY_PIECE ? outer : inner, run = BY_PIECE ? inner : outer;
                    const Run &of = x.runs[u][p][run];
#pragma unroll
                    for (unsigned int i = 0; i < RUN / 4; ++i) {
                        dot = __dp4a(weights[p].q[run][i], of.words[i], dot);
                    }
                    dot -= F::OFFSET == 0 ? 0 : of.offset;
                    scaled_sum += of.scaled_sum;
                    if (F::SCALED == RUN || inner + 1 == INNER) {
                        sum += (float)(weights[p].scales[run] * dot) * of.scale;
                        if (F::MINIMUM) {
                            minimum += (float)weights[p].minimums[run] * scaled_sum;
                        }
                        dot = 0;
                        scaled_sum = 0;
                    }
                }
            }
            float part = weights[0].scale * sum;
            if (F::MINIMUM) {
                part -= weights[0].minimum * minimum;
            }
            total += place.is_inside(segment, u) ? part : 0;
        }
        return total;
    }
};

// Rows of blocks of 32 weights whose header is followed by nibbles or bytes, as a stream of aligned packs. A unit is a
// pack, which has parts of at most two blocks. Activations are arranged like the weights, with zeros in place of headers.
template <typename F, unsigned int HEADER>
struct StreamRow : QuantizedInput {
    static constexpr unsigned int QUANTS = F::BYTES - HEADER, PLANES = F::WEIGHTS / QUANTS, UNITS = 2 / PLANES;
    static constexpr unsigned int AHEAD = F::MINIMUM ? 2 : 3, WORDS = CANDLE_PACK_BYTES / 4;
    static constexpr bool LOADS_BY_GROUP = false;
    static_assert(HEADER == 2 + 2 * F::MINIMUM && (PLANES == 1 || PLANES == 2), "a block is a header with nibbles or bytes");
    struct Raw { Pack<uint32_t, WORDS> packs[UNITS]; uint32_t headers[UNITS][2]; };
    // Activations of the pack's first and last block; both are the same if it has only one, and the second is then zero.
    struct Block { int words[PLANES][WORDS]; float scale, scaled_sum; int offset; };
    struct Activations { Block blocks[UNITS][2]; };

    // Returns true if rows of k weights are whole packs.
    __device__ __forceinline__ static bool fits(const RowMatrices &matrices, unsigned int k) {
        size_t bits = row_bytes(k);
#pragma unroll
        for (unsigned int i = 0; i < 3; ++i) {
            bits |= (size_t)matrices.weights[i];
        }
        return bits % CANDLE_PACK_BYTES == 0;
    }
    __device__ __forceinline__ static size_t row_bytes(unsigned int k) { return (size_t)(k / F::WEIGHTS) * F::BYTES; }
    __device__ __forceinline__ static unsigned int units(unsigned int k) {
        return k / F::WEIGHTS * F::BYTES / CANDLE_PACK_BYTES;
    }
    // Returns the block of the first or the last word of a pack.
    __device__ __forceinline__ static unsigned int block_of(unsigned int pack, unsigned int last) {
        return (pack * CANDLE_PACK_BYTES + (last ? CANDLE_PACK_BYTES - 4 : 0)) / F::BYTES;
    }
    __device__ __forceinline__ static Raw read(const uint8_t *row, const RowLanes &place, unsigned int segment) {
        Raw raw;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            const unsigned int pack = place.clamped(segment, u);
            raw.packs[u] = Pack<uint32_t, WORDS>::read((const uint32_t *)row + pack * WORDS);
#pragma unroll
            for (unsigned int last = 0; last < 2; ++last) {
                const uint8_t *block = row + block_of(pack, last) * F::BYTES;
                raw.headers[u][last] = HEADER == 2 ? *(const uint16_t *)block : *(const uint32_t *)block;
            }
        }
        return raw;
    }
    __device__ __forceinline__ Activations activations(const RowInput &, const RowLanes &place, unsigned int segment,
                                                       float &) const {
        Activations x = {};
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            const unsigned int pack = place.clamped(segment, u), first = block_of(pack, 0), last = block_of(pack, 1);
            int sums[2] = {0, 0};
#pragma unroll
            for (unsigned int word = 0; word < WORDS; ++word) {
                const unsigned int at = pack * CANDLE_PACK_BYTES + word * 4, block = at / F::BYTES;
                const bool is_second = block != first;
#pragma unroll
                for (unsigned int plane = 0; plane < PLANES; ++plane) {
                    uint32_t bits = 0;
#pragma unroll
                    for (unsigned int half = 0; half < 2; ++half) {
                        const unsigned int offset = (at + 2 * half) % F::BYTES;
                        const uint8_t *from = bytes + (at + 2 * half) / F::BYTES * F::WEIGHTS + plane * QUANTS + offset - HEADER;
                        bits |= offset < HEADER ? 0 : (uint32_t)*(const uint16_t *)from << (16 * half);
                    }
                    x.blocks[u][0].words[plane][word] = is_second ? 0 : (int)bits;
                    x.blocks[u][1].words[plane][word] = is_second ? (int)bits : 0;
#pragma unroll
                    for (unsigned int b = 0; b < 2; ++b) {
                        sums[b] = __dp4a(x.blocks[u][b].words[plane][word], 0x01010101, sums[b]);
                    }
                }
            }
#pragma unroll
            for (unsigned int b = 0; b < 2; ++b) {
                Block &to = x.blocks[u][b];
                to.scale = scales[b == 0 ? first : last].scale;
                to.scaled_sum = to.scale * (float)sums[b];
                to.offset = F::OFFSET * sums[b];
            }
        }
        return x;
    }
    __device__ __forceinline__ static float product(const Raw &raw, const Activations &x, const RowLanes &place,
                                                    unsigned int segment) {
        float total = 0;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            float part = 0;
#pragma unroll
            for (unsigned int b = 0; b < 2; ++b) {
                const Block &block = x.blocks[u][b];
                int dot = F::OFFSET == 0 ? 0 : -block.offset;
#pragma unroll
                for (unsigned int word = 0; word < WORDS; ++word) {
                    const uint32_t bits = raw.packs[u][word];
#pragma unroll
                    for (unsigned int plane = 0; plane < PLANES; ++plane) {
                        const uint32_t q = PLANES == 1 ? bits : bits >> (4 * plane) & 0x0f0f0f0f;
                        dot = __dp4a((int)q, block.words[plane][word], dot);
                    }
                }
                part += half_of(raw.headers[u][b] & 0xffff) * (block.scale * (float)dot);
                if (F::MINIMUM) {
                    part += half_of(raw.headers[u][b] >> 16) * block.scaled_sum;
                }
            }
            total += place.is_inside(segment, u) ? part : 0;
        }
        return total;
    }
};
