// Matrices in GGML's block formats: their values, whole or by rows, and their products with few rows of activations, which
// take the time of reading the blocks. A product's activations are bytes with a scale for each 32: dot products of bytes
// are exact, so that only the rounding of activations and a sum of f32 per run differ from the product of the values.
#include "blocks.cuh"
#include "faults.cuh"
#include "lanes.cuh"

// Two runs of a block per thread. With `ids`, row i of the output is row ids[i] of the matrix.
template <typename F, typename T>
__device__ __forceinline__ void dequantize(const uint8_t *blocks, const uint32_t *ids, T *out, const unsigned int pieces,
                                           const size_t rows, const size_t row_pieces) {
    const Divisor per_row(row_pieces);
    for (unsigned int i = thread_index(); i < pieces; i += gridDim.x * blockDim.x) {
        unsigned int piece = i;
        const unsigned int row = per_row.split(piece);
        size_t from = row;
        bool there = true;
        if (ids != nullptr) {
            from = ids[row];
            there = is_within(from, rows, CANDLE_FAULT_EMBEDDING);
        }
        T *to = out + (size_t)row * per_row.by * PIECE + piece / F::PIECES * F::WEIGHTS;
        piece = there ? piece : 0;
        const size_t block = (there ? from : 0) * (per_row.by / F::PIECES) + piece / F::PIECES;
        const Piece read = F::unpack(F::read(blocks + block * F::BYTES, piece % F::PIECES), piece % F::PIECES);
        constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T);
#pragma unroll
        for (unsigned int part = 0; part < PIECE / N; ++part) {
            const unsigned int run = part * N / RUN, first = part * N % RUN;
            Pack<T, N> pack;
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                const int q = (int8_t)(read.q[run][(first + j) / 4] >> ((first + j) % 4 * 8)) - F::OFFSET;
                // Rounded before the minimum is taken off, or before it is made narrow.
                uint32_t bits = candle_bits<uint32_t>(read.scale[run] * (float)q);
                asm volatile("" : CANDLE_IN_REGISTER(bits));
                float value = candle_bits<float>(bits);
                if (F::MINIMUM) {
                    value = value - read.minimum[run];
                }
                pack.set(j, there ? (T)value : (T)0);
            }
            pack.write(to + F::column(piece % F::PIECES, run) + first);
        }
    }
}

constexpr unsigned int PIECE_LANES = PIECE / 4, RUN_LANES = RUN / 4;

// Four neighbouring activations per lane, at element 4 `i` of a dense array, as bytes; the first lane of a PIECE writes its
// scale. All lanes take part, those beyond the end without writing.
__device__ __forceinline__ void quantize(const float (&x)[4], unsigned int i, bool inside, uint32_t *bytes, Scale *scales) {
    float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    largest = combined_by_lanes(largest, PIECE_LANES, [](float a, float b) INLINE { return fmaxf(a, b); });
    const float inverse = largest > 0 ? 127 / largest : 0;
    uint32_t word = 0;
    int sum = 0;
#pragma unroll
    for (unsigned int k = 0; k < 4; ++k) {
        const int q = (int)rintf(x[k] * inverse);
        sum += q;
        word |= (uint32_t)(q & 255) << (8 * k);
    }
    sum = combined_by_lanes(sum, RUN_LANES, [](int a, int b) INLINE { return a + b; });
    const int other = __shfl_xor_sync(~0u, sum, RUN_LANES, LANES);
    if (inside) {
        bytes[i] = word;
        if (i % PIECE_LANES == 0) {
            scales[i / PIECE_LANES] = Scale{largest / 127, {(int16_t)sum, (int16_t)other}};
        }
    }
}

template <typename T>
__device__ __forceinline__ void quantize_rows(const T *x, uint8_t *out, const size_t numel) {
    for (size_t first = (size_t)blockIdx.x * CANDLE_BLOCK; first < numel / 4; first += (size_t)gridDim.x * CANDLE_BLOCK) {
        const size_t i = first + threadIdx.x;
        const bool inside = i < numel / 4;
        const Pack<T, 4> pack = Pack<T, 4>::read(x + (inside ? 4 * i : 0));
        const float values[4] = {(float)pack[0], (float)pack[1], (float)pack[2], (float)pack[3]};
        quantize(values, i, inside, (uint32_t *)out, (Scale *)(out + numel));
    }
}

// The part of the product of a row of weights and one of activations that the weights of `piece` of a block make; the
// activations are those of the block.
template <typename F>
__device__ __forceinline__ float dot(const Piece &weights, unsigned int piece, const uint8_t *bytes, const Scale *scales) {
    typedef uint32_t Four __attribute__((ext_vector_type(4)));
    float value = 0;
#pragma unroll
    for (unsigned int run = 0; run < RUNS; ++run) {
        const unsigned int column = F::column(piece, run);
        const Four x = *(const Four *)(bytes + column);
        const Scale scale = scales[column / PIECE];
        const int sum = column % PIECE == 0 ? scale.sums[0] : scale.sums[1];
        int product = F::OFFSET == 0 ? 0 : -F::OFFSET * sum;
#pragma unroll
        for (unsigned int i = 0; i < RUN / 4; ++i) {
            product = __dp4a(weights.q[run][i], (int)x[i], product);
        }
        float part = weights.scale[run] * (float)product;
        if (F::MINIMUM) {
            part -= weights.minimum[run] * (float)sum;
        }
        value += scale.scale * part;
    }
    return value;
}

// Rows of weights that a group of lanes goes through together, so that what it reads of the activations serves them all.
constexpr unsigned int BESIDE = CANDLE_QUANTIZED_BESIDE;
template <unsigned int ROWS>
struct Sums { float of[BESIDE][ROWS]; };

// The products of BESIDE rows of blocks with ROWS of activations, which begin at pieces `starts`, in all `width` lanes
// that share them; there is a piece for each lane. `begun` is called in all threads when the first reads are under way.
template <typename F, unsigned int ROWS, typename B>
__device__ __forceinline__ Sums<ROWS> products(const uint8_t *const (&rows)[BESIDE], unsigned int pieces,
                                               unsigned int width, const uint8_t *bytes, const Scale *scales,
                                               const unsigned int (&starts)[ROWS], B begun) {
    // Pieces of each row that a lane reads before it uses the first.
    constexpr unsigned int AHEAD = ROWS == 1 ? 2 : 1;
    const unsigned int lane = threadIdx.x & (width - 1);
    Sums<ROWS> sums = {};
    for (unsigned int first = lane; first < pieces; first += AHEAD * width) {
        typename F::Raw read[AHEAD][BESIDE];
#pragma unroll
        for (unsigned int a = 0; a < AHEAD; ++a) {
            // What lies beyond the end is read from the last place, and not used.
            const unsigned int p = min(first + a * width, pieces - 1);
#pragma unroll
            for (unsigned int b = 0; b < BESIDE; ++b) {
                read[a][b] = F::read(rows[b] + (size_t)(p / F::PIECES) * F::BYTES, p % F::PIECES);
            }
        }
        asm volatile("" ::: "memory");
        if (first == lane) {
            begun();
        }
#pragma unroll
        for (unsigned int a = 0; a < AHEAD; ++a) {
            const unsigned int p = first + a * width, piece = p % F::PIECES;
            if (a > 0 && p >= pieces) {
                break;
            }
#pragma unroll
            for (unsigned int b = 0; b < BESIDE; ++b) {
                const Piece weights = F::unpack(read[a][b], piece);
#pragma unroll
                for (unsigned int r = 0; r < ROWS; ++r) {
                    const unsigned int at = starts[r] + p - piece;
                    sums.of[b][r] += dot<F>(weights, piece, bytes + (size_t)at * PIECE, scales + at);
                }
            }
        }
    }
    const unsigned int groups = width / LANES, group = threadIdx.x / LANES;
    __shared__ float shared[CANDLE_BLOCK / LANES][BESIDE * ROWS];
#pragma unroll
    for (unsigned int i = 0; i < BESIDE * ROWS; ++i) {
        float &sum = sums.of[i / ROWS][i % ROWS];
        sum = combined_by_lanes(sum, width, [](float x, float y) INLINE { return x + y; });
        if (groups > 1 && threadIdx.x % LANES == 0) {
            shared[group][i] = sum;
        }
    }
    if (groups > 1) {
        __syncthreads();
#pragma unroll
        for (unsigned int i = 0; i < BESIDE * ROWS; ++i) {
            float &sum = sums.of[i / ROWS][i % ROWS];
            sum = 0;
            for (unsigned int g = 0; g < groups; ++g) {
                sum += shared[(group & ~(groups - 1)) + g][i];
            }
        }
    }
    return sums;
}

// The first of the rows of this thread's group, if the grid's x counts them.
__device__ __forceinline__ unsigned int first_row(unsigned int width) {
    const unsigned int shift = log2_of(width);
    return (blockIdx.x * (CANDLE_BLOCK >> shift) + (threadIdx.x >> shift)) * BESIDE;
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// One row of activations, or of silu(x) * gate, with up to three matrices, whose rows are counted through: they end at
// `end0`, `end1` and `end2`. Each workgroup makes bytes of the activations for itself, in LDS: no launch before this one.
template <typename F>
__device__ __forceinline__ void row_product(const float *x, const float *gate, const float *summand, const uint8_t *w0,
                                            const uint8_t *w1, const uint8_t *w2, float *out0, float *out1, float *out2,
                                            const unsigned int end0, const unsigned int end1, const unsigned int end2,
                                            const unsigned int pieces, const unsigned int width) {
    extern __shared__ uint4 activations[];
    uint8_t *bytes = (uint8_t *)activations;
    Scale *scales = (Scale *)(bytes + pieces * PIECE);
    const unsigned int first = first_row(width);
    const size_t row_bytes = (size_t)(pieces / F::PIECES) * F::BYTES;
    const uint8_t *rows[BESIDE];
    float *to[BESIDE];
#pragma unroll
    for (unsigned int b = 0; b < BESIDE; ++b) {
        const unsigned int row = min(first + b, end2 - 1);
        const unsigned int before = row < end0 ? 0 : row < end1 ? end0 : end1;
        rows[b] = (row < end0 ? w0 : row < end1 ? w1 : w2) + (row - before) * row_bytes;
        to[b] = (row < end0 ? out0 : row < end1 ? out1 : out2) + (row - before);
    }
    const unsigned int starts[1] = {0};
    const Sums<1> sums = products<F, 1>(rows, pieces, width, bytes, scales, starts, [=]() INLINE {
        const unsigned int count = pieces * PIECE_LANES;
        for (unsigned int i = threadIdx.x; i - threadIdx.x < count; i += CANDLE_BLOCK) {
            const bool inside = i < count;
            typedef Pack<float, 4> Four;
            const Four pack = Four::read(x + (inside ? 4 * i : 0));
            float values[4] = {pack[0], pack[1], pack[2], pack[3]};
            if (gate != nullptr) {
                const Four factors = Four::read(gate + (inside ? 4 * i : 0));
#pragma unroll
                for (unsigned int k = 0; k < 4; ++k) {
                    values[k] = silu(values[k]) * factors[k];
                }
            }
            quantize(values, i, inside, (uint32_t *)bytes, scales);
        }
        __syncthreads();
    });
    if ((threadIdx.x & (width - 1)) == 0) {
#pragma unroll
        for (unsigned int b = 0; b < BESIDE; ++b) {
            if (first + b < end2) {
                *to[b] = sums.of[b][0] + (summand == nullptr ? 0 : summand[first + b]);
            }
        }
    }
}

// Rows of activations that quantize_rows has written, `all` of them in memory, with a matrix, or with those of a stack that
// `experts` names. Product i goes to row order[i] of the output, or i, as often as `factors` says there, and is that of
// row order[i] / per of the activations. Neighbours with one expert read its weights once.
template <typename F, unsigned int ROWS>
__device__ __forceinline__ void rows_product(const uint8_t *activations, const uint8_t *weights, const uint32_t *experts,
                                             const uint32_t *order, const float *factors, float *out, const size_t all,
                                             const unsigned int count, const unsigned int n, const unsigned int stack,
                                             const unsigned int per, const unsigned int pieces, const unsigned int width) {
    const Scale *scales = (const Scale *)(activations + all * pieces * PIECE);
    const unsigned int first = first_row(width);
    const size_t row_bytes = (size_t)(pieces / F::PIECES) * F::BYTES;
    for (size_t chunk = (size_t)blockIdx.y * ROWS; chunk < count; chunk += (size_t)gridDim.y * ROWS) {
        const unsigned int end = (unsigned int)min(chunk + ROWS, (size_t)count);
        for (unsigned int begin = (unsigned int)chunk, next; begin < end; begin = next) {
            const uint32_t expert = experts == nullptr ? 0 : experts[begin];
            next = experts == nullptr ? end : begin + 1;
            while (next < end && experts[next] == expert) {
                ++next;
            }
            const bool there = is_within(expert, stack, CANDLE_FAULT_EXPERT);
            const uint8_t *matrix = weights + (there ? expert : 0) * n * row_bytes, *rows[BESIDE];
            unsigned int starts[ROWS];
#pragma unroll
            for (unsigned int b = 0; b < BESIDE; ++b) {
                rows[b] = matrix + min(first + b, n - 1) * row_bytes;
            }
#pragma unroll
            for (unsigned int r = 0; r < ROWS; ++r) {
                const unsigned int i = min(begin + r, next - 1), place = order == nullptr ? i : order[i];
                starts[r] = (per == 1 ? place : place / per) * pieces;
            }
            const Sums<ROWS> sums = products<F, ROWS>(rows, pieces, width, activations, scales, starts, []() INLINE {});
            if ((threadIdx.x & (width - 1)) == 0) {
#pragma unroll
                for (unsigned int i = 0; i < BESIDE * ROWS; ++i) {
                    const unsigned int b = i / ROWS, r = i % ROWS;
                    if (first + b < n && begin + r < next) {
                        const unsigned int place = order == nullptr ? begin + r : order[begin + r];
                        const float factor = factors == nullptr ? 1 : factors[place];
                        out[(size_t)place * n + first + b] = there ? sums.of[b][r] * factor : 0;
                    }
                }
            }
            // The next sums go through the same LDS.
            __syncthreads();
        }
    }
}

#define QUANTIZE_OP(T, NAME)                                                                                           \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) quantize_rows_##NAME(const T *x, uint8_t *out,          \
                                                                                    const size_t numel) {             \
        quantize_rows(x, out, numel);                                                                                  \
    }
QUANTIZE_OP(__nv_bfloat16, bf16)
QUANTIZE_OP(__half, f16)
QUANTIZE_OP(float, f32)

#define DEQUANTIZE_OP(F, NAME, T, T_NAME)                                                                              \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) dequantize_##NAME##_##T_NAME(                           \
        const uint8_t *blocks, const uint32_t *ids, T *out, const unsigned int pieces, const size_t rows,              \
        const size_t row_pieces) {                                                                                     \
        dequantize<F>(blocks, ids, out, pieces, rows, row_pieces);                                                     \
    }
#define ROWS_OP(F, NAME, ROWS)                                                                                         \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) quantized_rows_##ROWS##_##NAME(                         \
        const uint8_t *activations, const uint8_t *weights, const uint32_t *experts, const uint32_t *order,            \
        const float *factors, float *out, const size_t all, const unsigned int count, const unsigned int n,            \
        const unsigned int stack, const unsigned int per, const unsigned int pieces, const unsigned int width) {       \
        rows_product<F, ROWS>(activations, weights, experts, order, factors, out, all, count, n, stack, per, pieces,   \
                              width);                                                                                  \
    }
#define FORMAT_OPS(F, NAME)                                                                                            \
    DEQUANTIZE_OP(F, NAME, float, f32)                                                                                 \
    DEQUANTIZE_OP(F, NAME, __half, f16)                                                                                \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) quantized_row_##NAME(                                   \
        const float *x, const float *gate, const float *summand, const uint8_t *w0, const uint8_t *w1,                 \
        const uint8_t *w2, float *out0, float *out1, float *out2, const unsigned int end0, const unsigned int end1,    \
        const unsigned int end2, const unsigned int pieces, const unsigned int width) {                                \
        row_product<F>(x, gate, summand, w0, w1, w2, out0, out1, out2, end0, end1, end2, pieces, width);               \
    }                                                                                                                  \
    ROWS_OP(F, NAME, 1)                                                                                                \
    ROWS_OP(F, NAME, 4)
EACH_FORMAT(FORMAT_OPS)
