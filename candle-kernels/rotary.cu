// Rotary position embeddings: each pair of elements of a row is rotated by the angle of its index and the row's
// position. Pairs are neighbouring elements (interleaved), or elements of the first half with those of the second.
#include "lanes.cuh"

// Each product and each sum is rounded to the dtype, as on the CPU device.
#pragma clang fp contract(off)

// A thread rotates N pairs of a position, two packs of the row of each head. x of the grid numbers positions and
// packs, y heads, z batches. `position_rows` and `head_rows` are the distances in rows between positions and between
// heads.
template <bool HALVES, unsigned int N, typename T>
__device__ __forceinline__ void rotate(const unsigned int half, const unsigned int positions, const unsigned int heads,
                                     const unsigned int batches, const unsigned int position_rows,
                                     const unsigned int head_rows, const unsigned int batch_angles, const T *src,
                                     const T *cos, const T *sin, T *dst) {
    typedef Pack<T, N> P;
    struct Pair { P first, second; };
    const unsigned int number = blockIdx.x * blockDim.x + threadIdx.x, packs = half / N;
    if (number >= positions * packs) {
        return;
    }
    const unsigned int position = number / packs, column = (number - position * packs) * N, angle = number * N;
    constexpr unsigned int STEP = HALVES ? 1 : 2;
    const unsigned int distance = HALVES ? half : N;
    for (unsigned int batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        const P c = P::read(cos + (size_t)batch * batch_angles + angle);
        const P s = P::read(sin + (size_t)batch * batch_angles + angle);
        const size_t row = (size_t)batch * heads * positions + (size_t)position * position_rows;
        const size_t first = row * 2 * half + STEP * column, stride = (size_t)head_rows * 2 * half;
        for_each_prefetched<2>(blockIdx.y, heads, gridDim.y, [=](unsigned int head) INLINE {
            const T *from = src + first + head * stride;
            return Pair{P::read(from), P::read(from + distance)};
        }, [=](const Pair &pair, unsigned int head) INLINE {
            Pair rotated;
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                // Interleaved pairs lie in one pack.
                const unsigned int at = HALVES ? j : 2 * j, next = HALVES ? j + N : 2 * j + 1;
                const T x = at < N ? pair.first[at] : pair.second[at - N];
                const T y = next < N ? pair.first[next] : pair.second[next - N];
                const T rotated_x = x * c[j] - y * s[j], rotated_y = x * s[j] + y * c[j];
                (at < N ? rotated.first : rotated.second).set(at % N, rotated_x);
                (next < N ? rotated.first : rotated.second).set(next % N, rotated_y);
            }
            T *to = dst + first + head * stride;
            rotated.first.write(to);
            rotated.second.write(to + distance);
        });
    }
}

#define ROPE_OP(HALVES, T, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) rope_##NAME(                                          \
        const unsigned int half, const unsigned int positions, const unsigned int heads, const unsigned int batches, \
        const unsigned int position_rows, const unsigned int head_rows, const unsigned int batch_angles,             \
        const bool in_packs, const T *src, const T *cos, const T *sin, T *dst) {                                     \
        const auto rotated = [&](auto packs) INLINE {                                                                \
            rotate<HALVES, sizeof(packs) / sizeof(T)>(half, positions, heads, batches, position_rows, head_rows,     \
                                                    batch_angles, src, cos, sin, dst);                               \
        };                                                                                                           \
        in_packs ? rotated(Pack<T>()) : rotated(T());                                                                \
    }
#define ROPE_OPS(T, NAME)                    \
    ROPE_OP(false, T, neighbours_##NAME)     \
    ROPE_OP(true, T, halves_##NAME)
ROPE_OPS(__nv_bfloat16, bf16)
ROPE_OPS(__half, f16)
ROPE_OPS(float, f32)
ROPE_OPS(double, f64)
