// Residual sums with RMS norms: `sum = residual + x` and `dst = norm(sum) * alpha` in one launch. With `post`, x is
// first normalized itself. `width` threads, a power of two, share a row, and keep all of it in registers. Sums are
// rounded to the dtype before they are normalized, as by separate operations.
#include "lanes.cuh"

template <unsigned int N, typename T>
struct ResidualRow {
    typedef Pack<T, N> P;
    static constexpr unsigned int KEPT = CANDLE_ROW_PACKS;

    unsigned int packs, lane, width;

    // Calls f with the index and position of each pack of this thread.
    template <typename F>
    __device__ __forceinline__ void each(F f) const {
#pragma unroll
        for (unsigned int p = 0; p < KEPT; ++p) {
            if (lane + p * width < packs) {
                f(p, (lane + p * width) * N);
            }
        }
    }

    __device__ __forceinline__ void read(P *kept, const T *from) const {
        each([&](unsigned int p, unsigned int at) INLINE { kept[p] = P::read(from + at); });
    }

    // Returns the factor of an RMS norm, from this thread's part of the sum of squares.
    template <unsigned int PLACE>
    __device__ __forceinline__ float scale(float squares, const unsigned int columns, const float eps) const {
        squares = reduce_threads<CANDLE_RESIDUAL_BLOCK, PLACE>(squares, width, [](float a, float b) INLINE { return a + b; });
        return 1 / sqrtg(squares / (float)columns + eps);
    }
};

template <unsigned int N, typename T>
__device__ __forceinline__ void add_norm(const T *x, const T *residual, const T *post, const T *alpha, T *sum, T *dst,
                                         const unsigned int rows, const unsigned int columns, const unsigned int width,
                                         const float eps) {
    typedef ResidualRow<N, T> Row;
    typedef typename Row::P P;
    const unsigned int shift = log2_of(width), number = blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    const bool is_row = number < rows;
    const size_t first = is_row ? (size_t)number * columns : 0;
    const Row row = {is_row ? columns / N : 0, threadIdx.x & (width - 1), width};
    // The loads of both operands are in flight before the first barrier.
    P kept[Row::KEPT], others[Row::KEPT];
    row.read(kept, x + first);
    row.read(others, residual + first);
    float post_scale = 1;
    if (post) {
        float squares = 0;
        row.each([&](unsigned int p, unsigned int) INLINE {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                squares += (float)kept[p][j] * (float)kept[p][j];
            }
        });
        post_scale = row.template scale<0>(squares, columns, eps);
    }
    float squares = 0;
    row.each([&](unsigned int p, unsigned int at) INLINE {
        // Reading weights where they are used keeps more threads resident.
        const P post_weights = P::read((post ? post : alpha) + at);
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            const T normed = post ? (T)((float)kept[p][j] * post_scale * (float)post_weights[j]) : kept[p][j];
            const T total = (T)((float)others[p][j] + (float)normed);
            kept[p].set(j, total);
            squares += (float)total * (float)total;
        }
        kept[p].write(sum + first + at);
    });
    const float scale = row.template scale<1>(squares, columns, eps);
    row.each([&](unsigned int p, unsigned int at) INLINE {
        const P weights = P::read(alpha + at);
        P result;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            result.set(j, (T)((float)kept[p][j] * scale * (float)weights[j]));
        }
        result.write(dst + first + at);
    });
}

// With 64 registers, all threads of 2,048 rows of 2,048 elements are resident on an H200.
#define RESIDUAL_OP(T, NAME)                                                                                           \
    extern "C" __global__ void __launch_bounds__(CANDLE_RESIDUAL_BLOCK, 2) addnorm_##NAME(                                  \
        const T *x, const T *residual, const T *post, const T *alpha, T *sum, T *dst, const unsigned int rows,         \
        const unsigned int columns, const unsigned int width, const bool in_packs, const float eps) {                  \
        const auto added = [&](auto packs) INLINE {                                                                    \
            add_norm<sizeof(packs) / sizeof(T)>(x, residual, post, alpha, sum, dst, rows, columns, width, eps);        \
        };                                                                                                             \
        in_packs ? added(Pack<T>()) : added(T());                                                                      \
    }
RESIDUAL_OP(__nv_bfloat16, bf16)
RESIDUAL_OP(__half, f16)
RESIDUAL_OP(float, f32)
