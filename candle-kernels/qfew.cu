// Products of a few rows of activations with a matrix in a format with blocks of 256 weights, on the machine's matrix units:
// out[row][column] = sum of x[row][k] w[column][k]. A workgroup makes 16 columns of up to 16 rows, each wave the sums over
// some of the blocks. What a lane unpacks of its columns is at once its part of the matrix units' factor: weights meet no
// LDS, and none waits for another wave. Sums over a block are whole numbers; the activations have one scale for each block.
#include "folded.cuh"
#include "tiles.cuh"

typedef uint32_t Four __attribute__((ext_vector_type(4)));
typedef Lines<Side::ROWS> Columns;
typedef Lines<Side::COLUMNS> Rows;

typedef _Float16 Halves __attribute__((ext_vector_type(2)));
__device__ __forceinline__ int as_halves(int a, int b) {
    return candle_bits<int>(Halves{(_Float16)(short)a, (_Float16)(short)b});
}
// Of numbers from 0 to 1023, which are the last bits of 1024 and more.
__device__ __forceinline__ int small_as_halves(int a, int b) {
    return candle_bits<int>(candle_bits<Halves>(0x64006400 | a | b << 16) - (_Float16)1024);
}

// A lane's part of 16 columns of the matrix, and of so many PARTS of the rows of a tile.
template <typename F, unsigned int PARTS>
struct Product {
    static constexpr unsigned int BYTES = Folded<F>::PARTS, ROWS = Rows::COUNT / COLUMN_PARTS * PARTS;
    // Pieces of a block that a lane has of each line, and words of them that are multiplied at once.
    static constexpr unsigned int TURNS = F::PIECES / Columns::SHARES, WORDS = PIECE / 4 / Columns::SHARES;

    const uint8_t *columns[Columns::COUNT];
    const uint8_t *rows[ROWS];
    const Scale *scales[ROWS];

    // Rows and columns past the end are read from the last; what they give is not written.
    __device__ __forceinline__ Product(const uint8_t *blocks, const uint8_t *x, unsigned int first_row,
                                       unsigned int first_column, unsigned int m, unsigned int n, unsigned int k) {
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

    // Adds the products of a block.
    __device__ __forceinline__ void add(Tile<float> &sums, unsigned int block) const {
        typename F::Raw raw[Columns::COUNT][TURNS];
#pragma unroll
        for (unsigned int i = 0; i < Columns::COUNT * TURNS; ++i) {
            const unsigned int piece = Columns::share() + i % TURNS * Columns::SHARES;
            raw[i / TURNS][i % TURNS] = F::read(columns[i / TURNS] + (size_t)block * F::BYTES, piece);
        }
        Tile<int> products[BYTES] = {};
        // The 16 runs of a block are what a product of halves takes at once.
        Factor<__half, F::WEIGHTS / RUN, Side::ROWS> minimums;
        Factor<__half, F::WEIGHTS / RUN, Side::COLUMNS> x_sums = {};
        float scale[Columns::COUNT], minimum[Columns::COUNT], x_scale[Rows::COUNT] = {};
#pragma unroll
        for (unsigned int turn = 0; turn < TURNS; ++turn) {
            const unsigned int piece = Columns::share() + turn * Columns::SHARES;
            Factor<int8_t, PIECE, Side::COLUMNS> x[Columns::SHARES] = {};
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
                    struct alignas(2 * sizeof(Scale)) Two { Scale of[RUNS]; };
                    static_assert(F::DISTANCE == PIECE, "sums of a piece's runs lie in neighbours");
                    const unsigned int first = F::column(piece, 0) / RUN;
                    const Two two = *(const Two *)(at + first / RUNS);
                    const int16_t(&a)[RUNS] = two.of[0].sums, (&b)[RUNS] = two.of[1].sums;
                    const bool second = first % RUNS == 1;
                    Rows::set(x_sums, i, turn, second ? as_halves(a[1], b[1]) : as_halves(a[0], b[0]));
                    x_scale[i] = two.of[0].scale;
                } else {
                    x_scale[i] = at->scale;
                }
            }
            Factor<int8_t, PIECE, Side::ROWS> weights[BYTES][Columns::SHARES];
#pragma unroll
            for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                const Piece unpacked = F::unpack(raw[i][turn], piece);
                scale[i] = Folded<F>::NEGATED ? -unpacked.scale : unpacked.scale;
                minimum[i] = unpacked.minimum;
                Columns::set(minimums, i, turn, small_as_halves(unpacked.minimums[0], unpacked.minimums[1]));
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
        float scales_held[HELD_ROWS], minimums_held[HELD_ROWS], x_held[HELD_COLUMNS];
        Columns::spread(scale, scales_held);
        Columns::spread(minimum, minimums_held);
        Rows::spread(x_scale, x_held);
#pragma unroll
        for (unsigned int r = 0; r < HELD_ROWS; ++r) {
#pragma unroll
            for (unsigned int c = 0; c < HELD_COLUMNS / COLUMN_PARTS * PARTS; ++c) {
                int product = products[0].of[r][c];
                if constexpr (BYTES == 2) {
                    product = (product << Folded<F>::SHIFT) + products[1].of[r][c];
                }
                float sum = scales_held[r] * (float)product;
                if constexpr (F::MINIMUM) {
                    sum -= minimums_held[r] * offsets.of[r][c];
                }
                sums.of[r][c] += x_held[c] * sum;
            }
        }
    }
};

template <typename F>
__device__ __forceinline__ void product(const uint8_t *blocks, const uint8_t *x, float *out, const unsigned int m,
                                        const unsigned int n, const unsigned int k) {
    constexpr unsigned int SIDE = CANDLE_QFEW_SIDE, MOST_WAVES = CANDLE_BLOCK / WAVE;
    static_assert(SIDE == TILE_SIDE, "a workgroup makes a tile");
    // Lanes that hold elements of neighbouring rows meet different banks.
    __shared__ float shared[MOST_WAVES][SIDE][SIDE + 4];
    const unsigned int first_row = blockIdx.y * SIDE, first_column = blockIdx.x * SIDE;
    const unsigned int wave = threadIdx.x / WAVE, waves = blockDim.x / WAVE, count = k / F::WEIGHTS;
    Tile<float> sums = {};
    // Rows that are not there are left out by the half.
    if (COLUMN_PARTS == 1 || m - first_row > SIDE / COLUMN_PARTS) {
        const Product<F, COLUMN_PARTS> product(blocks, x, first_row, first_column, m, n, k);
#pragma unroll 1
        for (unsigned int block = wave; block < count; block += waves) {
            product.add(sums, block);
        }
    } else {
        const Product<F, 1> product(blocks, x, first_row, first_column, m, n, k);
#pragma unroll 1
        for (unsigned int block = wave; block < count; block += waves) {
            product.add(sums, block);
        }
    }
#pragma unroll
    for (unsigned int e = 0; e < HELD_ROWS * HELD_COLUMNS; ++e) {
        const unsigned int r = e / HELD_COLUMNS, c = e % HELD_COLUMNS;
        shared[wave][Held<Side::COLUMNS>::at(c)][Held<Side::ROWS>::at(r)] = sums.of[r][c];
    }
    __syncthreads();
    for (unsigned int i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x) {
        const unsigned int r = i / SIDE, c = i % SIDE;
        if (first_row + r < m && first_column + c < n) {
            float sum = 0;
#pragma unroll
            for (unsigned int w = 0; w < MOST_WAVES; ++w) {
                sum += w < waves ? shared[w][r][c] : 0;
            }
            out[(size_t)(first_row + r) * n + first_column + c] = sum;
        }
    }
}

#define FEW_OP(F, NAME, ...) PRODUCT_OP(qfew_##NAME, F)
CANDLE_EACH_LARGE_FORMAT(FEW_OP)
