// Tiles of 16 x 16 sums of products, spread over the lanes of a wave: c += a b', where a has 16 rows and b 16 columns,
// each with its elements along k beside each other in LDS. They are made by the machine's matrix unit (MFMA, WMMA, mma),
// or by dot products of the lanes.
#pragma once

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
#define TILES_BY_DOT
#endif

// Lanes of a wave.
#if defined(__GFX9__)
constexpr unsigned int WAVE = 64;
#else
constexpr unsigned int WAVE = 32;
#endif

// How many lanes have the elements of one row or column along k together, and the bytes that end each row of an operand in
// LDS: the reads below then meet each bank once.
#if defined(TILES_BY_MFMA)
constexpr unsigned int SHARERS = 4, TILE_PADDING = 8;
#elif defined(TILES_BY_MMA) || defined(__GFX12__)
constexpr unsigned int SHARERS = 2, TILE_PADDING = 16;
#else
constexpr unsigned int SHARERS = 1, TILE_PADDING = 16;
#endif

// Parts of a tile's columns that are multiplied one by one, so that the last ones can be left out.
#if defined(TILES_BY_MMA)
constexpr unsigned int COLUMN_PARTS = 2;
#else
constexpr unsigned int COLUMN_PARTS = 1;
#endif

enum class Side { ROWS, COLUMNS };

// How many rows and columns of a tile a lane has elements of, all pairs of them, and which ones.
template <Side> struct Held;
#if defined(TILES_BY_MMA)
template <> struct Held<Side::ROWS> {
    static constexpr unsigned int COUNT = 2;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return candle_lane() / 4 + 8 * i; }
};
template <> struct Held<Side::COLUMNS> {
    static constexpr unsigned int COUNT = 4;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return candle_lane() % 4 * 2 + i % 2 + i / 2 * 8;
    }
};
#elif defined(TILES_BY_MFMA) || defined(TILES_BY_WMMA)
template <> struct Held<Side::ROWS> {
    static constexpr unsigned int COUNT = TILE_SIDE * TILE_SIDE / WAVE;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
#if defined(__GFX11__)
        return i * 2 + candle_lane() / TILE_SIDE;
#else
        return candle_lane() / TILE_SIDE * COUNT + i;
#endif
    }
};
template <> struct Held<Side::COLUMNS> {
    static constexpr unsigned int COUNT = 1;
    __device__ __forceinline__ static unsigned int at(unsigned int) { return candle_lane() % TILE_SIDE; }
};
#else
// Lanes stand in four rows, so that neighbours read what lies in different banks.
template <> struct Held<Side::ROWS> {
    static constexpr unsigned int COUNT = 4;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return candle_lane() / (WAVE / 4) + i * 4; }
};
template <> struct Held<Side::COLUMNS> {
    static constexpr unsigned int COUNT = 64 / WAVE;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return candle_lane() % (WAVE / 4) + i * (WAVE / 4);
    }
};
#endif
constexpr unsigned int HELD_ROWS = Held<Side::ROWS>::COUNT, HELD_COLUMNS = Held<Side::COLUMNS>::COUNT;

// A lane's elements of a tile.
template <typename T>
struct Tile { T of[HELD_ROWS][HELD_COLUMNS]; };

#if defined(TILES_BY_MMA)
// Two or four matrices of eight rows of 16 bytes in shared memory: lane i names row i % 8 of matrix i / 8, and has word
// i % 4 of row i / 4 of each.
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

// Adds the product of 16 rows of 16 or 32 bytes and eight columns, of the 16 in b the first or the others, to two
// neighbours of one row and two of the row eight below it.
__device__ __forceinline__ void multiply_bytes(int (&c)[4], Words2 a, Words2 b, unsigned int half) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[half]));
}
__device__ __forceinline__ void multiply_bytes(int (&c)[4], Words4 a, Words4 b, unsigned int half) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[half]), "r"(b[half + 2]));
}
// The same of rows of 16 halves.
__device__ __forceinline__ void multiply_halves(float (&c)[4], Words4 a, Words4 b, unsigned int half) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[half]), "r"(b[half + 2]));
}
#endif

// What a lane needs of 16 rows of a, or columns of b, and DEPTH elements of each. Where the words are not read but made:
// with mma, word w has the elements from k = 4 / sizeof(T) * (lane % 4 + w / 2 * 4) on of line lane / 4 + w % 2 * 8;
// elsewhere all words are of line lane % 16, and begin at k = lane / 16 % SHARERS * (DEPTH / SHARERS).
template <typename T, unsigned int DEPTH, Side SIDE>
struct Factor {
#if defined(TILES_BY_DOT)
    static constexpr unsigned int LINES = Held<SIDE>::COUNT;
#else
    static constexpr unsigned int LINES = 1;
#endif
    // Words of a lane along k.
    static constexpr unsigned int WORDS = DEPTH * sizeof(T) / 4 / SHARERS;
    typedef int Words __attribute__((ext_vector_type(WORDS)));
    Words words[LINES];

    // From LDS; `pitch` elements from row to row.
    __device__ __forceinline__ static Factor read(const T *first, unsigned int pitch) {
        Factor factor;
#if defined(TILES_BY_MMA)
        // Each lane names 16 bytes: eight rows, the other eight, and so on along k.
        const unsigned int lane = candle_lane();
        read_matrices(factor.words[0], first + lane % TILE_SIDE * pitch + lane / TILE_SIDE * 16 / sizeof(T));
#else
#pragma unroll
        for (unsigned int i = 0; i < LINES; ++i) {
            // In which order a lane's words go through k does not matter: it is the same for rows and columns.
            const unsigned int line = LINES > 1 ? Held<SIDE>::at(i) : candle_lane() % TILE_SIDE;
            const unsigned int share = candle_lane() / TILE_SIDE % SHARERS;
            factor.words[i] = *(const Words *)(first + line * pitch + share * (DEPTH / SHARERS));
        }
#endif
        return factor;
    }
};

// A factor made in registers instead: a lane has elements of COUNT lines, whose elements along k SHARES lanes have together.
// Which of them does not matter, if it is the same for both factors.
template <Side SIDE>
struct Lines {
#if defined(TILES_BY_MMA)
    static constexpr unsigned int COUNT = 2, SHARES = 4;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return candle_lane() / 4 + 8 * i; }
    __device__ __forceinline__ static unsigned int share() { return candle_lane() % 4; }
    template <typename T, unsigned int DEPTH>
    __device__ __forceinline__ static void set(Factor<T, DEPTH, SIDE> &factor, unsigned int i, unsigned int word, int to) {
        factor.words[0][word * COUNT + i] = to;
    }
#else
    static constexpr unsigned int COUNT = Factor<int, TILE_SIDE, SIDE>::LINES, SHARES = SHARERS;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return COUNT > 1 ? Held<SIDE>::at(i) : candle_lane() % TILE_SIDE;
    }
    __device__ __forceinline__ static unsigned int share() { return candle_lane() / TILE_SIDE % SHARES; }
    template <typename T, unsigned int DEPTH>
    __device__ __forceinline__ static void set(Factor<T, DEPTH, SIDE> &factor, unsigned int i, unsigned int word, int to) {
        factor.words[i][word] = to;
    }
#endif
    // What each line has one of, as the lanes hold the tile's elements.
    __device__ __forceinline__ static void spread(const float (&of)[COUNT], float (&held)[Held<SIDE>::COUNT]) {
#pragma unroll
        for (unsigned int i = 0; i < Held<SIDE>::COUNT; ++i) {
            const unsigned int line = Held<SIDE>::at(i);
#if defined(TILES_BY_MMA)
            held[i] = SIDE == Side::ROWS ? of[i] : __shfl_sync(~0u, of[i / 2], line % 8 * 4);
#elif defined(TILES_BY_DOT)
            held[i] = of[i];
#else
            held[i] = SIDE == Side::COLUMNS ? of[0] : __shfl_sync(~0u, of[0], line);
#endif
        }
    }
};

// c += a b', of the first PARTS of the columns.
template <unsigned int PARTS = COLUMN_PARTS, unsigned int DEPTH>
__device__ __forceinline__ void multiply(Tile<int> &c, const Factor<int8_t, DEPTH, Side::ROWS> &a,
                                         const Factor<int8_t, DEPTH, Side::COLUMNS> &b) {
#if defined(TILES_BY_MMA)
    // Eight columns at a time.
#pragma unroll
    for (unsigned int half = 0; half < PARTS; ++half) {
        int sums[4];
#pragma unroll
        for (unsigned int i = 0; i < 4; ++i) {
            sums[i] = c.of[i / 2][2 * half + i % 2];
        }
        multiply_bytes(sums, a.words[0], b.words[0], half);
#pragma unroll
        for (unsigned int i = 0; i < 4; ++i) {
            c.of[i / 2][2 * half + i % 2] = sums[i];
        }
    }
#elif defined(TILES_BY_MFMA) || defined(TILES_BY_WMMA)
    typedef int Elements __attribute__((ext_vector_type(HELD_ROWS)));
    Elements sums = candle_bits<Elements>(c);
#if defined(TILES_BY_MFMA)
    // gfx942 takes two words along k. Where there is one, zeros stand for the other.
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
    constexpr unsigned int N = TILE_SIDE / 4 / SHARERS;
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
        for (unsigned int e = 0; e < HELD_ROWS * HELD_COLUMNS; ++e) {
            int &sum = c.of[e / HELD_COLUMNS][e % HELD_COLUMNS];
            sum = __dp4a(a.words[e / HELD_COLUMNS][i], b.words[e % HELD_COLUMNS][i], sum);
        }
    }
#endif
}

// c += a b' of halves, with sums in f32.
template <unsigned int PARTS = COLUMN_PARTS>
__device__ __forceinline__ void multiply(Tile<float> &c, const Factor<__half, 16, Side::ROWS> &a,
                                         const Factor<__half, 16, Side::COLUMNS> &b) {
#if defined(TILES_BY_MMA)
#pragma unroll
    for (unsigned int half = 0; half < PARTS; ++half) {
        float sums[4];
#pragma unroll
        for (unsigned int i = 0; i < 4; ++i) {
            sums[i] = c.of[i / 2][2 * half + i % 2];
        }
        multiply_halves(sums, a.words[0], b.words[0], half);
#pragma unroll
        for (unsigned int i = 0; i < 4; ++i) {
            c.of[i / 2][2 * half + i % 2] = sums[i];
        }
    }
#elif defined(TILES_BY_DOT)
    typedef _Float16 Halves __attribute__((ext_vector_type(2)));
#pragma unroll
    for (unsigned int i = 0; i < a.WORDS * HELD_ROWS * HELD_COLUMNS; ++i) {
        const unsigned int word = i % a.WORDS, r = i / a.WORDS / HELD_COLUMNS, column = i / a.WORDS % HELD_COLUMNS;
        c.of[r][column] = __builtin_amdgcn_fdot2(candle_bits<Halves>(a.words[r][word]),
                                                 candle_bits<Halves>(b.words[column][word]), c.of[r][column], false);
    }
#else
    typedef float Elements __attribute__((ext_vector_type(HELD_ROWS)));
    typedef _Float16 Halves __attribute__((ext_vector_type(16 / SHARERS)));
    const Halves left = candle_bits<Halves>(a.words[0]), right = candle_bits<Halves>(b.words[0]);
    Elements sums = candle_bits<Elements>(c);
#if defined(TILES_BY_MFMA)
    sums = __builtin_amdgcn_mfma_f32_16x16x16f16(left, right, sums, 0, 0, 0);
#elif defined(__GFX12__)
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(left, right, sums);
#else
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(left, right, sums);
#endif
    c = candle_bits<Tile<float>>(sums);
#endif
}
