// Uniform and normal random numbers from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011): element i depends only on the seed, the offset and i, so that every GPU gives the same numbers.
#include "pack.cuh"

struct PhiloxBlock {
    uint32_t word[4];
};

// Returns block number `counter` (four words) of the stream `key`.
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
        // The fractional parts of the golden ratio and of the square root of 3, times 2^32.
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return PhiloxBlock{{c0, c1, c2, c3}};
}

// A uniform number in [0, 1): 24 bits for f32, 53 bits for f64.
__device__ __forceinline__ float unit_interval(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
__device__ __forceinline__ double unit_interval(uint32_t low, uint32_t high) {
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

// A block yields four f32 or two f64 numbers. The Box-Muller transform turns two uniform numbers into two
// independent normal ones; 1 - u is in (0, 1], which avoids log(0).
__device__ __forceinline__ void uniform(const PhiloxBlock &block, float (&value)[4]) {
    for (int i = 0; i < 4; ++i) {
        value[i] = unit_interval(block.word[i]);
    }
}
__device__ __forceinline__ void uniform(const PhiloxBlock &block, double (&value)[2]) {
    value[0] = unit_interval(block.word[0], block.word[1]);
    value[1] = unit_interval(block.word[2], block.word[3]);
}
__device__ __forceinline__ float radius(float u) { return candle_square_root(-2.0f * logf(1.0f - u)); }
__device__ __forceinline__ double radius(double u) { return sqrt(-2.0 * log(1.0 - u)); }
__device__ __forceinline__ void sine_and_cosine(float turns, float &x, float &y) { sincospif(2.0f * turns, &y, &x); }
__device__ __forceinline__ void sine_and_cosine(double turns, double &x, double &y) { sincospi(2.0 * turns, &y, &x); }
template <typename W, int COUNT>
__device__ __forceinline__ void normal(W (&value)[COUNT]) {
    for (int i = 0; i < COUNT; i += 2) {
        const W r = radius(value[i]);
        sine_and_cosine(value[i + 1], value[i], value[i + 1]);
        value[i] *= r;
        value[i + 1] *= r;
    }
}

// Returns the largest value of type T below `high`.
template <typename T>
__device__ __forceinline__ T next_below(double high) {
    typedef typename Bits<sizeof(T)>::type B;
    typedef typename Wide<T>::type W;
    constexpr B sign = (B)1 << (sizeof(T) * 8 - 1);
    const B bits = candle_bits<B>((T)(W)high);
    return candle_bits<T>(high > 0.0 ? (B)(bits - 1) : high < 0.0 ? (B)(bits + 1) : (B)(sign | 1));
}

// Writes one pack of 16 bytes per thread and grid-stride step: normal numbers of mean `first` and standard deviation
// `second`, or uniform numbers in [first, second). A result rounded up to `second` becomes the next value below.
template <bool NORMAL, typename T>
__device__ __forceinline__ void fill(const size_t numel, uint64_t seed, uint64_t offset, double first, double second,
                                     T *out) {
    typedef typename Wide<T>::type W;
    constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T), PER_BLOCK = CANDLE_PACK_BYTES / sizeof(W);
    const W low = (W)first, width = NORMAL ? (W)second : (W)(second - first), high = (W)second;
    const T last = next_below<T>(second);
    const size_t packs = (numel + N - 1) / N;
    for (size_t p = (size_t)blockIdx.x * blockDim.x + threadIdx.x; p < packs; p += (size_t)blockDim.x * gridDim.x) {
        Pack<T> pack;
#pragma unroll
        for (unsigned int b = 0; b < N / PER_BLOCK; ++b) {
            W value[PER_BLOCK];
            uniform(philox(seed, offset + p * (N / PER_BLOCK) + b), value);
            if (NORMAL) {
                normal(value);
            }
#pragma unroll
            for (unsigned int i = 0; i < PER_BLOCK; ++i) {
                const T rounded = (T)(low + value[i] * width);
                pack.set(b * PER_BLOCK + i, NORMAL || (W)rounded < high ? rounded : last);
            }
        }
        pack.write(out + p * N, numel - p * N);
    }
}

#define RANDOM_KERNEL(NORMAL, T, NAME)                                                                              \
    extern "C" __global__ void NAME(const size_t numel, const uint64_t seed, const uint64_t offset,                 \
                                    const double first, const double second, T *out) {                              \
        fill<NORMAL>(numel, seed, offset, first, second, out);                                                      \
    }
#define RANDOM_OPS(T, NAME)                       \
    RANDOM_KERNEL(false, T, rand_uniform_##NAME)  \
    RANDOM_KERNEL(true, T, rand_normal_##NAME)
RANDOM_OPS(float, f32)
RANDOM_OPS(double, f64)
RANDOM_OPS(__half, f16)
RANDOM_OPS(__nv_bfloat16, bf16)
RANDOM_OPS(__nv_fp8_e4m3, f8e4m3)
