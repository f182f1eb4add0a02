// Memory-bound products of up to 16 rows with a matrix whose columns are dense, on the matrix units, or by the lanes
// for types without a matrix instruction. A workgroup computes 16 columns, and each wave sums over some parts of k.
// A lane loads its part of the fragment directly from memory, without LDS or barriers. As many parts are prefetched
// as fit into registers.
#pragma once
#include "tiles.cuh"

// Fragment layout of 16 lines; for types that lanes multiply, a lane holds whole lines.
template <typename T, Side SIDE, bool = BY_LANES<T>>
struct ThinLayout : FragmentLayout<SIDE> {};
template <typename T, Side SIDE>
struct ThinLayout<T, SIDE, true> {
    static constexpr unsigned int COUNT = LaneLayout<SIDE, true>::COUNT, SHARES = 1;
    __device__ __forceinline__ static unsigned int at(unsigned int i) { return LaneLayout<SIDE, true>::at(i); }
    __device__ __forceinline__ static unsigned int share() { return 0; }
    __device__ __forceinline__ static void set(Fragment<T, STEP<T>, SIDE> &factor, unsigned int i, unsigned int word, int to) {
        factor.words[i][word] = to;
    }
};

// A lane's part of 16 columns, and of the first PARTS groups of the rows.
template <typename T, unsigned int PARTS>
struct ThinProduct {
    typedef ThinLayout<T, Side::ROWS> Columns;
    typedef ThinLayout<T, Side::COLUMNS> Rows;
    typedef Tile<float, BY_LANES<T>> Sums;
    typedef int Four __attribute__((ext_vector_type(4)));
    static constexpr unsigned int N = 16 / sizeof(T), SHARES = Columns::SHARES;
    static constexpr unsigned int ROWS = BY_LANES<T> ? Rows::COUNT : Rows::COUNT / COLUMN_PARTS * PARTS;
    // Words of a line per lane and product; packs per read; and products per read.
    static constexpr unsigned int WORDS = STEP<T> * sizeof(T) / 4 / SHARES;
    static constexpr unsigned int PACKS = WORDS > 4 ? WORDS / 4 : 1, PRODUCTS = PACKS * 4 / WORDS;
    // Packs of a part of k, over all lanes that share a line. PARTS_IN_FLIGHT consecutive parts are prefetched.
    static constexpr unsigned int PART = PACKS * SHARES;
    typedef int Words __attribute__((ext_vector_type(PACKS * 4)));
    struct Part { Words columns[Columns::COUNT], rows[ROWS]; };
#if defined(TILES_BY_MMA)
    static constexpr unsigned int PARTS_IN_FLIGHT = BY_LANES<T> ? 3 : 4;
#else
    static constexpr unsigned int PARTS_IN_FLIGHT = BY_LANES<T> ? 4 : 256 / sizeof(Part);
#endif

    const T *columns[Columns::COUNT], *rows[ROWS];
    // Number of packs of a line.
    unsigned int packs;

    // Rows and columns past the end read the last one; their results are not written.
    __device__ __forceinline__ ThinProduct(const T *a, const T *b, unsigned int first_column, unsigned int m, unsigned int n,
                                    unsigned int k, size_t a_row, size_t b_column)
        : packs(k / N) {
#pragma unroll
        for (unsigned int i = 0; i < Columns::COUNT; ++i) {
            columns[i] = b + min(first_column + Columns::at(i), n - 1) * b_column;
        }
#pragma unroll
        for (unsigned int i = 0; i < ROWS; ++i) {
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
            // Reads past the end read the last pack, which is not used.
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
            for (unsigned int i = 0; i < ROWS; ++i) {
                read_pack(read.rows[i], rows[i]);
            }
        }
        return read;
    }
    // Zeroes both sides past the end: zero times a value that is not finite would give NaN.
    __device__ __forceinline__ void zero_past_end(Part &read, unsigned int part) const {
#pragma unroll
        for (unsigned int word = 0; word < PACKS * 4; ++word) {
            const bool inside = pack_of(part, word / 4) < packs;
#pragma unroll
            for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                read.columns[i][word] = inside ? read.columns[i][word] : 0;
            }
#pragma unroll
            for (unsigned int i = 0; i < ROWS; ++i) {
                read.rows[i][word] = inside ? read.rows[i][word] : 0;
            }
        }
    }
    __device__ __forceinline__ static void add(Sums &sums, const Part &read) {
#pragma unroll
        for (unsigned int product = 0; product < PRODUCTS; ++product) {
            Fragment<T, STEP<T>, Side::ROWS> column;
            Fragment<T, STEP<T>, Side::COLUMNS> row = {};
#pragma unroll
            for (unsigned int word = 0; word < WORDS; ++word) {
                const unsigned int at = product * WORDS + word;
#pragma unroll
                for (unsigned int i = 0; i < Columns::COUNT; ++i) {
                    Columns::set(column, i, word, read.columns[i][at]);
                }
#pragma unroll
                for (unsigned int i = 0; i < ROWS; ++i) {
                    Rows::set(row, i, word, read.rows[i][at]);
                }
            }
            multiply<BY_LANES<T> ? COLUMN_PARTS : PARTS>(sums, column, row);
        }
        // Keeps later loads behind these products. gfx908 has separate accumulator registers.
        uint32_t sum = candle_bits<uint32_t>(sums.values[0][0]);
#if defined(__gfx908__)
        asm volatile("" : "+a"(sum) : : "memory");
#else
        asm volatile("" : CANDLE_IN_REGISTER(sum) : : "memory");
#endif
        sums.values[0][0] = candle_bits<float>(sum);
    }

    // Waits for the loads of a part; later loads are not moved before this point.
    __device__ __forceinline__ static void wait_for(Part &part) {
        uint32_t words[sizeof(Part) / 4];
        __builtin_memcpy(words, &part, sizeof(Part));
#pragma unroll
        for (uint32_t &word : words) {
            asm volatile("" : CANDLE_IN_REGISTER(word) : : "memory");
        }
        __builtin_memcpy(&part, words, sizeof(Part));
    }

    // Returns the sums over this wave's runs of PARTS_IN_FLIGHT parts.
    __device__ __forceinline__ Sums sums(unsigned int wave, unsigned int waves) const {
        Sums sums = {};
        const unsigned int parts = (packs + PART - 1) / PART;
        unsigned int first = wave * PARTS_IN_FLIGHT;
        if (first >= parts) {
            return sums;
        }
        Part prefetched[PARTS_IN_FLIGHT];
#pragma unroll
        for (unsigned int i = 0; i < PARTS_IN_FLIGHT; ++i) {
            prefetched[i] = read(min(first + i, parts - 1));
        }
        const unsigned int step = waves * PARTS_IN_FLIGHT;
#pragma unroll 1
        for (; first + step < parts; first += step) {
#pragma unroll
            for (unsigned int i = 0; i < PARTS_IN_FLIGHT; ++i) {
                wait_for(prefetched[i]);
                add(sums, prefetched[i]);
                prefetched[i] = read(min(first + step + i, parts - 1));
            }
        }
#pragma unroll
        for (unsigned int i = 0; i < PARTS_IN_FLIGHT; ++i) {
            if (first + i < parts) {
                zero_past_end(prefetched[i], first + i);
                add(sums, prefetched[i]);
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
    constexpr unsigned int SIDE = CANDLE_THIN_SIDE, MAX_WAVES = CANDLE_BLOCK / WAVE;
    constexpr bool LANES = BY_LANES<T>;
    static_assert(SIDE == TILE_SIDE, "a workgroup makes a tile");
    // Padded against bank conflicts between neighbouring rows.
    __shared__ float shared[MAX_WAVES][SIDE][SIDE + 4];
    const unsigned int first_column = blockIdx.x * SIDE;
    const unsigned int wave = candle_uniform(threadIdx.x / WAVE), waves = blockDim.x / WAVE;
#pragma unroll 1
    for (unsigned int batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        const T *rows = a + batch * a_batch, *columns = b + batch * b_batch;
        Tile<float, LANES> sums;
        // Skips the second half of the rows if it is empty.
        if (LANES || COLUMN_PARTS == 1 || m > SIDE / COLUMN_PARTS) {
            sums = ThinProduct<T, COLUMN_PARTS>(rows, columns, first_column, m, n, k, a_row, b_column).sums(wave, waves);
        } else {
            sums = ThinProduct<T, 1>(rows, columns, first_column, m, n, k, a_row, b_column).sums(wave, waves);
        }
#pragma unroll
        for (unsigned int r = 0; r < LaneLayout<Side::ROWS, LANES>::COUNT; ++r) {
#pragma unroll
            for (unsigned int x = 0; x < LaneLayout<Side::COLUMNS, LANES>::COUNT; ++x) {
                shared[wave][LaneLayout<Side::COLUMNS, LANES>::at(x)][LaneLayout<Side::ROWS, LANES>::at(r)] = sums.values[r][x];
            }
        }
        __syncthreads();
        for (unsigned int i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x) {
            const unsigned int row = i / SIDE, column = i % SIDE;
            if (row < m && first_column + column < n) {
                float sum = 0;
#pragma unroll
                for (unsigned int w = 0; w < MAX_WAVES; ++w) {
                    sum += w < waves ? shared[w][row][column] : 0;
                }
                c[batch * c_batch + row * c_row + first_column + column] = (T)sum;
            }
        }
        // The next product reuses the LDS.
        __syncthreads();
    }
}
