// Products of many rows of activations with a matrix in one of GGML's block formats, on the matrix units:
// out[row][column] = sum over k of x[row][k] w[column][k]. A workgroup computes ROWS x COLUMNS elements. It unpacks
// DEPTH weights of each column at a time into bytes in LDS, next to the activations' bytes. Products of bytes are
// accumulated exactly in i32, then scaled and added in f32.
#include "folded.cuh"
#include "tiles.cuh"

constexpr unsigned int ROWS = CANDLE_QTILE_ROWS, COLUMNS = CANDLE_QTILE_COLUMNS, DEPTH = CANDLE_QTILE_DEPTH;
// Per step: pieces of each row or column, and the row pitch in LDS in bytes.
constexpr unsigned int PIECES = DEPTH / PIECE, PITCH = DEPTH + TILE_PADDING;
// Vectors of 16 bytes and scales that each thread stores to LDS per step.
constexpr unsigned int FOURS = ROWS * DEPTH / 16 / CANDLE_BLOCK, SCALES = ROWS * PIECES / CANDLE_BLOCK;
static_assert(COLUMNS * PIECES == CANDLE_BLOCK, "a thread unpacks one piece of a step");

// The waves divide the columns into halves, and the rows.
constexpr unsigned int ROW_WAVES = CANDLE_BLOCK / WAVE / 2;
constexpr unsigned int ROW_TILES = ROWS / ROW_WAVES / TILE_SIDE, COLUMN_TILES = COLUMNS / 2 / TILE_SIDE;
// Puts the scales of neighbouring groups into different banks.
constexpr unsigned int GROUP_PADDING = 8;
typedef Tile<float> Sums[ROW_TILES][COLUMN_TILES];
constexpr unsigned int LANE_ELEMENTS = LANE_ROWS * LANE_COLUMNS;

typedef uint32_t Four __attribute__((ext_vector_type(4)));
typedef Four FourInLds __attribute__((aligned(TILE_PADDING)));

// Subtracts OFFSET from four bytes below 128.
template <int OFFSET>
__device__ __forceinline__ uint32_t subtract_offset(uint32_t q) {
    return OFFSET == 0 ? q : ((q | 0x80808080) - OFFSET * 0x01010101u) ^ 0x80808080;
}

// Product of 24-bit numbers, which AMD GPUs multiply four times as fast.
__device__ __forceinline__ int product_of_24_bits(int a, int b) {
#if defined(__NVPTX__)
    return a * b;
#else
    return (a << 8 >> 8) * (b << 8 >> 8);
#endif
}

// Returns the position of a run within the step.
template <typename F>
__device__ __forceinline__ constexpr unsigned int place(unsigned int piece, unsigned int run) {
    return F::PIECES > 1 ? F::column(piece, run) : piece * PIECE + run * RUN;
}

// Scales of a lane's lines, and their minimums or sums.
template <unsigned int COUNT>
struct LaneFactors { float scale[COUNT], other[COUNT]; };
template <Side SIDE, bool MINIMUM, unsigned int LINES>
__device__ __forceinline__ LaneFactors<LaneLayout<SIDE>::COUNT> lane_factors(const float (&values)[LINES][1 + MINIMUM],
                                                                             unsigned int first) {
    LaneFactors<LaneLayout<SIDE>::COUNT> factors;
#pragma unroll
    for (unsigned int i = 0; i < LaneLayout<SIDE>::COUNT; ++i) {
        factors.scale[i] = values[first + LaneLayout<SIDE>::at(i)][0];
        factors.other[i] = values[first + LaneLayout<SIDE>::at(i)][MINIMUM];
    }
    return factors;
}

// Scales sums of bytes in f32 after each group of weights that share a scale.
template <typename F>
struct FloatScaled {
    static constexpr unsigned int GROUPS = DEPTH / F::SCALED;
    // Activations have a sum for each group, but one scale for each piece.
    static constexpr unsigned int X_GROUPS = F::MINIMUM ? GROUPS : PIECES;
    // The scale of each group, and for formats with minimums its minimum or sum.
    float columns[GROUPS][COLUMNS + GROUP_PADDING][1 + F::MINIMUM];
    float rows[X_GROUPS][ROWS + GROUP_PADDING][1 + F::MINIMUM];

    __device__ __forceinline__ static uint32_t bytes(uint32_t q, int) { return subtract_offset<F::OFFSET>(q); }

    __device__ __forceinline__ void store_scales(const Piece &weights, unsigned int column, unsigned int piece, bool there) {
#pragma unroll
        for (unsigned int run = 0; run < RUNS; ++run) {
            const unsigned int at = place<F>(piece, run);
            if (at % F::SCALED == 0) {
                float *factors = columns[at / F::SCALED][column];
                factors[0] = there ? weights.scale_of(run) : 0;
                if (F::MINIMUM) {
                    factors[F::MINIMUM] = there ? weights.minimum_of(run) : 0;
                }
            }
        }
    }

    __device__ __forceinline__ void store_scales(const Scale &scale, unsigned int row, unsigned int piece, bool there) {
        const float factor = there ? scale.scale : 0;
        constexpr unsigned int SUMS = X_GROUPS / PIECES;
#pragma unroll
        for (unsigned int i = 0; i < SUMS; ++i) {
            float *to = rows[piece * SUMS + i][row];
            to[0] = factor;
            if (F::MINIMUM) {
                const int sum = SUMS == 1 ? scale.sums[0] + scale.sums[1] : scale.sums[i];
                to[F::MINIMUM] = factor * (float)sum;
            }
        }
    }

    // Adds the products of a step's bytes.
    __device__ __forceinline__ void add(Sums &sums, const int8_t *x, const int8_t *weights, unsigned int row_tile,
                                        unsigned int column_tile) const {
#pragma unroll 1
        for (unsigned int group = 0; group < GROUPS; ++group) {
            const unsigned int at = group * F::SCALED;
            Fragment<int8_t, F::SCALED, Side::ROWS> a[ROW_TILES];
            LaneFactors<LANE_ROWS> v[ROW_TILES];
#pragma unroll
            for (unsigned int i = 0; i < ROW_TILES; ++i) {
                const unsigned int first = (row_tile + i) * TILE_SIDE;
                a[i] = Fragment<int8_t, F::SCALED, Side::ROWS>::read(x + first * PITCH + at, PITCH);
                v[i] = lane_factors<Side::ROWS, F::MINIMUM>(rows[group * X_GROUPS / GROUPS], first);
            }
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const unsigned int first = (CANDLE_FEW_REGISTERS(column_tile, opaque(column_tile)) + j) * TILE_SIDE;
                const auto b =
                    Fragment<int8_t, F::SCALED, Side::COLUMNS>::read(weights + first * PITCH + at, PITCH);
                const auto w = lane_factors<Side::COLUMNS, F::MINIMUM>(columns[group], first);
#pragma unroll
                for (unsigned int i = 0; i < ROW_TILES; ++i) {
                    Tile<int> products = {};
                    multiply(products, a[i], b);
#pragma unroll
                    for (unsigned int e = 0; e < LANE_ELEMENTS; ++e) {
                        const unsigned int r = e / LANE_COLUMNS, c = e % LANE_COLUMNS;
                        float &sum = sums[i][j].values[r][c];
                        sum += w.scale[c] * v[i].scale[r] * (float)products.values[r][c];
                        if (F::MINIMUM) {
                            sum -= w.other[c] * v[i].other[r];
                        }
                    }
                }
            }
        }
    }
};

#if !defined(TILES_BY_LANES)
// For blocks of 256 weights: activations also have one scale per block, so that sums of bytes times integer scales
// stay integers over a step. The same holds for minimums times the activations' sums, which are exact in f16.
template <typename F>
struct IntegerScaled {
    // If weights times scales fit into bytes, LDS holds these products, and a step has one scale.
    static constexpr bool FOLDED = Folded<F>::PARTS == 1;
    static constexpr unsigned int GROUP = FOLDED ? PIECE : F::SCALED, GROUPS = DEPTH / GROUP, STEP_RUNS = DEPTH / RUN;
    alignas(16) __half minimums[F::MINIMUM ? COLUMNS : 1][STEP_RUNS];
    alignas(16) __half x_sums[F::MINIMUM ? ROWS : 1][STEP_RUNS];
    int scales[FOLDED ? 1 : GROUPS][COLUMNS + GROUP_PADDING];
    float columns[COLUMNS][1 + F::MINIMUM];
    float rows[ROWS][1];

    __device__ __forceinline__ static uint32_t bytes(uint32_t q, int scale) {
        if constexpr (FOLDED) {
            uint32_t parts[1];
            fold<F>(q, scale, parts);
            return parts[0];
        }
        return subtract_offset<F::OFFSET>(q);
    }

    __device__ __forceinline__ void store_scales(const Piece &weights, unsigned int column, unsigned int piece, bool) {
        if (piece == 0) {
            columns[column][0] = FOLDED && Folded<F>::NEGATED ? -weights.scale : weights.scale;
            if (F::MINIMUM) {
                columns[column][F::MINIMUM] = weights.minimum;
            }
        }
#pragma unroll
        for (unsigned int run = 0; run < RUNS; ++run) {
            const unsigned int at = place<F>(piece, run);
            if (!FOLDED && at % GROUP == 0) {
                scales[at / GROUP][column] = weights.scales[run];
            }
            if (F::MINIMUM) {
                minimums[column][at / RUN] = (__half)weights.minimums[run];
            }
        }
    }

    __device__ __forceinline__ void store_scales(const Scale &scale, unsigned int row, unsigned int piece, bool) {
        if (piece == 0) {
            rows[row][0] = scale.scale;
        }
        if (F::MINIMUM) {
            *(__half2 *)(x_sums[row] + piece * RUNS) = __half2{(__half)(int)scale.sums[0], (__half)(int)scale.sums[1]};
        }
    }

    // Reads a fragment whose second half is zero, because a step fills only the first.
    template <Side SIDE>
    __device__ __forceinline__ static Fragment<__half, 16, SIDE> halves(const __half *first) {
        const auto half = Fragment<__half, STEP_RUNS, SIDE>::read(first, STEP_RUNS);
        Fragment<__half, 16, SIDE> whole = {};
#pragma unroll
        for (unsigned int i = 0; i < half.WORDS; ++i) {
            // With mma, the words of the last eight columns follow those of the first.
            whole.words[0][SIDE == Side::COLUMNS ? i * COLUMN_PARTS : i] = half.words[0][i];
        }
        return whole;
    }

    __device__ __forceinline__ void add(Sums &sums, const int8_t *x, const int8_t *weights, unsigned int row_tile,
                                        unsigned int column_tile) const {
        Tile<int> products[ROW_TILES][COLUMN_TILES] = {};
#pragma unroll 1
        for (unsigned int group = 0; group < GROUPS; ++group) {
            const unsigned int at = group * GROUP;
            Fragment<int8_t, GROUP, Side::ROWS> a[ROW_TILES];
#pragma unroll
            for (unsigned int i = 0; i < ROW_TILES; ++i) {
                a[i] = Fragment<int8_t, GROUP, Side::ROWS>::read(x + (row_tile + i) * TILE_SIDE * PITCH + at, PITCH);
            }
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const unsigned int first = (column_tile + j) * TILE_SIDE;
                const auto b = Fragment<int8_t, GROUP, Side::COLUMNS>::read(weights + first * PITCH + at, PITCH);
#pragma unroll
                for (unsigned int i = 0; i < ROW_TILES; ++i) {
                    if (FOLDED) {
                        multiply(products[i][j], a[i], b);
                    } else {
                        Tile<int> group_products = {};
                        multiply(group_products, a[i], b);
#pragma unroll
                        for (unsigned int e = 0; e < LANE_ELEMENTS; ++e) {
                            const unsigned int r = e / LANE_COLUMNS, c = e % LANE_COLUMNS;
                            const int scale = scales[group][first + LaneLayout<Side::COLUMNS>::at(c)];
                            products[i][j].values[r][c] += product_of_24_bits(scale, group_products.values[r][c]);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (unsigned int i = 0; i < ROW_TILES; ++i) {
            const unsigned int first_row = (row_tile + i) * TILE_SIDE;
            const auto v = lane_factors<Side::ROWS, false>(rows, first_row);
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const unsigned int first = (column_tile + j) * TILE_SIDE;
                const auto w = lane_factors<Side::COLUMNS, F::MINIMUM>(columns, first);
                Tile<float> minimum_products = {};
                if constexpr (F::MINIMUM) {
                    multiply(minimum_products, halves<Side::ROWS>(x_sums[first_row]), halves<Side::COLUMNS>(minimums[first]));
                }
#pragma unroll
                for (unsigned int e = 0; e < LANE_ELEMENTS; ++e) {
                    const unsigned int r = e / LANE_COLUMNS, c = e % LANE_COLUMNS;
                    float value = w.scale[c] * (float)products[i][j].values[r][c];
                    if (F::MINIMUM) {
                        value -= w.other[c] * minimum_products.values[r][c];
                    }
                    sums[i][j].values[r][c] += v.scale[r] * value;
                }
            }
        }
    }
};
template <typename F, bool WHOLE = F::PIECES == 8> struct Scaling { typedef FloatScaled<F> Of; };
template <typename F> struct Scaling<F, true> { typedef IntegerScaled<F> Of; };
#else
template <typename F> struct Scaling { typedef FloatScaled<F> Of; };
#endif

template <typename F>
struct Product {
    typedef typename Scaling<F>::Of W;
    struct Shared {
        alignas(16) int8_t weights[COLUMNS * PITCH];
        alignas(16) int8_t x[ROWS * PITCH];
        W scaling;
    };

    // The data of a step that a thread has loaded.
    struct Read {
        typename F::Raw weights;
        Four x[FOURS];
        Scale scales[SCALES];
    };

    const uint8_t *columns;
    const uint8_t *rows;
    const Scale *scales;
    unsigned int last_row, last_column, k;

    // Rows and columns past the end read the last one; their results are not written.
    __device__ __forceinline__ Product(const uint8_t *blocks, const uint8_t *x, unsigned int first_row,
                                       unsigned int first_column, unsigned int m, unsigned int n, unsigned int k)
        : columns(blocks + (size_t)first_column * (k / F::WEIGHTS * F::BYTES)), rows(x + (size_t)first_row * k),
          scales((const Scale *)(x + (size_t)m * k) + (size_t)first_row * (k / PIECE)),
          last_row(m - 1 - first_row), last_column(n - 1 - first_column), k(k) {}

    // Rows of 32-weight blocks may end within a step.
    __device__ __forceinline__ bool is_there(unsigned int piece) const { return F::PIECES > 1 || piece < k / PIECE; }
    __device__ __forceinline__ unsigned int clamped(unsigned int piece) const {
        return F::PIECES > 1 ? piece : min(piece, k / PIECE - 1);
    }

    __device__ __forceinline__ Read read(unsigned int step) const {
        Read read;
        const unsigned int thread = opaque(threadIdx.x);
        const unsigned int piece = clamped(step * PIECES + thread % PIECES);
        const unsigned int column = min(thread / PIECES, last_column);
        read.weights = F::read(columns + (column * (k / F::WEIGHTS) + piece / F::PIECES) * F::BYTES, piece % F::PIECES);
#pragma unroll
        for (unsigned int i = 0; i < FOURS; ++i) {
            const unsigned int at = thread + i * CANDLE_BLOCK, row = min(at / (DEPTH / 16), last_row);
            const unsigned int x_piece = clamped(step * PIECES + at / 2 % PIECES);
            read.x[i] = *(const Four *)(rows + (row * k + x_piece * PIECE + at % 2 * 16));
        }
#pragma unroll
        for (unsigned int i = 0; i < SCALES; ++i) {
            const unsigned int at = thread + i * CANDLE_BLOCK, row = min(at / PIECES, last_row);
            read.scales[i] = scales[row * (k / PIECE) + clamped(step * PIECES + at % PIECES)];
        }
        return read;
    }

    __device__ __forceinline__ void unpack(const Read &read, unsigned int step, Shared &shared) const {
        const unsigned int thread = opaque(threadIdx.x), piece = thread % PIECES, line = thread / PIECES;
        const Piece weights = F::unpack(read.weights, (step * PIECES + piece) % F::PIECES);
        shared.scaling.store_scales(weights, line, piece, is_there(step * PIECES + piece));
#pragma unroll
        for (unsigned int run = 0; run < RUNS; ++run) {
            Four q;
#pragma unroll
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                q[i] = W::bytes(weights.q[run][i], weights.scales[run]);
            }
            // Through a pointer, because the compiler assumes the alignment of the array's elements.
            int8_t *to = shared.weights + line * PITCH + place<F>(piece, run);
            *(FourInLds *)to = q;
        }
#pragma unroll
        for (unsigned int i = 0; i < FOURS; ++i) {
            const unsigned int at = thread + i * CANDLE_BLOCK;
            int8_t *to = shared.x + at / (DEPTH / 16) * PITCH + at % (DEPTH / 16) * 16;
            *(FourInLds *)to = read.x[i];
        }
#pragma unroll
        for (unsigned int i = 0; i < SCALES; ++i) {
            const unsigned int at = thread + i * CANDLE_BLOCK;
            shared.scaling.store_scales(read.scales[i], at / PIECES, at % PIECES, is_there(step * PIECES + at % PIECES));
        }
    }
};

template <typename F>
__device__ __forceinline__ void product(const uint8_t *blocks, const uint8_t *x, void *out, const unsigned int m,
                                        const unsigned int n, const unsigned int k, const unsigned int out_dtype) {
    typedef Product<F> P;
    __shared__ typename P::Shared shared;
    const unsigned int first_row = blockIdx.x * ROWS, first_column = blockIdx.y * COLUMNS;
    const P tiles(blocks, x, first_row, first_column, m, n, k);
    Sums sums = {};
    const unsigned int steps = (k + DEPTH - 1) / DEPTH;
    typename P::Read read = tiles.read(0);
    for (unsigned int step = 0; step < steps; ++step) {
        tiles.unpack(read, step, shared);
        __syncthreads();
        // Prefetches the next step during the products of this one.
        if (step + 1 < steps) {
            read = tiles.read(step + 1);
        }
        const unsigned int wave = opaque(threadIdx.x) / WAVE;
        const unsigned int row_tile = wave / 2 * ROW_TILES, column_tile = wave % 2 * COLUMN_TILES;
        shared.scaling.add(sums, shared.x, shared.weights, row_tile, column_tile);
        __syncthreads();
    }
    const unsigned int wave = opaque(threadIdx.x) / WAVE;
    const unsigned int row_tile = wave / 2 * ROW_TILES, column_tile = wave % 2 * COLUMN_TILES;
#pragma unroll
    for (unsigned int i = 0; i < ROW_TILES * COLUMN_TILES * LANE_ELEMENTS; ++i) {
        const unsigned int tile = i / LANE_ELEMENTS, e = i % LANE_ELEMENTS;
        const unsigned int r = e / LANE_COLUMNS, c = e % LANE_COLUMNS;
        const unsigned int row =
            first_row + (row_tile + tile / COLUMN_TILES) * TILE_SIDE + LaneLayout<Side::ROWS>::at(r);
        const unsigned int column =
            first_column + (column_tile + tile % COLUMN_TILES) * TILE_SIDE + LaneLayout<Side::COLUMNS>::at(c);
        if (row < m && column < n) {
            const float sum = sums[tile / COLUMN_TILES][tile % COLUMN_TILES].values[r][c];
            store_float(out, out_dtype, (size_t)row * n + column, sum);
        }
    }
}

#define TILES_OP(F, NAME, ...) PRODUCT_OP(qtiles_##NAME, F)
CANDLE_EACH_FORMAT(TILES_OP)
