// Matrices in GGML's block formats: dequantization of all or some rows, and memory-bound products with a few rows of
// activations. Activations are quantized to bytes with a scale for each 32. Dot products of bytes are exact, so that
// only the rounding of activations and one f32 sum per run differ from the product of the dequantized values.
#include "activations.cuh"
#include "experts.cuh"

// Each thread unpacks a piece into LDS in the order of the weights, so that neighbouring lanes write neighbouring
// values. With `ids`, row i of the output is row ids[i] of the matrix.
template <typename F, typename T>
__device__ __forceinline__ void dequantize(const uint8_t *blocks, const uint32_t *ids, T *out, const unsigned int pieces,
                                           const size_t rows, const size_t row_pieces) {
    constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T), WEIGHTS = CANDLE_BLOCK * PIECE;
    __shared__ Words<RUN / 4, 16> quants[WEIGHTS / RUN];
    __shared__ float scales[WEIGHTS / RUN], minimums[WEIGHTS / RUN];
    const Divisor per_row(row_pieces);
    for (unsigned int first = blockIdx.x * CANDLE_BLOCK; first < pieces; first += gridDim.x * CANDLE_BLOCK) {
        const bool inside = first + threadIdx.x < pieces;
        unsigned int piece = inside ? first + threadIdx.x : 0;
        const unsigned int row = per_row.split(piece), number = piece % F::PIECES;
        size_t from = row;
        bool there = true;
        if (ids != nullptr) {
            from = ids[row];
            there = is_within(from, rows, CANDLE_FAULT_EMBEDDING);
        }
        const size_t block = (there ? from : 0) * (per_row.by / F::PIECES) + piece / F::PIECES;
        const Piece read = F::unpack(F::read(blocks + block * F::BYTES, number), number);
#pragma unroll
        for (unsigned int run = 0; run < RUNS && inside; ++run) {
            const unsigned int at = ((threadIdx.x - number) * PIECE + F::column(number, run)) / RUN;
            const int *q = read.q[run];
            quants[at].words = {(uint32_t)q[0], (uint32_t)q[1], (uint32_t)q[2], (uint32_t)q[3]};
            scales[at] = there ? read.scale_of(run) : 0;
            minimums[at] = there ? read.minimum_of(run) : 0;
        }
        __syncthreads();
        const unsigned int count = min(pieces - first, CANDLE_BLOCK) * PIECE;
        T *to = out + (size_t)first * PIECE;
#pragma unroll 2
        for (unsigned int i = threadIdx.x * N; i < count; i += CANDLE_BLOCK * N) {
            const uint32_t *words = (const uint32_t *)quants + i / 4;
            const float scale = scales[i / RUN], minimum = minimums[i / RUN];
            Pack<T, N> pack;
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                const int q = (int8_t)(words[j / 4] >> (j % 4 * 8)) - F::OFFSET;
                float value = rounded(scale * (float)q);
                if (F::MINIMUM) {
                    value = value - minimum;
                }
                pack.set(j, (T)value);
            }
            pack.write(to + i);
        }
        __syncthreads();
    }
}

// Swizzled position of run `run` of a row of activations in LDS, free of bank conflicts between neighbouring units.
__device__ __forceinline__ unsigned int run_in_lds(unsigned int run) { return run ^ (run >> 3 & 3); }

template <typename T, unsigned int SPAN>
__device__ __forceinline__ void quantize_rows(const T *x, uint8_t *out, const size_t numel) {
    // A span must fit into the lanes that shuffles combine.
    constexpr unsigned int FOURS = SPAN > 4 * LANES ? SPAN / LANES / 4 : 1, N = 4 * FOURS;
    for (size_t first = (size_t)blockIdx.x * CANDLE_BLOCK; first < numel / N; first += (size_t)gridDim.x * CANDLE_BLOCK) {
        const size_t i = first + threadIdx.x;
        const bool inside = i < numel / N;
        float values[N];
#pragma unroll
        for (unsigned int four = 0; four < FOURS; ++four) {
            const Pack<T, 4> pack = Pack<T, 4>::read(x + (inside ? N * i : 0) + 4 * four);
#pragma unroll
            for (unsigned int k = 0; k < 4; ++k) {
                values[4 * four + k] = (float)pack[k];
            }
        }
        const auto store = [&](auto words) INLINE { *(decltype(words) *)((uint32_t *)out + FOURS * i) = words; };
        quantize<FOURS, SPAN>(values, i, inside, store, (Scale *)(out + numel));
    }
}

// Number of weight rows that a group of lanes processes together, to reuse the activations it reads.
constexpr unsigned int ROWS_PER_LANE_GROUP = CANDLE_ROWS_PER_LANE_GROUP;

// The unit of work of a lane: one piece, or for large blocks two neighbouring pieces.
template <typename F>
struct Unit {
    static constexpr unsigned int PIECES = F::PIECES > 1 ? 2 : 1;
    typename F::Raw raw[PIECES];

    // Unit `u` of a row.
    __device__ __forceinline__ static Unit read(const uint8_t *row, unsigned int u) {
        const unsigned int p = u * PIECES;
        Unit unit;
#pragma unroll
        for (unsigned int i = 0; i < PIECES; ++i) {
            unit.raw[i] = F::read(row + (size_t)(p / F::PIECES) * F::BYTES, p % F::PIECES + i);
        }
        return unit;
    }
};

template <unsigned int ROWS>
struct Sums { float elements[ROWS_PER_LANE_GROUP][ROWS]; };

// Adds the products of the weight rows with ROWS rows of activations over the units u, u + width, ... below `end`.
// LDS holds `pieces` pieces of each row of activations, starting at unit `begin`.
template <typename F, unsigned int ROWS>
__device__ __forceinline__ void add_products(Sums<ROWS> &sums, const uint8_t *const (&rows)[ROWS_PER_LANE_GROUP], unsigned int u,
                                             unsigned int begin, unsigned int end, unsigned int width,
                                             const uint8_t *bytes, const Scale *scales, unsigned int pieces) {
    typedef uint32_t Four __attribute__((ext_vector_type(4)));
    constexpr unsigned int PIECES = Unit<F>::PIECES;
    for (; u < end; u += width) {
        Unit<F> read[ROWS_PER_LANE_GROUP];
#pragma unroll
        for (unsigned int b = 0; b < ROWS_PER_LANE_GROUP; ++b) {
            read[b] = Unit<F>::read(rows[b], u);
        }
        asm volatile("" ::: "memory");
        const unsigned int piece = u * PIECES % F::PIECES, at = (u - begin) * PIECES - piece;
        Piece weights[ROWS_PER_LANE_GROUP][PIECES];
#pragma unroll
        for (unsigned int i = 0; i < ROWS_PER_LANE_GROUP * PIECES; ++i) {
            weights[i / PIECES][i % PIECES] = F::unpack(read[i / PIECES].raw[i % PIECES], piece + i % PIECES);
        }
#pragma unroll
        for (unsigned int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (unsigned int run = 0; run < RUNS; ++run) {
                int product[ROWS_PER_LANE_GROUP] = {}, all = 0;
#pragma unroll
                for (unsigned int i = 0; i < PIECES; ++i) {
                    const unsigned int column = at * PIECE + F::column(piece + i, run);
                    const Four x = *(const Four *)(bytes + r * pieces * PIECE + run_in_lds(column / RUN) * RUN);
                    const Scale scale = scales[r * pieces + column / PIECE];
                    all += column % PIECE == 0 ? scale.sums[0] : scale.sums[1];
#pragma unroll
                    for (unsigned int j = 0; j < ROWS_PER_LANE_GROUP * (RUN / 4); ++j) {
                        int &sum = product[j / (RUN / 4)];
                        sum = __dp4a(weights[j / (RUN / 4)][i].q[run][j % (RUN / 4)], (int)x[j % (RUN / 4)], sum);
                    }
                    // Neighbouring pieces with one scale are added as integers.
                    if (F::SCALED == RUN || F::DISTANCE == RUN || i + 1 == PIECES) {
#pragma unroll
                        for (unsigned int b = 0; b < ROWS_PER_LANE_GROUP; ++b) {
                            const int whole = product[b] - (F::OFFSET == 0 ? 0 : F::OFFSET * all);
                            float part = weights[b][i].scale_of(run) * (float)whole;
                            if (F::MINIMUM) {
                                part -= weights[b][i].minimum_of(run) * (float)all;
                            }
                            sums.elements[b][r] += scale.scale * part;
                            product[b] = 0;
                        }
                        all = 0;
                    }
                }
            }
        }
    }
}

// Sums over `width` neighbouring threads; the first of them receives the result.
template <unsigned int ROWS, unsigned int THREADS>
__device__ __forceinline__ void combine(Sums<ROWS> &sums, unsigned int width) {
    const unsigned int groups = width / LANES, group = threadIdx.x / LANES;
    __shared__ float shared[THREADS / LANES][ROWS_PER_LANE_GROUP * ROWS];
#pragma unroll
    for (unsigned int i = 0; i < ROWS_PER_LANE_GROUP * ROWS; ++i) {
        float &sum = sums.elements[i / ROWS][i % ROWS];
        sum = reduce_lanes(sum, width, [](float x, float y) INLINE { return x + y; });
        if (groups > 1 && threadIdx.x % LANES == 0) {
            shared[group][i] = sum;
        }
    }
    if (groups > 1) {
        __syncthreads();
#pragma unroll
        for (unsigned int i = 0; i < ROWS_PER_LANE_GROUP * ROWS; ++i) {
            float &sum = sums.elements[i / ROWS][i % ROWS];
            sum = 0;
#pragma unroll 1
            for (unsigned int g = 0; g < groups; ++g) {
                sum += shared[(group & ~(groups - 1)) + g][i];
            }
        }
    }
}

// Returns the first weight row of this thread's group.
template <unsigned int THREADS>
__device__ __forceinline__ unsigned int first_row(unsigned int width) {
    const unsigned int shift = log2_of(width);
    return (blockIdx.x * (THREADS >> shift) + (threadIdx.x >> shift)) * ROWS_PER_LANE_GROUP;
}

// Multiplies rows of activations written by quantize_rows, `all` of them in memory, with a matrix or the matrices of
// a stack. LDS holds a SEGMENT of the rows at a time.
template <typename F, unsigned int ROWS>
__device__ __forceinline__ void rows_product(const uint8_t *activations, const uint8_t *weights, const Routing &routing,
                                             float *out, const size_t all, const unsigned int n,
                                             const unsigned int pieces, const unsigned int width) {
    constexpr unsigned int THREADS = CANDLE_QUANTIZED_ROW_BLOCK, SEGMENT = CANDLE_QUANTIZED_SEGMENT / PIECE;
    typedef Words<RUN / 4, 16> Run;
    __shared__ Run bytes[ROWS * SEGMENT * RUNS];
    __shared__ Scale scales[ROWS * SEGMENT];
    const Scale *all_scales = (const Scale *)(activations + all * pieces * PIECE);
    const unsigned int first = first_row<THREADS>(width), lane = threadIdx.x & (width - 1);
    const size_t row_bytes = (size_t)(pieces / F::PIECES) * F::BYTES;
    each_run<ROWS>(routing, [=](size_t matrix, unsigned int begin, unsigned int end, bool there) INLINE {
        const uint8_t *rows[ROWS_PER_LANE_GROUP];
#pragma unroll
        for (unsigned int b = 0; b < ROWS_PER_LANE_GROUP; ++b) {
            rows[b] = weights + (matrix * n + min(first + b, n - 1)) * row_bytes;
        }
        Sums<ROWS> sums = {};
        for (unsigned int from = 0; from < pieces; from += SEGMENT) {
            const unsigned int count = min(pieces - from, SEGMENT);
            for (unsigned int i = threadIdx.x; i < ROWS * SEGMENT * RUNS; i += THREADS) {
                const unsigned int r = i / (SEGMENT * RUNS), run = i % (SEGMENT * RUNS);
                if (run < count * RUNS) {
                    // Rows past the end repeat the last row.
                    const size_t at = (size_t)routing.line(min(begin + r, end - 1)) * pieces + from;
                    bytes[r * SEGMENT * RUNS + run_in_lds(run)] = Run::read(activations + at * PIECE + run * RUN);
                    if (run % RUNS == 0) {
                        scales[r * SEGMENT + run / RUNS] = all_scales[at + run / RUNS];
                    }
                }
            }
            __syncthreads();
            constexpr unsigned int PIECES = Unit<F>::PIECES;
            const unsigned int begin_unit = from / PIECES;
            add_products<F, ROWS>(sums, rows, begin_unit + lane, begin_unit, begin_unit + count / PIECES, width,
                                  (const uint8_t *)bytes, scales, SEGMENT);
            __syncthreads();
        }
        combine<ROWS, THREADS>(sums, width);
        if (lane == 0) {
#pragma unroll
            for (unsigned int i = 0; i < ROWS_PER_LANE_GROUP * ROWS; ++i) {
                const unsigned int b = i / ROWS, r = i % ROWS;
                if (first + b < n && begin + r < end) {
                    const unsigned int place = routing.place(begin + r);
                    out[(size_t)place * n + first + b] = there ? sums.elements[b][r] * routing.factor(place) : 0;
                }
            }
        }
    });
}

#define QUANTIZE_OP(T, NAME, SPAN)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) quantize_rows_##SPAN##_##NAME(                          \
        const T *x, uint8_t *out, const size_t numel) {                                                                \
        quantize_rows<T, SPAN>(x, out, numel);                                                                         \
    }
#define QUANTIZE_OPS(T, NAME) QUANTIZE_OP(T, NAME, 32) QUANTIZE_OP(T, NAME, 256)
QUANTIZE_OPS(__nv_bfloat16, bf16)
QUANTIZE_OPS(__half, f16)
QUANTIZE_OPS(float, f32)

#define DEQUANTIZE_OP(F, NAME, T, T_NAME)                                                                              \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) dequantize_##NAME##_##T_NAME(                           \
        const uint8_t *blocks, const uint32_t *ids, T *out, const unsigned int pieces, const size_t rows,              \
        const size_t row_pieces) {                                                                                     \
        dequantize<F>(blocks, ids, out, pieces, rows, row_pieces);                                                     \
    }
#define ROWS_OP(F, NAME, ROWS)                                                                                         \
    extern "C" __global__ void __launch_bounds__(CANDLE_QUANTIZED_ROW_BLOCK) quantized_rows_##ROWS##_##NAME(           \
        const uint8_t *activations, const uint8_t *weights, const uint32_t *experts, const uint32_t *order,            \
        const float *factors, float *out, const size_t all, const unsigned int count, const unsigned int n,            \
        const unsigned int stack, const unsigned int rows_per_activation, const unsigned int pieces,                   \
        const unsigned int width) {                                                                                    \
        const Routing routing = {experts, order, factors, count, stack, rows_per_activation};                          \
        rows_product<F, ROWS>(activations, weights, routing, out, all, n, pieces, width);                              \
    }
#define FORMAT_OPS(F, NAME, ...)                                                                                        \
    DEQUANTIZE_OP(F, NAME, __nv_bfloat16, bf16)                                                                        \
    DEQUANTIZE_OP(F, NAME, float, f32)                                                                                 \
    DEQUANTIZE_OP(F, NAME, __half, f16)                                                                                \
    ROWS_OP(F, NAME, 1)                                                                                                \
    ROWS_OP(F, NAME, 8)
CANDLE_EACH_FORMAT(FORMAT_OPS)
