// Products of up to 16 rows with a matrix whose columns are dense, in the time of reading the matrix: on the machine's matrix
// units, or by the lanes where it has none for a type. A workgroup makes 16 columns, each wave the sums over some parts of k.
// What a lane reads of its columns is at once its part of the matrix units' factor: it meets no LDS, and none waits for
// another wave. While products of a part are made, so many of the next ones are on their way as there are registers for.
#pragma once
#include "tiles.cuh"

// A lane's words of 16 lines: which lines it has, how many lanes share the elements of each along k, and which share it has.
template <typename T, Side SIDE, bool = BY_LANES<T>>
struct Strips : Lines<SIDE> {};
template <typename T, Side SIDE>
struct Strips<T, SIDE, true> {
    static constexpr unsigned int COUNT = Held<SIDE, true>::COUNT, SHARES = 1;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return Held<SIDE, true>::at(i); }
    __device__ __forceinline__ static unsigned int share() { return 0; }
    __device__ __forceinline__ static void set(Factor<T, STEP<T>, SIDE> &factor, unsigned int i, unsigned int word, int to) {
        factor.words[i][word] = to;
    }
};

template <typename T>
struct Thin {
    typedef Strips<T, Side::ROWS> Columns;
    typedef Strips<T, Side::COLUMNS> Rows;
    typedef Tile<float, BY_LANES<T>> Sums;
    typedef int Four __attribute__((ext_vector_type(4)));
    static constexpr unsigned int N = 16 / sizeof(T), SHARES = Columns::SHARES;
    // Words of a line that a lane has in one product, packs of it that it reads at once, and products of these.
    static constexpr unsigned int WORDS = STEP<T> * sizeof(T) / 4 / SHARES;
    static constexpr unsigned int PACKS = WORDS > 4 ? WORDS / 4 : 1, PRODUCTS = PACKS * 4 / WORDS;
    // A part of k: the packs of all shares. As many are under way as there are registers for; they lie beside each other.
    static constexpr unsigned int PART = PACKS * SHARES;
    typedef int Words __attribute__((ext_vector_type(PACKS * 4)));
    struct Part { Words columns[Columns::COUNT], rows[Rows::COUNT]; };
#if defined(TILES_BY_MMA)
    static constexpr unsigned int AT_ONCE = BY_LANES<T> ? 3 : 4;
#else
    static constexpr unsigned int AT_ONCE = BY_LANES<T> ? 4 : 256 / sizeof(Part);
#endif

    const T *columns[Columns::COUNT], *rows[Rows::COUNT];
    // Of a line.
    unsigned int packs;

    // Rows and columns past the end are read from the last; what they give is not written.
    __device__ __forceinline__ Thin(const T *a, const T *b, unsigned int first_column, unsigned int m, unsigned int n,
                                    unsigned int k, size_t a_row, size_t b_column)
        : packs(k / N) {
#pragma unroll
        for (unsigned int i = 0; i < Columns::COUNT; ++i) {
            columns[i] = b + min(first_column + Columns::at(i), n - 1) * b_column;
        }
#pragma unroll
        for (unsigned int i = 0; i < Rows::COUNT; ++i) {
            rows[i] = a + min(Rows::at(i), m - 1) * a_row;
        }
    }

    __device__ __forceinline__ static unsigned int pack_of(unsigned int part, unsigned int i) {
        return (part * PACKS + i) * SHARES + Columns::share();
    }
    __device__ __forceinline__ Part read(unsigned int part) const {
        Part read;
#pragma unroll
        for (unsigned int p = 0; p < PACKS; ++p) {
            // What lies beyond the end is read from the last place, and not used.
            const size_t at = (size_t)min(pack_of(part, p), packs - 1) * N;
            const auto read_pack = [=](Words &words, const T *line) INLINE {
                const Four pack = *(const Four *)(line + at);
#pragma unroll
                for (unsigned int word = 0; word < 4; ++word) {
                    words[p * 4 + word] = pack[word];
                }
            };
#pragma unroll
            for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                read_pack(read.columns[i], columns[i]);
            }
#pragma unroll
            for (unsigned int i = 0; i < Rows::COUNT; ++i) {
                read_pack(read.rows[i], rows[i]);
            }
        }
        return read;
    }
    // Neither side may be other than 0 beyond the end: the other one need not be finite.
    __device__ __forceinline__ void cut(Part &read, unsigned int part) const {
#pragma unroll
        for (unsigned int word = 0; word < PACKS * 4; ++word) {
            const bool inside = pack_of(part, word / 4) < packs;
#pragma unroll
            for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                read.columns[i][word] = inside ? read.columns[i][word] : 0;
            }
#pragma unroll
            for (unsigned int i = 0; i < Rows::COUNT; ++i) {
                read.rows[i][word] = inside ? read.rows[i][word] : 0;
            }
        }
    }
    __device__ __forceinline__ static void add(Sums &sums, const Part &read) {
#pragma unroll
        for (unsigned int product = 0; product < PRODUCTS; ++product) {
            Factor<T, STEP<T>, Side::ROWS> column;
            Factor<T, STEP<T>, Side::COLUMNS> row;
#pragma unroll
            for (unsigned int word = 0; word < WORDS; ++word) {
                const unsigned int at = product * WORDS + word;
#pragma unroll
                for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                    Columns::set(column, i, word, read.columns[i][at]);
                }
#pragma unroll
                for (unsigned int i = 0; i < Rows::COUNT; ++i) {
                    Rows::set(row, i, word, read.rows[i][at]);
                }
            }
            multiply(sums, column, row);
        }
        // Products are made before what is read after them. gfx908 has sums in registers of their own.
        uint32_t sum = candle_bits<uint32_t>(sums.of[0][0]);
#if defined(__gfx908__)
        asm volatile("" : "+a"(sum) : : "memory");
#else
        asm volatile("" : CANDLE_IN_REGISTER(sum) : : "memory");
#endif
        sums.of[0][0] = candle_bits<float>(sum);
    }

    // It is there: what is made of it comes after this, and so do loads that are written after it.
    __device__ __forceinline__ static void arrive(Part &part) {
        uint32_t words[sizeof(Part) / 4];
        __builtin_memcpy(words, &part, sizeof(Part));
#pragma unroll
        for (uint32_t &word : words) {
            asm volatile("" : CANDLE_IN_REGISTER(word) : : "memory");
        }
        __builtin_memcpy(&part, words, sizeof(Part));
    }

    // The sums over every run of AT_ONCE parts that is this wave's.
    __device__ __forceinline__ Sums sums(unsigned int wave, unsigned int waves) const {
        Sums sums = {};
        const unsigned int parts = (packs + PART - 1) / PART;
        unsigned int first = wave * AT_ONCE;
        if (first >= parts) {
            return sums;
        }
        Part under_way[AT_ONCE];
#pragma unroll
        for (unsigned int i = 0; i < AT_ONCE; ++i) {
            under_way[i] = read(min(first + i, parts - 1));
        }
        const unsigned int step = waves * AT_ONCE;
#pragma unroll 1
        for (; first + step < parts; first += step) {
#pragma unroll
            for (unsigned int i = 0; i < AT_ONCE; ++i) {
                arrive(under_way[i]);
                add(sums, under_way[i]);
                under_way[i] = read(min(first + step + i, parts - 1));
            }
        }
#pragma unroll
        for (unsigned int i = 0; i < AT_ONCE; ++i) {
            if (first + i < parts) {
                cut(under_way[i], first + i);
                add(sums, under_way[i]);
            }
        }
        return sums;
    }
};

template <typename T>
__device__ __forceinline__ void thin_product(const T *a, const T *b, T *c, const unsigned int m, const unsigned int n,
                                             const unsigned int k, const unsigned int batches, const size_t a_row,
                                             const size_t a_batch, const size_t b_column, const size_t b_batch,
                                             const size_t c_row, const size_t c_batch) {
    constexpr unsigned int SIDE = CANDLE_THIN_SIDE, MOST_WAVES = CANDLE_BLOCK / WAVE;
    constexpr bool LANES = BY_LANES<T>;
    static_assert(SIDE == TILE_SIDE, "a workgroup makes a tile");
    // Lanes that hold elements of neighbouring rows meet different banks.
    __shared__ float shared[MOST_WAVES][SIDE][SIDE + 4];
    const unsigned int first_column = blockIdx.x * SIDE;
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), waves = blockDim.x / WAVE;
#pragma unroll 1
    for (unsigned int batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        const Thin<T> thin(a + batch * a_batch, b + batch * b_batch, first_column, m, n, k, a_row, b_column);
        const typename Thin<T>::Sums sums = thin.sums(wave, waves);
#pragma unroll
        for (unsigned int r = 0; r < Held<Side::ROWS, LANES>::COUNT; ++r) {
#pragma unroll
            for (unsigned int x = 0; x < Held<Side::COLUMNS, LANES>::COUNT; ++x) {
                shared[wave][Held<Side::COLUMNS, LANES>::at(x)][Held<Side::ROWS, LANES>::at(r)] = sums.of[r][x];
            }
        }
        __syncthreads();
        for (unsigned int i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x) {
            const unsigned int row = i / SIDE, column = i % SIDE;
            if (row < m && first_column + column < n) {
                float sum = 0;
#pragma unroll
                for (unsigned int w = 0; w < MOST_WAVES; ++w) {
                    sum += w < waves ? shared[w][row][column] : 0;
                }
                c[batch * c_batch + row * c_row + first_column + column] = (T)sum;
            }
        }
        // The next product's sums go through the same LDS.
        __syncthreads();
    }
}
