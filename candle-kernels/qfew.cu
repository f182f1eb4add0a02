// Products of a few rows of activations with a matrix in one of GGML's block formats, on the matrix units:
// out[row][column] = sum over k of x[row][k] w[column][k]. A workgroup computes 16 columns of up to 16 rows, and
// each wave sums over some of the blocks. A lane unpacks its part of the fragment in registers, without LDS or
// barriers. Activations are quantized with one scale per block of the format, so that sums over a block are integers, or
// halves.
#include "folded.cuh"
#include "small_blocks.cuh"

typedef uint32_t Four __attribute__((ext_vector_type(4)));
__device__ __forceinline__ int as_halves(int a, int b) {
    return candle_bits<int>(Halves{(_Float16)(short)a, (_Float16)(short)b});
}
// For integers from 0 to 1023: as the low mantissa bits of the f16 number 1024.
__device__ __forceinline__ int small_as_halves(int a, int b) {
    return candle_bits<int>(candle_bits<Halves>(0x64006400 | a | b << 16) - (_Float16)1024);
}

// A lane's part of 16 columns of the matrix, and of the first PARTS groups of a tile's rows of X.
template <typename F, unsigned int PARTS, typename X, bool IS_SMALL = F::PIECES == 1>
struct Product : SmallBlocks<F, PARTS, X> {
    using SmallBlocks<F, PARTS, X>::SmallBlocks;
};
// For blocks of 256, which the lanes that share a column divide into pieces.
template <typename F, unsigned int PARTS>
struct Product<F, PARTS, int8_t, false> {
    static constexpr unsigned int BYTES = Folded<F>::PARTS, ROWS = Rows::COUNT / COLUMN_PARTS * PARTS;
    // Pieces of a block per lane and line, and words of a piece per product.
    static constexpr unsigned int PIECES_PER_LANE = F::PIECES / Columns::SHARES, WORDS = PIECE / 4 / Columns::SHARES;

    const uint8_t *columns[Columns::COUNT];
    const uint8_t *rows[ROWS];
    const Scale *scales[ROWS];
    unsigned int count;

    // Rows and columns past the end read the last one; their results are not written.
    template <typename R>
    __device__ __forceinline__ Product(const uint8_t *blocks, const uint8_t *x, const R &row_of,
                                       unsigned int first_column, unsigned int n, unsigned int k)
        : count(k / F::WEIGHTS) {
#pragma unroll
        for (unsigned int i = 0; i < Columns::COUNT; ++i) {
            columns[i] = blocks + (size_t)min(first_column + Columns::at(i), n - 1) * (k / F::WEIGHTS * F::BYTES);
        }
#pragma unroll
        for (unsigned int i = 0; i < ROWS; ++i) {
            const size_t row = row_of(Rows::at(i));
            rows[i] = x + row * k;
            scales[i] = (const Scale *)(x + (size_t)row_of.m * k) + row * (k / PIECE);
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

// Computes a tile of `count` rows of activations; `store(line, column, sum)` receives each result.
template <typename F, typename X, typename R, typename S>
__device__ __forceinline__ void tile(const uint8_t *blocks, const uint8_t *x, const R &row_of, const unsigned int count,
                                     const unsigned int n, const unsigned int k, S store) {
    constexpr unsigned int SIDE = CANDLE_QFEW_SIDE, MAX_WAVES = CANDLE_BLOCK / WAVE;
    static_assert(SIDE == TILE_SIDE, "a workgroup makes a tile");
    // Padded against bank conflicts between neighbouring rows.
    __shared__ float shared[MAX_WAVES][SIDE][SIDE + 4];
    const unsigned int first_column = blockIdx.x * SIDE;
    const unsigned int wave = threadIdx.x / WAVE, waves = blockDim.x / WAVE;
    Tile<float> sums = {};
    // Skips the second half of the rows if it is empty.
    if (COLUMN_PARTS == 1 || count > SIDE / COLUMN_PARTS) {
        Product<F, COLUMN_PARTS, X>(blocks, x, row_of, first_column, n, k).add(sums, wave, waves);
    } else {
        Product<F, 1, X>(blocks, x, row_of, first_column, n, k).add(sums, wave, waves);
    }
#pragma unroll
    for (unsigned int e = 0; e < LANE_ROWS * LANE_COLUMNS; ++e) {
        const unsigned int r = e / LANE_COLUMNS, c = e % LANE_COLUMNS;
        shared[wave][LaneLayout<Side::COLUMNS>::at(c)][LaneLayout<Side::ROWS>::at(r)] = sums.values[r][c];
    }
    __syncthreads();
    for (unsigned int i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x) {
        const unsigned int r = i / SIDE, c = i % SIDE;
        if (r < count && first_column + c < n) {
            float sum = 0;
#pragma unroll
            for (unsigned int w = 0; w < MAX_WAVES; ++w) {
                sum += w < waves ? shared[w][r][c] : 0;
            }
            store(r, first_column + c, sum);
        }
    }
}

template <typename F, typename X>
__device__ __forceinline__ void product(const uint8_t *blocks, const uint8_t *x, void *out, const unsigned int m,
                                        const unsigned int n, const unsigned int k, const unsigned int out_dtype) {
    const unsigned int first = blockIdx.y * CANDLE_QFEW_SIDE;
    tile<F, X>(blocks, x, DenseRows{first, m}, m - first, n, k, [=](unsigned int line, unsigned int column, float sum) INLINE {
        store_float(out, out_dtype, (size_t)(first + line) * n + column, sum);
    });
}

// Tiles of products with the matrix of one expert each, from `group` in routing.cu.
template <typename F>
__device__ __forceinline__ void experts_product(const uint8_t *blocks, const uint8_t *x, const uint32_t *order,
                                                const uint32_t *tiles, void *out, const unsigned int m,
                                                const unsigned int n, const unsigned int k, const unsigned int per,
                                                const unsigned int out_dtype) {
    const uint32_t expert = tiles[3 * blockIdx.y], first = tiles[3 * blockIdx.y + 1], end = tiles[3 * blockIdx.y + 2];
    if (first == end) {
        return;
    }
    const uint8_t *matrix = blocks + (size_t)expert * n * (k / F::WEIGHTS * F::BYTES);
    const OrderedRows rows = {order, first, end, m, per};
    tile<F, int8_t>(matrix, x, rows, end - first, n, k, [=](unsigned int line, unsigned int column, float sum) INLINE {
        store_float(out, out_dtype, (size_t)order[first + line] * n + column, sum);
    });
}

#define EXPERTS_OP(F, NAME, ...)                                                                                  \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK, 2) qfew_experts_##NAME(                           \
        const uint8_t *blocks, const uint8_t *x, const uint32_t *order, const uint32_t *tiles, void *out,        \
        const unsigned int m, const unsigned int n, const unsigned int k, const unsigned int rows_per_activation, \
        const unsigned int out_dtype) {                                                                           \
        experts_product<F>(blocks, x, order, tiles, out, m, n, k, rows_per_activation, out_dtype);               \
    }
CANDLE_EACH_FORMAT(EXPERTS_OP)
#define FEW_OP(F, NAME, ...) PRODUCT_OP(qfew_##NAME, F, int8_t)
#define FEW_HALVES_OP(F, NAME, ...) PRODUCT_OP(qfew_halves_##NAME, F, __half)
CANDLE_EACH_FORMAT(FEW_OP)
CANDLE_EACH_SMALL_FORMAT(FEW_HALVES_OP)
