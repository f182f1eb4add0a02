// Folding of integer scales into weights, for formats with blocks of 256: (q - OFFSET) * scale of the run as one or
// two bytes, so that sums of products stay integers over a whole block.
#pragma once
#include "activations.cuh"

// A folded weight is (high << SHIFT) + low in PARTS bytes; NEGATED if the bytes hold the negated weight.
template <unsigned int PARTS_, unsigned int SHIFT_, bool NEGATED_ = false>
struct Parts {
    static constexpr unsigned int PARTS = PARTS_, SHIFT = SHIFT_;
    static constexpr bool NEGATED = NEGATED_;
};
// By default the product of weight and scale is split at bit 7.
template <typename F> struct Folded : Parts<2, 7> {};
template <> struct Folded<Q2K> : Parts<1, 0> {};
// Scales are -32 to 31 and q - OFFSET is -4 to 3: only the negated product fits into a signed byte.
template <> struct Folded<Q3K> : Parts<1, 0, true> {};
// The scale is split instead, into three bits each.
template <> struct Folded<Q4K> : Parts<2, 3> {};
template <> struct Folded<Q8K> : Parts<1, 0> {};

// Returns a * b + c for both 16-bit halves of a word; no result may exceed 16 bits.
__device__ __forceinline__ uint32_t multiply_add_halves(uint32_t a, int b, int c) {
#if defined(__NVPTX__)
    return a * b + c * 0x00010001u;
#else
    // One packed instruction; a 32-bit product takes four times as long.
    typedef uint16_t Halves __attribute__((ext_vector_type(2)));
    return candle_bits<uint32_t>(candle_bits<Halves>(a) * (uint16_t)b + (uint16_t)c);
#endif
}

// Returns (q - OFFSET) * factor for four q whose products fit into bytes.
template <int OFFSET>
__device__ __forceinline__ uint32_t scaled_bytes(uint32_t q, int factor) {
    if (OFFSET == 0) {
        return multiply_add_halves(q, factor, 0);
    }
    return multiply_add_halves(q, factor, (128 - OFFSET * factor) * 0x0101) ^ 0x80808080;
}

// Folds the scale into four q of a run; the highest part comes first.
template <typename F>
__device__ __forceinline__ void fold(uint32_t q, int scale, uint32_t (&parts)[Folded<F>::PARTS]) {
    if constexpr (Folded<F>::PARTS == 1) {
        parts[0] = scaled_bytes<F::OFFSET>(q, Folded<F>::NEGATED ? -scale : scale);
    } else if constexpr (Folded<F>::SHIFT < 7) {
        parts[0] = scaled_bytes<F::OFFSET>(q, scale >> Folded<F>::SHIFT);
        parts[1] = scaled_bytes<F::OFFSET>(q, scale & ((1 << Folded<F>::SHIFT) - 1));
    } else {
        // A bias keeps the sum positive; the XOR below removes it again from the high byte.
        constexpr int ABOVE = F::OFFSET == 0 ? 0 : 128 << 7;
        const int sum = ABOVE - F::OFFSET * scale;
        const uint32_t even = multiply_add_halves(q & 0x00ff00ff, scale, sum);
        const uint32_t odd = multiply_add_halves(q >> 8 & 0x00ff00ff, scale, sum);
        parts[0] = (even >> 7 & 0x00ff00ff) | (odd << 1 & 0xff00ff00);
        parts[0] ^= F::OFFSET == 0 ? 0 : 0x80808080;
        parts[1] = (even & 0x007f007f) | (odd << 8 & 0x7f007f00);
    }
}

// Defines the kernel that multiplies rows of activations with a matrix, by `product` of these types.
#define PRODUCT_OP(KERNEL, ...)                                                                                   \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK, 2) KERNEL(                                        \
        const uint8_t *blocks, const uint8_t *x, void *out, const unsigned int m, const unsigned int n,          \
        const unsigned int k, const unsigned int out_dtype) {                                                    \
        product<__VA_ARGS__>(blocks, x, out, m, n, k, out_dtype);                                                \
    }
