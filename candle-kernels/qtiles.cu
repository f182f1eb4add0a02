// Products of many rows of activations with a matrix in GGML's block formats, on the machine's matrix units:
// out[row][column] = sum of x[row][k] w[column][k]. A workgroup makes ROWS x COLUMNS of them. It unpacks DEPTH of its
// columns' weights at a time into bytes in LDS, the activations' bytes beside them; tiles of sums of those that share
// both scales are exact in i32, and are scaled and added in f32.
#include "blocks.cuh"
#include "tiles.cuh"

constexpr unsigned int ROWS = CANDLE_QTILE_ROWS, COLUMNS = CANDLE_QTILE_COLUMNS, DEPTH = CANDLE_QTILE_DEPTH;
// Of a step: pieces of each row or column, and bytes from row to row in LDS.
constexpr unsigned int PIECES = DEPTH / PIECE, PITCH = DEPTH + TILE_PADDING;
// What each thread brings to LDS.
constexpr unsigned int FOURS = ROWS * DEPTH / 16 / CANDLE_BLOCK, SCALES = ROWS * PIECES / CANDLE_BLOCK;
static_assert(COLUMNS * PIECES == CANDLE_BLOCK, "a thread unpacks one piece of a step");

// The waves share the columns by halves, and the rows.
constexpr unsigned int ROW_WAVES = CANDLE_BLOCK / WAVE / 2;
constexpr unsigned int ROW_TILES = ROWS / ROW_WAVES / TILE_SIDE, COLUMN_TILES = COLUMNS / 2 / TILE_SIDE;
// Scales of neighbouring groups lie in other banks.
constexpr unsigned int SCALE_PADDING = 8;

typedef uint32_t Four __attribute__((ext_vector_type(4)));
typedef Four FourInLds __attribute__((aligned(TILE_PADDING)));

// A number of which nothing made before is kept: places found from it are found anew, and take no registers until then.
__device__ __forceinline__ unsigned int anew(unsigned int number) {
    asm volatile("" : CANDLE_IN_REGISTER(number));
    return number;
}

// q - OFFSET of four q below 128.
template <int OFFSET>
__device__ __forceinline__ uint32_t centred(uint32_t q) {
    return OFFSET == 0 ? q : ((q | 0x80808080) - OFFSET * 0x01010101u) ^ 0x80808080;
}

// Scales of the weights or activations of each group, and minimums or sums where there are minimums.
template <unsigned int GROUPS, unsigned int LINES, bool MINIMUM>
struct Factors { float of[GROUPS][LINES + SCALE_PADDING][1 + MINIMUM]; };

template <typename F>
struct Product {
    static constexpr unsigned int GROUPS = DEPTH / F::SCALED;
    // Activations have sums for each group, but one scale for a piece.
    static constexpr unsigned int X_GROUPS = F::MINIMUM ? GROUPS : PIECES;

    struct Shared {
        alignas(16) int8_t weights[COLUMNS * PITCH];
        alignas(16) int8_t x[ROWS * PITCH];
        alignas(16) Factors<GROUPS, COLUMNS, F::MINIMUM> weight_factors;
        alignas(16) Factors<X_GROUPS, ROWS, F::MINIMUM> x_factors;
    };

    // What a thread has read of a step.
    struct Read {
        typename F::Raw weights;
        Four x[FOURS];
        Scale scales[SCALES];
    };

    const uint8_t *columns;
    const uint8_t *rows;
    const Scale *scales;
    unsigned int last_row, last_column, k;

    // Rows and columns past the end are read from the last; what they give is not written.
    __device__ __forceinline__ Product(const uint8_t *blocks, const uint8_t *x, unsigned int first_row,
                                       unsigned int first_column, unsigned int m, unsigned int n, unsigned int k)
        : columns(blocks + (size_t)first_column * (k / F::WEIGHTS * F::BYTES)), rows(x + (size_t)first_row * k),
          scales((const Scale *)(x + (size_t)m * k) + (size_t)first_row * (k / PIECE)),
          last_row(m - 1 - first_row), last_column(n - 1 - first_column), k(k) {}

    // Rows of small blocks may end within a step.
    __device__ __forceinline__ bool is_there(unsigned int piece) const { return F::PIECES > 1 || piece < k / PIECE; }
    __device__ __forceinline__ unsigned int clamped(unsigned int piece) const {
        return F::PIECES > 1 ? piece : min(piece, k / PIECE - 1);
    }

    __device__ __forceinline__ Read read(unsigned int step) const {
        Read read;
        const unsigned int thread = anew(threadIdx.x);
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
        const unsigned int thread = anew(threadIdx.x), piece = thread % PIECES, line = thread / PIECES;
        const bool there = is_there(step * PIECES + piece);
        const Piece weights = F::unpack(read.weights, (step * PIECES + piece) % F::PIECES);
#pragma unroll
        for (unsigned int run = 0; run < RUNS; ++run) {
            const unsigned int at = F::PIECES > 1 ? F::column(piece, run) : piece * PIECE + run * RUN;
            Four q;
#pragma unroll
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                q[i] = centred<F::OFFSET>(weights.q[run][i]);
            }
            // Through a pointer: of an array's element the compiler knows no more than its own alignment.
            int8_t *to = shared.weights + line * PITCH + at;
            *(FourInLds *)to = q;
            if (at % F::SCALED == 0) {
                float *factors = shared.weight_factors.of[at / F::SCALED][line];
                factors[0] = there ? weights.scale_of(run) : 0;
                if (F::MINIMUM) {
                    factors[F::MINIMUM] = there ? weights.minimum_of(run) : 0;
                }
            }
        }
#pragma unroll
        for (unsigned int i = 0; i < FOURS; ++i) {
            const unsigned int at = thread + i * CANDLE_BLOCK;
            int8_t *to = shared.x + at / (DEPTH / 16) * PITCH + at % (DEPTH / 16) * 16;
            *(FourInLds *)to = read.x[i];
        }
#pragma unroll
        for (unsigned int i = 0; i < SCALES; ++i) {
            const unsigned int at = thread + i * CANDLE_BLOCK, row = at / PIECES;
            const Scale scale = read.scales[i];
            const float factor = is_there(step * PIECES + at % PIECES) ? scale.scale : 0;
            constexpr unsigned int PARTS = X_GROUPS / PIECES;
#pragma unroll
            for (unsigned int part = 0; part < PARTS; ++part) {
                float *to = shared.x_factors.of[at % PIECES * PARTS + part][row];
                to[0] = factor;
                if (F::MINIMUM) {
                    const int sum = PARTS == 1 ? scale.sums[0] + scale.sums[1] : scale.sums[part];
                    to[F::MINIMUM] = factor * (float)sum;
                }
            }
        }
    }
};

// What a lane has of a line's factors.
template <unsigned int COUNT>
struct HeldFactors { float scale[COUNT], other[COUNT]; };
template <Side SIDE, bool MINIMUM, unsigned int LINES>
__device__ __forceinline__ HeldFactors<Held<SIDE>::COUNT> held(const float (&of)[LINES][1 + MINIMUM], unsigned int first) {
    HeldFactors<Held<SIDE>::COUNT> factors;
#pragma unroll
    for (unsigned int i = 0; i < Held<SIDE>::COUNT; ++i) {
        factors.scale[i] = of[first + Held<SIDE>::at(i)][0];
        factors.other[i] = of[first + Held<SIDE>::at(i)][MINIMUM];
    }
    return factors;
}

template <typename F>
__device__ __forceinline__ void product(const uint8_t *blocks, const uint8_t *x, float *out, const unsigned int m,
                                        const unsigned int n, const unsigned int k) {
    typedef Product<F> P;
    __shared__ typename P::Shared shared;
    const unsigned int first_row = blockIdx.x * ROWS, first_column = blockIdx.y * COLUMNS;
    const P tiles(blocks, x, first_row, first_column, m, n, k);
    Tile<float> sums[ROW_TILES][COLUMN_TILES] = {};
    const unsigned int steps = (k + DEPTH - 1) / DEPTH;
    typename P::Read read = tiles.read(0);
    for (unsigned int step = 0; step < steps; ++step) {
        tiles.unpack(read, step, shared);
        __syncthreads();
        // The next step's reads are under way during this one's products.
        if (step + 1 < steps) {
            read = tiles.read(step + 1);
        }
        const unsigned int wave = anew(threadIdx.x) / WAVE;
        const unsigned int row_tile = wave / 2 * ROW_TILES, column_tile = wave % 2 * COLUMN_TILES;
#pragma unroll 1
        for (unsigned int group = 0; group < P::GROUPS; ++group) {
            const unsigned int at = group * F::SCALED;
            Factor<int8_t, F::SCALED, Side::ROWS> a[ROW_TILES];
            HeldFactors<HELD_ROWS> v[ROW_TILES];
#pragma unroll
            for (unsigned int i = 0; i < ROW_TILES; ++i) {
                const unsigned int first = (row_tile + i) * TILE_SIDE;
                a[i] = Factor<int8_t, F::SCALED, Side::ROWS>::read(shared.x + first * PITCH + at, PITCH);
                v[i] = held<Side::ROWS, F::MINIMUM>(
                    shared.x_factors.of[group * P::X_GROUPS / P::GROUPS], first);
            }
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const unsigned int first = (column_tile + j) * TILE_SIDE;
                const auto b = Factor<int8_t, F::SCALED, Side::COLUMNS>::read(shared.weights + first * PITCH + at, PITCH);
                const auto w = held<Side::COLUMNS, F::MINIMUM>(shared.weight_factors.of[group], first);
#pragma unroll
                for (unsigned int i = 0; i < ROW_TILES; ++i) {
                    Tile<int> products = {};
                    multiply(products, a[i], b);
#pragma unroll
                    for (unsigned int e = 0; e < HELD_ROWS * HELD_COLUMNS; ++e) {
                        const unsigned int r = e / HELD_COLUMNS, c = e % HELD_COLUMNS;
                        float &sum = sums[i][j].of[r][c];
                        sum += w.scale[c] * v[i].scale[r] * (float)products.of[r][c];
                        if (F::MINIMUM) {
                            sum -= w.other[c] * v[i].other[r];
                        }
                    }
                }
            }
        }
        __syncthreads();
    }
    const unsigned int wave = anew(threadIdx.x) / WAVE;
    const unsigned int row_tile = wave / 2 * ROW_TILES, column_tile = wave % 2 * COLUMN_TILES;
#pragma unroll
    for (unsigned int i = 0; i < ROW_TILES * COLUMN_TILES * HELD_ROWS * HELD_COLUMNS; ++i) {
        const unsigned int tile = i / (HELD_ROWS * HELD_COLUMNS), e = i % (HELD_ROWS * HELD_COLUMNS);
        const unsigned int r = e / HELD_COLUMNS, c = e % HELD_COLUMNS;
        const unsigned int row =
            first_row + (row_tile + tile / COLUMN_TILES) * TILE_SIDE + Held<Side::ROWS>::at(r);
        const unsigned int column =
            first_column + (column_tile + tile % COLUMN_TILES) * TILE_SIDE + Held<Side::COLUMNS>::at(c);
        if (row < m && column < n) {
            out[(size_t)row * n + column] = sums[tile / COLUMN_TILES][tile % COLUMN_TILES].of[r][c];
        }
    }
}

#define TILES_OP(F, NAME)                                                                                        \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK, 2) qtiles_##NAME(                                    \
        const uint8_t *blocks, const uint8_t *x, float *out, const unsigned int m, const unsigned int n,         \
        const unsigned int k) {                                                                                  \
        product<F>(blocks, x, out, m, n, k);                                                                  \
    }
EACH_FORMAT(TILES_OP)
