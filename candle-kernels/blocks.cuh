// GGML's block formats: layout and decoding. A weight is scale * (q - OFFSET), minus the minimum if MINIMUM.
#pragma once
#include "index.cuh"

// A lane reads and unpacks a piece at a time: RUNS runs of RUN consecutive weights.
constexpr unsigned int RUN = 16, RUNS = 2, PIECE = RUN * RUNS;

// An unpacked piece: q as bytes, the block's scale and minimum, and the integers that multiply them for each run.
struct Piece {
    int q[RUNS][RUN / 4];
    float scale, minimum;
    int scales[RUNS], minimums[RUNS];

    __device__ __forceinline__ float scale_of(unsigned int run) const { return scale * (float)scales[run]; }
    __device__ __forceinline__ float minimum_of(unsigned int run) const { return minimum * (float)minimums[run]; }
};

// Quantized activations x = scale * q are rows of k bytes, followed by one Scale per PIECE in the same order: the
// scale and the sums of the bytes of both runs. Neighbouring pieces may share a scale.
struct alignas(8) Scale {
    float scale;
    int16_t sums[RUNS];
};

// N words at an address with this alignment. AMD GPUs read them in one access, aligned or not.
template <unsigned int N, unsigned int ALIGNMENT>
struct Words {
    typedef uint32_t Vector __attribute__((ext_vector_type(N)));
    typedef Vector Unaligned __attribute__((aligned(ALIGNMENT)));
    Vector words;

    __device__ __forceinline__ uint32_t operator[](unsigned int i) const { return words[i]; }
    __device__ __forceinline__ static Words read(const uint8_t *from) { return Words{*(const Unaligned *)from}; }
    // For an address `past` bytes after a whole word: assembled from the surrounding words, whose other bytes must be readable.
    __device__ __forceinline__ static Words read_around(const uint8_t *from, unsigned int past) {
        const uint32_t *around = (const uint32_t *)(from - past);
        Words read;
        uint32_t word = around[0];
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            const uint32_t next = around[i + 1 < N || past > 0 ? i + 1 : i];
            read.words[i] = (uint32_t)(((uint64_t)next << 32 | word) >> (8 * past));
            word = next;
        }
        return read;
    }
};

__device__ __forceinline__ float half_at(const uint8_t *from) { return (float)*(const __half *)from; }
__device__ __forceinline__ float half_of(uint32_t bits) { return (float)candle_bits<__half>((uint16_t)bits); }
// Forces rounding to f32. Otherwise AMD's compiler fuses a product with its conversion to f16 (a * b + 0), which
// rounds only once and turns -0 into +0.
__device__ __forceinline__ float rounded(float value) {
    uint32_t bits = candle_bits<uint32_t>(value);
    asm volatile("" : CANDLE_IN_REGISTER(bits));
    return candle_bits<float>(bits);
}
// Spreads four bits to bit 4 of four bytes.
__device__ __forceinline__ uint32_t fifth_bits(uint32_t bits) { return ((bits & 15) * 0x00204081 & 0x01010101) << 4; }

// Properties of a format: weights and bytes of a block, distance between a piece's runs, offset of q, number of
// weights that share a scale, and the alignment of consecutive blocks.
template <unsigned int WEIGHTS_, unsigned int BYTES_, unsigned int DISTANCE_, int OFFSET_, bool MINIMUM_,
          unsigned int SCALED_>
struct Block {
    static constexpr unsigned int WEIGHTS = WEIGHTS_, BYTES = BYTES_, PIECES = WEIGHTS / PIECE, SCALED = SCALED_;
    static constexpr unsigned int DISTANCE = DISTANCE_, ALIGNMENT = BYTES % 16 == 0 ? 16 : BYTES % 4 == 0 ? 4 : 2 - BYTES % 2;
    static constexpr int OFFSET = OFFSET_;
    static constexpr bool MINIMUM = MINIMUM_;
    // Returns the first weight of a run of a piece.
    __device__ __forceinline__ static constexpr unsigned int column(unsigned int piece, unsigned int run) {
        constexpr unsigned int runs_per_distance = DISTANCE / RUN;
        return piece / runs_per_distance * (2 * DISTANCE) + piece % runs_per_distance * RUN + run * DISTANCE;
    }
    template <unsigned int N = 4>
    __device__ __forceinline__ static Words<N, ALIGNMENT> words(const uint8_t *from) {
#if defined(__NVPTX__)
        // Avoids eight narrow accesses. The last word of a matrix of small blocks may end after it, but then begins in it.
        if (ALIGNMENT < 4) {
            return Words<N, ALIGNMENT>::read_around(from, (uintptr_t)from % 4);
        }
#endif
        return Words<N, ALIGNMENT>::read(from);
    }
};

// Blocks of 32 weights with BITS bits: a scale, an optional minimum, the fifth bits, and nibbles or bytes.
template <unsigned int BITS, bool MINIMUM_>
struct Plain : Block<32, 2 + 2 * MINIMUM_ + 4 * BITS, 16, MINIMUM_ || BITS == 8 ? 0 : 1 << (BITS - 1), MINIMUM_, 32> {
    typedef Block<32, 2 + 2 * MINIMUM_ + 4 * BITS, 16, MINIMUM_ || BITS == 8 ? 0 : 1 << (BITS - 1), MINIMUM_, 32> B;
    static constexpr unsigned int QUANT_BITS = BITS, FIFTH = 2 + 2 * MINIMUM_, QUANTS = FIFTH + (BITS == 5 ? 4 : 0);
    static constexpr bool SIGNED = BITS == 8;
    // Returns the factors of a block, and four q from the nibbles of chunk CHUNK of a word.
    __device__ __forceinline__ static float scale(const uint8_t *block) { return half_at(block); }
    __device__ __forceinline__ static float minimum(const uint8_t *block) { return MINIMUM_ ? -half_at(block + 2) : 0; }
    __device__ __forceinline__ static uint32_t nibbles(uint32_t word, unsigned int chunk) { return word >> (4 * chunk) & 0x0f0f0f0f; }
    struct Raw {
        Words<4, B::ALIGNMENT> quants[BITS == 8 ? 2 : 1];
        uint32_t fifth;
        float scale, minimum;
    };
    __device__ __forceinline__ static Raw read(const uint8_t *block, unsigned int) {
        Raw raw;
        for (unsigned int i = 0; i < sizeof(raw.quants) / 16; ++i) {
            raw.quants[i] = B::words(block + QUANTS + 16 * i);
        }
        raw.fifth = BITS == 5 ? B::template words<1>(block + FIFTH)[0] : 0;
        raw.scale = scale(block);
        raw.minimum = minimum(block);
        return raw;
    }
    __device__ __forceinline__ static Piece unpack(const Raw &raw, unsigned int) {
        Piece piece{{}, raw.scale, raw.minimum, {1, 1}, {1, 1}};
        for (unsigned int run = 0; run < RUNS; ++run) {
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                if (BITS == 8) {
                    piece.q[run][i] = raw.quants[run * (BITS / 8)][i];
                } else {
                    piece.q[run][i] = nibbles(raw.quants[0][i], run);
                }
                if (BITS == 5) {
                    piece.q[run][i] |= fifth_bits(raw.fifth >> (RUN * run + 4 * i));
                }
            }
        }
        return piece;
    }
};
typedef Plain<4, false> Q4_0;
typedef Plain<4, true> Q4_1;
typedef Plain<5, false> Q5_0;
typedef Plain<5, true> Q5_1;
typedef Plain<8, false> Q8_0;

// Blocks of 32 floats of four bits (E2M1) after a power of two as scale (E8M0). q is twice the float, an integer, and the scale
// is halved.
struct Mxfp4 : Block<32, 17, 16, 0, false, 32> {
    static constexpr unsigned int QUANT_BITS = 4, FIFTH = 1, QUANTS = 1;
    static constexpr bool SIGNED = true;
    struct Raw {
        Words<4, 1> quants;
        uint8_t exponent;
    };
    __device__ __forceinline__ static float half_of_power(uint32_t exponent) {
        // The two smallest results are subnormal.
        return candle_bits<float>(exponent < 2 ? 0x00200000 << exponent : (exponent - 1) << 23);
    }
    __device__ __forceinline__ static float scale(const uint8_t *block) { return half_of_power(*block); }
    __device__ __forceinline__ static float minimum(const uint8_t *) { return 0; }
    // Looks up the nibbles of a chunk of a word: bytes of the table of each sign by three bits, then one of both by the fourth.
    __device__ __forceinline__ static uint32_t nibbles(uint32_t word, unsigned int chunk) {
        constexpr uint32_t LOW = 0x03020100, HIGH = 0x0c080604, NEGATIVE_LOW = 0xfdfeff00, NEGATIVE_HIGH = 0xf4f8fafc;
#if defined(__NVPTX__)
        // Selectors are nibbles. Results are in the order of the nibbles, so that every second one is in the chunk.
        uint32_t halves[2];
#pragma unroll
        for (unsigned int half = 0; half < 2; ++half) {
            const uint32_t four = word >> (16 * half), signs = (four >> 1 & 0x4444) | 0x3210;
            halves[half] = __byte_perm(__byte_perm(LOW, HIGH, four & 0x7777), __byte_perm(NEGATIVE_LOW, NEGATIVE_HIGH, four & 0x7777), signs);
        }
        return __byte_perm(halves[0], halves[1], chunk == 0 ? 0x6420 : 0x7531);
#else
        const uint32_t four = word >> (4 * chunk), magnitudes = four & 0x07070707, signs = (four >> 1 & 0x04040404) | 0x03020100;
        return __builtin_amdgcn_perm(__builtin_amdgcn_perm(NEGATIVE_HIGH, NEGATIVE_LOW, magnitudes),
                                     __builtin_amdgcn_perm(HIGH, LOW, magnitudes), signs);
#endif
    }
    __device__ __forceinline__ static Raw read(const uint8_t *block, unsigned int) { return Raw{words(block + QUANTS), *block}; }
    __device__ __forceinline__ static Piece unpack(const Raw &raw, unsigned int) {
        Piece piece{{}, half_of_power(raw.exponent), 0, {1, 1}, {0, 0}};
        for (unsigned int run = 0; run < RUNS; ++run) {
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                piece.q[run][i] = nibbles(raw.quants[i], run);
            }
        }
        return piece;
    }
};

// Bytes after a header: blocks of 32 with an f16 scale (and the sum of the weights, which is ignored), or blocks of
// 256 with an f32 scale (and trailing sums).
template <unsigned int WEIGHTS_, unsigned int BYTES_>
struct Bytes : Block<WEIGHTS_, BYTES_, 16, 0, false, 32> {
    typedef Block<WEIGHTS_, BYTES_, 16, 0, false, 32> B;
    static constexpr unsigned int QUANT_BITS = 8, FIFTH = 4, QUANTS = 4;
    static constexpr bool SIGNED = true;
    __device__ __forceinline__ static float scale(const uint8_t *block) { return half_at(block); }
    __device__ __forceinline__ static float minimum(const uint8_t *) { return 0; }
    struct Raw {
        Words<4, 4> quants[RUNS];
        uint32_t header;
    };
    __device__ __forceinline__ static Raw read(const uint8_t *block, unsigned int piece) {
        const uint8_t *quants = block + 4 + PIECE * piece;
        return Raw{{B::words(quants), B::words(quants + RUN)}, B::template words<1>(block)[0]};
    }
    __device__ __forceinline__ static Piece unpack(const Raw &raw, unsigned int) {
        const float scale = WEIGHTS_ == 32 ? half_of(raw.header) : candle_bits<float>(raw.header);
        Piece piece{{}, scale, 0, {1, 1}, {0, 0}};
        for (unsigned int run = 0; run < RUNS; ++run) {
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                piece.q[run][i] = raw.quants[run][i];
            }
        }
        return piece;
    }
};
typedef Bytes<32, 36> Q8_1;
typedef Bytes<256, 292> Q8K;

// 2-bit planes, with a 4-bit scale and a 4-bit minimum for each run.
struct Q2K : Block<256, 84, 32, 0, true, 16> {
    struct Raw {
        Words<4, 4> quants;
        uint32_t factors;
        uint8_t scales[RUNS];
    };
    __device__ __forceinline__ static Raw read(const uint8_t *block, unsigned int piece) {
        const uint8_t *scales = block + column(piece, 0) / RUN;
        return Raw{words(block + 16 + piece / 4 * 32 + piece % 2 * 16), words<1>(block + 80)[0], {scales[0], scales[2]}};
    }
    __device__ __forceinline__ static Piece unpack(const Raw &raw, unsigned int piece) {
        Piece out{{}, half_of(raw.factors), half_of(raw.factors >> 16)};
        for (unsigned int run = 0; run < RUNS; ++run) {
            const unsigned int plane = piece / 2 % 2 * 2 + run;
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                out.q[run][i] = raw.quants[i] >> (2 * plane) & 0x03030303;
            }
            out.scales[run] = raw.scales[run] & 15;
            out.minimums[run] = raw.scales[run] >> 4;
        }
        return out;
    }
};

// Like Q2K, with separate planes for a third bit, and 6-bit scales: four bits in nibbles, two in planes.
struct Q3K : Block<256, 110, 32, 4, false, 16> {
    struct Raw {
        Words<4, 2> quants, third;
        uint8_t nibbles[RUNS], above[RUNS];
        float scale;
    };
    __device__ __forceinline__ static Raw read(const uint8_t *block, unsigned int piece) {
        const unsigned int chunk = piece % 2 * 16, number = column(piece, 0) / RUN;
        const uint8_t *nibbles = block + 96 + number % 8, *above = block + 104 + number % 4;
        return Raw{words(block + 32 + piece / 4 * 32 + chunk), words(block + chunk),
                   {nibbles[0], nibbles[2]}, {above[0], above[2]}, half_at(block + 108)};
    }
    __device__ __forceinline__ static Piece unpack(const Raw &raw, unsigned int piece) {
        Piece out{{}, raw.scale, 0};
        for (unsigned int run = 0; run < RUNS; ++run) {
            const unsigned int plane = piece / 2 % 2 * 2 + run, number = column(piece, run) / RUN;
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                const uint32_t third = raw.third[i] >> (piece / 4 * 4 + plane) & 0x01010101;
                out.q[run][i] = (raw.quants[i] >> (2 * plane) & 0x03030303) | third << 2;
            }
            const uint32_t low = raw.nibbles[run] >> (number / 8 * 4) & 15, high = raw.above[run] >> (number / 4 * 2) & 3;
            out.scales[run] = (int)(low | high << 4) - 32;
        }
        return out;
    }
};

// Nibbles of pairs of sub-blocks of 32, each with a 6-bit scale and minimum; with FIFTH, a fifth bit in planes.
template <bool FIFTH>
struct Nibbles : Block<256, FIFTH ? 176 : 144, 32, 0, true, 32> {
    typedef Block<256, FIFTH ? 176 : 144, 32, 0, true, 32> B;
    struct Raw {
        Words<4, 16> header, quants, fifth;
    };
    __device__ __forceinline__ static Raw read(const uint8_t *block, unsigned int piece) {
        Raw raw;
        raw.header = B::words(block);
        raw.quants = B::words(block + (FIFTH ? 48 : 16) + 16 * piece);
        if (FIFTH) {
            raw.fifth = B::words(block + 16 + piece % 2 * 16);
        }
        return raw;
    }
    __device__ __forceinline__ static Piece unpack(const Raw &raw, unsigned int piece) {
        Piece out{{}, half_of(raw.header[0]), half_of(raw.header[0] >> 16)};
        const unsigned int pair = piece / 2, half = pair % 2 * 16;
        // The first four sub-blocks have six contiguous bits; the others have four, plus two above those of the
        // first.
        const uint32_t a = raw.header[1] >> half, b = raw.header[2] >> half, c = raw.header[3] >> half;
        const uint32_t scales = pair < 2 ? a & 0x3f3f : (c & 0x0f0f) | (a >> 2 & 0x3030);
        const uint32_t minimums = pair < 2 ? b & 0x3f3f : (c >> 4 & 0x0f0f) | (b >> 2 & 0x3030);
        for (unsigned int run = 0; run < RUNS; ++run) {
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                out.q[run][i] = raw.quants[i] >> (4 * run) & 0x0f0f0f0f;
                if (FIFTH) {
                    out.q[run][i] |= (raw.fifth[i] >> (2 * pair + run) & 0x01010101) << 4;
                }
            }
            out.scales[run] = scales >> (8 * run) & 63;
            out.minimums[run] = minimums >> (8 * run) & 63;
        }
        return out;
    }
};
typedef Nibbles<false> Q4K;
typedef Nibbles<true> Q5K;

// Nibbles, two upper bits in planes, and an 8-bit scale for each run.
struct Q6K : Block<256, 210, 64, 32, false, 16> {
    struct Raw {
        Words<4, 2> quants, above;
        int8_t scales[RUNS];
        float scale;
    };
    __device__ __forceinline__ static Raw read(const uint8_t *block, unsigned int piece) {
        const int8_t *scales = (const int8_t *)block + 192 + column(piece, 0) / RUN;
        return Raw{words(block + 16 * piece), words(block + 128 + piece / 4 * 32 + piece % 2 * 16),
                   {scales[0], scales[4]}, half_at(block + 208)};
    }
    __device__ __forceinline__ static Piece unpack(const Raw &raw, unsigned int piece) {
        Piece out{{}, raw.scale, 0};
        for (unsigned int run = 0; run < RUNS; ++run) {
            for (unsigned int i = 0; i < RUN / 4; ++i) {
                const uint32_t above = raw.above[i] >> (piece / 2 % 2 * 2 + 4 * run) & 0x03030303;
                out.q[run][i] = (raw.quants[i] >> (4 * run) & 0x0f0f0f0f) | above << 4;
            }
            out.scales[run] = raw.scales[run];
        }
        return out;
    }
};

// Each format has a row in contract/formats.rs, which gives the name of its struct.
#define IS_AS_IN_CONTRACT(F, NAME, WEIGHTS_, BYTES_, ...) \
    static_assert(F::WEIGHTS == WEIGHTS_ && F::BYTES == BYTES_, "blocks of " #NAME " have other sizes in the contract");
CANDLE_EACH_FORMAT(IS_AS_IN_CONTRACT)
