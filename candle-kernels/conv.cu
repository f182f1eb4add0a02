// Convolutions, transposed convolutions, pooling and resizing of (batch, channel, height, width): every dtype that the
// CPU device has, and its results. One dimension is two with height 1. `info` holds the dims, then the strides of the input.
// One thread computes one element; launches have at most 2^31 of them, so 32 bits count them all.
#include "cuda_utils.cuh"
#include <stdint.h>

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

__device__ __forceinline__ uint32_t thread_index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// How a convolution walks along one dimension.
struct Axis {
    uint32_t size, taps, stride, dilation, padding;

    // The input under `tap` at place `at`. Out of range (also below 0, which wraps around) it is not less than `size`.
    __device__ __forceinline__ uint32_t source(uint32_t at, uint32_t tap) const {
        return at * stride + tap * dilation - padding;
    }
    // The input whose product with `tap` a transposed convolution adds to place `at`; not less than `size` if none.
    __device__ __forceinline__ uint32_t transposed_source(uint32_t at, uint32_t tap) const {
        const uint32_t shifted = at + padding - tap * dilation;
        if (at + padding < tap * dilation || shifted % stride != 0) {
            return ~0u;
        }
        return shifted / stride;
    }
};

// The places of one element in a dense (batch, channels, height, width).
struct Place {
    uint32_t batch, channel, y, x;

    __device__ __forceinline__ Place(uint32_t i, uint32_t channels, uint32_t height, uint32_t width) {
        const uint32_t row = i / width;
        const uint32_t plane = row / height;
        x = i - row * width;
        y = row - plane * height;
        batch = plane / channels;
        channel = plane - batch * channels;
    }
};

// dst[b, o, y, x] = sum over c and taps of src[b, c, source] * kernel[o, c, tap]; transposed, the kernel's first two
// dimensions change places. `info`: dims and strides of the input, then those of the kernel.
template <bool TRANSPOSED, typename T>
__device__ void convolve(const size_t h_out, const size_t w_out, const size_t stride, const size_t dilation,
                         const size_t padding_y, const size_t padding_x, const size_t *info, const T *src,
                         const T *kernel, T *dst) {
    typedef typename Sum<T>::type A;
    const size_t *s = info + 4, *k_dims = info + 8, *k = info + 12;
    const Axis h = {(uint32_t)info[2], (uint32_t)k_dims[2], (uint32_t)stride, (uint32_t)dilation, (uint32_t)padding_y};
    const Axis w = {(uint32_t)info[3], (uint32_t)k_dims[3], (uint32_t)stride, (uint32_t)dilation, (uint32_t)padding_x};
    const uint32_t c_in = (uint32_t)info[1], c_out = (uint32_t)k_dims[TRANSPOSED ? 1 : 0];
    const uint32_t i = thread_index();
    const Place place(i, c_out, (uint32_t)h_out, (uint32_t)w_out);
    if (place.batch >= info[0]) {
        return;
    }
    src += place.batch * s[0];
    kernel += place.channel * k[TRANSPOSED ? 1 : 0];
    const size_t s_channel = s[1], k_channel = k[TRANSPOSED ? 0 : 1];
    A sum = 0;
    for (uint32_t tap_y = 0; tap_y < h.taps; ++tap_y) {
        const uint32_t y = TRANSPOSED ? h.transposed_source(place.y, tap_y) : h.source(place.y, tap_y);
        if (y >= h.size) {
            continue;
        }
        for (uint32_t tap_x = 0; tap_x < w.taps; ++tap_x) {
            const uint32_t x = TRANSPOSED ? w.transposed_source(place.x, tap_x) : w.source(place.x, tap_x);
            if (x >= w.size) {
                continue;
            }
            const T *from = src + y * s[2] + x * s[3];
            const T *weight = kernel + tap_y * k[2] + tap_x * k[3];
            for (uint32_t c = 0; c < c_in; ++c) {
                sum += static_cast<A>(from[c * s_channel]) * static_cast<A>(weight[c * k_channel]);
            }
        }
    }
    dst[i] = static_cast<T>(sum);
}

// The input as a matrix that a kernel (c_out, columns) is multiplied with: dst[b, column, place] is what the tap and
// channel `column` sees at the output places from `first` on; 0 in the padding. x of the grid covers places, y columns,
// z images; y and z are walked in steps of the grid. A convolution of one dimension has height 1 and padding_y 0.
template <typename T>
__device__ void unfold(const size_t first, const size_t places, const size_t images, const size_t w_out,
                       const size_t k_h, const size_t k_w, const size_t stride, const size_t dilation,
                       const size_t padding_y, const size_t padding_x, const size_t *info, const T *src, T *dst) {
    const uint32_t place = thread_index();
    if (place >= places) {
        return;
    }
    const size_t *s = info + 4;
    const uint32_t c_in = (uint32_t)info[1], h_in = (uint32_t)info[2], w_in = (uint32_t)info[3];
    const uint32_t taps = (uint32_t)(k_h * k_w), columns = c_in * taps;
    const uint32_t at = (uint32_t)first + place;
    const uint32_t out_y = at / (uint32_t)w_out;
    const uint32_t y0 = out_y * (uint32_t)stride - (uint32_t)padding_y;
    const uint32_t x0 = (at - out_y * (uint32_t)w_out) * (uint32_t)stride - (uint32_t)padding_x;
    for (uint32_t image = blockIdx.z; image < images; image += gridDim.z) {
        for (uint32_t column = blockIdx.y; column < columns; column += gridDim.y) {
            const uint32_t c = column / taps;
            const uint32_t tap = column - c * taps;
            const uint32_t tap_y = tap / (uint32_t)k_w;
            const uint32_t y = y0 + tap_y * (uint32_t)dilation;
            const uint32_t x = x0 + (tap - tap_y * (uint32_t)k_w) * (uint32_t)dilation;
            const bool inside = y < h_in && x < w_in;
            dst[((size_t)image * columns + column) * places + place] =
                inside ? src[image * s[0] + c * s[1] + y * s[2] + x * s[3]] : static_cast<T>(0);
        }
    }
}

// The first window element of dst[i], for windows (k_h, k_w) apart by (stride_h, stride_w).
template <typename T>
__device__ __forceinline__ bool window(const size_t k_h, const size_t k_w, const size_t stride_h, const size_t stride_w,
                                       const size_t *info, const T *&src) {
    const size_t *s = info + 4;
    const uint32_t h_out = (uint32_t)((info[2] - k_h) / stride_h + 1);
    const uint32_t w_out = (uint32_t)((info[3] - k_w) / stride_w + 1);
    const Place place(thread_index(), (uint32_t)info[1], h_out, w_out);
    src += place.batch * s[0] + place.channel * s[1] + place.y * stride_h * s[2] + place.x * stride_w * s[3];
    return place.batch < info[0];
}

// Sum times 1 / (k_h * k_w) in T, which is 0 for integers and windows of more than one element.
template <typename T>
__device__ void avg_pool2d(const size_t k_h, const size_t k_w, const size_t stride_h, const size_t stride_w,
                           const size_t *info, const T *src, T *dst) {
    typedef typename Sum<T>::type A;
    if (!window(k_h, k_w, stride_h, stride_w, info, src)) {
        return;
    }
    A sum = 0;
    for (uint32_t y = 0; y < k_h; ++y) {
        for (uint32_t x = 0; x < k_w; ++x) {
            sum += static_cast<A>(src[y * info[6] + x * info[7]]);
        }
    }
    const A scale = static_cast<A>(1.0 / (double)(k_h * k_w));
    dst[thread_index()] = static_cast<T>(sum * scale);
}

// A NaN stays only where it comes first.
template <typename T>
__device__ void max_pool2d(const size_t k_h, const size_t k_w, const size_t stride_h, const size_t stride_w,
                           const size_t *info, const T *src, T *dst) {
    if (!window(k_h, k_w, stride_h, stride_w, info, src)) {
        return;
    }
    T largest = src[0];
    for (uint32_t y = 0; y < k_h; ++y) {
        for (uint32_t x = 0; x < k_w; ++x) {
            const T value = src[y * info[6] + x * info[7]];
            largest = less(largest, value) ? value : largest;
        }
    }
    dst[thread_index()] = largest;
}

__device__ __forceinline__ size_t nearest(uint32_t at, double step, size_t size) {
    const size_t source = (size_t)((double)at * step);
    return source < size ? source : size - 1;
}

template <typename T>
__device__ void upsample_nearest2d(const size_t h_out, const size_t w_out, const double h_step, const double w_step,
                                   const size_t *info, const T *src, T *dst) {
    const size_t *s = info + 4;
    const Place place(thread_index(), (uint32_t)info[1], (uint32_t)h_out, (uint32_t)w_out);
    if (place.batch < info[0]) {
        dst[thread_index()] = src[place.batch * s[0] + place.channel * s[1] +
                                  nearest(place.y, h_step, info[2]) * s[2] + nearest(place.x, w_step, info[3]) * s[3]];
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
__device__ void upsample_bilinear2d(const size_t h_out, const size_t w_out, const bool align_corners,
                                    const double h_step, const double w_step, const size_t *info, const T *src,
                                    T *dst) {
    const size_t *s = info + 4;
    const Place place(thread_index(), (uint32_t)info[1], (uint32_t)h_out, (uint32_t)w_out);
    if (place.batch >= info[0]) {
        return;
    }
    const Between y(place.y, h_step, align_corners, info[2]), x(place.x, w_step, align_corners, info[3]);
    src += place.batch * s[0] + place.channel * s[1];
    const T *top = src + y.low * s[2], *bottom = src + y.high * s[2];
    const double above = x.of(to_double(top[x.low * s[3]]), to_double(top[x.high * s[3]]));
    const double below = x.of(to_double(bottom[x.low * s[3]]), to_double(bottom[x.high * s[3]]));
    dst[thread_index()] = from_double<T>(y.of(above, below));
}

#define CONVOLUTION(NAME, TRANSPOSED, T, T_NAME)                                                                     \
    extern "C" __global__ void NAME##_##T_NAME(                                                                      \
        const size_t h_out, const size_t w_out, const size_t stride, const size_t dilation, const size_t padding_y,  \
        const size_t padding_x, const size_t *info, const T *src, const T *kernel, T *dst) {                         \
        convolve<TRANSPOSED>(h_out, w_out, stride, dilation, padding_y, padding_x, info, src, kernel, dst);          \
    }

CONVOLUTION(conv, false, __half, f16)
CONVOLUTION(conv, false, __nv_bfloat16, bf16)
CONVOLUTION(conv, false, float, f32)
CONVOLUTION(conv, false, double, f64)

#define OPS(T, T_NAME)                                                                                              \
    CONVOLUTION(conv_transpose, true, T, T_NAME)                                                                    \
    extern "C" __global__ void avg_pool2d_##T_NAME(const size_t k_h, const size_t k_w, const size_t stride_h,       \
                                                   const size_t stride_w, const size_t *info, const T *src,         \
                                                   T *dst) {                                                        \
        avg_pool2d(k_h, k_w, stride_h, stride_w, info, src, dst);                                                   \
    }                                                                                                               \
    extern "C" __global__ void max_pool2d_##T_NAME(const size_t k_h, const size_t k_w, const size_t stride_h,       \
                                                   const size_t stride_w, const size_t *info, const T *src,         \
                                                   T *dst) {                                                        \
        max_pool2d(k_h, k_w, stride_h, stride_w, info, src, dst);                                                   \
    }                                                                                                               \
    extern "C" __global__ void upsample_bilinear2d_##T_NAME(                                                        \
        const size_t h_out, const size_t w_out, const bool align_corners, const double h_step, const double w_step, \
        const size_t *info, const T *src, T *dst) {                                                                 \
        upsample_bilinear2d(h_out, w_out, align_corners, h_step, w_step, info, src, dst);                           \
    }

OPS(uint8_t, u8)
OPS(uint32_t, u32)
OPS(int16_t, i16)
OPS(int32_t, i32)
OPS(int64_t, i64)
OPS(__half, f16)
OPS(__nv_bfloat16, bf16)
OPS(float, f32)
OPS(double, f64)
OPS(__nv_fp8_e4m3, f8e4m3)

// These only move elements: one kernel per size, named by the dtype that carries it.
#define UNFOLD(T, T_NAME)                                                                                             \
    extern "C" __global__ void unfold_##T_NAME(                                                                       \
        const size_t first, const size_t places, const size_t images, const size_t w_out, const size_t k_h,           \
        const size_t k_w, const size_t stride, const size_t dilation, const size_t padding_y, const size_t padding_x, \
        const size_t *info, const T *src, T *dst) {                                                                   \
        unfold(first, places, images, w_out, k_h, k_w, stride, dilation, padding_y, padding_x, info, src, dst);       \
    }

UNFOLD(uint16_t, f16)
UNFOLD(uint32_t, u32)
UNFOLD(int64_t, i64)

#define UPSAMPLE_NEAREST(T, T_NAME)                                                                                   \
    extern "C" __global__ void upsample_nearest2d_##T_NAME(const size_t h_out, const size_t w_out,                    \
                                                           const double h_step, const double w_step,                  \
                                                           const size_t *info, const T *src, T *dst) {                \
        upsample_nearest2d(h_out, w_out, h_step, w_step, info, src, dst);                                             \
    }

UPSAMPLE_NEAREST(uint8_t, u8)
UPSAMPLE_NEAREST(uint16_t, f16)
UPSAMPLE_NEAREST(uint32_t, u32)
UPSAMPLE_NEAREST(int64_t, i64)
