// Tiles of 16 x 16 sums of products, spread over the lanes of a wave: c += a b', where a has 16 rows and b 16 columns,
// each with its elements along k beside each other in LDS. They are made by the machine's matrix unit (MFMA, WMMA, mma),
// or, where it has none for a type, by the lanes themselves.
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

// How many lanes have the elements of one row or column along k together, and the bytes that end each row of an operand in
// LDS: the reads below then meet each bank once.
#if defined(TILES_BY_MFMA)
constexpr unsigned int SHARERS = 4, TILE_PADDING = 8;
#elif defined(TILES_BY_MMA) || defined(__GFX12__)
constexpr unsigned int SHARERS = 2, TILE_PADDING = 16;
#else
constexpr unsigned int SHARERS = 1, TILE_PADDING = 16;
#endif

// A number of which nothing made before is kept: places found from it are found anew, and take no registers until then.
__device__ __forceinline__ unsigned int anew(unsigned int number) {
    asm volatile("" : CANDLE_IN_REGISTER(number));
    return number;
}

// Parts of a tile's columns that are multiplied one by one, so that the last ones can be left out.
#if defined(TILES_BY_MMA)
constexpr unsigned int COLUMN_PARTS = 2;
#else
constexpr unsigned int COLUMN_PARTS = 1;
#endif

// Whether there is no matrix unit at all, and whether there is none for a type.
#if defined(TILES_BY_LANES)
constexpr bool LANES_ALONE = true;
#else
constexpr bool LANES_ALONE = false;
#endif
template <typename T> constexpr bool BY_LANES = LANES_ALONE;
#if !defined(TILES_BY_MFMA)
template <> constexpr bool BY_LANES<float> = true;
#endif
// What a step along k takes of each row and column: what a matrix unit takes of halves, or what a lane reads at once.
template <typename T> constexpr unsigned int STEP = BY_LANES<T> ? 16 / sizeof(T) : 16;

enum class Side { ROWS, COLUMNS };

// What a reference is one to.
template <typename T> struct Value { typedef T type; };
template <typename T> struct Value<T &> { typedef T type; };

// How many rows and columns of a tile a lane has elements of, all pairs of them, and which ones. Lanes whose numbers differ
// in the bits from STEP up to END hold elements of the same ones.
template <Side, bool = LANES_ALONE> struct Held;
// Lanes stand in four rows, so that neighbours read what lies in different banks.
template <> struct Held<Side::ROWS, true> {
    static constexpr unsigned int COUNT = 4, APART = 4, STEP = 1, END = WAVE / 4;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return candle_lane() / (WAVE / 4) + i * APART; }
};
template <> struct Held<Side::COLUMNS, true> {
    static constexpr unsigned int COUNT = 64 / WAVE, APART = WAVE / 4, STEP = APART, END = WAVE;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return candle_lane() % APART + i * APART;
    }
};
#if defined(TILES_BY_MMA)
template <> struct Held<Side::ROWS, false> {
    static constexpr unsigned int COUNT = 2, STEP = 1, END = 4;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return candle_lane() / 4 + 8 * i; }
};
template <> struct Held<Side::COLUMNS, false> {
    static constexpr unsigned int COUNT = 4, STEP = 4, END = 32;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return candle_lane() % 4 * 2 + i % 2 + i / 2 * 8;
    }
};
#elif !defined(TILES_BY_LANES)
template <> struct Held<Side::ROWS, false> {
    static constexpr unsigned int COUNT = TILE_SIDE * TILE_SIDE / WAVE, STEP = 1, END = TILE_SIDE;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return candle_lane() / TILE_SIDE * COUNT + i;
    }
};
template <> struct Held<Side::COLUMNS, false> {
    static constexpr unsigned int COUNT = 1, STEP = TILE_SIDE, END = WAVE;
    __device__ __forceinline__ static unsigned int at(unsigned int) { return candle_lane() % TILE_SIDE; }
};
#endif
constexpr unsigned int HELD_ROWS = Held<Side::ROWS>::COUNT, HELD_COLUMNS = Held<Side::COLUMNS>::COUNT;

// One value of those that the lanes have of the same row or column, the same in each of them.
template <Side SIDE, bool LANES = LANES_ALONE, typename F>
__device__ __forceinline__ float across(float value, F f) {
#pragma unroll
    for (unsigned int step = Held<SIDE, LANES>::STEP; step < Held<SIDE, LANES>::END; step *= 2) {
        value = f(value, __shfl_xor_sync(~0u, value, step, WAVE));
    }
    return value;
}

// A lane's elements of a tile.
template <typename T, bool LANES = LANES_ALONE>
struct Tile { T of[Held<Side::ROWS, LANES>::COUNT][Held<Side::COLUMNS, LANES>::COUNT]; };

// The line of a factor that a lane has, where it has one, and the lane that has a line. On gfx11 the unit spreads every
// other row of a tile over the same lanes: rows are taken in such an order that a lane's lie beside each other.
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
// Two or four matrices of eight rows of 16 bytes in shared memory: lane i names row i % 8 of matrix i / 8, and has word
// i % 4 of row i / 4 of each. Those that one product takes lie in neighbouring registers: of rows all four, of columns the
// two of eight columns.
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

// The same of halves; a lane has the elements of one column that two neighbouring rows have.
__device__ __forceinline__ void read_turned_matrices(Words4 &words, const void *row) {
    int a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
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
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * half]), "r"(b[2 * half + 1]));
}
// The same of rows of 16 halves, of the type that the last argument has.
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
typedef _Float16 HalfElements __attribute__((ext_vector_type(TILE_SIDE / SHARERS)));
typedef short BfloatElements __attribute__((ext_vector_type(TILE_SIDE / SHARERS)));
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

// sum + a b of the elements of a word.
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

// What a lane needs of 16 rows of a, or columns of b, and DEPTH elements of each. Where the words are not read but made:
// with mma, word w has the elements from k = 4 / sizeof(T) * (lane % 4 + part(w) * 4) on of line lane / 4 + half(w) * 8;
// elsewhere all words are of line_of_lane, and begin at k = lane / 16 % SHARERS * (DEPTH / SHARERS).
template <typename T, unsigned int DEPTH, Side SIDE>
struct Factor {
    static constexpr bool LANES = BY_LANES<T>;
    static constexpr unsigned int LINES = LANES ? Held<SIDE, LANES>::COUNT : 1;
    // Words of a lane along k.
    static constexpr unsigned int WORDS = DEPTH * sizeof(T) / 4 / (LANES ? 1 : SHARERS);
    // Of them, those that one access reads.
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
    // The first line that a lane reads and the first place along k, and how far its other lines are from it.
    __device__ __forceinline__ static unsigned int lane_line() {
#if defined(TILES_BY_MMA)
        // Each lane names 16 bytes of one of the matrices: those of lines from 8 on are the second half.
        if constexpr (!LANES) {
            return candle_lane() % 8 + half(candle_lane() / 8) * 8;
        }
#endif
        return LANES ? Held<SIDE, LANES>::at(0) : line_of_lane<SIDE>();
    }
    __device__ __forceinline__ static unsigned int lane_k() {
#if defined(TILES_BY_MMA)
        return LANES ? 0 : part(candle_lane() / 8) * (16 / sizeof(T));
#else
        // In which order a lane's words go through k does not matter: it is the same for rows and columns.
        return LANES ? 0 : candle_lane() / TILE_SIDE % SHARERS * (DEPTH / SHARERS);
#endif
    }
    static constexpr unsigned int LINES_APART = Held<SIDE, true>::APART;

    // From LDS; `at(line, k)` is where an element lies that is so far from the lane's first.
    template <typename A>
    __device__ __forceinline__ static Factor from(A at) {
        Factor factor;
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
                const Piece piece = *(const Piece *)at(i * LINES_APART, word * 4 / sizeof(T));
#pragma unroll
                for (unsigned int j = 0; j < READ; ++j) {
                    factor.words[i][word + j] = piece[j];
                }
            }
        }
        return factor;
    }
    // The same where it is `pitch` elements from line to line.
    __device__ __forceinline__ static Factor read(const T *first, unsigned int pitch) {
        first += lane_line() * pitch + lane_k();
        return from([&](unsigned int line, unsigned int k) INLINE { return first + line * pitch + k; });
    }
    // Lines that a lane's words are of, and which ones.
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
        return lane_line() + i * LINES_APART;
    }
    // From any memory: `lines` are where the lane's own begin. From k = `end` on, a multiple of 16 bytes, there are zeros.
    __device__ __forceinline__ static Factor gather(const T *const (&lines)[OWN], unsigned int k, unsigned int end) {
        Factor factor;
        const auto read = [&](auto &piece, unsigned int line, unsigned int more) INLINE {
            typedef typename Value<decltype(piece)>::type Piece;
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
    // From lines along the other side in LDS: `at` is where the lane reads, line turned_line and place turned_k along it.
    __device__ __forceinline__ static unsigned int turned_line() {
        return candle_lane() % 8 + part(candle_lane() / 8) * 8;
    }
    __device__ __forceinline__ static unsigned int turned_k() { return half(candle_lane() / 8) * 8; }
    __device__ __forceinline__ static Factor turned(const T *at) {
        Factor factor;
        read_turned_matrices(factor.words[0], at);
        return factor;
    }
#endif
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
        constexpr unsigned int WORDS = Factor<T, DEPTH, SIDE>::WORDS;
        factor.words[0][SIDE == Side::ROWS ? word * COUNT + i : i * (WORDS / COUNT) + word] = to;
    }
#else
    static constexpr unsigned int COUNT = Factor<int, TILE_SIDE, SIDE>::LINES, SHARES = SHARERS;
    __device__ __forceinline__ static unsigned int at(unsigned int i) {
        return LANES_ALONE ? Held<SIDE>::at(i) : line_of_lane<SIDE>();
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
#elif defined(TILES_BY_LANES)
            held[i] = of[i];
#else
            held[i] = SIDE == Side::COLUMNS ? of[0] : __shfl_sync(~0u, of[0], lane_of_line<SIDE>(line));
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

// c += a b' of floats, with sums in f32.
template <unsigned int PARTS = COLUMN_PARTS, typename T, unsigned int DEPTH>
__device__ __forceinline__ void multiply(Tile<float, BY_LANES<T>> &c, const Factor<T, DEPTH, Side::ROWS> &a,
                                         const Factor<T, DEPTH, Side::COLUMNS> &b) {
    if constexpr (BY_LANES<T>) {
        constexpr unsigned int R = Held<Side::ROWS, true>::COUNT, C = Held<Side::COLUMNS, true>::COUNT;
#pragma unroll
        for (unsigned int i = 0; i < a.WORDS * R * C; ++i) {
            const unsigned int word = i / (R * C), r = i / C % R, column = i % C;
            c.of[r][column] = dot(a.words[r][word], b.words[column][word], c.of[r][column], T());
        }
    } else {
#if defined(TILES_BY_MMA)
#pragma unroll
        for (unsigned int half = 0; half < PARTS; ++half) {
            float sums[4];
#pragma unroll
            for (unsigned int i = 0; i < 4; ++i) {
                sums[i] = c.of[i / 2][2 * half + i % 2];
            }
            multiply_halves(sums, a.words[0], b.words[0], half, T());
#pragma unroll
            for (unsigned int i = 0; i < 4; ++i) {
                c.of[i / 2][2 * half + i % 2] = sums[i];
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

// Two floats as neighbouring halves of a word.
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
    // Of two nearest the larger one: rounding to even costs more.
    return (candle_bits<uint32_t>(a) + 0x8000) >> 16 | ((candle_bits<uint32_t>(b) + 0x8000) & 0xffff0000);
#endif
}
__device__ __forceinline__ int as_word(float a, float, float) { return candle_bits<int>(a); }

#if !defined(TILES_BY_LANES)
// A tile as the factor of another product, with its sums' rows along k; with mma their columns.
template <typename T, Side SIDE>
__device__ __forceinline__ Factor<T, 16, SIDE> as_factor(const Tile<float, false> &tile) {
    typedef Factor<T, 16, SIDE> Result;
    Result factor;
#if defined(TILES_BY_MMA)
    static_assert(SIDE == Side::ROWS, "a lane has elements of the same columns along k");
#pragma unroll
    for (unsigned int word = 0; word < 4; ++word) {
        factor.words[0][word] = as_word(tile.of[word % 2][word / 2 * 2], tile.of[word % 2][word / 2 * 2 + 1], T());
    }
#else
    static_assert(SIDE == Side::COLUMNS, "a lane has elements of the same rows along k");
    constexpr unsigned int N = 4 / sizeof(T), OWN = HELD_ROWS / N;
    int words[OWN];
#pragma unroll
    for (unsigned int word = 0; word < OWN; ++word) {
        words[word] = as_word(tile.of[word * N][0], tile.of[word * N + N - 1][0], T());
    }
#pragma unroll
    for (unsigned int word = 0; word < OWN; ++word) {
#if defined(__GFX11__)
        // Each half of the wave takes the rows of the other one as well.
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
