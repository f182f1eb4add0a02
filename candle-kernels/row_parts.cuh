// A lane's part of the rows that row.cuh multiplies: floats, blocks, and blocks as a stream of packs.
#pragma once
#include "row.cuh"

#if CANDLE_OVERLAPS_LAUNCHES
// Loads 16 bytes that are read once, and are the first to leave the caches. Otherwise the weights of a layer displace the
// small operands of all launches: norms, the residual, angles and the block table.
__device__ __forceinline__ uint4 load_once(const void *from) {
    uint4 loaded;
    asm volatile("{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                 "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], policy; }"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "l"(from));
    return loaded;
}
#endif

// Rows of floats; a unit is a pack. Of AHEAD rows, parts are loaded ahead.
template <typename T, unsigned int ROWS, unsigned int AHEAD_ = CANDLE_FEW_REGISTERS(2, (ROWS == 1 ? 2 : 1))>
struct FloatRow {
    static constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T), UNITS = ROWS == 1 ? 4 : 2, AHEAD = AHEAD_;
    static constexpr bool LOADS_BY_GROUP = true;
    struct Raw { Pack<T, N> packs[UNITS]; };
    struct Activations { float values[UNITS][N]; };

    __device__ __forceinline__ static size_t bytes_of_row(unsigned int k) { return k * sizeof(T); }
    __device__ __forceinline__ static unsigned int units(unsigned int k) { return k / N; }
    __device__ __forceinline__ static Raw read(const uint8_t *row, const RowLanes &place, unsigned int segment) {
        Raw raw;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            const T *from = (const T *)row + place.clamped(segment, u) * N;
#if CANDLE_OVERLAPS_LAUNCHES
            if constexpr (ROWS == 1) {
                raw.packs[u] = candle_bits<Pack<T, N>>(load_once(from));
                continue;
            }
#endif
            raw.packs[u] = Pack<T, N>::read(from);
        }
        return raw;
    }
    template <unsigned int COUNT>
    __device__ __forceinline__ void prepare(const RowInput &, float (&)[COUNT]) {}
    __device__ __forceinline__ Activations activations(const RowInput &input, const RowLanes &place, unsigned int segment,
                                                       unsigned int row, float &squares) const {
        Activations x;
        unsigned int at[UNITS];
        bool inside[UNITS];
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            at[u] = place.clamped(segment, u) * N;
            inside[u] = place.is_inside(segment, u);
        }
        input.load<T, false>(x.values, row, at, inside, squares);
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

// Layout of quantized activations in LDS: dense.
struct DenseBytes {
    __device__ __forceinline__ static unsigned int size(unsigned int count) { return count; }
    // Stores activations from `first` on, a multiple of their number, of `count` in all.
    template <typename W>
    __device__ __forceinline__ static void store(uint8_t *bytes, unsigned int, unsigned int first, W words) {
        *(W *)(bytes + first) = words;
    }
};

// Layout like that of the weights of rows of blocks, with zeros in place of headers. If a byte of weights has two nibbles, there are
// two planes: the activations of all low nibbles, then those of the high ones.
template <typename F, unsigned int HEADER>
struct StreamBytes {
    static constexpr unsigned int QUANTS = F::BYTES - HEADER, PLANES = F::WEIGHTS / QUANTS;
    __device__ __forceinline__ static unsigned int plane_size(unsigned int count) { return count / F::WEIGHTS * F::BYTES; }
    __device__ __forceinline__ static unsigned int size(unsigned int count) { return PLANES * plane_size(count); }
    template <typename W>
    __device__ __forceinline__ static void store(uint8_t *bytes, unsigned int count, unsigned int first, W words) {
        const unsigned int block = first / F::WEIGHTS, plane = first % F::WEIGHTS / QUANTS, column = first % QUANTS;
        uint16_t *const to = (uint16_t *)(bytes + plane * plane_size(count) + block * F::BYTES + HEADER + column);
#pragma unroll
        for (unsigned int i = 0; i < sizeof(W) / 2; ++i) {
            to[i] = (uint16_t)(words[i / 2] >> (i % 2 * 16));
        }
        if (column == 0) {
#pragma unroll
            for (unsigned int i = 1; i <= HEADER / 2; ++i) {
                to[-(int)i] = 0;
            }
        }
    }
};

// The rows as bytes in LDS with a scale for each piece. Each workgroup quantizes them itself, which saves a launch.
template <typename Layout>
struct QuantizedInput {
    uint8_t *bytes;
    Scale *scales;

    // Returns the input whose bytes, then scales, are at `lds`.
    __device__ __forceinline__ static QuantizedInput at(void *lds, const RowInput &input) {
        uint8_t *const bytes = (uint8_t *)lds;
        return {bytes, (Scale *)(bytes + Layout::size(input.rows * input.k))};
    }
    template <unsigned int COUNT>
    __device__ __forceinline__ void prepare(const RowInput &input, float (&squares)[COUNT]) {
        // Unrolled, the addresses of all rows would occupy more scalar registers than there are.
#pragma unroll 1
        for (unsigned int r = 0; r < input.rows; ++r) {
            float sum = 0;
            if (input.dtype == CANDLE_FLOAT_F32) {
                prepare_row<float, COUNT == 1>(input, r, sum);
            } else if (input.dtype == CANDLE_FLOAT_F16) {
                prepare_row<__half, false>(input, r, sum);
            } else {
                prepare_row<__nv_bfloat16, false>(input, r, sum);
            }
#pragma unroll
            for (unsigned int i = 0; i < COUNT; ++i) {
                squares[i] = i == r ? sum : squares[i];
            }
        }
        __syncthreads();
    }
    template <typename T, bool GATED>
    __device__ __forceinline__ void prepare_row(const RowInput &input, unsigned int row, float &squares) {
        Scale *row_scales = scales + row * (input.k / PIECE);
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
            input.load<T, GATED>(values, row, at, inside, squares);
#pragma unroll
            for (unsigned int i = 0; i < AT_ONCE; ++i) {
                // Threads past the end take part in the shuffles of their wave.
                if (begin + i * ROW_THREADS * N < input.k) {
                    const unsigned int own = begin + (i * ROW_THREADS + threadIdx.x) * N;
                    const auto store = [&](auto words) INLINE {
                        Layout::store(bytes, input.rows * input.k, row * input.k + own, words);
                    };
                    quantize<N / 4, PIECE>(values[i], own / N, inside[i], store, row_scales);
                }
            }
        }
    }
};

// Rows of blocks; a unit is one piece, or two neighbouring pieces of a large block.
template <typename F, unsigned int ROWS>
struct BlockRow : QuantizedInput<DenseBytes> {
    static constexpr unsigned int PIECES = F::PIECES > 1 ? 2 : 1, UNITS = F::PIECES > 1 || ROWS > 1 ? 1 : 2;
    static constexpr bool LOADS_BY_GROUP = false;
    struct Raw { typename F::Raw raw[UNITS][PIECES]; };
    // As many as fit into registers.
    static constexpr unsigned int AHEAD = UNITS * PIECES * F::BYTES > 40 * F::PIECES || F::SCALED == RUN || ROWS > 1 ? CANDLE_FEW_REGISTERS(2, 1) : CANDLE_FEW_REGISTERS(3, 2);
    struct Run { int words[RUN / 4]; float scale, scaled_sum; int offset; };
    struct Activations { Run runs[UNITS][PIECES][RUNS]; };

    __device__ __forceinline__ static unsigned int bytes_of_row(unsigned int k) { return k / F::WEIGHTS * F::BYTES; }
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
    __device__ __forceinline__ Activations activations(const RowInput &input, const RowLanes &place, unsigned int segment,
                                                       unsigned int row, float &) const {
        if constexpr (ROWS > 1) {
            asm("" : CANDLE_IN_REGISTER(row));
        }
        const uint8_t *row_bytes = bytes + row * input.k;
        const Scale *row_scales = scales + row * (input.k / PIECE);
        typedef int Four __attribute__((ext_vector_type(4)));
        Activations x;
#pragma unroll
        for (unsigned int i = 0; i < UNITS * PIECES * RUNS; ++i) {
            const unsigned int u = i / (PIECES * RUNS), p = i / RUNS % PIECES, run = i % RUNS;
            const unsigned int piece = place.clamped(segment, u) * PIECES + p, inner = piece % F::PIECES;
            const unsigned int column = (piece - inner) * PIECE + F::column(inner, run);
            const Four words = *(const Four *)(row_bytes + column);
            const Scale scale = row_scales[column / PIECE];
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
// pack, which has parts of at most two blocks.
template <typename F, unsigned int HEADER, unsigned int ROWS>
struct StreamRow : QuantizedInput<StreamBytes<F, HEADER>> {
    static constexpr unsigned int PLANES = StreamBytes<F, HEADER>::PLANES;
    static constexpr unsigned int UNITS = ROWS == 1 ? 2 / PLANES : 1, AHEAD = ROWS == 1 ? 3 : CANDLE_FEW_REGISTERS(2, 1), WORDS = CANDLE_PACK_BYTES / 4;
    static constexpr bool LOADS_BY_GROUP = false;
    static constexpr uint32_t BITS = PLANES == 1 ? 0xffffffff : 0x0f0f0f0f;
    static_assert(HEADER == 2 + 2 * F::MINIMUM && (PLANES == 1 || PLANES == 2), "a block is a header with nibbles or bytes");
    struct Raw { Pack<uint32_t, WORDS> packs[UNITS]; uint32_t headers[UNITS][2]; };
    // Scale and sums of the activations of the pack's first and last block. If it has only one, the second has none.
    struct Block { float scale, scaled_sum; int offset; };
    // All bits of a mask are set in words of the first block. Headers are multiplied by zeros.
    struct Activations { int words[UNITS][PLANES][WORDS]; Block blocks[UNITS][2]; uint32_t masks[UNITS][WORDS]; };

    // Returns true if rows of k weights are whole packs.
    __device__ __forceinline__ static bool fits(const RowMatrices &matrices, unsigned int k) {
        size_t bits = bytes_of_row(k);
#pragma unroll
        for (unsigned int i = 0; i < 3; ++i) {
            bits |= (size_t)matrices.weights[i];
        }
        return bits % CANDLE_PACK_BYTES == 0;
    }
    __device__ __forceinline__ static unsigned int bytes_of_row(unsigned int k) { return StreamBytes<F, HEADER>::plane_size(k); }
    __device__ __forceinline__ static unsigned int units(unsigned int k) { return bytes_of_row(k) / CANDLE_PACK_BYTES; }
    // Returns the block that a word of a pack belongs to. If it begins with the last weights of a block, the rest is the
    // header of the next.
    __device__ __forceinline__ static unsigned int block_of(unsigned int pack, unsigned int word) {
        return (pack * CANDLE_PACK_BYTES + word * 4) / F::BYTES;
    }
    __device__ __forceinline__ static Raw read(const uint8_t *row, const RowLanes &place, unsigned int segment) {
        Raw raw;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            const unsigned int pack = place.clamped(segment, u);
            raw.packs[u] = Pack<uint32_t, WORDS>::read((const uint32_t *)row + pack * WORDS);
#pragma unroll
            for (unsigned int last = 0; last < 2; ++last) {
                const uint8_t *block = row + block_of(pack, last * (WORDS - 1)) * F::BYTES;
                raw.headers[u][last] = HEADER == 2 ? *(const uint16_t *)block : *(const uint32_t *)block;
            }
        }
        return raw;
    }
    __device__ __forceinline__ Activations activations(const RowInput &input, const RowLanes &place, unsigned int segment,
                                                       unsigned int row, float &) const {
        if constexpr (ROWS > 1) {
            asm("" : CANDLE_IN_REGISTER(row));
        }
        const Scale *const row_scales = this->scales + row * (input.k / PIECE);
        const unsigned int plane_size = bytes_of_row(input.rows * input.k);
        const uint8_t *const row_bytes = this->bytes + row * bytes_of_row(input.k);
        typedef int Words __attribute__((ext_vector_type(WORDS)));
        Activations x;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            const unsigned int pack = place.clamped(segment, u), first = block_of(pack, 0), last = block_of(pack, WORDS - 1);
            int sums[2] = {0, 0};
#pragma unroll
            for (unsigned int word = 0; word < WORDS; ++word) {
                x.masks[u][word] = block_of(pack, word) - first - 1;
            }
#pragma unroll
            for (unsigned int plane = 0; plane < PLANES; ++plane) {
                const Words words = *(const Words *)(row_bytes + plane * plane_size + pack * CANDLE_PACK_BYTES);
#pragma unroll
                for (unsigned int word = 0; word < WORDS; ++word) {
                    x.words[u][plane][word] = words[word];
                    const int sum = __dp4a(words[word], 0x01010101, 0);
                    sums[0] += sum & x.masks[u][word];
                    sums[1] += sum & ~x.masks[u][word];
                }
            }
#pragma unroll
            for (unsigned int b = 0; b < 2; ++b) {
                const float scale = row_scales[b == 0 ? first : last].scale;
                x.blocks[u][b] = {scale, scale * (float)sums[b], F::OFFSET * sums[b]};
            }
        }
        return x;
    }
    __device__ __forceinline__ static float product(const Raw &raw, const Activations &x, const RowLanes &place,
                                                    unsigned int segment) {
        float total = 0;
#pragma unroll
        for (unsigned int u = 0; u < UNITS; ++u) {
            const Block(&blocks)[2] = x.blocks[u];
            // Sums of the first block, and of both.
            int first = 0, both = 0;
#pragma unroll
            for (unsigned int i = 0; i < PLANES * WORDS; ++i) {
                const unsigned int plane = i / WORDS, word = i % WORDS;
                const uint32_t q = raw.packs[u][word] >> (4 * plane) & BITS;
                first = __dp4a((int)(q & x.masks[u][word]), x.words[u][plane][word], first);
                both = __dp4a((int)q, x.words[u][plane][word], both);
            }
            const int dots[2] = {first - blocks[0].offset, both - first - blocks[1].offset};
            float part = 0;
#pragma unroll
            for (unsigned int b = 0; b < 2; ++b) {
                part += half_of(raw.headers[u][b] & 0xffff) * (blocks[b].scale * (float)dots[b]);
                if (F::MINIMUM) {
                    part += half_of(raw.headers[u][b] >> 16) * blocks[b].scaled_sum;
                }
            }
            total += place.is_inside(segment, u) ? part : 0;
        }
        return total;
    }
};

// Selects how rows of a format are read.
template <typename F, unsigned int ROWS>
struct RowsOf {
    static constexpr bool IS_STREAM = false;
    typedef BlockRow<F, ROWS> Stream;
};
template <unsigned int BITS, bool MINIMUM, unsigned int ROWS>
struct RowsOf<Plain<BITS, MINIMUM>, ROWS> {
    static constexpr bool IS_STREAM = BITS != 5;
    typedef StreamRow<Plain<BITS, MINIMUM>, 2 + 2 * MINIMUM, ROWS> Stream;
};
