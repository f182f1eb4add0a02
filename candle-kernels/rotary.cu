// Rotary embeddings: each pair of a row's elements is turned by the angle of its place in the row and the row's
// position. A row's pairs are neighbours, or the elements of its first half with those of its second.
#include "lanes.cuh"

// Each product and each sum rounds to the dtype, as on the CPU device.
#pragma clang fp contract(off)

// A thread has N pairs of a position, in two packs of each row that is there. x of the grid counts them, y heads, z
// batches; `position_rows` and `head_rows` are how many rows lie between two positions and two heads.
template <bool HALVES, unsigned int N, typename T>
__device__ __forceinline__ void turn(const unsigned int half, const unsigned int positions, const unsigned int heads,
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
    const unsigned int apart = HALVES ? half : N;
    for (unsigned int batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        const P c = P::read(cos + (size_t)batch * batch_angles + angle);
        const P s = P::read(sin + (size_t)batch * batch_angles + angle);
        const size_t row = (size_t)batch * heads * positions + (size_t)position * position_rows;
        const size_t first = row * 2 * half + STEP * column, stride = (size_t)head_rows * 2 * half;
        in_flight<2>(blockIdx.y, heads, gridDim.y, [=](unsigned int head) INLINE {
            const T *from = src + first + head * stride;
            return Pair{P::read(from), P::read(from + apart)};
        }, [=](const Pair &pair, unsigned int head) INLINE {
            Pair turned;
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                // Neighbours lie in one pack.
                const unsigned int at = HALVES ? j : 2 * j, next = HALVES ? j + N : 2 * j + 1;
                const T x = at < N ? pair.first[at] : pair.second[at - N];
                const T y = next < N ? pair.first[next] : pair.second[next - N];
                const T turned_x = x * c[j] - y * s[j], turned_y = x * s[j] + y * c[j];
                (at < N ? turned.first : turned.second).set(at % N, turned_x);
                (next < N ? turned.first : turned.second).set(next % N, turned_y);
            }
            T *to = dst + first + head * stride;
            turned.first.write(to);
            turned.second.write(to + apart);
        });
    }
}

#define ROPE_OP(HALVES, T, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) rope_##NAME(                                          \
        const unsigned int half, const unsigned int positions, const unsigned int heads, const unsigned int batches, \
        const unsigned int position_rows, const unsigned int head_rows, const unsigned int batch_angles,             \
        const bool in_packs, const T *src, const T *cos, const T *sin, T *dst) {                                     \
        const auto turned = [&](auto packs) INLINE {                                                                 \
            turn<HALVES, sizeof(packs) / sizeof(T)>(half, positions, heads, batches, position_rows, head_rows,       \
                                                    batch_angles, src, cos, sin, dst);                               \
        };                                                                                                           \
        in_packs ? turned(Pack<T>()) : turned(T());                                                                  \
    }
#define ROPE_OPS(T, NAME)                    \
    ROPE_OP(false, T, neighbours_##NAME)     \
    ROPE_OP(true, T, halves_##NAME)
ROPE_OPS(__nv_bfloat16, bf16)
ROPE_OPS(__half, f16)
ROPE_OPS(float, f32)
ROPE_OPS(double, f64)
