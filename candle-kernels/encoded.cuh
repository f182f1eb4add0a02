// Elements of an encoded key-value cache: a byte each, times the scale of their row, which is a row of one head. The pair of
// scales of a row's key and value is a word of two bf16.
#pragma once
#include "pack.cuh"
#include "tiles.cuh"

// An integer from -127 to 127, plus 128.
struct Int8 { uint8_t bits; };
// E4M3 without NaN.
struct Fp8 { uint8_t bits; };
// Either of both; an argument of the kernel selects the encoding.
struct EncodedByte { uint8_t bits; };

template <typename S> constexpr bool IS_ENCODED = false;
template <> constexpr bool IS_ENCODED<Int8> = true;
template <> constexpr bool IS_ENCODED<Fp8> = true;
template <> constexpr bool IS_ENCODED<EncodedByte> = true;
template <typename S> constexpr bool IS_FP8 = false;
template <> constexpr bool IS_FP8<Fp8> = true;

// Scales of rows; those of other caches have no elements.
template <typename S, bool = IS_ENCODED<S>> struct RowScales {};
template <typename S>
struct RowScales<S, true> {
    // The pair of the first row of the first page, and the number of pairs between rows.
    const uint32_t *first;
    unsigned int stride;
    // True for values, false for keys.
    bool is_value, is_fp8;

    __device__ __forceinline__ uint32_t pair(size_t row) const { return first[row * stride]; }
    __device__ __forceinline__ void write(size_t row, bool of_value, __nv_bfloat16 scale) const {
        ((__nv_bfloat16 *)(first + row * stride))[of_value] = scale;
    }
};
__device__ __forceinline__ float key_scale(uint32_t pair) { return candle_bits<float>(pair << 16); }
__device__ __forceinline__ float value_scale(uint32_t pair) { return candle_bits<float>(pair & 0xffff0000); }

// Number of elements that are read together.
constexpr unsigned int ENCODED_PACK = 8;
typedef Pack<uint8_t, ENCODED_PACK> EncodedBytes;

// Returns byte `i` of a pack as a float: an integer.
__device__ __forceinline__ float decoded_int8(EncodedBytes bytes, unsigned int i) {
#if defined(__NVPTX__)
    // A conversion is four times slower than a permutation, which places the byte in the mantissa of 2^23.
    const uint32_t word = candle_bits<uint2>(bytes).x, next = candle_bits<uint2>(bytes).y;
    uint32_t moved;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(moved) : "r"(i < 4 ? word : next), "r"(0x4b000000u), "r"(0x7440u | i % 4));
    return candle_bits<float>(moved) - (0x1p23f + 128);
#else
    return (float)bytes[i] - 128;
#endif
}
// Returns byte `i` as the half with its sign, exponent and mantissa bits, which is the number divided by FP8_FACTOR.
constexpr float FP8_FACTOR = 256;
__device__ __forceinline__ float decoded_fp8(EncodedBytes bytes, unsigned int i) {
    typedef _Float16 Two __attribute__((ext_vector_type(2)));
    const uint32_t word = i < 4 ? candle_bits<uint2>(bytes).x : candle_bits<uint2>(bytes).y;
    const uint32_t raised = i % 2 == 0 ? word << 8 : word;
    const Two pair = candle_bits<Two>((raised & 0x80008000) | (raised & 0x7f007f00) >> 1);
    return (float)pair[i % 4 / 2];
}

// Elements in the order of their columns, without the scale of their row. The factor belongs to the scale.
template <typename S> __device__ __forceinline__ float decoded(EncodedBytes bytes, unsigned int i);
template <> __device__ __forceinline__ float decoded<Int8>(EncodedBytes bytes, unsigned int i) { return decoded_int8(bytes, i); }
template <> __device__ __forceinline__ float decoded<Fp8>(EncodedBytes bytes, unsigned int i) { return decoded_fp8(bytes, i); }
template <typename S> constexpr float DECODED_FACTOR = 1;
template <> constexpr float DECODED_FACTOR<Fp8> = FP8_FACTOR;

// Eight elements of a row with its pair of scales.
struct EncodedPack {
    EncodedBytes bytes;
    uint32_t scales;

    // Returns the scale of keys or values of encoding E.
    template <typename E>
    __device__ __forceinline__ float scale(bool is_value) const {
        return (is_value ? value_scale(scales) : key_scale(scales)) * DECODED_FACTOR<E>;
    }
    // Returns elements `i` and `i + 1` of encoding E times `scale`, rounded to T.
    template <typename T, typename E>
    __device__ __forceinline__ uint32_t pair(unsigned int i, float scale) const {
        static_assert(sizeof(T) == 2, "two numbers are packed into a word");
        return as_word(decoded<E>(bytes, i) * scale, decoded<E>(bytes, i + 1) * scale, T());
    }
};

// Returns the largest magnitude of a row, of which each of `lanes` lanes holds a part.
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t magnitude, unsigned int lanes) {
    return reduce_lanes(magnitude, lanes, [](uint32_t a, uint32_t b) INLINE { return max(a, b); });
}

// Scale of a row of an encoded cache, and its inverse. Elements are rounded to C before, which makes those out of its range
// infinite.
template <typename C>
struct Encoding {
    // Largest finite number of C.
    static constexpr float LARGEST = 0x1.fep127f;
    __nv_bfloat16 scale;
    float inverse;
    bool is_fp8;

    // Returns the bits of an element's magnitude, of which those of NaN are the largest.
    __device__ __forceinline__ static uint32_t magnitude(float value) {
        return candle_bits<uint32_t>((float)(C)value) & 0x7fffffff;
    }
    // `magnitude` is the largest of the row.
    __device__ __forceinline__ Encoding(uint32_t magnitude, bool is_fp8) : is_fp8(is_fp8) {
        const float largest = candle_bits<float>(magnitude), steps = is_fp8 ? 448 : 127;
        // A scale that is rounded up must not make the largest number infinite.
        const float limited = fminf(largest / steps, LARGEST / steps * (1 - 0x1p-8f));
        const bool is_finite = magnitude < 0x7f800000;
        // Smaller rows are zero, whose inverse would not be finite.
        const bool is_zero = limited < 1e-30f;
        scale = (__nv_bfloat16)(!is_finite ? NAN : is_zero ? 0 : limited);
        inverse = is_zero ? 0 : 1 / (float)scale;
    }
    __device__ __forceinline__ uint8_t encode(float value) const {
        const float scaled = (float)(C)value * inverse;
        const uint8_t fp8 = candle_bits<uint8_t>((__nv_fp8_e4m3)scaled);
        return is_fp8 ? fp8 : (uint8_t)(int)(rintf(fminf(fmaxf(scaled, -127.0f), 127.0f)) + 128);
    }
};
template <> constexpr float Encoding<__half>::LARGEST = 65504;
