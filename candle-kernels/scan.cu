// Cumulative sums along a dim of a dense tensor: `lines` lines of `length` elements with stride `inner`. Narrow
// floats are summed in f32, and f32 in f64. `width` threads, a power of two, share a line, whose parts y of the grid
// numbers. A first launch without `dst` writes the totals of the parts, which the second launch adds.
#include "lanes.cuh"

template <typename T> struct RunningSum { typedef float type; };
template <> struct RunningSum<float> { typedef double type; };
template <> struct RunningSum<double> { typedef double type; };

struct Lines { unsigned int lines, length, inner, part, width; };

template <typename T, typename A = typename RunningSum<T>::type>
__device__ __forceinline__ void cumsum(const Lines &all, const T *src, T *dst, A *partials) {
    // Elements of a thread at a time: two packs of a contiguous line, or as many elements with a stride.
    constexpr unsigned int N = 2 * CANDLE_PACK_BYTES / sizeof(T), BYTES = N * sizeof(T);
    extern __shared__ double lds[];
    A *shared = (A *)lds;
    const bool is_row = all.inner == 1;
    // Neighbouring threads share a contiguous line, or have neighbouring lines.
    const unsigned int columns = blockDim.x >> log2_of(all.width), shift = log2_of(is_row ? all.width : columns);
    const unsigned int low = threadIdx.x & ((1u << shift) - 1), high = threadIdx.x >> shift;
    const unsigned int lane = is_row ? low : high, distance = is_row ? 1 : columns, last = all.width - 1 - lane;
    const unsigned int own = blockIdx.x * columns + (is_row ? high : low), line = min(own, all.lines - 1);
    const unsigned int begin = blockIdx.y * all.part, count = min(all.part, all.length - begin);
    const unsigned int outer = line / all.inner;
    const size_t start = ((size_t)outer * all.length + begin) * all.inner + (line - outer * all.inner);
    // Packs are aligned: for an unaligned line, the first pack starts before it.
    const unsigned int past = is_row ? (uintptr_t)(src + start) % BYTES / sizeof(T) : 0;
    const bool is_aligned = !is_row || (all.length % N == 0 && (uintptr_t)src % BYTES == 0);
    unsigned int slot = threadIdx.x;
    // Returns the sum over the lanes before this one, and sets `value` to the sum over all. LDS is double-buffered,
    // so that one barrier per step is enough.
    const auto before = [&](A &value) INLINE {
        for (unsigned int step = 1; step < all.width; step *= 2) {
            shared[slot] = value;
            __syncthreads();
            value += lane >= step ? shared[slot - step * distance] : (A)0;
            slot ^= blockDim.x;
        }
        shared[slot] = value;
        __syncthreads();
        value = shared[slot + last * distance];
        const A sum = lane > 0 ? shared[slot - distance] : (A)0;
        slot ^= blockDim.x;
        return sum;
    };
    A carry = 0;
    if (dst && blockIdx.y > 0) {
        for (unsigned int p = lane; p < blockIdx.y; p += all.width) {
            carry += partials[(size_t)p * all.lines + line];
        }
        before(carry);
    }
    for (unsigned int first = 0; first < count + (is_aligned ? 0 : N - 1); first += N * all.width) {
        const unsigned int at = first + lane * N - past;
        const bool is_whole = is_row && at < count && count - at >= N;
        Pack<T, N> x;
        if (is_whole) {
            x = Pack<T, N>::read(src + start + at);
        } else {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                // Loads outside of the part read its last element, which is not used.
                const T read = src[start + (size_t)min(at + j, count - 1) * all.inner];
                x.set(j, at + j < count ? read : (T)0.0f);
            }
        }
        A total = 0;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            total += (A)x[j];
        }
        A sum = carry + before(total);
        carry += total;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            x.set(j, (T)(sum += (A)x[j]));
        }
        if (dst && own == line && is_whole) {
            x.write(dst + start + at, N);
        } else if (dst && own == line) {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                if (at + j < count) {
                    dst[start + (size_t)(at + j) * all.inner] = x[j];
                }
            }
        }
    }
    if (!dst && own == line && lane == 0) {
        partials[(size_t)blockIdx.y * all.lines + line] = carry;
    }
}

#define CUMSUM(T, NAME)                                                                                              \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) cumsum_##NAME(                                    \
        const unsigned int lines, const unsigned int length, const unsigned int inner, const unsigned int part,      \
        const unsigned int width, const T *src, T *dst, void *partials) {                                            \
        cumsum<T>({lines, length, inner, part, width}, src, dst, (typename RunningSum<T>::type *)partials);          \
    }
CUMSUM(__nv_bfloat16, bf16)
CUMSUM(__half, f16)
CUMSUM(float, f32)
CUMSUM(double, f64)
