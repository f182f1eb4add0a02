// Uniform and normal random numbers from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011): element i depends only on the seed, the offset and i, so that every GPU gives the same ones.
#include "cuda_utils.cuh"
#include <stdint.h>

struct PhiloxBlock {
    uint32_t word[4];
};

// The block of four words with number `counter` in the stream `key`.
__device__ __forceinline__ PhiloxBlock philox(uint64_t key, uint64_t counter) {
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        // The golden ratio and the square root of 3, minus 1, as fractions of 2^32.
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return PhiloxBlock{{c0, c1, c2, c3}};
}

// A uniform number in [0, 1): 24 bits for f32, 53 bits for f64.
__device__ __forceinline__ float unit(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
__device__ __forceinline__ double unit(uint32_t low, uint32_t high) {
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

// Four numbers of a block (f32 and narrower types), computed in f32.
template <typename T>
struct Numbers {
    static constexpr int PER_BLOCK = 4;
    float value[PER_BLOCK];

    __device__ __forceinline__ void uniform(const PhiloxBlock &block, double lo, double hi) {
        const float low = (float)lo, width = (float)(hi - lo);
        for (int i = 0; i < PER_BLOCK; ++i) {
            value[i] = low + unit(block.word[i]) * width;
        }
    }
    // Box-Muller: two uniform numbers give two independent normal ones. 1 - u is in (0, 1]: no log of 0.
    __device__ __forceinline__ void normal(const PhiloxBlock &block, double mean, double std) {
        for (int i = 0; i < PER_BLOCK; i += 2) {
            const float radius = sqrtf(-2.0f * logf(1.0f - unit(block.word[i])));
            const float angle = 6.283185307179586f * unit(block.word[i + 1]);
            value[i] = (float)mean + (float)std * radius * cosf(angle);
            value[i + 1] = (float)mean + (float)std * radius * sinf(angle);
        }
    }
};

// Two numbers of a block (f64).
template <>
struct Numbers<double> {
    static constexpr int PER_BLOCK = 2;
    double value[PER_BLOCK];

    __device__ __forceinline__ void uniform(const PhiloxBlock &block, double lo, double hi) {
        for (int i = 0; i < PER_BLOCK; ++i) {
            value[i] = lo + unit(block.word[2 * i], block.word[2 * i + 1]) * (hi - lo);
        }
    }
    __device__ __forceinline__ void normal(const PhiloxBlock &block, double mean, double std) {
        const double radius = sqrt(-2.0 * log(1.0 - unit(block.word[0], block.word[1])));
        const double angle = 6.283185307179586 * unit(block.word[2], block.word[3]);
        value[0] = mean + std * radius * cos(angle);
        value[1] = mean + std * radius * sin(angle);
    }
};

template <int BYTES>
struct Bits;
template <>
struct Bits<1> {
    typedef uint8_t type;
};
template <>
struct Bits<2> {
    typedef uint16_t type;
};
template <>
struct Bits<4> {
    typedef uint32_t type;
};
template <>
struct Bits<8> {
    typedef uint64_t type;
};

// Rounding to a narrow type, or lo + u * (hi - lo) itself, may reach hi: [lo, hi) stays half open. hi is a value of
// type T, and what lies next below it is not less than lo.
template <typename T, typename W>
__device__ __forceinline__ T below(W value, double hi) {
    typedef typename Bits<sizeof(T)>::type B;
    const T rounded = (T)value;
    if ((double)(W)rounded < hi) {
        return rounded;
    }
    constexpr B sign = (B)1 << (sizeof(T) * 8 - 1);
    const B bits = candle_bits<B>((T)(W)hi);
    return candle_bits<T>(hi > 0.0 ? (B)(bits - 1) : hi < 0.0 ? (B)(bits + 1) : (B)(sign | 1));
}

template <typename T>
__device__ void rand_uniform(const size_t numel, uint64_t seed, uint64_t offset, double lo, double hi, T *out) {
    constexpr int N = Numbers<T>::PER_BLOCK;
    const size_t blocks = (numel + N - 1) / N;
    for (size_t b = (size_t)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += (size_t)blockDim.x * gridDim.x) {
        Numbers<T> numbers;
        numbers.uniform(philox(seed, offset + b), lo, hi);
        for (int i = 0; i < N; ++i) {
            if (b * N + i < numel) {
                out[b * N + i] = below<T>(numbers.value[i], hi);
            }
        }
    }
}

template <typename T>
__device__ void rand_normal(const size_t numel, uint64_t seed, uint64_t offset, double mean, double std, T *out) {
    constexpr int N = Numbers<T>::PER_BLOCK;
    const size_t blocks = (numel + N - 1) / N;
    for (size_t b = (size_t)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += (size_t)blockDim.x * gridDim.x) {
        Numbers<T> numbers;
        numbers.normal(philox(seed, offset + b), mean, std);
        for (int i = 0; i < N; ++i) {
            if (b * N + i < numel) {
                out[b * N + i] = (T)numbers.value[i];
            }
        }
    }
}

// One thread per Philox block and grid-stride step: numel / 4 threads (f64: numel / 2) do all the work.
#define RANDOM_OPS(T, T_NAME)                                                                                 \
    extern "C" __global__ void rand_uniform_##T_NAME(const size_t numel, const uint64_t seed,                 \
                                                     const uint64_t offset, const double first,               \
                                                     const double second, T *out) {                           \
        rand_uniform(numel, seed, offset, first, second, out);                                                \
    }                                                                                                         \
    extern "C" __global__ void rand_normal_##T_NAME(const size_t numel, const uint64_t seed,                  \
                                                    const uint64_t offset, const double first,                \
                                                    const double second, T *out) {                            \
        rand_normal(numel, seed, offset, first, second, out);                                                 \
    }

RANDOM_OPS(float, f32)
RANDOM_OPS(double, f64)
RANDOM_OPS(__half, f16)
RANDOM_OPS(__nv_bfloat16, bf16)
RANDOM_OPS(__nv_fp8_e4m3, f8e4m3)
