// Rotary embeddings of queries and keys, and the write of keys and values to a paged cache, in one launch. Biases of
// the projections and RMS norms of the heads of queries and keys are optional. Everything is computed in f32 and rounded
// once, to the dtype of the cache.
#include "faults.cuh"
#include "lanes.cuh"

// N pairs of elements of a head: two packs, whose elements follow each other in `of`.
template <unsigned int N>
struct Pairs {
    float of[2 * N];

    // Rotates pairs of neighbours, or of element j with element N + j.
    __device__ __forceinline__ void rotate(const float *cos, const float *sin, const bool interleaved) {
        constexpr unsigned int M = smaller(N, 4u);
        float c[N], s[N];
#pragma unroll
        for (unsigned int first = 0; first < N; first += M) {
            const auto cosines = Pack<float, M>::read(cos + first), sines = Pack<float, M>::read(sin + first);
#pragma unroll
            for (unsigned int j = 0; j < M; ++j) {
                c[first + j] = cosines[j];
                s[first + j] = sines[j];
            }
        }
        const auto turn = [&](float &x, float &y, unsigned int j) INLINE {
            const float rotated = x * c[j] - y * s[j];
            y = x * s[j] + y * c[j];
            x = rotated;
        };
        if (interleaved) {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                turn(of[2 * j], of[2 * j + 1], j);
            }
        } else {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                turn(of[j], of[N + j], j);
            }
        }
    }

    // Reads two packs.
    template <typename T>
    __device__ __forceinline__ static Pairs read(const T *first, const T *second) {
        const auto x = Pack<T, N>::read(first), y = Pack<T, N>::read(second);
        Pairs pairs;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            pairs.of[j] = (float)x[j];
            pairs.of[N + j] = (float)y[j];
        }
        return pairs;
    }

    // Rounds to C and writes two packs.
    template <typename C>
    __device__ __forceinline__ void write(C *first, C *second) const {
        Pack<C, N> x, y;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            x.set(j, (C)of[j]);
            y.set(j, (C)of[N + j]);
        }
        x.write(first);
        y.write(second);
    }
};

#define PARAMETERS(T, C)                                                                                               \
    const unsigned int rows, const unsigned int q_heads, const unsigned int kv_heads, const unsigned int width,        \
        const unsigned int pairs, const unsigned int lanes, const unsigned int table, const unsigned int slots,        \
        const bool interleaved, const bool in_packs, const float eps, const size_t q_stride, const size_t k_stride,    \
        const size_t v_stride, const T *q, const T *k, const T *v, const T *bias, const T *q_norm, const T *k_norm,    \
        const float *cos, const float *sin, const unsigned int *position_of, const unsigned int *slot_of, C *out,      \
        C *keys, C *values
#define ARGUMENTS                                                                                                      \
    rows, q_heads, kv_heads, width, pairs, lanes, table, slots, interleaved, in_packs, eps, q_stride, k_stride,        \
        v_stride, q, k, v, bias, q_norm, k_norm, cos, sin, position_of, slot_of, out, keys, values

// `lanes` threads, a power of two, share a head of a row. x of the grid numbers heads: queries, keys, values. y strides
// over rows.
template <unsigned int N, typename T, typename C>
__device__ __forceinline__ void write_heads(PARAMETERS(T, C)) {
    typedef Pairs<N> P;
    const unsigned int shift = log2_of(lanes), lane = threadIdx.x & (lanes - 1), heads = q_heads + 2 * kv_heads;
    const unsigned int number = blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    // Threads past the last head take part in its sums, but write nothing.
    const unsigned int head = min(number, heads - 1);
    const bool is_query = head < q_heads, is_value = head >= q_heads + kv_heads;
    const unsigned int own = is_query ? head : head - q_heads - (is_value ? kv_heads : 0);
    const T *const from = (is_query ? q : is_value ? v : k) + (size_t)own * width;
    const size_t stride = is_query ? q_stride : is_value ? v_stride : k_stride;
    const T *const norm = is_query ? q_norm : is_value ? nullptr : k_norm;
    const unsigned int units = width / (2 * N), rotated = is_value ? 0 : pairs;
    // Offset of a unit's first pack, and distance to its second.
    const auto halves = [=](unsigned int unit) INLINE { return !interleaved && unit * N < rotated; };
    const auto start = [=](unsigned int unit) INLINE { return halves(unit) ? unit * N : 2 * unit * N; };
    const auto distance = [=](unsigned int unit) INLINE { return halves(unit) ? pairs : N; };
    for (unsigned int row = blockIdx.y; row < rows; row += gridDim.y) {
        const unsigned int slot = slot_of[row], position = position_of[row];
        const T *const x = from + row * stride;
        const auto read = [&](unsigned int unit) INLINE {
            const unsigned int first = start(unit), second = first + distance(unit);
            P values = P::read(x + first, x + second);
            if (bias) {
                const T *const summands = bias + (size_t)head * width;
                const P added = P::read(summands + first, summands + second);
#pragma unroll
                for (unsigned int j = 0; j < 2 * N; ++j) {
                    values.of[j] += added.of[j];
                }
            }
            return values;
        };
        // The first unit of each lane is read once, which is all of them for the usual widths.
        const P mine = read(min(lane, units - 1));
        float scale = 1;
        if (q_norm) {
            float sum = 0;
#pragma unroll 1
            for (unsigned int unit = lane; unit < units; unit += lanes) {
                const P values = unit == lane ? mine : read(unit);
#pragma unroll
                for (unsigned int j = 0; j < 2 * N; ++j) {
                    sum += values.of[j] * values.of[j];
                }
            }
            sum = reduce_lanes(sum, lanes, [](float a, float b) INLINE { return a + b; });
            scale = 1 / sqrtg(sum / (float)width + eps);
        }
        const bool is_stored = is_query || names_element(slot, slots, CANDLE_FAULT_CACHE);
        const size_t angle = is_within(position, table, CANDLE_FAULT_POSITION) ? (size_t)position * pairs : 0;
        C *const to = is_query ? out + ((size_t)row * q_heads + own) * width
                               : (is_value ? values : keys) + ((size_t)slot * kv_heads + own) * width;
        if (number >= heads || !is_stored) {
            continue;
        }
#pragma unroll 1
        for (unsigned int unit = lane; unit < units; unit += lanes) {
            P values = unit == lane ? mine : read(unit);
            const unsigned int first = start(unit), second = first + distance(unit);
            if (norm) {
                const P weights = P::read(norm + first, norm + second);
#pragma unroll
                for (unsigned int j = 0; j < 2 * N; ++j) {
                    values.of[j] *= scale * weights.of[j];
                }
            }
            if (unit * N < rotated) {
                values.rotate(cos + angle + unit * N, sin + angle + unit * N, interleaved);
            }
            values.write(to + first, to + second);
        }
    }
}

#define CACHE_OP(T, C, NAME)                                                                                   \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) cache_##NAME(PARAMETERS(T, C)) {                \
        constexpr unsigned int N = CANDLE_PACK_BYTES / (sizeof(T) > sizeof(C) ? sizeof(T) : sizeof(C));        \
        in_packs ? write_heads<N, T, C>(ARGUMENTS) : write_heads<1, T, C>(ARGUMENTS);                          \
    }
#define CACHE_OPS(T, NAME)                   \
    CACHE_OP(T, __nv_bfloat16, NAME##_bf16)  \
    CACHE_OP(T, __half, NAME##_f16)          \
    CACHE_OP(T, float, NAME##_f32)
CACHE_OPS(__nv_bfloat16, bf16)
CACHE_OPS(__half, f16)
CACHE_OPS(float, f32)
