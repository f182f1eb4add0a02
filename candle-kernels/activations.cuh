// Activations as f32: loads of any float dtype, and quantization to bytes with a scale for neighbouring elements.
#pragma once
#include "blocks.cuh"
#include "lanes.cuh"

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// N elements as loaded, which are converted when they are used.
template <typename T, unsigned int N>
struct LoadedFloats {
    static constexpr unsigned int SIZE = smaller(N, CANDLE_PACK_BYTES / sizeof(T));
    Pack<T, SIZE> packs[N / SIZE];

    __device__ __forceinline__ static LoadedFloats read(const T *from) {
        LoadedFloats loaded;
#pragma unroll
        for (unsigned int i = 0; i < N / SIZE; ++i) {
            loaded.packs[i] = Pack<T, SIZE>::read(from + i * SIZE);
        }
        return loaded;
    }
    __device__ __forceinline__ float operator[](unsigned int i) const { return (float)packs[i / SIZE][i % SIZE]; }
};

// Loads, converts and stores an element of a dtype that all threads share. Bits are loaded separately, so that nothing
// waits for them before they are converted.
__device__ __forceinline__ uint32_t load_bits(const void *from, unsigned int dtype, size_t at) {
    return dtype == CANDLE_FLOAT_F32 ? ((const uint32_t *)from)[at] : ((const uint16_t *)from)[at];
}
__device__ __forceinline__ float float_of(uint32_t bits, unsigned int dtype) {
    if (dtype == CANDLE_FLOAT_F32) {
        return candle_bits<float>(bits);
    }
    return dtype == CANDLE_FLOAT_F16 ? (float)candle_bits<__half>((uint16_t)bits)
                                     : (float)candle_bits<__nv_bfloat16>((uint16_t)bits);
}
__device__ __forceinline__ float load_float(const void *from, unsigned int dtype, size_t at) {
    return float_of(load_bits(from, dtype, at), dtype);
}
__device__ __forceinline__ void store_float(void *to, unsigned int dtype, size_t at, float value) {
    if (dtype == CANDLE_FLOAT_F32) {
        ((float *)to)[at] = value;
    } else if (dtype == CANDLE_FLOAT_F16) {
        ((__half *)to)[at] = (__half)value;
    } else {
        ((__nv_bfloat16 *)to)[at] = (__nv_bfloat16)value;
    }
}

// Reduces over COUNT neighbouring lanes, at most LANES.
template <unsigned int COUNT, typename V, typename F>
__device__ __forceinline__ V reduce_neighbours(V value, F f) {
#pragma unroll
    for (unsigned int step = COUNT / 2; step > 0; step /= 2) {
        value = f(value, __shfl_xor_sync(~0u, value, step, LANES));
    }
    return value;
}

// Quantizes 4 * FOURS consecutive activations per lane to bytes, which `store` receives as words; `i` is the lane's index in a
// dense array. SPAN activations share a scale, which the first lane of each PIECE writes. Lanes past the end must call this, too.
template <unsigned int FOURS, unsigned int SPAN, typename S>
__device__ __forceinline__ void quantize(const float (&x)[4 * FOURS], size_t i, bool inside, S store, Scale *scales) {
    constexpr unsigned int N = 4 * FOURS, PIECE_LANES = PIECE / N, RUN_LANES = RUN / N;
    float largest = 0;
#pragma unroll
    for (unsigned int k = 0; k < N; ++k) {
        largest = fmaxf(largest, fabsf(x[k]));
    }
    largest = reduce_neighbours<SPAN / N>(largest, [](float a, float b) INLINE { return fmaxf(a, b); });
    const float inverse = largest > 0 ? 127 / largest : 0;
    typedef uint32_t Words __attribute__((ext_vector_type(FOURS)));
    Words words = 0;
    int sum = 0;
#pragma unroll
    for (unsigned int k = 0; k < N; ++k) {
        const int q = (int)rintf(x[k] * inverse);
        sum += q;
        words[k / 4] |= (uint32_t)(q & 255) << (k % 4 * 8);
    }
    sum = reduce_neighbours<RUN_LANES>(sum, [](int a, int b) INLINE { return a + b; });
    const int other = __shfl_xor_sync(~0u, sum, RUN_LANES, LANES);
    if (inside) {
        store(words);
        if (i % PIECE_LANES == 0) {
            scales[i / PIECE_LANES] = Scale{largest / 127, {(int16_t)sum, (int16_t)other}};
        }
    }
}
