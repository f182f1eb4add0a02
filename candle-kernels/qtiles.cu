// Products of many rows of activations with a matrix in GGML's block formats, on the machine's matrix units:
// out[row][column] = sum of x[row][k] w[column][k]. A workgroup makes ROWS x COLUMNS of them. It unpacks DEPTH of its
// columns' weights at a time into bytes in LDS, the activations' bytes beside them; tiles of sums of bytes are exact in
// i32, and are scaled and added in f32.
#include "folded.cuh"
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
constexpr unsigned int GROUP_PADDING = 8;
typedef Tile<float> Sums[ROW_TILES][COLUMN_TILES];
constexpr unsigned int HELD = HELD_ROWS * HELD_COLUMNS;

typedef uint32_t Four __attribute__((ext_vector_type(4)));
typedef Four FourInLds __attribute__((aligned(TILE_PADDING)));

// q - OFFSET of four q below 128.
template <int OFFSET>
__device__ __forceinline__ uint32_t centred(uint32_t q) {
    return OFFSET == 0 ? q : ((q | 0x80808080) - OFFSET * 0x01010101u) ^ 0x80808080;
}

// Of numbers of 24 bits, which AMD's multipliers take in a fourth of the time.
__device__ __forceinline__ int product_of_24_bits(int a, int b) {
#if defined(__NVPTX__)
    return a * b;
#else
    return (a << 8 >> 8) * (b << 8 >> 8);
#endif
}

// Where a run of a step's piece lies in the step.
template <typename F>
__device__ __forceinline__ constexpr unsigned int place(unsigned int piece, unsigned int run) {
    return F::PIECES > 1 ? F::column(piece, run) : piece * PIECE + run * RUN;
}

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

// Bytes with scales beside them: sums of bytes are those of a group, which has one scale.
template <typename F>
struct Grouped {
    static constexpr unsigned int GROUPS = DEPTH / F::SCALED;
    // Activations have sums for each group, but one scale for a piece.
    static constexpr unsigned int X_GROUPS = F::MINIMUM ? GROUPS : PIECES;
    // A scale of each group, and a minimum or sum where there are minimums.
    float columns[GROUPS][COLUMNS + GROUP_PADDING][1 + F::MINIMUM];
    float rows[X_GROUPS][ROWS + GROUP_PADDING][1 + F::MINIMUM];

    __device__ __forceinline__ static uint32_t bytes(uint32_t q, int) { return centred<F::OFFSET>(q); }

    __device__ __forceinline__ void take(const Piece &weights, unsigned int column, unsigned int piece, bool there) {
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

    __device__ __forceinline__ void take(const Scale &scale, unsigned int row, unsigned int piece, bool there) {
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
            Factor<int8_t, F::SCALED, Side::ROWS> a[ROW_TILES];
            HeldFactors<HELD_ROWS> v[ROW_TILES];
#pragma unroll
            for (unsigned int i = 0; i < ROW_TILES; ++i) {
                const unsigned int first = (row_tile + i) * TILE_SIDE;
                a[i] = Factor<int8_t, F::SCALED, Side::ROWS>::read(x + first * PITCH + at, PITCH);
                v[i] = held<Side::ROWS, F::MINIMUM>(rows[group * X_GROUPS / GROUPS], first);
            }
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const unsigned int first = (column_tile + j) * TILE_SIDE;
                const auto b =
                    Factor<int8_t, F::SCALED, Side::COLUMNS>::read(weights + first * PITCH + at, PITCH);
                const auto w = held<Side::COLUMNS, F::MINIMUM>(columns[group], first);
#pragma unroll
                for (unsigned int i = 0; i < ROW_TILES; ++i) {
                    Tile<int> products = {};
                    multiply(products, a[i], b);
#pragma unroll
                    for (unsigned int e = 0; e < HELD; ++e) {
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
    }
};

#if !defined(TILES_BY_LANES)
// Of blocks of 256: activations have one scale for a block as well, so that sums of bytes times whole-number scales stay
// whole numbers over a step. So do the products of minimums and the activations' sums, all of which halves hold.
template <typename F>
struct Whole {
    // Where weights times scales are bytes, these lie in LDS, and all of a step has one scale.
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
        return centred<F::OFFSET>(q);
    }

    __device__ __forceinline__ void take(const Piece &weights, unsigned int column, unsigned int piece, bool) {
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

    __device__ __forceinline__ void take(const Scale &scale, unsigned int row, unsigned int piece, bool) {
        if (piece == 0) {
            rows[row][0] = scale.scale;
        }
        if (F::MINIMUM) {
            *(__half2 *)(x_sums[row] + piece * RUNS) = __half2{(__half)(int)scale.sums[0], (__half)(int)scale.sums[1]};
        }
    }

    // A factor of which a step has one half; zeros stand for the other.
    template <Side SIDE>
    __device__ __forceinline__ static Factor<__half, 16, SIDE> halves(const __half *first) {
        const auto half = Factor<__half, STEP_RUNS, SIDE>::read(first, STEP_RUNS);
        Factor<__half, 16, SIDE> whole = {};
#pragma unroll
        for (unsigned int i = 0; i < half.WORDS; ++i) {
            // The words of mma's second eight columns come after all of the first.
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
            Factor<int8_t, GROUP, Side::ROWS> a[ROW_TILES];
#pragma unroll
            for (unsigned int i = 0; i < ROW_TILES; ++i) {
                a[i] = Factor<int8_t, GROUP, Side::ROWS>::read(x + (row_tile + i) * TILE_SIDE * PITCH + at, PITCH);
            }
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const unsigned int first = (column_tile + j) * TILE_SIDE;
                const auto b = Factor<int8_t, GROUP, Side::COLUMNS>::read(weights + first * PITCH + at, PITCH);
#pragma unroll
                for (unsigned int i = 0; i < ROW_TILES; ++i) {
                    if (FOLDED) {
                        multiply(products[i][j], a[i], b);
                    } else {
                        Tile<int> of_group = {};
                        multiply(of_group, a[i], b);
#pragma unroll
                        for (unsigned int e = 0; e < HELD; ++e) {
                            const unsigned int r = e / HELD_COLUMNS, c = e % HELD_COLUMNS;
                            const int scale = scales[group][first + Held<Side::COLUMNS>::at(c)];
                            products[i][j].of[r][c] += product_of_24_bits(scale, of_group.of[r][c]);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (unsigned int i = 0; i < ROW_TILES; ++i) {
            const unsigned int first_row = (row_tile + i) * TILE_SIDE;
            const auto v = held<Side::ROWS, false>(rows, first_row);
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const unsigned int first = (column_tile + j) * TILE_SIDE;
                const auto w = held<Side::COLUMNS, F::MINIMUM>(columns, first);
                Tile<float> taken = {};
                if constexpr (F::MINIMUM) {
                    multiply(taken, halves<Side::ROWS>(x_sums[first_row]), halves<Side::COLUMNS>(minimums[first]));
                }
#pragma unroll
                for (unsigned int e = 0; e < HELD; ++e) {
                    const unsigned int r = e / HELD_COLUMNS, c = e % HELD_COLUMNS;
                    float value = w.scale[c] * (float)products[i][j].of[r][c];
                    if (F::MINIMUM) {
                        value -= w.other[c] * taken.of[r][c];
                    }
                    sums[i][j].of[r][c] += v.scale[r] * value;
                }
            }
        }
    }
};
template <typename F, bool WHOLE = F::PIECES == 8> struct Way { typedef Grouped<F> Of; };
template <typename F> struct Way<F, true> { typedef Whole<F> Of; };
#else
template <typename F> struct Way { typedef Grouped<F> Of; };
#endif

template <typename F>
struct Product {
    typedef typename Way<F>::Of W;
    struct Shared {
        alignas(16) int8_t weights[COLUMNS * PITCH];
        alignas(16) int8_t x[ROWS * PITCH];
        W way;
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
        const Piece weights = F::unpack(read.weights, (step * PIECES + piece) % F::PIECES);
        shared.way.take(weights, line, piece, is_there(step * PIECES + piece));
#pragma unroll
        for (unsigned int run = 0; run < RUNS; ++run) {
            Four q;
#pragma unroll
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                q[i] = W::bytes(weights.q[run][i], weights.scales[run]);
            }
            // Through a pointer: of an array's element the compiler knows no more than its own alignment.
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
            shared.way.take(read.scales[i], at / PIECES, at % PIECES, is_there(step * PIECES + at % PIECES));
        }
    }
};

template <typename F>
__device__ __forceinline__ void product(const uint8_t *blocks, const uint8_t *x, float *out, const unsigned int m,
                                        const unsigned int n, const unsigned int k) {
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
        // The next step's reads are under way during this one's products.
        if (step + 1 < steps) {
            read = tiles.read(step + 1);
        }
        const unsigned int wave = anew(threadIdx.x) / WAVE;
        const unsigned int row_tile = wave / 2 * ROW_TILES, column_tile = wave % 2 * COLUMN_TILES;
        shared.way.add(sums, shared.x, shared.weights, row_tile, column_tile);
        __syncthreads();
    }
    const unsigned int wave = anew(threadIdx.x) / WAVE;
    const unsigned int row_tile = wave / 2 * ROW_TILES, column_tile = wave % 2 * COLUMN_TILES;
#pragma unroll
    for (unsigned int i = 0; i < ROW_TILES * COLUMN_TILES * HELD; ++i) {
        const unsigned int tile = i / HELD, e = i % HELD;
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

#define TILES_OP(F, NAME, ...) PRODUCT_OP(qtiles_##NAME, F)
CANDLE_EACH_FORMAT(TILES_OP)
