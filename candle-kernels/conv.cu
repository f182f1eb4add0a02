// Convolutions, transposed convolutions, pooling and resizing of (batch, channel, height, width): every dtype that the
// CPU device has, and its results. One dimension is two with height 1. `info` holds the dims, then the strides of the
// input. x of the grid covers the places of a plane, y channels, z images; channels and images are walked in steps of the
// grid, so that what is known of a place is found once. A plane has at most 2^31 places, and 32 bits reach all of it.
#include "cuda_utils.cuh"
#include "index.cuh"
#include "pack.cuh"

// What a dtype is summed in: narrow floats in f32, rounded once; integers without a sign, so that overflow wraps.
template <typename T>
struct Sum {
    typedef float type;
};
#define SUM_IN(T, WIDE)    \
    template <>            \
    struct Sum<T> {        \
        typedef WIDE type; \
    };
SUM_IN(double, double)
SUM_IN(uint8_t, uint32_t)
SUM_IN(int16_t, uint32_t)
SUM_IN(int32_t, uint32_t)
SUM_IN(uint32_t, uint32_t)
SUM_IN(int64_t, uint64_t)

template <typename T>
__device__ __forceinline__ bool less(T a, T b) {
    return a < b;
}
template <>
__device__ __forceinline__ bool less(__nv_fp8_e4m3 a, __nv_fp8_e4m3 b) {
    return (float)a < (float)b;
}

template <typename T>
__device__ __forceinline__ double to_double(T value) {
    return (double)value;
}
template <>
__device__ __forceinline__ double to_double(__nv_bfloat16 value) {
    return (double)(float)value;
}
template <>
__device__ __forceinline__ double to_double(__nv_fp8_e4m3 value) {
    return (double)(float)value;
}

// Of a value between two of type T; only int64_t has ones that f64 rounds up beyond its range.
template <typename T>
__device__ __forceinline__ T from_double(double value) {
    return (T)value;
}
template <>
__device__ __forceinline__ int64_t from_double(double value) {
    return value >= 0x1p63 ? 0x7fffffffffffffffll : (int64_t)value;
}

#define FOR_PLANES(image, images, channel, channels)                             \
    for (uint32_t image = blockIdx.z; image < images; image += gridDim.z)       \
        for (uint32_t channel = blockIdx.y; channel < channels; channel += gridDim.y)

// A place that no tap brings back to one of the input.
#define NOWHERE 0x80000000u

// An element of a plane that has any, or 0. Loads without a branch, so that several are under way.
template <typename T>
__device__ __forceinline__ T seen_at(const T *plane, bool inside, uint32_t at) {
    const T value = plane[inside ? at : 0];
    return inside ? value : static_cast<T>(0);
}

// dst[b, o, y, x] = sum over c and taps of src[b, c, source] * kernel[o, c, tap], over the channels c of o's group.
// `info`: dims and strides of the input, then those of the kernel. Each thread has places of one plane, all with the same
// weight at a time.
template <typename T>
__device__ void convolve(const uint32_t places, const Divisor width, const uint32_t c_out, const uint32_t group_out,
                         const uint32_t stride,
                         const uint32_t dilation, const uint32_t padding_y, const uint32_t padding_x,
                         const size_t dst_stride, const size_t *info, const T *src, const T *kernel, T *dst) {
    typedef typename Sum<T>::type A;
    constexpr uint32_t N = CANDLE_CONV_PLACES;
    const size_t *s = info + 4, *k = info + 12;
    const uint32_t s_y = (uint32_t)s[2], s_x = (uint32_t)s[3], h_in = (uint32_t)info[2], w_in = (uint32_t)info[3];
    const uint32_t c_in = (uint32_t)info[9], k_h = (uint32_t)info[10], k_w = (uint32_t)info[11];
    uint32_t y[N], x[N], at[N];
#pragma unroll
    for (uint32_t n = 0; n < N; ++n) {
        uint32_t column = thread_index(n, N);
        const bool inside = column < places;
        y[n] = inside ? width.split(column) * stride - padding_y : NOWHERE;
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
                    const uint32_t right = tap_x * dilation, further = down * s_y + right * s_x;
                    const A factor = static_cast<A>(*weight);
                    T seen[N];
#pragma unroll
                    for (uint32_t n = 0; n < N; ++n) {
                        seen[n] = seen_at(plane, y[n] + down < h_in & x[n] + right < w_in, at[n] + further);
                    }
                    weight += k[3];
#pragma unroll
                    for (uint32_t n = 0; n < N; ++n) {
                        sum[n] += static_cast<A>(seen[n]) * factor;
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

// The same for steps of 1: each thread has a pack of neighbouring places of a row, whose windows share most of what they
// see. `packs` are those of a row; taps are taken some at a time.
template <typename T>
__device__ void convolve_rows(const uint32_t all_packs, const Divisor packs, const uint32_t c_out,
                              const uint32_t group_out, const uint32_t padding_y, const uint32_t padding_x,
                              const size_t dst_stride, const size_t *info, const T *src, const T *kernel, T *dst) {
    typedef typename Sum<T>::type A;
    constexpr uint32_t N = CANDLE_PACK_BYTES / sizeof(T), TAPS = 3;
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
                    A seen[N + TAPS - 1];
                    // Not known from the last row: there are not scalar registers enough to keep what is inside.
                    uint32_t left = x + first;
                    asm volatile("" : CANDLE_IN_REGISTER(left));
#pragma unroll
                    for (uint32_t n = 0; n < N + TAPS - 1; ++n) {
                        const uint32_t at = left + n;
                        seen[n] = static_cast<A>(seen_at(line, at < w_in, at * s_x));
                    }
#pragma unroll
                    for (uint32_t tap = 0; tap < TAPS; ++tap) {
                        if (first + tap < k_w) {
                            const A factor = static_cast<A>(weight[(first + tap) * k[3]]);
#pragma unroll
                            for (uint32_t n = 0; n < N; ++n) {
                                sum[n] += seen[n + tap] * factor;
                            }
                        }
                    }
                }
            }
            plane += s[1];
            weights += k[1];
        }
        Pack<T> made;
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            made.set(n, static_cast<T>(sum[n]));
        }
        made.write(dst + image * dst_stride + ((size_t)o * h_out + row) * w_out + column * N, w_out - column * N);
    }
}

// The taps of a transposed convolution that add to one place along a dimension: `tap` and what it is multiplied with,
// then every tap `period` later, whose input is `back` places before. An input that is not less than the size is none.
struct Taps {
    uint32_t tap, source;

    __device__ __forceinline__ Taps(uint32_t at, uint32_t taps, uint32_t dilation, const Divisor stride,
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

// Goes through the taps of both dimensions that reach a place: `y` and `x` are the source's.
#define FOR_TAPS(h, w)                                                                       \
    for (uint32_t tap_y = h.tap, y = h.source; tap_y < k_h; tap_y += period, y -= back)      \
        for (uint32_t tap_x = w.tap, x = w.source; tap_x < k_w; tap_x += period, x -= back)  \
            if (y < h_in && x < w_in)

// dst[b, o, y, x] = sum over c and the taps that reach the place of src[b, c, source] * kernel[c, o, tap].
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
    const Taps h(row + padding_y, k_h, dilation, stride, period, back);
    const Taps w(column + padding_x, k_w, dilation, stride, period, back);
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

// dst[b, o, y, x] = sum over the taps that reach the place of src[b, (o, tap), source]: products that were made before.
// Neighbouring channels together, whose loads are under way at once.
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
    const Taps h(row + padding_y, k_h, dilation, stride, period, back);
    const Taps w(column + padding_x, k_w, dilation, stride, period, back);
    FOR_PLANES(image, (uint32_t)info[0], block, (channels + N - 1) / N) {
        const uint32_t first = block * N;
        const T *products = src + image * s[0] + (size_t)first * k_h * k_w * s[1];
        A sum[N] = {};
        FOR_TAPS(h, w) {
            const T *from = products + (y * (uint32_t)s[2] + x * (uint32_t)s[3]);
#pragma unroll
            for (uint32_t n = 0; n < N; ++n) {
                // Of the last channel again where there is none.
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

// The input as a matrix that a kernel (c_out, columns) is multiplied with: dst[b, column, place] is what the tap and
// channel `column` sees at the output places from `first` on; 0 in the padding. Each thread has neighbouring places; y of
// the grid counts channels and rows of taps. Rows of the result are `pitch` elements apart, whole packs: what is beyond
// the places is 0.
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
        y[n] = place + n < places ? row * stride - padding_y : NOWHERE;
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
            const uint32_t right = tap_x * dilation, further = down * s_y + right * s_x;
            Pack<T> seen;
#pragma unroll
            for (uint32_t n = 0; n < N; ++n) {
                seen.set(n, seen_at(plane, y[n] + down < h_in & x[n] + right < w_in, at[n] + further));
            }
            seen.write(to);
            to += pitch;
        }
    }
}

// For each channel and image: `at` is the first element of the thread's window.
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

// Sum times 1 / (k_h * k_w) in T, which is 0 for integers and windows of more than one element.
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

// A NaN stays only where it comes first.
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

// Each thread writes packs of neighbouring places, the same in all planes; single elements where planes are not made of
// whole packs.
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

// The two elements around a place along one dimension, and how much the second one weighs. One operation per
// statement: a fused product and sum would round differently from the CPU device.
struct Between {
    size_t low, high;
    double weight;

    __device__ __forceinline__ Between(uint32_t at, double step, bool align_corners, size_t size) {
        double source = step * ((double)at + (align_corners ? 0.0 : 0.5));
        source -= align_corners ? 0.0 : 0.5;
        source = fmax(source, 0.0);
        low = min((size_t)source, size - 1);
        high = min(low + 1, size - 1);
        weight = fmin(source - (double)low, 1.0);
    }
    __device__ __forceinline__ double of(double first, double second) const {
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
    const Between y(width.split(column), h_step, align_corners, info[2]), x(column, w_step, align_corners, info[3]);
    FOR_PLANES(image, info[0], channel, info[1]) {
        const T *plane = src + image * s[0] + channel * s[1];
        const T *top = plane + y.low * s[2], *bottom = plane + y.high * s[2];
        const double above = x.of(to_double(top[x.low * s[3]]), to_double(top[x.high * s[3]]));
        const double below = x.of(to_double(bottom[x.low * s[3]]), to_double(bottom[x.high * s[3]]));
        dst[(image * info[1] + channel) * places + thread_index()] = from_double<T>(y.of(above, below));
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

// These only move elements: one kernel per size, named by the dtype that carries it.
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
