// Quantization to GGML's block formats, bit for bit like the CPU device (see search.cuh).
//
// A group of neighbouring threads quantizes a block, each thread a part of it: for blocks of 256, a sub-block with
// its own scale. Blocks are assembled in LDS.
#include "blocks.cuh"
#include "search.cuh"
#pragma clang fp contract(off)

// Packs BITS bits of every level, from bit FROM on, to byte AT of the block. Levels APART positions apart share a
// byte.
template <unsigned int AT, unsigned int BITS, unsigned int APART, unsigned int FROM = 0>
struct Plane {
    static __device__ __forceinline__ void pack(const uint8_t *levels, uint8_t *block, unsigned int count,
                                                unsigned int lane, unsigned int lanes) {
        constexpr unsigned int IN_BYTE = 8 / BITS, MASK = (1 << BITS) - 1;
        for (unsigned int i = lane; i < count / IN_BYTE; i += lanes) {
            const uint8_t *from = levels + i / APART * (APART * IN_BYTE) + i % APART;
            unsigned int byte = 0;
#pragma unroll
            for (unsigned int k = 0; k < IN_BYTE; ++k) {
                byte |= (from[k * APART] >> FROM & MASK) << (k * BITS);
            }
            block[AT + i] = (uint8_t)byte;
        }
    }
};

// The weights of a block, and the importance of their columns.
struct BlockInput { const float *block, *columns; };

// Base of all quantizers: the work distribution within a block, and the bit planes P of its levels.
template <typename F, unsigned int LANES_, typename... P>
struct BlockQuantizer : F {
    static constexpr unsigned int SHARING = LANES_, PART = F::WEIGHTS / SHARING, GROUPS = CANDLE_BLOCK / SHARING;
    typedef float Part[PART];

    static __device__ __forceinline__ void pack(const uint8_t *levels, uint8_t *block, unsigned int lane) {
        (P::pack(levels, block, F::WEIGHTS, lane, SHARING), ...);
    }
    static __device__ __forceinline__ unsigned int lane() { return threadIdx.x % SHARING; }
    // Folds the block's x in order, starting with `initial`: x replaces the selected value if `follows(x,
    // selected)`.
    template <unsigned int N, typename C>
    static __device__ __forceinline__ float select(const float (&x)[N], float initial, C follows) {
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            initial = follows(x[i], initial) ? x[i] : initial;
        }
#pragma unroll
        for (unsigned int step = 1; step < SHARING; step *= 2) {
            const float other = __shfl_xor_sync(~0u, initial, step, LANES_);
            const bool other_stays = lane() & step ? !follows(initial, other) : follows(other, initial);
            initial = other_stays ? other : initial;
        }
        return initial;
    }
    // gather() collects one value from each lane; own() returns this lane's value again.
    static __device__ __forceinline__ void gather(float own, float (&all)[LANES_]) {
#pragma unroll
        for (unsigned int i = 0; i < LANES_; ++i) {
            all[i] = __shfl_sync(~0u, own, i, LANES_);
        }
    }
    static __device__ __forceinline__ float own(const float (&all)[LANES_]) {
        float own = all[0];
#pragma unroll
        for (unsigned int i = 1; i < LANES_; ++i) {
            own = i == lane() ? all[i] : own;
        }
        return own;
    }
    template <unsigned int N>
    static __device__ __forceinline__ float largest(const float (&x)[N]) {
        return select(x, 0, [](float a, float b) INLINE { return fabsf(a) > fabsf(b); });
    }
};

__device__ __forceinline__ void store_half(uint8_t *at, float value) { *(__half *)at = (__half)rounded(value); }
__device__ __forceinline__ float rounded_to_half(float value) { return (float)(__half)rounded(value); }
__device__ __forceinline__ float inverse_or_zero(float value) { return value != 0 ? 1 / value : 0; }

// One scale, which maps the largest magnitude to -STEPS. Levels are clamped at MIN_LEVEL before they are packed.
template <typename F, int STEPS, int MIN_LEVEL, typename... P>
struct Symmetric : BlockQuantizer<F, 8, P...> {
    typedef BlockQuantizer<F, 8, P...> S;
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const typename S::Part &x, const BlockInput &, typename S::Part &level,
                                                    uint8_t *block) {
        const float scale = S::largest(x) / -STEPS, inverse = inverse_or_zero(scale);
#pragma unroll
        for (unsigned int i = 0; i < S::PART; ++i) {
            level[i] = truncate_clamped(x[i] * inverse + (STEPS + 0.5f), MIN_LEVEL, 2 * STEPS - 1);
        }
        store_half(block, scale);
    }
};

// A scale and a minimum; levels are clamped at MAX_LEVEL. Of zeros with different signs the last one is the minimum.
template <typename F, int STEPS, int MAX_LEVEL, typename... P>
struct Asymmetric : BlockQuantizer<F, 8, P...> {
    typedef BlockQuantizer<F, 8, P...> S;
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const typename S::Part &x, const BlockInput &, typename S::Part &level,
                                                    uint8_t *block) {
        const float low = S::select(x, INFINITY, [](float a, float b) INLINE { return a <= b; });
        const float top = S::select(x, -INFINITY, [](float a, float b) INLINE { return a >= b; });
        const float scale = (top - low) / STEPS, inverse = inverse_or_zero(scale);
#pragma unroll
        for (unsigned int i = 0; i < S::PART; ++i) {
            level[i] = truncate_clamped((x[i] - low) * inverse + 0.5f, 0, MAX_LEVEL);
        }
        store_half(block, scale);
        store_half(block + 2, low);
    }
};

// Bytes and a scale; with SUM, also the sum of the values.
template <typename F, bool SUM>
struct Bytes32 : BlockQuantizer<F, 8, Plane<SUM ? 4 : 2, 8, 1>> {
    typedef BlockQuantizer<F, 8, Plane<SUM ? 4 : 2, 8, 1>> S;
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const typename S::Part &x, const BlockInput &, typename S::Part &level,
                                                    uint8_t *block) {
        const float scale = fabsf(S::largest(x)) / 127, inverse = inverse_or_zero(scale);
        float sum = 0;
#pragma unroll
        for (unsigned int i = 0; i < S::PART; ++i) {
            level[i] = round_clamped(x[i] * inverse, -128, 127);
            sum += level[i];
        }
        store_half(block, scale);
        if (SUM) {
            sum = reduce_lanes(sum, S::SHARING, [](float a, float b) INLINE { return a + b; });
            store_half(block + 2, rounded_to_half(sum) * rounded_to_half(scale));
        }
    }
};

// Bytes, an f32 scale that maps the largest magnitude to -127, and the sum of every 16 bytes.
struct Bytes256 : BlockQuantizer<Q8K, 16, Plane<4, 8, 1>> {
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const Part &x, const BlockInput &, Part &level, uint8_t *block) {
        const float top = largest(x), inverse = -127.0f / top;
        float sum = 0;
#pragma unroll
        for (unsigned int i = 0; i < PART; ++i) {
            level[i] = top == 0 ? 0 : round_clamped(inverse * x[i], -128, 127);
            sum += level[i];
        }
        *(float *)block = top == 0 ? 0 : 1 / inverse;
        ((int16_t *)(block + 4 + WEIGHTS))[lane()] = (int16_t)sum;
    }
};

// Computes the importance w of each weight x of a sub-block: its column's importance times sqrt(SHARE * mean + x^2),
// with the mean square of the block. Returns their sum.
template <int SHARE, unsigned int N>
__device__ __forceinline__ float importance(const float (&x)[N], const BlockInput &input, unsigned int lane, float (&w)[N]) {
    typedef Pack<float> Four;
    float squares = 0, sum = 0;
#pragma unroll 4
    for (unsigned int i = 0; i < 256; i += 4) {
        const Four pack = Four::read(input.block + i);
#pragma unroll
        for (unsigned int j = 0; j < 4; ++j) {
            squares += pack[j] * pack[j];
        }
    }
    const float mean = (float)SHARE * squares / 256;
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        w[i] = input.columns[N * lane + i] * sqrtf(mean + x[i] * x[i]);
        sum += w[i];
    }
    return sum;
}

// Computes the levels for a sub-block's quantized scale, offset by -least. A zero scale leaves them unchanged.
template <unsigned int N>
__device__ __forceinline__ void find_levels(const float (&x)[N], float scale, float minimum, float least, float most,
                                            float (&level)[N]) {
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        level[i] = scale == 0 ? level[i] : round_clamped((x[i] + minimum) / scale, least, most) - least;
    }
}

// A scale and a minimum for each sub-block, as integers up to MAX_LEVEL times the block's scales.
template <typename F, int STEPS, int MAX_LEVEL, typename... P>
struct Ranges : BlockQuantizer<F, F::WEIGHTS / F::SCALED, P...> {
    typedef BlockQuantizer<F, F::WEIGHTS / F::SCALED, P...> S;
    static constexpr bool IN_BYTE = MAX_LEVEL == 15;

    // Quantizes each lane's `part`: returns the block's scale and sets `own` to this lane's level.
    static __device__ __forceinline__ float steps(float part, unsigned int &own) {
        // The last of several zeros is kept.
        const float first = S::lane() == 0 ? 0 : -INFINITY;
        const float top = S::select({part}, first, [](float a, float b) INLINE { return a >= b; });
        own = top > 0 ? (uint8_t)min(round_to_int(MAX_LEVEL / top * part), IN_BYTE ? I32_MAX : MAX_LEVEL) : 0;
        return top > 0 || !IN_BYTE ? top / MAX_LEVEL : 0;
    }
    static __device__ __forceinline__ float weighted_steps(float part, float weight, unsigned int &own) {
        float parts[S::SHARING], weights[S::SHARING], level[S::SHARING];
        S::gather(part, parts);
        S::gather(weight, weights);
        const float scale = unsigned_levels(parts, weights, level, MAX_LEVEL);
        own = (unsigned int)S::own(level);
        return scale;
    }
    // Stores this lane's scale and minimum levels, a byte each, and returns them as a reader will decode them.
    static __device__ __forceinline__ unsigned int pack_steps(unsigned int own, uint8_t *block) {
        const unsigned int lane = S::lane();
        if (IN_BYTE) {
            const unsigned int byte = ((own & 255) | own >> 8 << 4) & 255;
            block[lane] = (uint8_t)byte;
            return (byte & 15) | byte >> 4 << 8;
        }
        // Six bits for each of the first four sub-blocks, whose bytes also hold the upper two bits of the other
        // four.
        const unsigned int other = __shfl_xor_sync(~0u, own, 4, S::SHARING);
        const unsigned int front = lane < 4 ? own : other, back = lane < 4 ? other : own;
        const unsigned int six = front | (back & 0x3030) << 2;
        if (lane < 4) {
            block[4 + lane] = (uint8_t)six;
            block[8 + lane] = (uint8_t)(six >> 8);
            return six & 0x3f3f;
        }
        block[8 + lane] = (uint8_t)((back & 15) | (back >> 4 & 0xf0));
        return (back & 0x0f0f) | (six >> 2 & 0x3030);
    }
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const typename S::Part &x, const BlockInput &input,
                                                    typename S::Part &level, uint8_t *block) {
        Range part;
        float weight = 0, scale = 0, minimum = 0;
        if (WEIGHTED) {
            typename S::Part w;
            weight = importance<IN_BYTE ? 1 : 2>(x, input, S::lane(), w);
            part = weighted_range_levels<STEPS>(x, w);
        } else {
            part = range_levels<STEPS>(x);
        }
        unsigned int own = 0;
        // Scales first, then minimums, in a loop so that the code exists once.
#pragma unroll 1
        for (unsigned int second = 0; second < 2; ++second) {
            const float each = second ? part.minimum : part.scale;
            unsigned int these;
            scale = minimum;
            minimum = WEIGHTED ? weighted_steps(each, weight, these) : steps(each, these);
            own = own >> 8 | these << 8;
        }
        store_half(block + (IN_BYTE ? F::BYTES - 4 : 0), scale);
        store_half(block + (IN_BYTE ? F::BYTES - 2 : 2), minimum);
        own = pack_steps(own, block);
#pragma unroll
        for (unsigned int i = 0; i < S::PART; ++i) {
            level[i] = 0;
        }
        find_levels(x, rounded_to_half(scale) * (float)(own & 255), rounded_to_half(minimum) * (float)(own >> 8), 0,
                    STEPS, level);
    }
};

// A signed 6-bit scale for each sub-block: four bits in nibbles, two in planes.
struct Scales6 : BlockQuantizer<Q3K, 16, Plane<0, 1, 32, 2>, Plane<32, 2, 32>> {
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const Part &x, const BlockInput &input, Part &level, uint8_t *block) {
        float w[PART], scale, steps;
        if (WEIGHTED) {
            float parts[SHARING], weights[SHARING], all[SHARING];
            const float weight = importance<2>(x, input, lane(), w);
            gather(signed_levels<4, true>(x, w, level), parts);
            gather(weight, weights);
            scale = signed_levels<32, true>(parts, weights, all);
            steps = own(all);
        } else {
#pragma unroll
            for (unsigned int i = 0; i < PART; ++i) {
                w[i] = x[i] * x[i];
            }
            const float part = signed_levels<4, false>(x, w, level), top = largest({part}), inverse = -32 / top;
            scale = top == 0 ? 0 : 1 / inverse;
            steps = top == 0 ? 0 : round_clamped(inverse * part, -32, 31) + 32;
#pragma unroll
            for (unsigned int i = 0; i < PART; ++i) {
                level[i] = 0;
            }
        }
        store_half(block + 108, scale);
        const unsigned int bits = (unsigned int)steps, opposite = __shfl_xor_sync(~0u, bits, 8, SHARING);
        unsigned int above = bits >> 4 << (lane() / 4 * 2);
        above |= __shfl_xor_sync(~0u, above, 4, SHARING);
        above |= __shfl_xor_sync(~0u, above, 8, SHARING);
        if (lane() < 8) {
            block[96 + lane()] = (uint8_t)((bits & 15) | opposite << 4);
        }
        if (lane() < 4) {
            block[104 + lane()] = (uint8_t)above;
        }
        find_levels(x, rounded_to_half(scale) * (steps - 32), 0, -4, 3, level);
    }
};

// A signed 8-bit scale for each sub-block.
struct Scales8 : BlockQuantizer<Q6K, 16, Plane<0, 4, 64>, Plane<128, 2, 32, 4>> {
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const Part &x, const BlockInput &input, Part &level, uint8_t *block) {
        float w[PART];
#pragma unroll
        for (unsigned int i = 0; i < PART; ++i) {
            w[i] = WEIGHTED ? input.columns[PART * lane() + i] : x[i] * x[i];
        }
        const float part = signed_levels<32, true>(x, w, level), inverse = -128 / largest({part}), scale = 1 / inverse;
        const int8_t steps = (int8_t)min(round_to_int(inverse * part), 127);
        store_half(block + 208, scale);
        block[192 + lane()] = (uint8_t)steps;
        find_levels(x, rounded_to_half(scale) * (float)steps, 0, -32, 31, level);
    }
};

// A power of two as scale, so that the largest magnitude is 4 to 8 times the scale, and the nearest float of each x.
struct Floats4 : BlockQuantizer<Mxfp4, 8, Plane<1, 4, 16>> {
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const Part &x, const BlockInput &, Part &level, uint8_t *block) {
        const float top = largest(x);
        // At least 2, so that neither half the scale nor its inverse is subnormal.
        const int exponent = top == 0 ? 0 : max((int)(candle_bits<uint32_t>(top) >> 23 & 0xff) - 2, 2);
        const float inverse = candle_bits<float>((uint32_t)(255 - max(exponent, 2)) << 23);
#pragma unroll
        for (unsigned int i = 0; i < PART; ++i) {
            const float magnitude = fabsf(x[i]) * inverse;
            // Numbers in the middle are rounded towards zero.
            const int number = (magnitude > 0.5f) + (magnitude > 1.5f) + (magnitude > 2.5f) + (magnitude > 3.5f) +
                               (magnitude > 5) + (magnitude > 7) + (magnitude > 10);
            level[i] = (float)(number + (x[i] < 0 && number > 0 ? 8 : 0));
        }
        *block = (uint8_t)exponent;
    }
};

// The unit in which blocks are written.
template <bool EVEN> struct Unit { typedef uint16_t Of; };
template <> struct Unit<false> { typedef uint8_t Of; };

// Quantizes blocks of format F; with WEIGHTED, `weights` holds the importance of each column. A group past the last
// block repeats it without writing.
template <typename F, bool WEIGHTED>
__device__ __forceinline__ void quantize(const float *inp, const float *weights, uint8_t *out, const size_t blocks,
                                         const size_t row_blocks) {
    // Every part consists of whole words.
    __shared__ alignas(16) uint8_t blocks_in_lds[F::GROUPS * F::BYTES], levels[CANDLE_BLOCK * F::PART];
    const size_t first = (size_t)blockIdx.x * F::GROUPS;
    const unsigned int group = threadIdx.x / F::SHARING;
    const unsigned int number = (unsigned int)min(first + group, blocks - 1);
    const BlockInput input = {inp + (size_t)number * F::WEIGHTS,
                         weights + (WEIGHTED ? number % (unsigned int)row_blocks * F::WEIGHTS : 0)};
    typename F::Part x, level;
#pragma unroll
    for (unsigned int i = 0; i < F::PART; i += 4) {
        const Pack<float> pack = Pack<float>::read(input.block + F::lane() * F::PART + i);
#pragma unroll
        for (unsigned int j = 0; j < 4; ++j) {
            x[i + j] = pack[j];
        }
    }
    F::template quantize<WEIGHTED>(x, input, level, blocks_in_lds + group * F::BYTES);
#pragma unroll
    for (unsigned int i = 0; i < F::PART; ++i) {
        levels[threadIdx.x * F::PART + i] = (uint8_t)(int)level[i];
    }
    __syncthreads();
    F::pack(levels + group * F::WEIGHTS, blocks_in_lds + group * F::BYTES, F::lane());
    __syncthreads();
    typedef typename Unit<F::BYTES % 2 == 0>::Of U;
    const unsigned int count = (unsigned int)min((size_t)F::GROUPS, blocks - first) * F::BYTES / sizeof(U);
    for (unsigned int i = threadIdx.x; i < count; i += CANDLE_BLOCK) {
        ((U *)(out + first * F::BYTES))[i] = ((const U *)blocks_in_lds)[i];
    }
}

// The quantizer of each block format.
template <typename F> struct Quantizer;
template <> struct Quantizer<Q4_0> : Symmetric<Q4_0, 8, 0, Plane<2, 4, 16>> {};
template <> struct Quantizer<Q4_1> : Asymmetric<Q4_1, 15, 15, Plane<4, 4, 16>> {};
template <> struct Quantizer<Q5_0> : Symmetric<Q5_0, 16, -128, Plane<2, 1, 1, 4>, Plane<6, 4, 16>> {};
template <> struct Quantizer<Q5_1> : Asymmetric<Q5_1, 31, 255, Plane<4, 1, 1, 4>, Plane<8, 4, 16>> {};
template <> struct Quantizer<Q8_0> : Bytes32<Q8_0, false> {};
template <> struct Quantizer<Q8_1> : Bytes32<Q8_1, true> {};
template <> struct Quantizer<Q8K> : Bytes256 {};
template <> struct Quantizer<Q2K> : Ranges<Q2K, 3, 15, Plane<16, 2, 32>> {};
template <> struct Quantizer<Q3K> : Scales6 {};
template <> struct Quantizer<Q4K> : Ranges<Q4K, 15, 63, Plane<16, 4, 32>> {};
template <> struct Quantizer<Q5K> : Ranges<Q5K, 31, 63, Plane<16, 1, 32, 4>, Plane<48, 4, 32>> {};
template <> struct Quantizer<Q6K> : Scales8 {};
template <> struct Quantizer<Mxfp4> : Floats4 {};

#define KERNEL(NAME, F, WEIGHTED)                                                                               \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) NAME(                                            \
        const float *inp, const float *weights, uint8_t *out, const size_t blocks, const size_t row_blocks) {   \
        quantize<Quantizer<F>, WEIGHTED>(inp, weights, out, blocks, row_blocks);                                \
    }
#define QUANTIZE(F, NAME, WEIGHTS, BYTES, THREADS)                                                              \
    static_assert(Quantizer<F>::SHARING == THREADS, #NAME " has another number of threads in the contract");    \
    KERNEL(quantize_##NAME, F, false)
#define QUANTIZE_WEIGHTED(F, NAME, ...) KERNEL(quantize_weighted_##NAME, F, true)
CANDLE_EACH_QUANTIZABLE_FORMAT(QUANTIZE)
CANDLE_EACH_WEIGHTED_FORMAT(QUANTIZE_WEIGHTED)
