// Quantization to GGML's block formats, bit for bit as the CPU device does it (see search.cuh).
//
// A group of neighbouring threads has a block, each of them a part of it: of the blocks of 256 a sub-block with a scale of
// its own. Blocks are put together in LDS.
#include "blocks.cuh"
#include "search.cuh"
#pragma clang fp contract(off)

// BITS of every level from bit FROM on, those of levels APART in a byte: at byte AT of the block.
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

// The weights of a block, and how important their columns are.
struct Given { const float *block, *columns; };

// What all formats have: a block's bytes and how threads share it, and what the planes of its levels are.
template <typename F, unsigned int LANES_, typename... P>
struct Shared : F {
    static constexpr unsigned int SHARING = LANES_, PART = F::WEIGHTS / SHARING, GROUPS = CANDLE_BLOCK / SHARING;
    typedef float Part[PART];

    static __device__ __forceinline__ void pack(const uint8_t *levels, uint8_t *block, unsigned int lane) {
        (P::pack(levels, block, F::WEIGHTS, lane, SHARING), ...);
    }
    static __device__ __forceinline__ unsigned int lane() { return threadIdx.x % SHARING; }
    // One of x in the block, or `none`: those that follow what was chosen before take its place, in order.
    template <unsigned int N, typename C>
    static __device__ __forceinline__ float chosen(const float (&x)[N], float none, C follows) {
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            none = follows(x[i], none) ? x[i] : none;
        }
#pragma unroll
        for (unsigned int step = 1; step < SHARING; step *= 2) {
            const float other = __shfl_xor_sync(~0u, none, step, LANES_);
            const bool other_stays = lane() & step ? !follows(none, other) : follows(other, none);
            none = other_stays ? other : none;
        }
        return none;
    }
    // What each of the lanes has, and what is this lane's of it.
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
        return chosen(x, 0, [](float a, float b) INLINE { return fabsf(a) > fabsf(b); });
    }
};

__device__ __forceinline__ void put_half(uint8_t *at, float value) { *(__half *)at = (__half)rounded(value); }
__device__ __forceinline__ float rounded_to_half(float value) { return (float)(__half)rounded(value); }
__device__ __forceinline__ float inverse_or_zero(float value) { return value != 0 ? 1 / value : 0; }

// One scale, by which the largest magnitude becomes -STEPS; LEAST: what a level may be before its bits are taken.
template <typename F, int STEPS, int LEAST, typename... P>
struct Centred : Shared<F, 8, P...> {
    typedef Shared<F, 8, P...> S;
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const typename S::Part &x, const Given &, typename S::Part &level,
                                                    uint8_t *block) {
        const float scale = S::largest(x) / -STEPS, inverse = inverse_or_zero(scale);
#pragma unroll
        for (unsigned int i = 0; i < S::PART; ++i) {
            level[i] = cut(x[i] * inverse + (STEPS + 0.5f), LEAST, 2 * STEPS - 1);
        }
        put_half(block, scale);
    }
};

// A scale and the least number; MOST as LEAST above. Of zeros of either sign the last one is the least.
template <typename F, int STEPS, int MOST, typename... P>
struct FromLeast : Shared<F, 8, P...> {
    typedef Shared<F, 8, P...> S;
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const typename S::Part &x, const Given &, typename S::Part &level,
                                                    uint8_t *block) {
        const float low = S::chosen(x, INFINITY, [](float a, float b) INLINE { return a <= b; });
        const float top = S::chosen(x, -INFINITY, [](float a, float b) INLINE { return a >= b; });
        const float scale = (top - low) / STEPS, inverse = inverse_or_zero(scale);
#pragma unroll
        for (unsigned int i = 0; i < S::PART; ++i) {
            level[i] = cut((x[i] - low) * inverse + 0.5f, 0, MOST);
        }
        put_half(block, scale);
        put_half(block + 2, low);
    }
};

// Bytes and a scale; SUM: and the sum of what they stand for.
template <typename F, bool SUM>
struct Bytes32 : Shared<F, 8, Plane<SUM ? 4 : 2, 8, 1>> {
    typedef Shared<F, 8, Plane<SUM ? 4 : 2, 8, 1>> S;
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const typename S::Part &x, const Given &, typename S::Part &level,
                                                    uint8_t *block) {
        const float scale = fabsf(S::largest(x)) / 127, inverse = inverse_or_zero(scale);
        float sum = 0;
#pragma unroll
        for (unsigned int i = 0; i < S::PART; ++i) {
            level[i] = nearest(x[i] * inverse, -128, 127);
            sum += level[i];
        }
        put_half(block, scale);
        if (SUM) {
            sum = combined_by_lanes(sum, S::SHARING, [](float a, float b) INLINE { return a + b; });
            put_half(block + 2, rounded_to_half(sum) * rounded_to_half(scale));
        }
    }
};

// Bytes, a scale in f32, by which the largest magnitude becomes -127, and the sums of 16 bytes.
struct Bytes256 : Shared<Q8K, 16, Plane<4, 8, 1>> {
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const Part &x, const Given &, Part &level, uint8_t *block) {
        const float top = largest(x), inverse = -127.0f / top;
        float sum = 0;
#pragma unroll
        for (unsigned int i = 0; i < PART; ++i) {
            level[i] = top == 0 ? 0 : nearest(inverse * x[i], -128, 127);
            sum += level[i];
        }
        *(float *)block = top == 0 ? 0 : 1 / inverse;
        ((int16_t *)(block + 4 + WEIGHTS))[lane()] = (int16_t)sum;
    }
};

// What each weight of a sub-block counts: its column's importance times its magnitude, with SHARE of the mean square of
// the block. Returns the sum.
template <int SHARE, unsigned int N>
__device__ __forceinline__ float importance(const float (&x)[N], const Given &given, unsigned int lane, float (&w)[N]) {
    typedef Pack<float> Four;
    float squares = 0, sum = 0;
#pragma unroll 4
    for (unsigned int i = 0; i < 256; i += 4) {
        const Four pack = Four::read(given.block + i);
#pragma unroll
        for (unsigned int j = 0; j < 4; ++j) {
            squares += pack[j] * pack[j];
        }
    }
    const float mean = (float)SHARE * squares / 256;
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        w[i] = given.columns[N * lane + i] * sqrtf(mean + x[i] * x[i]);
        sum += w[i];
    }
    return sum;
}

// Levels for the scale that a sub-block got, 0 at `least`. Where that is 0 they stay.
template <unsigned int N>
__device__ __forceinline__ void find_levels(const float (&x)[N], float scale, float minimum, float least, float most,
                                            float (&level)[N]) {
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        level[i] = scale == 0 ? level[i] : nearest((x[i] + minimum) / scale, least, most) - least;
    }
}

// A scale and a minimum for each sub-block, in up to MOST steps of the block's scale of each.
template <typename F, int STEPS, int MOST, typename... P>
struct Ranges : Shared<F, F::WEIGHTS / F::SCALED, P...> {
    typedef Shared<F, F::WEIGHTS / F::SCALED, P...> S;
    static constexpr bool IN_BYTE = MOST == 15;

    // The block's scale and this lane's steps of it, of each lane's `part`.
    static __device__ __forceinline__ float steps(float part, unsigned int &own) {
        // The last of zeros stays.
        const float first = S::lane() == 0 ? 0 : -INFINITY;
        const float top = S::chosen({part}, first, [](float a, float b) INLINE { return a >= b; });
        own = top > 0 ? (uint8_t)min(nearest_int(MOST / top * part), IN_BYTE ? I32_MAX : MOST) : 0;
        return top > 0 || !IN_BYTE ? top / MOST : 0;
    }
    static __device__ __forceinline__ float weighted_steps(float part, float weight, unsigned int &own) {
        float parts[S::SHARING], weights[S::SHARING], level[S::SHARING];
        S::gather(part, parts);
        S::gather(weight, weights);
        const float scale = positive(parts, weights, level, MOST);
        own = (unsigned int)S::own(level);
        return scale;
    }
    // This lane's steps, a byte each, are put away; returns them as they will be read.
    static __device__ __forceinline__ unsigned int pack_steps(unsigned int own, uint8_t *block) {
        const unsigned int lane = S::lane();
        if (IN_BYTE) {
            const unsigned int byte = ((own & 255) | own >> 8 << 4) & 255;
            block[lane] = (uint8_t)byte;
            return (byte & 15) | byte >> 4 << 8;
        }
        // Six bits each of the first four sub-blocks; four of the others, whose two above those lie on top of the first.
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
    static __device__ __forceinline__ void quantize(const typename S::Part &x, const Given &given,
                                                    typename S::Part &level, uint8_t *block) {
        Range part;
        float weight = 0, scale = 0, minimum = 0;
        if (WEIGHTED) {
            typename S::Part w;
            weight = importance<IN_BYTE ? 1 : 2>(x, given, S::lane(), w);
            part = weighted_range<STEPS>(x, w);
        } else {
            part = range<STEPS>(x);
        }
        unsigned int own = 0;
        // First of the scales, then of the minimums, by the same code.
#pragma unroll 1
        for (unsigned int second = 0; second < 2; ++second) {
            const float each = second ? part.minimum : part.scale;
            unsigned int these;
            scale = minimum;
            minimum = WEIGHTED ? weighted_steps(each, weight, these) : steps(each, these);
            own = own >> 8 | these << 8;
        }
        put_half(block + (IN_BYTE ? F::BYTES - 4 : 0), scale);
        put_half(block + (IN_BYTE ? F::BYTES - 2 : 2), minimum);
        own = pack_steps(own, block);
#pragma unroll
        for (unsigned int i = 0; i < S::PART; ++i) {
            level[i] = 0;
        }
        find_levels(x, rounded_to_half(scale) * (float)(own & 255), rounded_to_half(minimum) * (float)(own >> 8), 0,
                    STEPS, level);
    }
};

// A scale of six bits for each sub-block, centred as the levels are: four in nibbles, two in planes.
struct Scales6 : Shared<Q3K, 16, Plane<0, 1, 32, 2>, Plane<32, 2, 32>> {
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const Part &x, const Given &given, Part &level, uint8_t *block) {
        float w[PART], scale, steps;
        if (WEIGHTED) {
            float parts[SHARING], weights[SHARING], all[SHARING];
            const float weight = importance<2>(x, given, lane(), w);
            gather(centred<4, true>(x, w, level), parts);
            gather(weight, weights);
            scale = centred<32, true>(parts, weights, all);
            steps = own(all);
        } else {
#pragma unroll
            for (unsigned int i = 0; i < PART; ++i) {
                w[i] = x[i] * x[i];
            }
            const float part = centred<4, false>(x, w, level), top = largest({part}), inverse = -32 / top;
            scale = top == 0 ? 0 : 1 / inverse;
            steps = top == 0 ? 0 : nearest(inverse * part, -32, 31) + 32;
#pragma unroll
            for (unsigned int i = 0; i < PART; ++i) {
                level[i] = 0;
            }
        }
        put_half(block + 108, scale);
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

// A scale of a byte for each sub-block.
struct Scales8 : Shared<Q6K, 16, Plane<0, 4, 64>, Plane<128, 2, 32, 4>> {
    template <bool WEIGHTED>
    static __device__ __forceinline__ void quantize(const Part &x, const Given &given, Part &level, uint8_t *block) {
        float w[PART];
#pragma unroll
        for (unsigned int i = 0; i < PART; ++i) {
            w[i] = WEIGHTED ? given.columns[PART * lane() + i] : x[i] * x[i];
        }
        const float part = centred<32, true>(x, w, level), inverse = -128 / largest({part}), scale = 1 / inverse;
        const int8_t steps = (int8_t)min(nearest_int(inverse * part), 127);
        put_half(block + 208, scale);
        block[192 + lane()] = (uint8_t)steps;
        find_levels(x, rounded_to_half(scale) * (float)steps, 0, -32, 31, level);
    }
};

// Blocks of F; in WEIGHTED ones each row's columns are as important as `weights` says. A group beyond the last block does
// that once more and writes nothing.
template <typename F, bool WEIGHTED>
__device__ __forceinline__ void quantize(const float *inp, const float *weights, uint8_t *out, const size_t blocks,
                                         const size_t row_blocks) {
    // Blocks have an even size, and every part some whole words.
    __shared__ alignas(16) uint8_t made[F::GROUPS * F::BYTES], levels[CANDLE_BLOCK * F::PART];
    const size_t first = (size_t)blockIdx.x * F::GROUPS;
    const unsigned int group = threadIdx.x / F::SHARING;
    const unsigned int number = (unsigned int)min(first + group, blocks - 1);
    const Given given = {inp + (size_t)number * F::WEIGHTS,
                         weights + (WEIGHTED ? number % (unsigned int)row_blocks * F::WEIGHTS : 0)};
    typename F::Part x, level;
#pragma unroll
    for (unsigned int i = 0; i < F::PART; i += 4) {
        const Pack<float> pack = Pack<float>::read(given.block + F::lane() * F::PART + i);
#pragma unroll
        for (unsigned int j = 0; j < 4; ++j) {
            x[i + j] = pack[j];
        }
    }
    F::template quantize<WEIGHTED>(x, given, level, made + group * F::BYTES);
#pragma unroll
    for (unsigned int i = 0; i < F::PART; ++i) {
        levels[threadIdx.x * F::PART + i] = (uint8_t)(int)level[i];
    }
    __syncthreads();
    F::pack(levels + group * F::WEIGHTS, made + group * F::BYTES, F::lane());
    __syncthreads();
    const unsigned int count = (unsigned int)min((size_t)F::GROUPS, blocks - first) * F::BYTES / 2;
    for (unsigned int i = threadIdx.x; i < count; i += CANDLE_BLOCK) {
        ((uint16_t *)(out + first * F::BYTES))[i] = ((const uint16_t *)made)[i];
    }
}

// How blocks of a format are made.
template <typename F> struct Quantizer;
template <> struct Quantizer<Q4_0> : Centred<Q4_0, 8, 0, Plane<2, 4, 16>> {};
template <> struct Quantizer<Q4_1> : FromLeast<Q4_1, 15, 15, Plane<4, 4, 16>> {};
template <> struct Quantizer<Q5_0> : Centred<Q5_0, 16, -128, Plane<2, 1, 1, 4>, Plane<6, 4, 16>> {};
template <> struct Quantizer<Q5_1> : FromLeast<Q5_1, 31, 255, Plane<4, 1, 1, 4>, Plane<8, 4, 16>> {};
template <> struct Quantizer<Q8_0> : Bytes32<Q8_0, false> {};
template <> struct Quantizer<Q8_1> : Bytes32<Q8_1, true> {};
template <> struct Quantizer<Q8K> : Bytes256 {};
template <> struct Quantizer<Q2K> : Ranges<Q2K, 3, 15, Plane<16, 2, 32>> {};
template <> struct Quantizer<Q3K> : Scales6 {};
template <> struct Quantizer<Q4K> : Ranges<Q4K, 15, 63, Plane<16, 4, 32>> {};
template <> struct Quantizer<Q5K> : Ranges<Q5K, 31, 63, Plane<16, 1, 32, 4>, Plane<48, 4, 32>> {};
template <> struct Quantizer<Q6K> : Scales8 {};

#define KERNEL(NAME, F, WEIGHTED)                                                                               \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) NAME(                                            \
        const float *inp, const float *weights, uint8_t *out, const size_t blocks, const size_t row_blocks) {   \
        quantize<Quantizer<F>, WEIGHTED>(inp, weights, out, blocks, row_blocks);                                \
    }
#define QUANTIZE(F, NAME, WEIGHTS, BYTES, THREADS)                                                              \
    static_assert(Quantizer<F>::SHARING == THREADS, #NAME " has another number of threads in the contract");    \
    KERNEL(quantize_##NAME, F, false)
#define QUANTIZE_WEIGHTED(F, NAME, ...) KERNEL(quantize_weighted_##NAME, F, true)
CANDLE_EACH_MADE_FORMAT(QUANTIZE)
CANDLE_EACH_WEIGHTED_FORMAT(QUANTIZE_WEIGHTED)
