// Products of a few rows of activations with blocks of 32 weights, on the matrix units.
#pragma once
#include "activations.cuh"
#include "tiles.cuh"

typedef FragmentLayout<Side::ROWS> Columns;
typedef FragmentLayout<Side::COLUMNS> Rows;

// Blocks of a row that a wave multiplies at a time; rows have at least as many. Without matrix units a lane holds several
// columns, for which registers do not suffice otherwise.
constexpr unsigned int STEP_BLOCKS = NO_MATRIX_UNIT ? 1 : CANDLE_QFEW_STEP;

// A lane's part of a block of 32 weights that SHARES lanes share: words of the block, each of which holds four weights of one
// or, in nibbles, of two chunks.
template <typename F, unsigned int SHARES>
struct Share {
    static constexpr bool IN_BYTES = F::QUANT_BITS == 8;
#if defined(__NVPTX__)
    // Lanes read consecutive words of LDS, which lie in different banks.
    static constexpr unsigned int LOADS = IN_BYTES ? 2 : 1;
#else
    static constexpr unsigned int LOADS = 1;
#endif
    static constexpr unsigned int CHUNK = (IN_BYTES ? 8 : 4) / SHARES / LOADS, CHUNKS = IN_BYTES ? LOADS : 2;
    static constexpr unsigned int WORDS = CHUNK * CHUNKS;
    Words<CHUNK, F::ALIGNMENT> quants[LOADS];
    uint32_t fifth;
    float scale, minimum;

    __device__ __forceinline__ Share() {}
    // Reads from block `number` of a step.
    __device__ __forceinline__ Share(const uint8_t *step, unsigned int number, unsigned int share)
        : fifth(F::QUANT_BITS == 5 ? words<1>(step, number * F::BYTES + F::FIFTH)[0] : 0),
          scale(F::scale(step + number * F::BYTES)), minimum(F::minimum(step + number * F::BYTES)) {
#pragma unroll
        for (unsigned int i = 0; i < LOADS; ++i) {
            quants[i] = words<CHUNK>(step + column(share, 0), number * F::BYTES + F::QUANTS + i * RUN);
        }
    }
    template <unsigned int N>
    __device__ __forceinline__ static Words<N, F::ALIGNMENT> words(const uint8_t *step, unsigned int at) {
#if defined(__NVPTX__)
        // A step begins with a whole word.
        if (F::ALIGNMENT < 4) {
            return Words<N, F::ALIGNMENT>::read_around(step + at, at % 4);
        }
#endif
        return Words<N, F::ALIGNMENT>::read(step + at);
    }
    // Returns the first weight of a chunk.
    __device__ __forceinline__ static unsigned int column(unsigned int share, unsigned int chunk) {
        return share * CHUNK * 4 + chunk * RUN;
    }
    // Returns four q as bytes.
    __device__ __forceinline__ uint32_t word(unsigned int share, unsigned int number) const {
        const unsigned int chunk = number / CHUNK, i = number % CHUNK;
        if constexpr (IN_BYTES) {
            return quants[chunk][i];
        } else {
            const uint32_t q = F::nibbles(quants[0][i], chunk);
            return F::QUANT_BITS == 5 ? q | fifth_bits(fifth >> (column(share, chunk) + 4 * i)) : q;
        }
    }
};

// Rows of activations of a tile from `first` on, of `m` rows. Lines past the end repeat the last row.
struct DenseRows {
    unsigned int first, m;
    __device__ __forceinline__ size_t operator()(unsigned int line) const { return min(first + line, m - 1); }
};
// Rows of activations of the products order[first] to order[end - 1], of which `per` share a row.
struct OrderedRows {
    const uint32_t *order;
    unsigned int first, end, m, per;
    __device__ __forceinline__ size_t operator()(unsigned int line) const { return order[min(first + line, end - 1)] / per; }
};

// A lane's activations for the first PARTS groups of a tile's rows. X is int8_t for quantized activations, otherwise their type.
// Rows past the end read the last one; their results are not written.
template <typename F, unsigned int PARTS>
struct OwnRows {
    static constexpr unsigned int ROWS = Rows::COUNT / COLUMN_PARTS * PARTS, SUMS = LANE_COLUMNS / COLUMN_PARTS * PARTS;
    typedef Share<F, Columns::SHARES> Part;
    const uint8_t *rows[ROWS];

    template <typename R>
    __device__ __forceinline__ OwnRows(const uint8_t *x, size_t row_bytes, const R &row) {
#pragma unroll
        for (unsigned int i = 0; i < ROWS; ++i) {
            rows[i] = x + row(Rows::at(i)) * row_bytes;
        }
    }
    // Distributes the scales, or minimums, of a lane's columns to the lanes that hold their sums.
    template <typename V>
    __device__ __forceinline__ static void distribute(const Part (&parts)[Columns::COUNT], V value, float (&held)[LANE_ROWS]) {
        float values[Columns::COUNT];
#pragma unroll
        for (unsigned int i = 0; i < Columns::COUNT; ++i) {
            values[i] = value(parts[i]);
        }
        Columns::distribute(values, held);
    }
};
template <typename F, unsigned int PARTS, typename X> struct Activations;

// Products of bytes. Sums over a block are integers.
template <typename F, unsigned int PARTS>
struct Activations<F, PARTS, int8_t> : OwnRows<F, PARTS> {
    typedef OwnRows<F, PARTS> O;
    typedef typename O::Part Part;
    struct Block {
        Words<Part::CHUNK, Part::CHUNK * 4> x[O::ROWS][Part::CHUNKS];
        Scale scales[O::SUMS];
    };
    const Scale *scales[O::SUMS];

    template <typename R>
    __device__ __forceinline__ Activations(const uint8_t *x, const R &row, unsigned int k) : O(x, k, row) {
#pragma unroll
        for (unsigned int i = 0; i < O::SUMS; ++i) {
            scales[i] = (const Scale *)(x + (size_t)row.m * k) + row(LaneLayout<Side::COLUMNS>::at(i)) * (k / PIECE);
        }
    }
    __device__ __forceinline__ Block read(unsigned int block) const {
        Block read;
#pragma unroll
        for (unsigned int i = 0; i < O::ROWS * Part::CHUNKS; ++i) {
            const unsigned int row = i / Part::CHUNKS, chunk = i % Part::CHUNKS;
            read.x[row][chunk] = read.x[row][chunk].read(this->rows[row] + (block * PIECE + Part::column(Columns::share(), chunk)));
        }
#pragma unroll
        for (unsigned int i = 0; i < O::SUMS; ++i) {
            read.scales[i] = scales[i][block];
        }
        return read;
    }
    __device__ __forceinline__ static void add(Tile<float> &sums, const Part (&parts)[Columns::COUNT], const Block &block) {
        Fragment<int8_t, PIECE, Side::ROWS> weights;
        Fragment<int8_t, PIECE, Side::COLUMNS> activations = {};
#pragma unroll
        for (unsigned int word = 0; word < Part::WORDS; ++word) {
#pragma unroll
            for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                Columns::set(weights, i, word, parts[i].word(Columns::share(), word));
            }
#pragma unroll
            for (unsigned int i = 0; i < O::ROWS; ++i) {
                Rows::set(activations, i, word, block.x[i][word / Part::CHUNK][word % Part::CHUNK]);
            }
        }
        float scales[LANE_ROWS], minimums[LANE_ROWS];
        O::distribute(parts, [](const Part &part) INLINE { return part.scale; }, scales);
        if (F::MINIMUM) {
            O::distribute(parts, [](const Part &part) INLINE { return part.minimum; }, minimums);
        }
        // The offset of q times the sum of the activations is subtracted in advance.
        Tile<int> products = {};
#pragma unroll
        for (unsigned int e = 0; F::OFFSET != 0 && e < LANE_ROWS * O::SUMS; ++e) {
            const Scale &scale = block.scales[e % O::SUMS];
            products.values[e / O::SUMS][e % O::SUMS] = -F::OFFSET * (scale.sums[0] + scale.sums[1]);
        }
        multiply<PARTS>(products, weights, activations);
#pragma unroll
        for (unsigned int e = 0; e < LANE_ROWS * O::SUMS; ++e) {
            const unsigned int r = e / O::SUMS, c = e % O::SUMS;
            float sum = scales[r] * (float)products.values[r][c];
            if (F::MINIMUM) {
                sum -= minimums[r] * (float)(block.scales[c].sums[0] + block.scales[c].sums[1]);
            }
            sums.values[r][c] += block.scales[c].scale * sum;
        }
    }
};

typedef _Float16 Halves __attribute__((ext_vector_type(2)));

// Converts two bytes of four q, from byte 2 * PAIR on, to q - OFFSET as halves.
template <typename F, unsigned int PAIR>
__device__ __forceinline__ int halves_of(uint32_t q) {
    // A byte becomes the low mantissa bits of the f16 number 1024. Signed bytes are made unsigned first.
    const uint32_t halves = __byte_perm(F::SIGNED ? q ^ 0x80808080 : q, 0x64646464, PAIR == 0 ? 0x4140 : 0x4342);
    return candle_bits<int>(candle_bits<Halves>(halves) - (_Float16)(1024 + (F::SIGNED ? 128 : F::OFFSET)));
}

// Products of halves, which need no quantized activations.
template <typename F, unsigned int PARTS>
struct Activations<F, PARTS, __half> : OwnRows<F, PARTS> {
    typedef OwnRows<F, PARTS> O;
    typedef typename O::Part Part;
    // Weights of a matrix product, and words of a line of it that a lane holds.
    static constexpr unsigned int DEPTH = 16, STEPS = PIECE / DEPTH, WORDS = DEPTH / 2 / Columns::SHARES;
    struct Block { Words<2 * Part::CHUNK, 8 * Part::CHUNK> x[O::ROWS][Part::CHUNKS]; };

    template <typename R>
    __device__ __forceinline__ Activations(const uint8_t *x, const R &row, unsigned int k)
        : O(x, (size_t)k * sizeof(__half), row) {}
    __device__ __forceinline__ Block read(unsigned int block) const {
        Block read;
#pragma unroll
        for (unsigned int i = 0; i < O::ROWS * Part::CHUNKS; ++i) {
            const unsigned int row = i / Part::CHUNKS, chunk = i % Part::CHUNKS;
            const unsigned int first = block * PIECE + Part::column(Columns::share(), chunk);
            read.x[row][chunk] = read.x[row][chunk].read(this->rows[row] + first * sizeof(__half));
        }
        return read;
    }
    __device__ __forceinline__ static void add(Tile<float> &sums, const Part (&parts)[Columns::COUNT], const Block &block) {
        Tile<float> products = {}, row_sums = {};
        Fragment<__half, DEPTH, Side::ROWS> weights[STEPS], ones;
        Fragment<__half, DEPTH, Side::COLUMNS> activations[STEPS] = {};
#pragma unroll
        for (unsigned int half = 0; half < 2 * Part::WORDS; ++half) {
            const unsigned int step = half / WORDS, word = half % WORDS;
#pragma unroll
            for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                const uint32_t q = parts[i].word(Columns::share(), half / 2);
                Columns::set(weights[step], i, word, half % 2 ? halves_of<F, 1>(q) : halves_of<F, 0>(q));
                Columns::set(ones, i, word, 0x3c003c00);
            }
#pragma unroll
            for (unsigned int i = 0; i < O::ROWS; ++i) {
                Rows::set(activations[step], i, word, block.x[i][half / (2 * Part::CHUNK)][half % (2 * Part::CHUNK)]);
            }
        }
#pragma unroll
        for (unsigned int step = 0; step < STEPS; ++step) {
            multiply<PARTS>(products, weights[step], activations[step]);
            if (F::MINIMUM) {
                multiply<PARTS>(row_sums, ones, activations[step]);
            }
        }
        float scales[LANE_ROWS], minimums[LANE_ROWS];
        O::distribute(parts, [](const Part &part) INLINE { return part.scale; }, scales);
        if (F::MINIMUM) {
            O::distribute(parts, [](const Part &part) INLINE { return part.minimum; }, minimums);
        }
#pragma unroll
        for (unsigned int e = 0; e < LANE_ROWS * O::SUMS; ++e) {
            const unsigned int r = e / O::SUMS, c = e % O::SUMS;
            sums.values[r][c] += scales[r] * products.values[r][c] - (F::MINIMUM ? minimums[r] * row_sums.values[r][c] : 0);
        }
    }
};

#if defined(__NVPTX__)
// Steps of a wave's 16 columns in LDS. A lane that read its parts of small unaligned blocks from memory would need an access
// for each word, and each access would touch as many cache lines as there are columns.
template <typename F>
struct Staging {
    typedef uint32_t Pair __attribute__((ext_vector_type(2)));
    // Pairs of words of a column, loads of a lane, and words between columns in LDS, which begin in different banks.
    static constexpr unsigned int PAIRS = (STEP_BLOCKS * F::BYTES + 7) / 8, LOADS = (TILE_SIDE * PAIRS + WAVE - 1) / WAVE;
    static constexpr unsigned int PITCH = ((PAIRS + 1) / 2 | 1) * 4;
    typedef Pair Buffer[TILE_SIDE][PITCH / 2];
    // A pair, or the words around it, and the number of bits before it.
    struct Load { Pair pair; uint32_t next, past; };

    const uint8_t *first;
    unsigned int offsets[LOADS];
    // The last whole word of a column for a lane's loads, from `first`.
    unsigned int ends[LOADS];
    // True if all steps are pairs of words.
    bool in_pairs;

    // Columns past the last one repeat it. `from` is the first, which need not begin with a word.
    __device__ __forceinline__ Staging(const uint8_t *from, unsigned int column_bytes, unsigned int last)
        : first(from - (uintptr_t)from % 8), in_pairs(((uintptr_t)from | column_bytes | STEP_BLOCKS * F::BYTES) % 8 == 0) {
#pragma unroll
        for (unsigned int i = 0; i < LOADS; ++i) {
            const unsigned int column = (uintptr_t)from % 8 + min(number(i) / PAIRS, last) * column_bytes;
            offsets[i] = column + number(i) % PAIRS * 8;
            ends[i] = (column + column_bytes - 1) & ~3u;
        }
    }
    __device__ __forceinline__ static unsigned int number(unsigned int i) {
        return min(candle_lane() + i * WAVE, TILE_SIDE * PAIRS - 1);
    }
    // Words past the end of a column, which no block needs, repeat its last one.
    __device__ __forceinline__ void load(Load (&loads)[LOADS], unsigned int block) const {
#pragma unroll
        for (unsigned int i = 0; i < LOADS; ++i) {
            const unsigned int at = block * F::BYTES + offsets[i];
            if (in_pairs) {
                loads[i] = {*(const Pair *)(first + at), 0, 0};
            } else {
                const auto word = [&](unsigned int from) INLINE { return *(const uint32_t *)(first + min(from & ~3u, ends[i])); };
                loads[i] = {{word(at), word(at + 4)}, word(at + 8), at % 4 * 8};
            }
        }
    }
    __device__ __forceinline__ static void store(Buffer &buffer, const Load (&loads)[LOADS]) {
#pragma unroll
        for (unsigned int i = 0; i < LOADS; ++i) {
            const auto [pair, next, past] = loads[i];
            const auto joined = [=](uint32_t low, uint32_t high) INLINE { return (uint32_t)(((uint64_t)high << 32 | low) >> past); };
            buffer[number(i) / PAIRS][number(i) % PAIRS] = Pair{joined(pair[0], pair[1]), joined(pair[1], next)};
        }
    }
};
template <typename F>
__device__ __forceinline__ typename Staging<F>::Buffer *staging_buffers() {
    __shared__ typename Staging<F>::Buffer buffers[CANDLE_BLOCK / WAVE];
    return buffers;
}
#endif

// Adds the products of a lane's part of 16 columns. The next step of a wave is loaded while a step is multiplied.
template <typename F, unsigned int PARTS, typename X>
struct SmallBlocks {
    typedef Share<F, Columns::SHARES> Part;
    typedef Activations<F, PARTS, X> A;

    A activations;
    const uint8_t *first;
    // Blocks of a column, and the number of the last column.
    unsigned int count, last;

    // Columns past the end read the last one; their results are not written.
    template <typename R>
    __device__ __forceinline__ SmallBlocks(const uint8_t *blocks, const uint8_t *x, const R &row,
                                           unsigned int first_column, unsigned int n, unsigned int k)
        : activations(x, row, k), first(blocks + (size_t)first_column * (k / PIECE * F::BYTES)),
          count(k / PIECE), last(n - 1 - first_column) {}
    // Returns the block with which the step of a block begins. The last step ends with the row, so that it may begin with blocks
    // that an earlier step has multiplied.
    __device__ __forceinline__ unsigned int begin_of(unsigned int block) const { return min(block, count - STEP_BLOCKS); }

#if defined(__NVPTX__)
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int wave, unsigned int waves) const {
        typedef Staging<F> S;
        typename S::Buffer &buffer = staging_buffers<F>()[wave];
        const S staging(first, count * F::BYTES, last);
        typename S::Load next[S::LOADS];
        if (wave * STEP_BLOCKS < count) {
            staging.load(next, begin_of(wave * STEP_BLOCKS));
        }
#pragma unroll 1
        for (unsigned int block = wave * STEP_BLOCKS; block < count; block += waves * STEP_BLOCKS) {
            const auto begin = [&] INLINE {
                __syncwarp();
                staging.store(buffer, next);
                __syncwarp();
                if (block + waves * STEP_BLOCKS < count) {
                    staging.load(next, begin_of(block + waves * STEP_BLOCKS));
                }
            };
            add(sums, block, begin, [&](unsigned int b, unsigned int column) INLINE {
                return Part((const uint8_t *)buffer[Columns::at(column)], b, Columns::share());
            });
        }
    }
#else
    struct Step { Part columns[STEP_BLOCKS][Columns::COUNT]; };
    __device__ __forceinline__ void read(Step &step, unsigned int block) const {
#pragma unroll
        for (unsigned int i = 0; i < STEP_BLOCKS * Columns::COUNT; ++i) {
            const unsigned int column = min(Columns::at(i % Columns::COUNT), last);
            const uint8_t *from = first + (size_t)(column * count + begin_of(block)) * F::BYTES;
            step.columns[i / Columns::COUNT][i % Columns::COUNT] = Part(from, i / Columns::COUNT, Columns::share());
        }
    }
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int wave, unsigned int waves) const {
        Step next;
        if (wave * STEP_BLOCKS < count) {
            read(next, wave * STEP_BLOCKS);
        }
#pragma unroll 1
        for (unsigned int block = wave * STEP_BLOCKS; block < count; block += waves * STEP_BLOCKS) {
            const Step step = next;
            if (block + waves * STEP_BLOCKS < count) {
                read(next, block + waves * STEP_BLOCKS);
            }
            add(sums, block, [] INLINE {}, [&](unsigned int b, unsigned int column) INLINE { return step.columns[b][column]; });
        }
    }
#endif
    // Adds the products of a block's step, after `begin`; `part(b, column)` returns this lane's part of a block.
    template <typename B, typename P>
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int block, B begin, P part) const {
        // Blocks whose activations are loaded together.
        constexpr unsigned int TOGETHER = PARTS > 1 ? STEP_BLOCKS / 2 : STEP_BLOCKS;
#pragma unroll
        for (unsigned int from = 0; from < STEP_BLOCKS; from += TOGETHER) {
            typename A::Block x[TOGETHER];
#pragma unroll
            for (unsigned int b = 0; b < TOGETHER; ++b) {
                x[b] = activations.read(begin_of(block) + from + b);
            }
            if (from == 0) {
                begin();
            }
#pragma unroll
            for (unsigned int b = 0; b < TOGETHER; ++b) {
                Part parts[Columns::COUNT];
#pragma unroll
                for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                    parts[i] = part(from + b, i);
                    if (begin_of(block) + from + b < block) {
                        parts[i].scale = parts[i].minimum = 0;
                    }
                }
                A::add(sums, parts, x[b]);
            }
        }
    }
};
