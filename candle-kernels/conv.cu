// Convolutions, transposed convolutions, pooling and resizing of (batch, channel, height, width), with the CPU
// device's dtypes and results. One-dimensional operations have height 1. `info` holds the dims, then the strides of
// the input. x of the grid numbers the places (elements) of an output plane, y channels and z images; y and z use a
// grid stride, so that a thread computes the offsets of its place once. A plane has at most 2^31 elements and 32-bit
// offsets.
#include "cuda_utils.cuh"
#include "index.cuh"
#include "pack.cuh"

// The type of sums: f32 for narrow floats, rounded once; unsigned for integers, whose overflow wraps.
template <typename T> struct Sum { typedef float type; };
#define SUM_IN(T, WIDE) template <> struct Sum<T> { typedef WIDE type; };
SUM_IN(double, double)
SUM_IN(uint8_t, uint32_t)
SUM_IN(int16_t, uint32_t)
SUM_IN(int32_t, uint32_t)
SUM_IN(uint32_t, uint32_t)
SUM_IN(int64_t, uint64_t)

template <typename T>
__device__ __forceinline__ bool less(T a, T b) { return a < b; }
template <>
__device__ __forceinline__ bool less(__nv_fp8_e4m3 a, __nv_fp8_e4m3 b) { return (float)a < (float)b; }

template <typename T>
__device__ __forceinline__ double to_double(T value) { return (double)value; }
template <>
__device__ __forceinline__ double to_double(__nv_bfloat16 value) { return (double)(float)value; }
template <>
__device__ __forceinline__ double to_double(__nv_fp8_e4m3 value) { return (double)(float)value; }

// Converts a value within the range of T. Only int64_t has values that f64 rounds up to outside of its range.
template <typename T>
__device__ __forceinline__ T from_double(double value) { return (T)value; }
template <>
__device__ __forceinline__ int64_t from_double(double value) { return value >= 0x1p63 ? 0x7fffffffffffffffll : (int64_t)value; }

#define FOR_PLANES(image, images, channel, channels)                             \
    for (uint32_t image = blockIdx.z; image < images; image += gridDim.z)       \
        for (uint32_t channel = blockIdx.y; channel < channels; channel += gridDim.y)

// A coordinate that stays outside of the input for every tap.
#define OUT_OF_RANGE 0x80000000u

// Returns an element of a nonempty plane, or 0 outside. Loads without a branch, so that several are in flight.
template <typename T>
__device__ __forceinline__ T load_or_zero(const T *plane, bool inside, uint32_t at) {
    const T value = plane[inside ? at : 0];
    return inside ? value : static_cast<T>(0);
}

// dst[b, o, y, x] = sum over the channels c of o's group and the taps of src[b, c, source] * kernel[o, c, tap].
// `info` holds dims and strides of the input, then those of the kernel. Each thread computes several places of a
// plane, and multiplies each weight with all of them.
template <typename T>
__device__ void convolve(const uint32_t places, const Divisor width, const uint32_t c_out, const uint32_t group_out,
                         const uint32_t stride,
                         const uint32_t dilation, const uint32_t padding_y, const uint32_t padding_x,
                         const size_t dst_stride, const size_t *info, const T *src, const T *kernel, T *dst) {
    typedef typename Sum<T>::type A;
    constexpr uint32_t N = CANDLE_CONV_PLACES_PER_THREAD;
    const size_t *s = info + 4, *k = info + 12;
    const uint32_t s_y = (uint32_t)s[2], s_x = (uint32_t)s[3], h_in = (uint32_t)info[2], w_in = (uint32_t)info[3];
    const uint32_t c_in = (uint32_t)info[9], k_h = (uint32_t)info[10], k_w = (uint32_t)info[11];
    uint32_t y[N], x[N], at[N];
#pragma unroll
    for (uint32_t n = 0; n < N; ++n) {
        uint32_t column = thread_index(n, N);
        const bool inside = column < places;
        y[n] = inside ? width.split(column) * stride - padding_y : OUT_OF_RANGE;
        x[n] = column * stride - padding_x;
        at[n] = y[n] * s_y + x[n] * s_x;
    }
    FOR_PLANES(image, (uint32_t)info[0], o, c_out) {
        const T *plane = src + image * s[0] + o / group_out * c_in * s[1];
        const T *weights = kernel + o * k[0];
        A sum[N] = {};
        for (uint32_t c = 0; c < c_in; ++c) {
            for (uint32_t tap_y = 0; tap_y < k_h; ++tap_y) {
                const uint32_t down = tap_y * dilation;
                const T *weight = weights + tap_y * k[2];
                for (uint32_t tap_x = 0; tap_x < k_w; ++tap_x) {
                    const uint32_t right = tap_x * dilation, offset = down * s_y + right * s_x;
                    const A factor = static_cast<A>(*weight);
                    T inputs[N];
#pragma unroll
                    for (uint32_t n = 0; n < N; ++n) {
                        inputs[n] = load_or_zero(plane, y[n] + down < h_in & x[n] + right < w_in, at[n] + offset);
                    }
                    weight += k[3];
#pragma unroll
                    for (uint32_t n = 0; n < N; ++n) {
                        sum[n] += static_cast<A>(inputs[n]) * factor;
                    }
                }
            }
            plane += s[1];
            weights += k[1];
        }
        T *to = dst + image * dst_stride + (size_t)o * places;
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            if (thread_index(n, N) < places) {
                to[thread_index(n, N)] = static_cast<T>(sum[n]);
            }
        }
    }
}

// Convolution with stride and dilation 1: each thread computes a pack of neighbouring places of a row, whose windows
// overlap. `packs` is the number of packs of a row. TAPS taps are processed at a time.
template <typename T>
__device__ void convolve_rows(const uint32_t all_packs, const Divisor packs, const uint32_t c_out,
                              const uint32_t group_out, const uint32_t padding_y, const uint32_t padding_x,
                              const size_t dst_stride, const size_t *info, const T *src, const T *kernel, T *dst) {
    typedef typename Sum<T>::type A;
    constexpr uint32_t N = CANDLE_PACK_BYTES / sizeof(T), TAPS = CANDLE_CONV_TAPS_AT_ONCE;
    const size_t *s = info + 4, *k = info + 12;
    const uint32_t s_y = (uint32_t)s[2], s_x = (uint32_t)s[3], h_in = (uint32_t)info[2], w_in = (uint32_t)info[3];
    const uint32_t c_in = (uint32_t)info[9], k_h = (uint32_t)info[10], k_w = (uint32_t)info[11];
    const uint32_t h_out = h_in + 2 * padding_y + 1 - k_h, w_out = w_in + 2 * padding_x + 1 - k_w;
    uint32_t column = thread_index();
    if (column >= all_packs) {
        return;
    }
    const uint32_t row = packs.split(column), y = row - padding_y, x = column * N - padding_x;
    FOR_PLANES(image, (uint32_t)info[0], o, c_out) {
        const T *plane = src + image * s[0] + o / group_out * c_in * s[1];
        const T *weights = kernel + o * k[0];
        A sum[N] = {};
        for (uint32_t c = 0; c < c_in; ++c) {
            for (uint32_t tap_y = 0; tap_y < k_h; ++tap_y) {
                if (y + tap_y >= h_in) {
                    continue;
                }
                const T *line = plane + (y + tap_y) * s_y, *weight = weights + tap_y * k[2];
                for (uint32_t first = 0; first < k_w; first += TAPS) {
                    A inputs[N + TAPS - 1];
                    // Hides the origin of `left`, because scalar registers cannot hold the bounds checks of all
                    // rows.
                    uint32_t left = x + first;
                    asm volatile("" : CANDLE_IN_REGISTER(left));
#pragma unroll
                    for (uint32_t n = 0; n < N + TAPS - 1; ++n) {
                        const uint32_t at = left + n;
                        inputs[n] = static_cast<A>(load_or_zero(line, at < w_in, at * s_x));
                    }
#pragma unroll
                    for (uint32_t tap = 0; tap < TAPS; ++tap) {
                        if (first + tap < k_w) {
                            const A factor = static_cast<A>(weight[(first + tap) * k[3]]);
#pragma unroll
                            for (uint32_t n = 0; n < N; ++n) {
                                sum[n] += inputs[n + tap] * factor;
                            }
                        }
                    }
                }
            }
            plane += s[1];
            weights += k[1];
        }
        Pack<T> result;
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            result.set(n, static_cast<T>(sum[n]));
        }
        result.write(dst + image * dst_stride + ((size_t)o * h_out + row) * w_out + column * N, w_out - column * N);
    }
}

// Like convolve_rows for groups of several output channels, of which each thread computes CHANNELS. The weights of these are
// in LDS as (input channel, tap_y, tap_x, output channel), with zeros for further taps and channels.
template <typename T>
__device__ __forceinline__ void convolve_groups(const uint32_t all_packs, const Divisor packs, const uint32_t c_out,
                                                const uint32_t group_out, const uint32_t padding_y,
                                                const uint32_t padding_x, const size_t dst_stride, const size_t *info,
                                                const T *src, const T *kernel, T *dst) {
    typedef typename Sum<T>::type A;
    constexpr uint32_t N = CANDLE_PACK_BYTES / sizeof(T), TAPS = CANDLE_CONV_TAPS_AT_ONCE;
    constexpr uint32_t CHANNELS = CANDLE_CONV_CHANNELS_PER_THREAD;
    extern __shared__ uint4 conv_weights[];
    A *factors = (A *)conv_weights;
    const size_t *s = info + 4;
    const uint32_t k_o = (uint32_t)info[12], k_c = (uint32_t)info[13], k_y = (uint32_t)info[14], k_x = (uint32_t)info[15];
    const uint32_t s_y = (uint32_t)s[2], s_x = (uint32_t)s[3], h_in = (uint32_t)info[2], w_in = (uint32_t)info[3];
    const uint32_t c_in = (uint32_t)info[9], k_h = (uint32_t)info[10], k_w = (uint32_t)info[11];
    const uint32_t h_out = h_in + 2 * padding_y + 1 - k_h, w_out = w_in + 2 * padding_x + 1 - k_w;
    const uint32_t row_taps = (k_w + TAPS - 1) / TAPS * TAPS, blocks = (group_out + CHANNELS - 1) / CHANNELS;
    uint32_t column = thread_index();
    const bool computes = column < all_packs;
    const uint32_t row = packs.split(column), y = row - padding_y, x = column * N - padding_x;
    FOR_PLANES(image, (uint32_t)info[0], block, c_out / group_out * blocks) {
        const uint32_t group = block / blocks, first_out = (block - group * blocks) * CHANNELS;
        const uint32_t outputs = group_out - first_out < CHANNELS ? group_out - first_out : CHANNELS;
        const uint32_t o = group * group_out + first_out;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < c_in * k_h * row_taps * CHANNELS; i += blockDim.x) {
            const uint32_t channel = i % CHANNELS, tap = i / CHANNELS, line = tap / row_taps, tap_x = tap - line * row_taps;
            const uint32_t c = line / k_h, tap_y = line - c * k_h;
            const bool exists = channel < outputs && tap_x < k_w;
            const T *weight = kernel + (size_t)(o + channel) * k_o + (c * k_c + tap_y * k_y + tap_x * k_x);
            factors[i] = exists ? static_cast<A>(*weight) : 0;
        }
        __syncthreads();
        if (!computes) {
            continue;
        }
        const T *plane = src + image * s[0] + group * c_in * s[1];
        A sum[CHANNELS][N] = {};
        for (uint32_t c = 0; c < c_in; ++c) {
            for (uint32_t tap_y = 0; tap_y < k_h; ++tap_y) {
                if (y + tap_y >= h_in) {
                    continue;
                }
                const T *line = plane + (y + tap_y) * s_y;
                const A *weight = factors + (c * k_h + tap_y) * row_taps * CHANNELS;
                for (uint32_t first = 0; first < k_w; first += TAPS) {
                    A inputs[N + TAPS - 1];
                    // As in convolve_rows.
                    uint32_t left = x + first;
                    asm volatile("" : CANDLE_IN_REGISTER(left));
                    // Columns outside read the last one.
#pragma unroll
                    for (uint32_t n = 0; n < N + TAPS - 1; ++n) {
                        const uint32_t at = left + n;
                        const A input = static_cast<A>(line[(at < w_in ? at : w_in - 1) * s_x]);
                        inputs[n] = at < w_in ? input : 0;
                    }
#pragma unroll
                    for (uint32_t tap = 0; tap < TAPS; ++tap) {
#pragma unroll
                        for (uint32_t channel = 0; channel < CHANNELS; ++channel) {
                            const A factor = weight[(first + tap) * CHANNELS + channel];
#pragma unroll
                            for (uint32_t n = 0; n < N; ++n) {
                                sum[channel][n] += inputs[n + tap] * factor;
                            }
                        }
                    }
                }
            }
            plane += s[1];
        }
        T *to = dst + image * dst_stride + ((size_t)o * h_out + row) * w_out + column * N;
        uint32_t places = h_out * w_out, rest = w_out - column * N;
        asm volatile("" : CANDLE_IN_REGISTER(places));
        asm volatile("" : CANDLE_IN_REGISTER(rest));
#pragma unroll
        for (uint32_t channel = 0; channel < CHANNELS; ++channel) {
            if (channel < outputs) {
                Pack<T> result;
#pragma unroll
                for (uint32_t n = 0; n < N; ++n) {
                    result.set(n, static_cast<T>(sum[channel][n]));
                }
                result.write(to, rest);
                to += places;
            }
        }
    }
}

// Taps of a transposed convolution that contribute to one place along a dimension: `tap`, which reads input
// `source`, then every tap `period` later, which reads the input `back` before. Inputs outside of the source
// contribute nothing.
struct TransposedTaps {
    uint32_t tap, source;

    __device__ __forceinline__ TransposedTaps(uint32_t at, uint32_t taps, uint32_t dilation, const Divisor stride,
                                    uint32_t period, uint32_t back)
        : tap(0) {
        for (; tap < period && tap < taps; ++tap) {
            // Not below 0: period * dilation is back * stride.
            const uint32_t shifted = at + back * stride.by - tap * dilation;
            const uint32_t whole = stride.quotient(shifted);
            if (whole * stride.by == shifted) {
                source = whole - back;
                return;
            }
        }
        tap = taps;
    }
};

// Iterates over the taps of both dimensions that contribute to a place; `y` and `x` are positions in the source.
#define FOR_TAPS(h, w)                                                                       \
    for (uint32_t tap_y = h.tap, y = h.source; tap_y < k_h; tap_y += period, y -= back)      \
        for (uint32_t tap_x = w.tap, x = w.source; tap_x < k_w; tap_x += period, x -= back)  \
            if (y < h_in && x < w_in)

// dst[b, o, y, x] = sum over c and the contributing taps of src[b, c, source] * kernel[c, o, tap].
template <typename T>
__device__ void transposed(const uint32_t places, const Divisor width, const uint32_t c_out, const uint32_t group_out,
                           const Divisor stride, const uint32_t dilation, const uint32_t padding_y, const uint32_t padding_x, const uint32_t period,
                           const uint32_t back, const size_t dst_stride, const size_t *info, const T *src,
                           const T *kernel, T *dst) {
    typedef typename Sum<T>::type A;
    const size_t *s = info + 4;
    const uint32_t h_in = (uint32_t)info[2], w_in = (uint32_t)info[3];
    const uint32_t c_in = (uint32_t)info[1] / (c_out / group_out);
    const uint32_t k_h = (uint32_t)info[10], k_w = (uint32_t)info[11];
    const uint32_t k_c = (uint32_t)info[12], k_o = (uint32_t)info[13], k_y = (uint32_t)info[14];
    const uint32_t k_x = (uint32_t)info[15];
    const uint32_t place = thread_index();
    if (place >= places) {
        return;
    }
    uint32_t column = place;
    const uint32_t row = width.split(column);
    const TransposedTaps h(row + padding_y, k_h, dilation, stride, period, back);
    const TransposedTaps w(column + padding_x, k_w, dilation, stride, period, back);
    FOR_PLANES(image, (uint32_t)info[0], o, c_out) {
        const uint32_t group = o / group_out;
        const T *channels = src + image * s[0] + (size_t)group * c_in * s[1];
        const T *weights = kernel + (size_t)group * c_in * k_c + (o - group * group_out) * k_o;
        A sum = 0;
        FOR_TAPS(h, w) {
            const T *from = channels + (y * (uint32_t)s[2] + x * (uint32_t)s[3]);
            const T *weight = weights + (tap_y * k_y + tap_x * k_x);
            for (uint32_t c = 0; c < c_in; ++c) {
                sum += static_cast<A>(from[c * s[1]]) * static_cast<A>(weight[c * k_c]);
            }
        }
        dst[image * dst_stride + (size_t)o * places + place] = static_cast<T>(sum);
    }
}

// col2im: dst[b, o, y, x] = sum over the contributing taps of src[b, (o, tap), source], which holds the products.
// Sums several neighbouring channels at a time to have their loads in flight together.
template <typename T>
__device__ void fold(const uint32_t places, const Divisor width, const uint32_t channels, const Divisor stride,
                     const uint32_t dilation, const uint32_t padding_y, const uint32_t padding_x, const uint32_t period,
                     const uint32_t back, const size_t dst_stride, const size_t *info, const T *src, T *dst) {
    typedef typename Sum<T>::type A;
    constexpr uint32_t N = CANDLE_FOLD_CHANNELS;
    const size_t *s = info + 4;
    const uint32_t h_in = (uint32_t)info[2], w_in = (uint32_t)info[3];
    const uint32_t k_h = (uint32_t)info[10], k_w = (uint32_t)info[11];
    const uint32_t place = thread_index();
    if (place >= places) {
        return;
    }
    uint32_t column = place;
    const uint32_t row = width.split(column);
    const TransposedTaps h(row + padding_y, k_h, dilation, stride, period, back);
    const TransposedTaps w(column + padding_x, k_w, dilation, stride, period, back);
    FOR_PLANES(image, (uint32_t)info[0], block, (channels + N - 1) / N) {
        const uint32_t first = block * N;
        const T *products = src + image * s[0] + (size_t)first * k_h * k_w * s[1];
        A sum[N] = {};
        FOR_TAPS(h, w) {
            const T *from = products + (y * (uint32_t)s[2] + x * (uint32_t)s[3]);
#pragma unroll
            for (uint32_t n = 0; n < N; ++n) {
                // Channels past the end repeat the last channel.
                const uint32_t channel = first + n < channels ? n : channels - 1 - first;
                sum[n] += static_cast<A>(from[((channel * k_h + tap_y) * k_w + tap_x) * s[1]]);
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            if (first + n < channels) {
                dst[image * dst_stride + (size_t)(first + n) * places + place] = static_cast<T>(sum[n]);
            }
        }
    }
}

// im2col: dst[b, column, place] is the input that channel and tap `column` reads for the output places from `first`
// on, 0 in the padding. Each thread writes neighbouring places; y of the grid numbers channels and rows of taps.
// Rows of the result are `pitch` elements apart, a multiple of the pack size; elements past the places are 0.
template <typename T>
__device__ void unfold(const uint32_t first, const uint32_t places, const size_t pitch, const uint32_t images,
                       const size_t image_stride, const Divisor width, const uint32_t k_h, const uint32_t k_w, const uint32_t stride,
                       const uint32_t dilation, const uint32_t padding_y, const uint32_t padding_x,
                       const size_t *info, const T *src, T *dst) {
    constexpr uint32_t N = CANDLE_PACK_BYTES / sizeof(T);
    const size_t *s = info + 4;
    const uint32_t s_y = (uint32_t)s[2], s_x = (uint32_t)s[3], rows = (uint32_t)info[1] * k_h;
    const uint32_t h_in = (uint32_t)info[2], w_in = (uint32_t)info[3];
    const uint32_t place = thread_index() * N;
    if (place >= places) {
        return;
    }
    uint32_t y[N], x[N], at[N], column = first + place, row = width.split(column);
#pragma unroll
    for (uint32_t n = 0; n < N; ++n) {
        y[n] = place + n < places ? row * stride - padding_y : OUT_OF_RANGE;
        x[n] = column * stride - padding_x;
        at[n] = y[n] * s_y + x[n] * s_x;
        const bool ends = ++column == width.by;
        column = ends ? 0 : column;
        row += ends;
    }
    FOR_PLANES(image, images, tap_row, rows) {
        const uint32_t c = tap_row / k_h, down = (tap_row - c * k_h) * dilation;
        const T *plane = src + image * s[0] + c * s[1];
        T *to = dst + image * image_stride + (size_t)tap_row * k_w * pitch + place;
        for (uint32_t tap_x = 0; tap_x < k_w; ++tap_x) {
            const uint32_t right = tap_x * dilation, offset = down * s_y + right * s_x;
            Pack<T> inputs;
#pragma unroll
            for (uint32_t n = 0; n < N; ++n) {
                inputs.set(n, load_or_zero(plane, y[n] + down < h_in & x[n] + right < w_in, at[n] + offset));
            }
            inputs.write(to);
            to += pitch;
        }
    }
}

// Iterates over images and channels; `at` is the first element of the thread's window.
#define FOR_WINDOWS                                                                                                  \
    const size_t *s = info + 4;                                                                                      \
    uint32_t column = thread_index();                                                                                \
    if (column >= places) {                                                                                          \
        return;                                                                                                      \
    }                                                                                                                \
    const uint32_t row = width.split(column);                                                                        \
    src += row * stride_h * s[2] + column * stride_w * s[3];                                                         \
    FOR_PLANES(image, info[0], channel, info[1])                                                                     \
    if (const T *at = src + image * s[0] + channel * s[1])

// The sum times 1 / (k_h * k_w) in T. As on the CPU device, this factor is 0 or 1 for integers.
template <typename T>
__device__ void avg_pool2d(const uint32_t places, const Divisor width, const uint32_t k_h, const uint32_t k_w,
                           const size_t stride_h, const size_t stride_w, const size_t *info, const T *src, T *dst) {
    typedef typename Sum<T>::type A;
    const A scale = static_cast<A>(1.0 / (double)((size_t)k_h * k_w));
    FOR_WINDOWS {
        A sum = 0;
        for (uint32_t y = 0; y < k_h; ++y) {
            for (uint32_t x = 0; x < k_w; ++x) {
                sum += static_cast<A>(at[y * s[2] + x * s[3]]);
            }
        }
        dst[(image * info[1] + channel) * places + thread_index()] = static_cast<T>(sum * scale);
    }
}

// The result is NaN only if the first element of the window is.
template <typename T>
__device__ void max_pool2d(const uint32_t places, const Divisor width, const uint32_t k_h, const uint32_t k_w,
                           const size_t stride_h, const size_t stride_w, const size_t *info, const T *src, T *dst) {
    FOR_WINDOWS {
        T largest = *at;
        for (uint32_t y = 0; y < k_h; ++y) {
            for (uint32_t x = 0; x < k_w; ++x) {
                const T value = at[y * s[2] + x * s[3]];
                largest = less(largest, value) ? value : largest;
            }
        }
        dst[(image * info[1] + channel) * places + thread_index()] = largest;
    }
}

__device__ __forceinline__ uint32_t nearest(uint32_t at, double step, size_t size) {
    const size_t source = (size_t)((double)at * step);
    return (uint32_t)(source < size ? source : size - 1);
}

// Each thread writes a pack of neighbouring places in every plane, or single elements if planes are not whole packs.
template <typename T>
__device__ void upsample_nearest2d(const uint32_t places, const Divisor width, const double h_step,
                                   const double w_step, const size_t *info, const T *src, T *dst) {
    constexpr uint32_t N = CANDLE_PACK_BYTES / sizeof(T);
    const size_t *s = info + 4;
    const uint32_t place = thread_index() * N;
    if (place >= places) {
        return;
    }
    uint32_t at[N];
#pragma unroll
    for (uint32_t n = 0; n < N; ++n) {
        uint32_t column = min(place + n, places - 1);
        const uint32_t row = width.split(column);
        at[n] = nearest(row, h_step, info[2]) * (uint32_t)s[2] + nearest(column, w_step, info[3]) * (uint32_t)s[3];
    }
    FOR_PLANES(image, info[0], channel, info[1]) {
        const T *plane = src + image * s[0] + channel * s[1];
        T *to = dst + (image * info[1] + channel) * places + place;
        Pack<T> taken;
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            taken.set(n, plane[at[n]]);
        }
        taken.write(to, places - place);
    }
}

// The two neighbouring elements along one dimension and the weight of the second one. One operation per statement: a
// fused multiply-add would round differently from the CPU device.
struct Interpolation {
    size_t low, high;
    double weight;

    __device__ __forceinline__ Interpolation(uint32_t at, double step, bool align_corners, size_t size) {
        double source = step * ((double)at + (align_corners ? 0.0 : 0.5));
        source -= align_corners ? 0.0 : 0.5;
        source = fmax(source, 0.0);
        low = min((size_t)source, size - 1);
        high = min(low + 1, size - 1);
        weight = fmin(source - (double)low, 1.0);
    }
    __device__ __forceinline__ double interpolate(double first, double second) const {
        const double a = first * (1.0 - weight);
        const double b = second * weight;
        return a + b;
    }
};

template <typename T>
__device__ void upsample_bilinear2d(const uint32_t places, const Divisor width, const double h_step,
                                    const double w_step, const bool align_corners, const size_t *info, const T *src,
                                    T *dst) {
    const size_t *s = info + 4;
    uint32_t column = thread_index();
    if (column >= places) {
        return;
    }
    const Interpolation y(width.split(column), h_step, align_corners, info[2]), x(column, w_step, align_corners, info[3]);
    FOR_PLANES(image, info[0], channel, info[1]) {
        const T *plane = src + image * s[0] + channel * s[1];
        const T *top = plane + y.low * s[2], *bottom = plane + y.high * s[2];
        const double above = x.interpolate(to_double(top[x.low * s[3]]), to_double(top[x.high * s[3]]));
        const double below = x.interpolate(to_double(bottom[x.low * s[3]]), to_double(bottom[x.high * s[3]]));
        dst[(image * info[1] + channel) * places + thread_index()] = from_double<T>(y.interpolate(above, below));
    }
}

#define WINDOW(NAME, T, T_NAME, ...)                                                                                  \
    extern "C" __global__ void NAME##_##T_NAME(                                                                       \
        const size_t places, const size_t w_out, const size_t w_magic, const size_t channels, const size_t group_out, \
        const size_t stride, const size_t stride_magic, const size_t dilation, const size_t padding_y,                \
        const size_t padding_x, const size_t period, const size_t back, const size_t dst_stride, const size_t *info,  \
        const T *src, const T *kernel, T *dst) {                                                                      \
        __VA_ARGS__;                                                                                                  \
    }
#define CONVOLVE(T, T_NAME)                                                                                           \
    WINDOW(conv, T, T_NAME,                                                                                           \
           convolve((uint32_t)places, Divisor(w_out, w_magic), (uint32_t)channels, (uint32_t)group_out,               \
                    (uint32_t)stride, (uint32_t)dilation, (uint32_t)padding_y, (uint32_t)padding_x, dst_stride, info, src, kernel, dst))
#define CONVOLVE_ROWS(T, T_NAME)                                                                                      \
    WINDOW(conv_rows, T, T_NAME,                                                                                      \
           convolve_rows((uint32_t)places, Divisor(w_out, w_magic), (uint32_t)channels, (uint32_t)group_out,          \
                         (uint32_t)padding_y, (uint32_t)padding_x, dst_stride, info, src, kernel, dst))
#define CONVOLVE_GROUPS(T, T_NAME)                                                                                    \
    WINDOW(__launch_bounds__(CANDLE_BLOCK) conv_groups, T, T_NAME,                                                    \
           convolve_groups((uint32_t)places, Divisor(w_out, w_magic), (uint32_t)channels, (uint32_t)group_out,        \
                           (uint32_t)padding_y, (uint32_t)padding_x, dst_stride, info, src, kernel, dst))
#define TRANSPOSED(T, T_NAME)                                                                                         \
    WINDOW(conv_transpose, T, T_NAME,                                                                                 \
           transposed((uint32_t)places, Divisor(w_out, w_magic), (uint32_t)channels, (uint32_t)group_out,             \
                      Divisor(stride, stride_magic), (uint32_t)dilation, (uint32_t)padding_y, (uint32_t)padding_x,    \
                      (uint32_t)period, (uint32_t)back, dst_stride, info, src, kernel, dst))
#define FOLD(T, T_NAME)                                                                                               \
    WINDOW(fold, T, T_NAME,                                                                                           \
           fold((uint32_t)places, Divisor(w_out, w_magic), (uint32_t)channels, Divisor(stride, stride_magic),         \
                (uint32_t)dilation, (uint32_t)padding_y, (uint32_t)padding_x, (uint32_t)period, (uint32_t)back,       \
                dst_stride, info, src, dst))
#define FLOATS(OP)           \
    OP(__half, f16)          \
    OP(__nv_bfloat16, bf16)  \
    OP(float, f32)           \
    OP(double, f64)
FLOATS(CONVOLVE)
FLOATS(CONVOLVE_ROWS)
FLOATS(CONVOLVE_GROUPS)
FLOATS(FOLD)

#define POOL(NAME, T, T_NAME)                                                                                         \
    extern "C" __global__ void NAME##_##T_NAME(const size_t places, const size_t w_out, const size_t w_magic,         \
                                               const size_t k_h, const size_t k_w, const size_t stride_h,             \
                                               const size_t stride_w, const size_t *info, const T *src, T *dst) {     \
        NAME((uint32_t)places, Divisor(w_out, w_magic), (uint32_t)k_h, (uint32_t)k_w, stride_h, stride_w, info, src,  \
             dst);                                                                                                    \
    }
#define OPS(T, T_NAME)                                                                                                \
    TRANSPOSED(T, T_NAME)                                                                                             \
    POOL(avg_pool2d, T, T_NAME)                                                                                       \
    POOL(max_pool2d, T, T_NAME)                                                                                       \
    extern "C" __global__ void upsample_bilinear2d_##T_NAME(                                                          \
        const size_t places, const size_t w_out, const size_t w_magic, const double h_step, const double w_step,      \
        const bool align_corners, const size_t *info, const T *src, T *dst) {                                         \
        upsample_bilinear2d((uint32_t)places, Divisor(w_out, w_magic), h_step, w_step, align_corners, info, src, dst); \
    }
FLOATS(OPS)
OPS(uint8_t, u8)
OPS(uint32_t, u32)
OPS(int16_t, i16)
OPS(int32_t, i32)
OPS(int64_t, i64)
OPS(__nv_fp8_e4m3, f8e4m3)

// Kernels that only move elements exist once per element size, named after one dtype of that size.
#define UNFOLD(T, T_NAME)                                                                                             \
    extern "C" __global__ void unfold_##T_NAME(                                                                       \
        const size_t first, const size_t places, const size_t pitch, const size_t images, const size_t image_stride,  \
        const size_t w_out, const size_t w_magic, const size_t k_h, const size_t k_w, const size_t stride, const size_t dilation,         \
        const size_t padding_y, const size_t padding_x, const size_t *info, const T *src, T *dst) {                   \
        unfold((uint32_t)first, (uint32_t)places, pitch, (uint32_t)images, image_stride, Divisor(w_out, w_magic),     \
               (uint32_t)k_h, (uint32_t)k_w, (uint32_t)stride, (uint32_t)dilation, (uint32_t)padding_y, (uint32_t)padding_x, info,   \
               src, dst);                                                                                             \
    }
#define NEAREST(T, T_NAME)                                                                                            \
    extern "C" __global__ void upsample_nearest2d_##T_NAME(                                                           \
        const size_t places, const size_t w_out, const size_t w_magic, const double h_step, const double w_step,      \
        const size_t *info, const T *src, T *dst) {                                                                   \
        upsample_nearest2d((uint32_t)places, Divisor(w_out, w_magic), h_step, w_step, info, src, dst);                \
    }
#define MOVING_OPS(T, T_NAME) \
    UNFOLD(T, T_NAME)         \
    NEAREST(T, T_NAME)
NEAREST(uint8_t, u8)
MOVING_OPS(uint16_t, f16)
MOVING_OPS(uint32_t, u32)
MOVING_OPS(int64_t, i64)
