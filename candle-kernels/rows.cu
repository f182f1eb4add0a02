// Softmax and norms of dense rows. A workgroup takes a row; its size is any power of two from ROW_GROUP to
// CANDLE_ROW_BLOCK, which is the host's choice. Computed in f32, or f64 for f64.
#include "cuda_utils.cuh"
#include <stdint.h>

// Lanes that combine values by shuffles: it divides the wave of every GPU.
constexpr unsigned int ROW_GROUP = 32;

template <typename T>
struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };

// A sum of differences, and one of their squares.
template <typename W>
struct Moments { W first, second; };

// One value of all threads' ones, the same in every thread. No thread may be missing.
template <typename V, typename F>
__device__ __forceinline__ V combined(V value, F f) {
    __shared__ V shared[CANDLE_ROW_BLOCK / ROW_GROUP];
    for (unsigned int step = ROW_GROUP / 2; step > 0; step /= 2) {
        value = f(value, __shfl_xor_sync(~0u, value, step, ROW_GROUP));
    }
    if (threadIdx.x % ROW_GROUP == 0) {
        shared[threadIdx.x / ROW_GROUP] = value;
    }
    __syncthreads();
    value = shared[0];
    for (unsigned int group = 1; group < blockDim.x / ROW_GROUP; ++group) {
        value = f(value, shared[group]);
    }
    // The next call writes to the same LDS.
    __syncthreads();
    return value;
}

template <typename W>
__device__ __forceinline__ W combined_sum(W value) {
    return combined(value, [](W a, W b) { return a + b; });
}

// A row of -INFINITY only gives NaN: the distance of two infinities is none.
template <typename T>
__device__ void softmax(const T *src, T *dst, const unsigned int columns) {
    typedef typename Wide<T>::type W;
    src += (size_t)blockIdx.x * columns;
    dst += (size_t)blockIdx.x * columns;
    W top = -INFINITY;
    for (unsigned int i = threadIdx.x; i < columns; i += blockDim.x) {
        top = maxg(top, (W)src[i]);
    }
    top = combined(top, [](W a, W b) { return maxg(a, b); });
    W sum = 0;
    for (unsigned int i = threadIdx.x; i < columns; i += blockDim.x) {
        sum += expg((W)src[i] - top);
    }
    sum = combined_sum(sum);
    for (unsigned int i = threadIdx.x; i < columns; i += blockDim.x) {
        dst[i] = (T)(expg((W)src[i] - top) / sum);
    }
}

template <typename T>
__device__ void rmsnorm(const T *src, T *dst, const T *alpha, const unsigned int columns, const float eps) {
    typedef typename Wide<T>::type W;
    src += (size_t)blockIdx.x * columns;
    dst += (size_t)blockIdx.x * columns;
    W squares = 0;
    for (unsigned int i = threadIdx.x; i < columns; i += blockDim.x) {
        const W x = (W)src[i];
        squares += x * x;
    }
    const W root = sqrtg(combined_sum(squares) / (W)columns + (W)eps);
    for (unsigned int i = threadIdx.x; i < columns; i += blockDim.x) {
        dst[i] = (T)((W)src[i] / root * (W)alpha[i]);
    }
}

// The variance is that of the differences to the mean: mean(x^2) - mean(x)^2 would lose most digits where the mean
// is large. What the mean was rounded by is known from the same differences, and taken off.
template <typename T>
__device__ void layernorm(const T *src, T *dst, const T *alpha, const T *beta, const unsigned int columns,
                          const float eps) {
    typedef typename Wide<T>::type W;
    src += (size_t)blockIdx.x * columns;
    dst += (size_t)blockIdx.x * columns;
    W sum = 0;
    for (unsigned int i = threadIdx.x; i < columns; i += blockDim.x) {
        sum += (W)src[i];
    }
    const W mean = combined_sum(sum) / (W)columns;
    Moments<W> moments = {0, 0};
    for (unsigned int i = threadIdx.x; i < columns; i += blockDim.x) {
        const W difference = (W)src[i] - mean;
        moments.first += difference;
        moments.second += difference * difference;
    }
    moments = combined(moments, [](Moments<W> a, Moments<W> b) {
        return Moments<W>{a.first + b.first, a.second + b.second};
    });
    const W rest = moments.first / (W)columns;
    const W variance = moments.second / (W)columns - rest * rest;
    const W root = sqrtg(variance + (W)eps);
    for (unsigned int i = threadIdx.x; i < columns; i += blockDim.x) {
        dst[i] = (T)((((W)src[i] - mean) - rest) / root * (W)alpha[i] + (W)beta[i]);
    }
}

#define ROW_OPS(T, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) softmax_##NAME(                           \
        const T *src, T *dst, const unsigned int columns) {                                                  \
        softmax(src, dst, columns);                                                                          \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) rmsnorm_##NAME(                           \
        const T *src, T *dst, const T *alpha, const unsigned int columns, const float eps) {                 \
        rmsnorm(src, dst, alpha, columns, eps);                                                              \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) layernorm_##NAME(                         \
        const T *src, T *dst, const T *alpha, const T *beta, const unsigned int columns, const float eps) {  \
        layernorm(src, dst, alpha, beta, columns, eps);                                                      \
    }
ROW_OPS(__nv_bfloat16, bf16)
ROW_OPS(__half, f16)
ROW_OPS(float, f32)
ROW_OPS(double, f64)
