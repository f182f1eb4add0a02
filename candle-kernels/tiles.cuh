// Accumulator tiles of 16 x 16, distributed over the lanes of a wave: c += a b', where a has 16 rows and b 16
// columns, each contiguous along k in LDS. Products use the matrix units (MFMA, WMMA, mma), or the lanes' own
// arithmetic for types without a matrix instruction.
#pragma once
#include "lanes.cuh"

constexpr unsigned int TILE_SIDE = 16;

#if defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
#define TILES_BY_MFMA 8
#elif defined(__gfx908__) || defined(__gfx90a__)
#define TILES_BY_MFMA 4
#elif defined(__GFX11__) || defined(__GFX12__)
#define TILES_BY_WMMA
#elif defined(__NVPTX__)
#define TILES_BY_MMA
#else
#define TILES_BY_LANES
#endif

// Lanes of a wave.
#if defined(__GFX9__)
constexpr unsigned int WAVE = 64;
#else
constexpr unsigned int WAVE = 32;
#endif

// LANES_PER_LINE: number of lanes that share the elements of one row or column along k. TILE_PADDING: bytes after
// each row of an operand in LDS, which keep the reads below free of bank conflicts.
#if defined(TILES_BY_MFMA)
constexpr unsigned int LANES_PER_LINE = 4, TILE_PADDING = 8;
#elif defined(TILES_BY_MMA) || defined(__GFX12__)
constexpr unsigned int LANES_PER_LINE = 2, TILE_PADDING = 16;
#else
constexpr unsigned int LANES_PER_LINE = 1, TILE_PADDING = 16;
#endif

// Hides a number's origin from the optimizer, so that derived values are recomputed instead of kept.
__device__ __forceinline__ unsigned int opaque(unsigned int number) {
    asm volatile("" : CANDLE_IN_REGISTER(number));
    return number;
}

// Number of column groups of a tile that are multiplied separately, so that unused ones can be skipped.
#if defined(TILES_BY_MMA)
constexpr unsigned int COLUMN_PARTS = 2;
#else
constexpr unsigned int COLUMN_PARTS = 1;
#endif

// NO_MATRIX_UNIT: the GPU has no matrix unit. BY_LANES<T>: it has no matrix instruction for T, so lanes multiply.
#if defined(TILES_BY_LANES)
constexpr bool NO_MATRIX_UNIT = true;
#else
constexpr bool NO_MATRIX_UNIT = false;
#endif
template <typename T> constexpr bool BY_LANES = NO_MATRIX_UNIT;
#if !defined(TILES_BY_MFMA)
template <> constexpr bool BY_LANES<float> = true;
#endif
// Elements along k per step: those of one matrix instruction of halves, or those of one read of a lane.
template <typename T> constexpr unsigned int STEP = BY_LANES<T> ? CANDLE_FEW_REGISTERS(16 / sizeof(T), 4) : 16;

enum class Side { ROWS, COLUMNS };

// Like std::remove_reference.
template <typename T> struct RemoveReference { typedef T type; };
template <typename T> struct RemoveReference<T &> { typedef T type; };

// Layout of an accumulator tile: a lane holds the elements of COUNT rows and columns, whose numbers at() returns.
// Lanes whose numbers differ only in the bits from STEP to below END hold elements of the same rows (or columns).
template <Side, bool = NO_MATRIX_UNIT> struct LaneLayout;
// Lanes are arranged in four rows, so that neighbours read from different banks.
template <> struct LaneLayout<Side::ROWS, true> {
    static constexpr unsigned int COUNT = 4, STRIDE = 4, STEP = 1, END = WAVE / 4;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return candle_lane() / (WAVE / 4) + i * STRIDE; }
};
template <> struct LaneLayout<Side::COLUMNS, true> {
    static constexpr unsigned int COUNT = 64 / WAVE, STRIDE = WAVE / 4, STEP = STRIDE, END = WAVE;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return candle_lane() % STRIDE + i * STRIDE;
    }
};
#if defined(TILES_BY_MMA)
template <> struct LaneLayout<Side::ROWS, false> {
    static constexpr unsigned int COUNT = 2, STEP = 1, END = 4;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return candle_lane() / 4 + 8 * i; }
};
template <> struct LaneLayout<Side::COLUMNS, false> {
    static constexpr unsigned int COUNT = 4, STEP = 4, END = 32;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return candle_lane() % 4 * 2 + i % 2 + i / 2 * 8;
    }
};
#elif !defined(TILES_BY_LANES)
template <> struct LaneLayout<Side::ROWS, false> {
    static constexpr unsigned int COUNT = TILE_SIDE * TILE_SIDE / WAVE, STEP = 1, END = TILE_SIDE;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return candle_lane() / TILE_SIDE * COUNT + i;
    }
};
template <> struct LaneLayout<Side::COLUMNS, false> {
    static constexpr unsigned int COUNT = 1, STEP = TILE_SIDE, END = WAVE;
    __device__ __forceinline__ static unsigned int at(unsigned int) { return candle_lane() % TILE_SIDE; }
};
#endif
constexpr unsigned int LANE_ROWS = LaneLayout<Side::ROWS>::COUNT, LANE_COLUMNS = LaneLayout<Side::COLUMNS>::COUNT;

// Reduces a value over the lanes that hold the same row or column; all of them receive the result.
template <Side SIDE, bool LANES = NO_MATRIX_UNIT, typename F>
__device__ __forceinline__ float reduce_over_lanes(float value, F f) {
#pragma unroll
    for (unsigned int step = LaneLayout<SIDE, LANES>::STEP; step < LaneLayout<SIDE, LANES>::END; step *= 2) {
        value = f(value, __shfl_xor_sync(~0u, value, step, WAVE));
    }
    return value;
}

// A lane's elements of an accumulator tile.
template <typename T, bool LANES = NO_MATRIX_UNIT>
struct Tile { T values[LaneLayout<Side::ROWS, LANES>::COUNT][LaneLayout<Side::COLUMNS, LANES>::COUNT]; };

// Map between lanes and the line of a fragment that each holds. gfx11's matrix unit distributes every other row of a
// tile over the same lanes; rows are permuted so that a lane's rows are consecutive.
template <Side SIDE>
__device__ __forceinline__ unsigned int line_of_lane() {
    const unsigned int line = candle_lane() % TILE_SIDE;
#if defined(__GFX11__)
    return SIDE == Side::ROWS ? line / 2 + line % 2 * 8 : line;
#else
    return line;
#endif
}
template <Side SIDE>
__device__ __forceinline__ unsigned int lane_of_line(unsigned int line) {
#if defined(__GFX11__)
    return SIDE == Side::ROWS ? line % 8 * 2 + line / 8 : line;
#else
    return line;
#endif
}

#if defined(TILES_BY_MMA)
// ldmatrix: reads two or four matrices of eight rows of 16 bytes from shared memory. Lane i gives the address of row
// i % 8 of matrix i / 8, and receives word i % 4 of row i / 4 of each.
__device__ __forceinline__ unsigned int shared_address(const void *at) {
    return (unsigned int)(size_t)(__attribute__((address_space(3))) const void *)at;
}
typedef int Words2 __attribute__((ext_vector_type(2)));
typedef int Words4 __attribute__((ext_vector_type(4)));
__device__ __forceinline__ void read_matrices(Words2 &words, const void *row) {
    int a, b;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(a), "=r"(b) : "r"(shared_address(row)) : "memory");
    words = Words2{a, b};
}
__device__ __forceinline__ void read_matrices(Words4 &words, const void *row) {
    int a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(shared_address(row)) : "memory");
    words = Words4{a, b, c, d};
}

// Like read_matrices, transposed: a lane receives the elements of two consecutive rows in one column.
__device__ __forceinline__ void read_transposed_matrices(Words4 &words, const void *row) {
    int a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(shared_address(row)) : "memory");
    words = Words4{a, b, c, d};
}

// Multiplies 16 rows of 16 or 32 bytes with the first (half = 0) or last eight columns of b. c holds two consecutive
// elements of a row and two of the row eight below it.
__device__ __forceinline__ void multiply_bytes(int (&c)[4], Words2 a, Words2 b, unsigned int half) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[half]));
}
__device__ __forceinline__ void multiply_bytes(int (&c)[4], Words4 a, Words4 b, unsigned int half) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * half]), "r"(b[2 * half + 1]));
}
// Like multiply_bytes for rows of 16 halves of type T.
#define MULTIPLY_HALVES(T, PTX)                                                                                          \
    __device__ __forceinline__ void multiply_halves(float(&c)[4], Words4 a, Words4 b, unsigned int half, T) {            \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." PTX "." PTX                                                         \
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                       \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                             \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * half]), "r"(b[2 * half + 1]));                       \
    }
MULTIPLY_HALVES(__half, "f16")
MULTIPLY_HALVES(__nv_bfloat16, "bf16")
#undef MULTIPLY_HALVES
#elif !defined(TILES_BY_LANES)
typedef float TileSums __attribute__((ext_vector_type(TILE_SIDE * TILE_SIDE / WAVE)));
typedef _Float16 HalfElements __attribute__((ext_vector_type(TILE_SIDE / LANES_PER_LINE)));
typedef short BfloatElements __attribute__((ext_vector_type(TILE_SIDE / LANES_PER_LINE)));
#if defined(TILES_BY_MFMA)
__device__ __forceinline__ TileSums multiply_halves(HalfElements a, HalfElements b, TileSums c) {
    return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
}
__device__ __forceinline__ TileSums multiply_halves(BfloatElements a, BfloatElements b, TileSums c) {
#if defined(__gfx908__)
    c = __builtin_amdgcn_mfma_f32_16x16x8bf16(a.xy, b.xy, c, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x8bf16(a.zw, b.zw, c, 0, 0, 0);
#else
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
#endif
}
#else
#if defined(__GFX12__)
#define CANDLE_WMMA(NAME) __builtin_amdgcn_wmma_f32_16x16x16_##NAME##_w32_gfx12
#else
#define CANDLE_WMMA(NAME) __builtin_amdgcn_wmma_f32_16x16x16_##NAME##_w32
#endif
__device__ __forceinline__ TileSums multiply_halves(HalfElements a, HalfElements b, TileSums c) { return CANDLE_WMMA(f16)(a, b, c); }
__device__ __forceinline__ TileSums multiply_halves(BfloatElements a, BfloatElements b, TileSums c) { return CANDLE_WMMA(bf16)(a, b, c); }
#undef CANDLE_WMMA
#endif
__device__ __forceinline__ HalfElements elements(HalfElements words, __half) { return words; }
__device__ __forceinline__ BfloatElements elements(HalfElements words, __nv_bfloat16) { return candle_bits<BfloatElements>(words); }
#endif

// Returns sum plus the dot product of the elements of two words.
__device__ __forceinline__ float dot(int a, int b, float sum, float) {
    return fmaf(candle_bits<float>(a), candle_bits<float>(b), sum);
}
__device__ __forceinline__ float dot(int a, int b, float sum, __nv_bfloat16) {
    sum = fmaf(candle_bits<float>(a << 16), candle_bits<float>(b << 16), sum);
    return fmaf(candle_bits<float>(a & 0xffff0000), candle_bits<float>(b & 0xffff0000), sum);
}
#if defined(TILES_BY_LANES)
__device__ __forceinline__ float dot(int a, int b, float sum, __half) {
    typedef _Float16 Two __attribute__((ext_vector_type(2)));
    return __builtin_amdgcn_fdot2(candle_bits<Two>(a), candle_bits<Two>(b), sum, false);
}
#endif

// Operand fragment: a lane's part of 16 rows of a, or columns of b, with DEPTH elements each. With mma, word w holds
// the elements from k = 4 / sizeof(T) * (lane % 4 + part(w) * 4) of line lane / 4 + half(w) * 8. Otherwise all words
// belong to line_of_lane and start at k = lane / 16 % LANES_PER_LINE * (DEPTH / LANES_PER_LINE).
template <typename T, unsigned int DEPTH, Side SIDE>
struct Fragment {
    static constexpr bool LANES = BY_LANES<T>;
    static constexpr unsigned int LINES = LANES ? LaneLayout<SIDE, LANES>::COUNT : 1;
    // Words of a lane along k, and words of one access.
    static constexpr unsigned int WORDS = DEPTH * sizeof(T) / 4 / (LANES ? 1 : LANES_PER_LINE);
    static constexpr unsigned int READ = WORDS < 4 ? WORDS : 4;
    typedef int Words __attribute__((ext_vector_type(WORDS)));
    Words words[LINES];

#if defined(TILES_BY_MMA)
    static constexpr unsigned int PARTS = WORDS / 2;
    __device__ __forceinline__ static constexpr unsigned int half(unsigned int word) {
        return SIDE == Side::ROWS ? word % 2 : word / PARTS;
    }
    __device__ __forceinline__ static constexpr unsigned int part(unsigned int word) {
        return SIDE == Side::ROWS ? word / 2 : word % PARTS;
    }
#endif
    // First line and first k that a lane reads, and the distance to its other lines.
    __device__ __forceinline__ static unsigned int lane_line() {
#if defined(TILES_BY_MMA)
        // Each lane addresses 16 bytes of one of the matrices; lines from 8 on are the second half.
        if constexpr (!LANES) {
            return candle_lane() % 8 + half(candle_lane() / 8) * 8;
        }
#endif
        return LANES ? LaneLayout<SIDE, LANES>::at(0) : line_of_lane<SIDE>();
    }
    __device__ __forceinline__ static unsigned int lane_k() {
#if defined(TILES_BY_MMA)
        return LANES ? 0 : part(candle_lane() / 8) * (16 / sizeof(T));
#else
        // The order of k within a lane is arbitrary, as long as rows and columns agree.
        return LANES ? 0 : candle_lane() / TILE_SIDE % LANES_PER_LINE * (DEPTH / LANES_PER_LINE);
#endif
    }
    static constexpr unsigned int LINE_STRIDE = LaneLayout<SIDE, true>::STRIDE;

    // Reads a fragment from LDS; `at(line, k)` returns the address of an element relative to the lane's first.
    template <typename A>
    __device__ __forceinline__ static Fragment from(A at) {
        Fragment factor;
#if defined(TILES_BY_MMA)
        if constexpr (!LANES) {
            read_matrices(factor.words[0], at(0, 0));
            return factor;
        }
#endif
        typedef int Piece __attribute__((ext_vector_type(READ)));
#pragma unroll
        for (unsigned int i = 0; i < LINES; ++i) {
#pragma unroll
            for (unsigned int word = 0; word < WORDS; word += READ) {
                const Piece piece = *(const Piece *)at(i * LINE_STRIDE, word * 4 / sizeof(T));
#pragma unroll
                for (unsigned int j = 0; j < READ; ++j) {
                    factor.words[i][word + j] = piece[j];
                }
            }
        }
        return factor;
    }
    // Like from(), for lines that are `pitch` elements apart.
    __device__ __forceinline__ static Fragment read(const T *first, unsigned int pitch) {
        first += lane_line() * pitch + lane_k();
        return from([&](unsigned int line, unsigned int k) INLINE { return first + line * pitch + k; });
    }
    // Number of lines of a lane, and their indices.
#if defined(TILES_BY_MMA)
    static constexpr unsigned int OWN = LANES ? LINES : 2;
#else
    static constexpr unsigned int OWN = LINES;
#endif
    __device__ __forceinline__ static unsigned int own_line(unsigned int i) {
#if defined(TILES_BY_MMA)
        if constexpr (!LANES) {
            return candle_lane() / 4 + i * 8;
        }
#endif
        return lane_line() + i * LINE_STRIDE;
    }
#if defined(TILES_BY_MMA)
    // Stores the lane's words; `at(i, k)` returns the address of an element of own_line(i).
    template <typename A>
    __device__ __forceinline__ void store(A at) const {
#pragma unroll
        for (unsigned int word = 0; word < WORDS; ++word) {
            *(int *)at(half(word), 4 / sizeof(T) * (candle_lane() % 4 + part(word) * 4)) = words[0][word];
        }
    }
#endif
    // Reads a fragment from any memory; `lines` points to the lane's lines. Elements from k = `end`, a multiple of
    // 16 bytes, are zero.
    __device__ __forceinline__ static Fragment gather(const T *const (&lines)[OWN], unsigned int k, unsigned int end) {
        Fragment factor;
        const auto read = [&](auto &piece, unsigned int line, unsigned int more) INLINE {
            typedef typename RemoveReference<decltype(piece)>::type Piece;
            const bool inside = k + more < end;
            const Piece there = *(const Piece *)(lines[line] + (inside ? k + more : 0));
            piece = inside ? there : Piece{};
        };
#if defined(TILES_BY_MMA)
        if constexpr (!LANES) {
#pragma unroll
            for (unsigned int word = 0; word < WORDS; ++word) {
                int element;
                read(element, half(word), 4 / sizeof(T) * (candle_lane() % 4 + part(word) * 4));
                factor.words[0][word] = element;
            }
            return factor;
        }
#endif
        typedef int Piece __attribute__((ext_vector_type(READ)));
#pragma unroll
        for (unsigned int i = 0; i < LINES; ++i) {
#pragma unroll
            for (unsigned int word = 0; word < WORDS; word += READ) {
                Piece piece;
                read(piece, i, lane_k() + word * 4 / sizeof(T));
#pragma unroll
                for (unsigned int j = 0; j < READ; ++j) {
                    factor.words[i][word + j] = piece[j];
                }
            }
        }
        return factor;
    }
#if defined(TILES_BY_MMA)
    // Reads a transposed operand from LDS; `at` points to line transposed_line() and element transposed_k() of it.
    __device__ __forceinline__ static unsigned int transposed_line() {
        return candle_lane() % 8 + part(candle_lane() / 8) * 8;
    }
    __device__ __forceinline__ static unsigned int transposed_k() { return half(candle_lane() / 8) * 8; }
    __device__ __forceinline__ static Fragment read_transposed(const T *at) {
        Fragment factor;
        read_transposed_matrices(factor.words[0], at);
        return factor;
    }
#endif
};

// Layout of a fragment that is built in registers: a lane holds elements of COUNT lines, and SHARES lanes share the
// elements of a line along k. Their order along k is arbitrary, as long as both fragments agree.
template <Side SIDE>
struct FragmentLayout {
#if defined(TILES_BY_MMA)
    static constexpr unsigned int COUNT = 2, SHARES = 4;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return candle_lane() / 4 + 8 * i; }
    __device__ __forceinline__ static unsigned int share() { return candle_lane() % 4; }
    template <typename T, unsigned int DEPTH>
    __device__ __forceinline__ static void set(Fragment<T, DEPTH, SIDE> &factor, unsigned int i, unsigned int word, int to) {
        constexpr unsigned int WORDS = Fragment<T, DEPTH, SIDE>::WORDS;
        factor.words[0][SIDE == Side::ROWS ? word * COUNT + i : i * (WORDS / COUNT) + word] = to;
    }
#else
    static constexpr unsigned int COUNT = Fragment<int, TILE_SIDE, SIDE>::LINES, SHARES = LANES_PER_LINE;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return NO_MATRIX_UNIT ? LaneLayout<SIDE>::at(i) : line_of_lane<SIDE>();
    }
    __device__ __forceinline__ static unsigned int share() { return candle_lane() / TILE_SIDE % SHARES; }
    template <typename T, unsigned int DEPTH>
    __device__ __forceinline__ static void set(Fragment<T, DEPTH, SIDE> &factor, unsigned int i, unsigned int word, int to) {
        factor.words[i][word] = to;
    }
#endif
    // Distributes one value per line to the lanes that hold the line's accumulators.
    __device__ __forceinline__ static void distribute(const float (&values)[COUNT], float (&held)[LaneLayout<SIDE>::COUNT]) {
#pragma unroll
        for (unsigned int i = 0; i < LaneLayout<SIDE>::COUNT; ++i) {
            const unsigned int line = LaneLayout<SIDE>::at(i);
#if defined(TILES_BY_MMA)
            held[i] = SIDE == Side::ROWS ? values[i] : __shfl_sync(~0u, values[i / 2], line % 8 * 4);
#elif defined(TILES_BY_LANES)
            held[i] = values[i];
#else
            held[i] = SIDE == Side::COLUMNS ? values[0] : __shfl_sync(~0u, values[0], lane_of_line<SIDE>(line));
#endif
        }
    }
};

// c += a b' for the first PARTS column groups.
template <unsigned int PARTS = COLUMN_PARTS, unsigned int DEPTH>
__device__ __forceinline__ void multiply(Tile<int> &c, const Fragment<int8_t, DEPTH, Side::ROWS> &a,
                                         const Fragment<int8_t, DEPTH, Side::COLUMNS> &b) {
#if defined(TILES_BY_MMA)
    // mma multiplies eight columns at a time.
#pragma unroll
    for (unsigned int half = 0; half < PARTS; ++half) {
        int sums[4];
#pragma unroll
        for (unsigned int i = 0; i < 4; ++i) {
            sums[i] = c.values[i / 2][2 * half + i % 2];
        }
        multiply_bytes(sums, a.words[0], b.words[0], half);
#pragma unroll
        for (unsigned int i = 0; i < 4; ++i) {
            c.values[i / 2][2 * half + i % 2] = sums[i];
        }
    }
#elif defined(TILES_BY_MFMA) || defined(TILES_BY_WMMA)
    typedef int Elements __attribute__((ext_vector_type(LANE_ROWS)));
    Elements sums = candle_bits<Elements>(c);
#if defined(TILES_BY_MFMA)
    // gfx942 multiplies two words along k at a time. A single word is padded with zeros.
#pragma unroll
    for (unsigned int i = 0; i < a.WORDS; i += TILES_BY_MFMA / 4) {
#if TILES_BY_MFMA == 8
        const bool two = a.WORDS > 1;
        const long left = (uint32_t)a.words[0][i] | (long)(two ? a.words[0][i + two] : 0) << 32;
        const long right = (uint32_t)b.words[0][i] | (long)(two ? b.words[0][i + two] : 0) << 32;
        sums = __builtin_amdgcn_mfma_i32_16x16x32_i8(left, right, sums, 0, 0, 0);
#else
        sums = __builtin_amdgcn_mfma_i32_16x16x16i8(a.words[0][i], b.words[0][i], sums, 0, 0, 0);
#endif
    }
#else
    constexpr unsigned int N = TILE_SIDE / 4 / LANES_PER_LINE;
    typedef int Words __attribute__((ext_vector_type(N)));
#pragma unroll
    for (unsigned int i = 0; i < a.WORDS; i += N) {
        Words left, right;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            left[j] = a.words[0][i + j];
            right[j] = b.words[0][i + j];
        }
#if defined(__GFX12__)
        sums = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, left, true, right, sums, false);
#else
        sums = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, left, true, right, sums, false);
#endif
    }
#endif
    c = candle_bits<Tile<int>>(sums);
#else
#pragma unroll
    for (unsigned int i = 0; i < a.WORDS; ++i) {
#pragma unroll
        for (unsigned int e = 0; e < LANE_ROWS * LANE_COLUMNS; ++e) {
            int &sum = c.values[e / LANE_COLUMNS][e % LANE_COLUMNS];
            sum = __dp4a(a.words[e / LANE_COLUMNS][i], b.words[e % LANE_COLUMNS][i], sum);
        }
    }
#endif
}

// c += a b' for floats, accumulated in f32.
template <unsigned int PARTS = COLUMN_PARTS, typename T, unsigned int DEPTH>
__device__ __forceinline__ void multiply(Tile<float, BY_LANES<T>> &c, const Fragment<T, DEPTH, Side::ROWS> &a,
                                         const Fragment<T, DEPTH, Side::COLUMNS> &b) {
    if constexpr (BY_LANES<T>) {
        constexpr unsigned int R = LaneLayout<Side::ROWS, true>::COUNT, C = LaneLayout<Side::COLUMNS, true>::COUNT;
#pragma unroll
        for (unsigned int i = 0; i < a.WORDS * R * C; ++i) {
            const unsigned int word = i / (R * C), r = i / C % R, column = i % C;
            c.values[r][column] = dot(a.words[r][word], b.words[column][word], c.values[r][column], T());
        }
    } else {
#if defined(TILES_BY_MMA)
#pragma unroll
        for (unsigned int half = 0; half < PARTS; ++half) {
            float sums[4];
#pragma unroll
            for (unsigned int i = 0; i < 4; ++i) {
                sums[i] = c.values[i / 2][2 * half + i % 2];
            }
            multiply_halves(sums, a.words[0], b.words[0], half, T());
#pragma unroll
            for (unsigned int i = 0; i < 4; ++i) {
                c.values[i / 2][2 * half + i % 2] = sums[i];
            }
        }
#elif !defined(TILES_BY_LANES)
        TileSums sums = candle_bits<TileSums>(c);
        if constexpr (sizeof(T) == 2) {
            const HalfElements left = candle_bits<HalfElements>(a.words[0]), right = candle_bits<HalfElements>(b.words[0]);
            sums = multiply_halves(elements(left, T()), elements(right, T()), sums);
        }
#if defined(TILES_BY_MFMA)
        else {
#pragma unroll
            for (unsigned int i = 0; i < a.WORDS; ++i) {
                sums = __builtin_amdgcn_mfma_f32_16x16x4f32(candle_bits<float>(a.words[0][i]),
                                                            candle_bits<float>(b.words[0][i]), sums, 0, 0, 0);
            }
        }
#endif
        c = candle_bits<Tile<float, false>>(sums);
#endif
    }
}

// Packs two floats into the halves of a word.
__device__ __forceinline__ int as_word(float a, float b, __half) {
#if defined(__NVPTX__)
    int word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
    return word;
#else
    typedef _Float16 Two __attribute__((ext_vector_type(2)));
    return candle_bits<int>(Two{(_Float16)a, (_Float16)b});
#endif
}
__device__ __forceinline__ int as_word(float a, float b, __nv_bfloat16) {
#if defined(__NVPTX__)
    int word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
    return word;
#else
    // Rounds ties away from zero, which is cheaper than rounding to even.
    return (candle_bits<uint32_t>(a) + 0x8000) >> 16 | ((candle_bits<uint32_t>(b) + 0x8000) & 0xffff0000);
#endif
}
__device__ __forceinline__ int as_word(float a, float, float) { return candle_bits<int>(a); }

#if !defined(TILES_BY_LANES)
// Converts an accumulator tile to a fragment of another product, with its rows (with mma its columns) along k.
template <typename T, Side SIDE>
__device__ __forceinline__ Fragment<T, 16, SIDE> as_fragment(const Tile<float, false> &tile) {
    typedef Fragment<T, 16, SIDE> Result;
    Result factor;
#if defined(TILES_BY_MMA)
    static_assert(SIDE == Side::ROWS, "a lane has elements of the same columns along k");
#pragma unroll
    for (unsigned int word = 0; word < 4; ++word) {
        factor.words[0][word] = as_word(tile.values[word % 2][word / 2 * 2], tile.values[word % 2][word / 2 * 2 + 1], T());
    }
#else
    static_assert(SIDE == Side::COLUMNS, "a lane has elements of the same rows along k");
    constexpr unsigned int N = 4 / sizeof(T), OWN = LANE_ROWS / N;
    int words[OWN];
#pragma unroll
    for (unsigned int word = 0; word < OWN; ++word) {
        words[word] = as_word(tile.values[word * N][0], tile.values[word * N + N - 1][0], T());
    }
#pragma unroll
    for (unsigned int word = 0; word < OWN; ++word) {
#if defined(__GFX11__)
        // Each half of the wave also needs the rows of the other half.
        const int other = __builtin_amdgcn_permlanex16(words[word], words[word], 0x76543210, 0xfedcba98, false, false);
        const bool second = candle_lane() >= TILE_SIDE;
        factor.words[0][word] = second ? other : words[word];
        factor.words[0][OWN + word] = second ? words[word] : other;
#else
        factor.words[0][word] = words[word];
#endif
    }
#endif
    return factor;
}
#endif
