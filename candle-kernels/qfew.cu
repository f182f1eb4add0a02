// Products of a few rows of activations with a matrix in one of GGML's block formats, on the matrix units:
// out[row][column] = sum over k of x[row][k] w[column][k]. A workgroup computes 16 columns of up to 16 rows, and
// each wave sums over some of the blocks. A lane unpacks its part of the fragment in registers, without LDS or
// barriers. Sums over a block are integers, because the activations have one scale per block of the format.
#include "folded.cuh"
#include "tiles.cuh"

typedef uint32_t Four __attribute__((ext_vector_type(4)));
typedef FragmentLayout<Side::ROWS> Columns;
typedef FragmentLayout<Side::COLUMNS> Rows;

typedef _Float16 Halves __attribute__((ext_vector_type(2)));
__device__ __forceinline__ int as_halves(int a, int b) {
    return candle_bits<int>(Halves{(_Float16)(short)a, (_Float16)(short)b});
}
// For integers from 0 to 1023: as the low mantissa bits of the f16 number 1024.
__device__ __forceinline__ int small_as_halves(int a, int b) {
    return candle_bits<int>(candle_bits<Halves>(0x64006400 | a | b << 16) - (_Float16)1024);
}

// A lane's part of 16 columns of the matrix, and of the first PARTS groups of a tile's rows. For blocks of 256, which the
// lanes that share a column divide into pieces.
template <typename F, unsigned int PARTS, bool IS_SMALL = F::PIECES == 1>
struct Product {
    static constexpr unsigned int BYTES = Folded<F>::PARTS, ROWS = Rows::COUNT / COLUMN_PARTS * PARTS;
    // Pieces of a block per lane and line, and words of a piece per product.
    static constexpr unsigned int PIECES_PER_LANE = F::PIECES / Columns::SHARES, WORDS = PIECE / 4 / Columns::SHARES;

    const uint8_t *columns[Columns::COUNT];
    const uint8_t *rows[ROWS];
    const Scale *scales[ROWS];
    unsigned int count;

    // Rows and columns past the end read the last one; their results are not written.
    __device__ __forceinline__ Product(const uint8_t *blocks, const uint8_t *x, unsigned int first_row,
                                       unsigned int first_column, unsigned int m, unsigned int n, unsigned int k)
        : count(k / F::WEIGHTS) {
#pragma unroll
        for (unsigned int i = 0; i < Columns::COUNT; ++i) {
            columns[i] = blocks + (size_t)min(first_column + Columns::at(i), n - 1) * (k / F::WEIGHTS * F::BYTES);
        }
#pragma unroll
        for (unsigned int i = 0; i < ROWS; ++i) {
            const size_t row = min(first_row + Rows::at(i), m - 1);
            rows[i] = x + row * k;
            scales[i] = (const Scale *)(x + (size_t)m * k) + row * (k / PIECE);
        }
    }

    // Adds the products of the blocks of a wave.
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int wave, unsigned int waves) const {
#pragma unroll 1
        for (unsigned int block = wave; block < count; block += waves) {
            add(sums, block);
        }
    }
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int block) const {
        typename F::Raw raw[Columns::COUNT][PIECES_PER_LANE];
#pragma unroll
        for (unsigned int i = 0; i < Columns::COUNT * PIECES_PER_LANE; ++i) {
            const unsigned int piece = Columns::share() + i % PIECES_PER_LANE * Columns::SHARES;
            raw[i / PIECES_PER_LANE][i % PIECES_PER_LANE] = F::read(columns[i / PIECES_PER_LANE] + (size_t)block * F::BYTES, piece);
        }
        Tile<int> products[BYTES] = {};
        // The 16 runs of a block are the depth of one product of halves.
        Fragment<__half, F::WEIGHTS / RUN, Side::ROWS> minimums;
        Fragment<__half, F::WEIGHTS / RUN, Side::COLUMNS> x_sums = {};
        float scale[Columns::COUNT], minimum[Columns::COUNT], x_scale[Rows::COUNT] = {};
#pragma unroll
        for (unsigned int step = 0; step < PIECES_PER_LANE; ++step) {
            const unsigned int piece = Columns::share() + step * Columns::SHARES;
            Fragment<int8_t, PIECE, Side::COLUMNS> x[Columns::SHARES] = {};
#pragma unroll
            for (unsigned int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (unsigned int run = 0; run < RUNS; ++run) {
                    const Four four = *(const Four *)(rows[i] + (block * F::WEIGHTS + F::column(piece, run)));
#pragma unroll
                    for (unsigned int w = 0; w < RUN / 4; ++w) {
                        const unsigned int word = run * (RUN / 4) + w;
                        Rows::set(x[word / WORDS], i, word % WORDS, four[w]);
                    }
                }
                const Scale *at = scales[i] + block * F::PIECES;
                if constexpr (F::MINIMUM) {
                    struct alignas(2 * sizeof(Scale)) Two { Scale values[RUNS]; };
                    static_assert(F::DISTANCE == PIECE, "sums of a piece's runs lie in neighbours");
                    const unsigned int first = F::column(piece, 0) / RUN;
                    const Two two = *(const Two *)(at + first / RUNS);
                    const int16_t(&a)[RUNS] = two.values[0].sums, (&b)[RUNS] = two.values[1].sums;
                    const bool second = first % RUNS == 1;
                    Rows::set(x_sums, i, step, second ? as_halves(a[1], b[1]) : as_halves(a[0], b[0]));
                    x_scale[i] = two.values[0].scale;
                } else {
                    x_scale[i] = at->scale;
                }
            }
            Fragment<int8_t, PIECE, Side::ROWS> weights[BYTES][Columns::SHARES];
#pragma unroll
            for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                const Piece unpacked = F::unpack(raw[i][step], piece);
                scale[i] = Folded<F>::NEGATED ? -unpacked.scale : unpacked.scale;
                minimum[i] = unpacked.minimum;
                Columns::set(minimums, i, step, small_as_halves(unpacked.minimums[0], unpacked.minimums[1]));
#pragma unroll
                for (unsigned int word = 0; word < PIECE / 4; ++word) {
                    const unsigned int run = word / (RUN / 4);
                    uint32_t folded[BYTES];
                    fold<F>(unpacked.q[run][word % (RUN / 4)], unpacked.scales[run], folded);
#pragma unroll
                    for (unsigned int byte = 0; byte < BYTES; ++byte) {
                        Columns::set(weights[byte][word / WORDS], i, word % WORDS, folded[byte]);
                    }
                }
            }
#pragma unroll
            for (unsigned int i = 0; i < Columns::SHARES * BYTES; ++i) {
                multiply<PARTS>(products[i % BYTES], weights[i % BYTES][i / BYTES], x[i / BYTES]);
            }
        }
        Tile<float> offsets = {};
        if constexpr (F::MINIMUM) {
            multiply<PARTS>(offsets, minimums, x_sums);
        }
        float lane_scales[LANE_ROWS], lane_minimums[LANE_ROWS], lane_x_scales[LANE_COLUMNS];
        Columns::distribute(scale, lane_scales);
        Columns::distribute(minimum, lane_minimums);
        Rows::distribute(x_scale, lane_x_scales);
#pragma unroll
        for (unsigned int r = 0; r < LANE_ROWS; ++r) {
#pragma unroll
            for (unsigned int c = 0; c < LANE_COLUMNS / COLUMN_PARTS * PARTS; ++c) {
                int product = products[0].values[r][c];
                if constexpr (BYTES == 2) {
                    product = (product << Folded<F>::SHIFT) + products[1].values[r][c];
                }
                float sum = lane_scales[r] * (float)product;
                if constexpr (F::MINIMUM) {
                    sum -= lane_minimums[r] * offsets.values[r][c];
                }
                sums.values[r][c] += lane_x_scales[c] * sum;
            }
        }
    }
};

// A lane's part of a block of 32 weights that SHARES lanes share: CHUNK words of the block, which hold CHUNKS times as many
// words of weights.
template <typename F, unsigned int SHARES>
struct Share {
    static constexpr unsigned int CHUNK = (F::QUANT_BITS == 8 ? 8 : 4) / SHARES, CHUNKS = F::QUANT_BITS == 8 ? 1 : 2;
    Words<CHUNK, F::ALIGNMENT> quants;
    uint32_t fifth;
    float scale, minimum;

    __device__ __forceinline__ Share() {}
    __device__ __forceinline__ Share(const uint8_t *block, unsigned int share)
        : quants(F::template words<CHUNK>(block + F::QUANTS + share * CHUNK * 4)),
          fifth(F::QUANT_BITS == 5 ? F::template words<1>(block + F::FIFTH)[0] : 0), scale(half_at(block)),
          minimum(F::MINIMUM ? -half_at(block + 2) : 0) {}

    // Returns the first weight of a chunk.
    __device__ __forceinline__ static unsigned int column(unsigned int share, unsigned int chunk) {
        return share * CHUNK * 4 + chunk * RUN;
    }
    // Returns four q as bytes.
    __device__ __forceinline__ uint32_t word(unsigned int share, unsigned int chunk, unsigned int i) const {
        const uint32_t q = CHUNKS == 1 ? quants[i] : quants[i] >> (4 * chunk) & 0x0f0f0f0f;
        return F::QUANT_BITS == 5 ? q | fifth_bits(fifth >> (column(share, chunk) + 4 * i)) : q;
    }
};

#if defined(__NVPTX__)
// Blocks of a wave's 16 columns in LDS. A lane that read its parts of small unaligned blocks from memory would need an access
// for each word, and each access would touch as many cache lines as there are columns.
template <typename F>
struct Staging {
    // Blocks of a column, their words if they begin within a word, and loads of a lane.
    static constexpr unsigned int STEP = 4, BYTES = STEP * F::BYTES, WORDS = BYTES / 4 + 1;
    static constexpr unsigned int LOADS = (TILE_SIDE * WORDS + WAVE - 1) / WAVE;
    static_assert(BYTES % 4 == 0 && WORDS % 2 == 1, "every step begins alike, and columns begin in different banks");
    typedef uint32_t Columns[TILE_SIDE][WORDS];

    const uint8_t *first;
    unsigned int column_bytes, last;
    int offsets[LOADS];

    // Columns past the last one repeat it.
    __device__ __forceinline__ Staging(const uint8_t *first, unsigned int column_bytes, unsigned int last)
        : first(first), column_bytes(column_bytes), last(last) {
#pragma unroll
        for (unsigned int i = 0; i < LOADS; ++i) {
            const unsigned int column = number(i) / WORDS, shift = misalignment(column);
            offsets[i] = (int)(min(column, last) * column_bytes + 4 * min(number(i) % WORDS, WORDS - (shift > 0 ? 1 : 2)) - shift);
        }
    }
    __device__ __forceinline__ static unsigned int number(unsigned int i) { return candle_lane() + i * WAVE; }
    // Returns the number of bytes from the beginning of a word to that of a column.
    __device__ __forceinline__ unsigned int misalignment(unsigned int column) const {
        return ((uintptr_t)first + min(column, last) * column_bytes) % 4;
    }
    // Loads STEP blocks from `block` on. Blocks past the end are not loaded.
    __device__ __forceinline__ void load(uint32_t (&words)[LOADS], unsigned int block) const {
        const uint8_t *from = first + (size_t)block * F::BYTES;
        const int left = (int)(column_bytes - block * F::BYTES);
        if (left >= (int)BYTES) {
#pragma unroll
            for (unsigned int i = 0; i < LOADS; ++i) {
                words[i] = *(const uint32_t *)(from + offsets[i]);
            }
            return;
        }
#pragma unroll
        for (unsigned int i = 0; i < LOADS; ++i) {
            const unsigned int column = number(i) / WORDS;
            const int at = (int)(4 * (number(i) % WORDS) - misalignment(column));
            words[i] = at < left ? *(const uint32_t *)(from + offsets[i]) : 0;
        }
    }
    __device__ __forceinline__ static void store(Columns &columns, const uint32_t (&words)[LOADS]) {
#pragma unroll
        for (unsigned int i = 0; i < LOADS; ++i) {
            if (number(i) < TILE_SIDE * WORDS) {
                (&columns[0][0])[number(i)] = words[i];
            }
        }
    }
};
template <typename F>
__device__ __forceinline__ typename Staging<F>::Columns *staged_columns() {
    __shared__ typename Staging<F>::Columns columns[CANDLE_BLOCK / WAVE];
    return columns;
}
#endif

// For blocks of 32, one product of bytes each. The next STEP blocks of a wave are loaded while STEP blocks are multiplied.
template <typename F, unsigned int PARTS>
struct Product<F, PARTS, true> {
    static constexpr unsigned int ROWS = Rows::COUNT / COLUMN_PARTS * PARTS, SUMS = LANE_COLUMNS / COLUMN_PARTS * PARTS;
    // Without matrix units a lane holds several columns, for which registers do not suffice otherwise.
    static constexpr unsigned int SHARES = Columns::SHARES, STEP = NO_MATRIX_UNIT ? 1 : 4;
    typedef Share<F, SHARES> Part;
    typedef Words<Part::CHUNK, Part::CHUNK * 4> Chunk;

    const uint8_t *first;
    const uint8_t *rows[ROWS];
    // Scales of the activations by which a lane multiplies its sums.
    const Scale *scales[SUMS];
    // Blocks of a column, and the number of the last column.
    unsigned int count, last;

    // Rows and columns past the end read the last one; their results are not written.
    __device__ __forceinline__ Product(const uint8_t *blocks, const uint8_t *x, unsigned int first_row,
                                       unsigned int first_column, unsigned int m, unsigned int n, unsigned int k)
        : first(blocks + (size_t)first_column * (k / PIECE * F::BYTES)), count(k / PIECE), last(n - 1 - first_column) {
#pragma unroll
        for (unsigned int i = 0; i < ROWS; ++i) {
            rows[i] = x + (size_t)min(first_row + Rows::at(i), m - 1) * k;
        }
#pragma unroll
        for (unsigned int i = 0; i < SUMS; ++i) {
            const size_t row = min(first_row + LaneLayout<Side::COLUMNS>::at(i), m - 1);
            scales[i] = (const Scale *)(x + (size_t)m * k) + row * count;
        }
    }

#if defined(__NVPTX__)
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int wave, unsigned int waves) const {
        typedef Staging<F> Staged;
        static_assert(Staged::STEP == STEP);
        auto &staged = staged_columns<F>()[wave];
        const Staged staging(first, count * F::BYTES, last);
        uint32_t next[Staged::LOADS];
        if (wave * STEP < count) {
            staging.load(next, wave * STEP);
        }
#pragma unroll 1
        for (unsigned int block = wave * STEP; block < count; block += waves * STEP) {
            __syncwarp();
            staging.store(staged, next);
            __syncwarp();
            if (block + waves * STEP < count) {
                staging.load(next, block + waves * STEP);
            }
            add(sums, block, [&](unsigned int b, unsigned int column) INLINE {
                const unsigned int line = Columns::at(column);
                const uint8_t *from = (const uint8_t *)staged[line] + staging.misalignment(line);
                return Part(from + b * F::BYTES, Columns::share());
            });
        }
    }
#else
    struct Blocks { Part columns[STEP][Columns::COUNT]; };
    // Blocks past the end read the last one.
    __device__ __forceinline__ void read(Blocks &blocks, unsigned int block) const {
#pragma unroll
        for (unsigned int i = 0; i < STEP * Columns::COUNT; ++i) {
            const unsigned int b = i / Columns::COUNT, column = min(Columns::at(i % Columns::COUNT), last);
            const uint8_t *from = first + (size_t)(column * count + min(block + b, count - 1)) * F::BYTES;
            blocks.columns[b][i % Columns::COUNT] = Part(from, Columns::share());
        }
    }
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int wave, unsigned int waves) const {
        Blocks next;
        read(next, wave * STEP);
#pragma unroll 1
        for (unsigned int block = wave * STEP; block < count; block += waves * STEP) {
            const Blocks blocks = next;
            if (block + waves * STEP < count) {
                read(next, block + waves * STEP);
            }
            add(sums, block, [&](unsigned int b, unsigned int column) INLINE { return blocks.columns[b][column]; });
        }
    }
#endif
    // Adds the products of STEP blocks; `part(b, column)` returns this lane's part of a block.
    template <typename P>
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int first, P part) const {
        // Blocks whose activations are loaded together.
        constexpr unsigned int TOGETHER = PARTS > 1 && STEP > 1 ? STEP / 2 : STEP;
#pragma unroll
        for (unsigned int from = 0; from < STEP; from += TOGETHER) {
            Chunk x[TOGETHER][ROWS][Part::CHUNKS];
            Scale x_scales[TOGETHER][SUMS];
#pragma unroll
            for (unsigned int b = 0; b < TOGETHER; ++b) {
                const unsigned int at = min(first + from + b, count - 1);
#pragma unroll
                for (unsigned int i = 0; i < ROWS * Part::CHUNKS; ++i) {
                    const unsigned int row = i / Part::CHUNKS, chunk = i % Part::CHUNKS;
                    x[b][row][chunk] = Chunk::read(rows[row] + (at * PIECE + Part::column(Columns::share(), chunk)));
                }
#pragma unroll
                for (unsigned int i = 0; i < SUMS; ++i) {
                    x_scales[b][i] = scales[i][at];
                }
            }
#pragma unroll
            for (unsigned int b = 0; b < TOGETHER; ++b) {
                if (first + from + b < count) {
                    Part parts[Columns::COUNT];
#pragma unroll
                    for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                        parts[i] = part(from + b, i);
                    }
                    add(sums, parts, x[b], x_scales[b]);
                }
            }
        }
    }
    __device__ __forceinline__ void add(Tile<float> &sums, const Part (&parts)[Columns::COUNT],
                                        const Chunk (&x)[ROWS][Part::CHUNKS], const Scale (&x_scales)[SUMS]) const {
        Fragment<int8_t, PIECE, Side::ROWS> weights;
        Fragment<int8_t, PIECE, Side::COLUMNS> activations = {};
#pragma unroll
        for (unsigned int word = 0; word < Part::CHUNK * Part::CHUNKS; ++word) {
            const unsigned int chunk = word / Part::CHUNK, w = word % Part::CHUNK;
#pragma unroll
            for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                Columns::set(weights, i, word, parts[i].word(Columns::share(), chunk, w));
            }
#pragma unroll
            for (unsigned int i = 0; i < ROWS; ++i) {
                Rows::set(activations, i, word, x[i][chunk][w]);
            }
        }
        float scale[Columns::COUNT], minimum[Columns::COUNT], lane_scales[LANE_ROWS], lane_minimums[LANE_ROWS];
#pragma unroll
        for (unsigned int i = 0; i < Columns::COUNT; ++i) {
            scale[i] = parts[i].scale;
            minimum[i] = parts[i].minimum;
        }
        Columns::distribute(scale, lane_scales);
        if (F::MINIMUM) {
            Columns::distribute(minimum, lane_minimums);
        }
        // The offset of q times the sum of the activations is subtracted in advance.
        Tile<int> products = {};
#pragma unroll
        for (unsigned int e = 0; F::OFFSET != 0 && e < LANE_ROWS * SUMS; ++e) {
            const Scale &x_scale = x_scales[e % SUMS];
            products.values[e / SUMS][e % SUMS] = -F::OFFSET * (x_scale.sums[0] + x_scale.sums[1]);
        }
        multiply<PARTS>(products, weights, activations);
#pragma unroll
        for (unsigned int e = 0; e < LANE_ROWS * SUMS; ++e) {
            const unsigned int r = e / SUMS, c = e % SUMS;
            float sum = lane_scales[r] * (float)products.values[r][c];
            if (F::MINIMUM) {
                sum -= lane_minimums[r] * (float)(x_scales[c].sums[0] + x_scales[c].sums[1]);
            }
            sums.values[r][c] += x_scales[c].scale * sum;
        }
    }
};

template <typename F>
__device__ __forceinline__ void product(const uint8_t *blocks, const uint8_t *x, void *out, const unsigned int m,
                                        const unsigned int n, const unsigned int k, const unsigned int out_dtype) {
    constexpr unsigned int SIDE = CANDLE_QFEW_SIDE, MAX_WAVES = CANDLE_BLOCK / WAVE;
    static_assert(SIDE == TILE_SIDE, "a workgroup makes a tile");
    // Padded against bank conflicts between neighbouring rows.
    __shared__ float shared[MAX_WAVES][SIDE][SIDE + 4];
    const unsigned int first_row = blockIdx.y * SIDE, first_column = blockIdx.x * SIDE;
    const unsigned int wave = threadIdx.x / WAVE, waves = blockDim.x / WAVE;
    Tile<float> sums = {};
    // Skips the second half of the rows if it is empty.
    if (COLUMN_PARTS == 1 || m - first_row > SIDE / COLUMN_PARTS) {
        Product<F, COLUMN_PARTS>(blocks, x, first_row, first_column, m, n, k).add(sums, wave, waves);
    } else {
        Product<F, 1>(blocks, x, first_row, first_column, m, n, k).add(sums, wave, waves);
    }
#pragma unroll
    for (unsigned int e = 0; e < LANE_ROWS * LANE_COLUMNS; ++e) {
        const unsigned int r = e / LANE_COLUMNS, c = e % LANE_COLUMNS;
        shared[wave][LaneLayout<Side::COLUMNS>::at(c)][LaneLayout<Side::ROWS>::at(r)] = sums.values[r][c];
    }
    __syncthreads();
    for (unsigned int i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x) {
        const unsigned int r = i / SIDE, c = i % SIDE;
        if (first_row + r < m && first_column + c < n) {
            float sum = 0;
#pragma unroll
            for (unsigned int w = 0; w < MAX_WAVES; ++w) {
                sum += w < waves ? shared[w][r][c] : 0;
            }
            store_float(out, out_dtype, (size_t)(first_row + r) * n + first_column + c, sum);
        }
    }
}

#define FEW_OP(F, NAME, ...) PRODUCT_OP(qfew_##NAME, F)
CANDLE_EACH_FORMAT(FEW_OP)
