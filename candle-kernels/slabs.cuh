// Keys and values of a workgroup: rows in memory, slabs in LDS, and the factors of tiles that lanes read there.
#pragma once
#include "tiles.cuh"

// Queries are the columns of tiles of scores where a lane's scores are then its part of the next product's factor; with
// mma, and where lanes multiply, they are the rows.
#if defined(TILES_BY_MMA)
template <typename T> constexpr Side QUERIES = Side::ROWS;
#else
template <typename T> constexpr Side QUERIES = BY_LANES<T> ? Side::ROWS : Side::COLUMNS;
#endif
template <typename T> constexpr Side OTHERS = QUERIES<T> == Side::ROWS ? Side::COLUMNS : Side::ROWS;
template <typename T> constexpr unsigned int HELD_QUERIES = Held<QUERIES<T>, BY_LANES<T>>::COUNT;
template <typename T> constexpr unsigned int HELD_OTHERS = Held<OTHERS<T>, BY_LANES<T>>::COUNT;
template <typename T> using Queries = Factor<T, STEP<T>, QUERIES<T>>;
template <typename T> using Others = Factor<T, STEP<T>, OTHERS<T>>;
template <typename T> using Scores = Tile<float, BY_LANES<T>>;

// Neighbouring others that a lane has.
#if defined(TILES_BY_MMA)
template <typename T> constexpr unsigned int RUN = BY_LANES<T> ? 1 : 2;
#else
template <typename T> constexpr unsigned int RUN = BY_LANES<T> ? 1 : HELD_OTHERS<T>;
#endif

// The element of a lane's query i and other j.
template <typename T>
__device__ __forceinline__ float &element(Scores<T> &tile, unsigned int i, unsigned int j) {
    return QUERIES<T> == Side::ROWS ? tile.of[i][j] : tile.of[j][i];
}
template <typename T>
__device__ __forceinline__ unsigned int query_line(unsigned int i) { return Held<QUERIES<T>, BY_LANES<T>>::at(i); }
template <typename T>
__device__ __forceinline__ unsigned int other_line(unsigned int j) { return Held<OTHERS<T>, BY_LANES<T>>::at(j); }
template <typename T>
__device__ __forceinline__ void accumulate(Scores<T> &tile, const Queries<T> &queries, const Others<T> &others) {
    if constexpr (QUERIES<T> == Side::ROWS) {
        multiply(tile, queries, others);
    } else {
        multiply(tile, others, queries);
    }
}

// Lines of DEPTH elements in LDS. Where the granules of a line lie depends on the line, so that a wave meets each bank once:
// at one place along k of neighbouring lines, and at one line along k. The place of the sum of two pairs (line, k) without
// common bits is the combination of both places.
template <typename T, unsigned int LINES, unsigned int DEPTH>
struct alignas(16) Slab {
#if defined(TILES_BY_MFMA)
    static constexpr unsigned int GRANULE = sizeof(T) == 2 ? 4 : 16 / sizeof(T);
#else
    static constexpr unsigned int GRANULE = 16 / sizeof(T);
#endif
    // Granules that lie in different banks, and those of a line.
    static constexpr unsigned int APART = 128 / sizeof(T) / GRANULE, GRANULES = DEPTH / GRANULE;
    static_assert(GRANULES % APART == 0 || APART % GRANULES == 0, "granules change places within a line");
    // Lines that lie in different banks change places, too.
    static constexpr unsigned int BESIDE = GRANULES < APART ? APART / GRANULES : 1;
    T of[LINES * DEPTH];

    __device__ __forceinline__ static constexpr unsigned int turn(unsigned int line) {
        const unsigned int all = APART == 16 ? (line ^ line / 16) % 16
                                             : (line ^ line / 16) % 4 + (line / 4 ^ line / 8) % 2 * 4;
        return all / BESIDE;
    }
    // In bytes, as all places.
    __device__ __forceinline__ static constexpr unsigned int place(unsigned int line, unsigned int k) {
        return ((line ^ line / 16 % BESIDE) * DEPTH + (k / GRANULE ^ turn(line)) * GRANULE + k % GRANULE) * sizeof(T);
    }
    // What is combined with a place to come so many lines and elements along k further, and what is then added.
    __device__ __forceinline__ static constexpr unsigned int combined_with(unsigned int lines, unsigned int k) {
        return ((lines ^ lines / 16) % BESIDE * DEPTH + (k / GRANULE ^ turn(lines)) * GRANULE + k % GRANULE) * sizeof(T);
    }
    __device__ __forceinline__ static constexpr unsigned int added(unsigned int lines) {
        return lines / BESIDE * BESIDE * (DEPTH * sizeof(T));
    }
    // From `place` on so many lines and elements along k, which are constants.
    __device__ __forceinline__ const T *at(unsigned int place, unsigned int lines = 0, unsigned int k = 0) const {
        return (const T *)((const char *)of + (place ^ combined_with(lines, k)) + added(lines));
    }
    __device__ __forceinline__ T *at(unsigned int place, unsigned int lines = 0, unsigned int k = 0) {
        return const_cast<T *>(static_cast<const Slab *>(this)->at(place, lines, k));
    }
    // The place where a lane reads factors, and the factor of 16 lines, a step along k.
    template <typename F>
    __device__ __forceinline__ static unsigned int lane_place() { return place(F::lane_line(), F::lane_k()); }
    template <typename F>
    __device__ __forceinline__ F read(unsigned int lane, unsigned int first, unsigned int k) const {
        return F::from([&](unsigned int line, unsigned int more) INLINE { return at(lane, first + line, k + more); });
    }
    // 16 bytes of a line: one granule, or two whose places differ in their last bit, which says which one comes first.
    __device__ __forceinline__ void write(unsigned int place, unsigned int lines, unsigned int k, Pack<T> pack) {
        if constexpr (GRANULE * sizeof(T) == 16) {
            *(Pack<T> *)at(place, lines, k) = pack;
        } else {
            constexpr unsigned int BYTES = GRANULE * sizeof(T);
            const unsigned int first = place ^ combined_with(lines, k);
            const uint4 words = candle_bits<uint4>(pack);
            const bool turned = (first & BYTES) != 0;
            char *const to = (char *)of + (first & ~BYTES) + added(lines);
            *(uint4 *)to = turned ? uint4{words.z, words.w, words.x, words.y} : words;
        }
    }
};

// Rows of keys or values: dense, or in pages that a table names. 64 rows are less than 4 GiB.
template <typename T>
struct KeyRows {
    const T *first;
    unsigned int stride, page_stride;
    const uint32_t *table;
    unsigned int page, pages;

    // What lies at a column of the row that comes `more` rows after row `from`, which all lanes have the same.
    template <bool PAGED>
    __device__ __forceinline__ const T *at(unsigned int from, unsigned int more, unsigned int column) const {
        if (!PAGED) {
            return first + (size_t)from * stride + (more * stride + column);
        }
        const unsigned int key = from + more, which = key / page;
        // One that does not exist was reported.
        const unsigned int number = min(table[which], pages - 1);
        return first + (size_t)number * page_stride + ((size_t)(key - which * page) * stride + column);
    }
};

// Whether values are turned in LDS, so that keys lie beside each other: matrix units of NVIDIA's read them turned.
#if defined(TILES_BY_MMA)
template <typename T> constexpr bool TURNED = BY_LANES<T>;
#else
template <typename T> constexpr bool TURNED = true;
#endif

// Rows on their way from memory to LDS, by TEAM threads: COUNT keys from the first on, with zeros from column `width` on. After
// `end`, which is after the first, the last key is there again: nothing weighs it.
template <typename T, unsigned int COUNT, unsigned int WIDTH, unsigned int TEAM, bool TURN>
struct Staged {
    static constexpr unsigned int N = 16 / sizeof(T);
    // Keys whose packs a thread turns together.
    static constexpr unsigned int KEYS = TURN ? 4 : 1;
    static constexpr unsigned int CHUNKS = WIDTH / N, ALL = COUNT / KEYS * CHUNKS, UNITS = (ALL + TEAM - 1) / TEAM;
    typedef Slab<T, TURN ? WIDTH : COUNT, TURN ? COUNT : WIDTH> To;
#if defined(TILES_BY_MMA)
    static constexpr bool DIRECT = !TURN;
#else
    static constexpr bool DIRECT = false;
#endif
    // The bit of a thread that changes places with bit 3, if any: a step's 16 lanes then store fours of keys into different
    // banks. These are halves of a granule, or granules that the turns of a width of 64 leave apart.
    static constexpr unsigned int EXCHANGED = !TURN                                                            ? 0
                                              : To::GRANULE == 2 * KEYS && CHUNKS > 8 && TEAM >= 2 * CHUNKS ? CHUNKS
                                              : To::GRANULE == KEYS && CHUNKS == 8 && To::GRANULES == 8     ? 16
                                                                                                             : 0;
    // Units that registers hold.
    static constexpr unsigned int HELD = DIRECT || UNITS * KEYS <= (WIDTH * sizeof(T) > 1024 ? 4 : 8) ? UNITS : 4 / KEYS;
    Pack<T> packs[DIRECT ? 1 : HELD][KEYS];

    // A thread's units from the first on: `use(key, column, more keys, more columns, i)`, the last three constants.
    template <unsigned int FIRST, typename F>
    __device__ __forceinline__ static void units(unsigned int thread, F use) {
        if constexpr (EXCHANGED != 0) {
            thread ^= (thread / 8 ^ thread / EXCHANGED) % 2 * (8 | EXCHANGED);
        }
        thread = anew(thread);
        // In a register of each lane also where all have the same.
        const unsigned int key = anew(thread / CHUNKS * KEYS);
#pragma unroll
        for (unsigned int i = 0; i < HELD && FIRST + i < UNITS; ++i) {
            const unsigned int more = (FIRST + i) * TEAM;
            if (ALL % TEAM != 0 && thread + more >= ALL) {
                break;
            }
            use(key, thread % CHUNKS * N, more / CHUNKS * KEYS, more % CHUNKS * N, i);
        }
    }

    template <unsigned int FIRST, bool PAGED>
    __device__ __forceinline__ void read(To &to, const KeyRows<T> &rows, unsigned int first, unsigned int last,
                                         unsigned int width, unsigned int thread) {
        units<FIRST>(thread, [&](unsigned int key, unsigned int column, unsigned int keys, unsigned int columns, unsigned int i) INLINE {
            const bool inside = column + columns < width;
#pragma unroll
            for (unsigned int j = 0; j < KEYS; ++j) {
                const unsigned int more = min(key + keys + j, last - first);
                if constexpr (DIRECT) {
#if defined(TILES_BY_MMA)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                                     shared_address(to.at(To::place(key, column), keys, columns))),
                                 "l"(rows.template at<PAGED>(first, more, inside ? column + columns : 0)),
                                 "r"(inside ? 16 : 0)
                                 : "memory");
#endif
                } else {
                    packs[i][j] = inside ? Pack<T>::read(rows.template at<PAGED>(first, more, column + columns)) : Pack<T>{};
                }
            }
        });
    }

    template <unsigned int FIRST = 0>
    __device__ __forceinline__ void start(To &to, const KeyRows<T> &rows, unsigned int first, unsigned int end,
                                          unsigned int width, unsigned int thread) {
        if (rows.table == nullptr) {
            read<FIRST, false>(to, rows, first, end - 1, width, thread);
        } else {
            read<FIRST, true>(to, rows, first, end - 1, width, thread);
        }
#if defined(TILES_BY_MMA)
        if constexpr (DIRECT) {
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
#endif
    }

    // With what `start` was given; what was more than registers hold follows.
    template <unsigned int FIRST = 0>
    __device__ __forceinline__ void finish(To &to, const KeyRows<T> &rows, unsigned int first, unsigned int end,
                                           unsigned int width, unsigned int thread) {
#if defined(TILES_BY_MMA)
        if constexpr (DIRECT) {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
            return;
        }
#endif
        units<FIRST>(thread, [&](unsigned int key, unsigned int column, unsigned int keys, unsigned int columns, unsigned int i) INLINE {
            if constexpr (TURN) {
                const unsigned int place = To::place(column, key);
                struct alignas(4 * sizeof(T)) Four { T of[4]; };
#pragma unroll
                for (unsigned int c = 0; c < N; ++c) {
                    Four four;
#pragma unroll
                    for (unsigned int j = 0; j < KEYS; ++j) {
                        four.of[j] = packs[i][j][c];
                    }
                    *(Four *)to.at(place, columns + c, keys) = four;
                }
            } else {
                to.write(To::place(key, column), keys, columns, packs[i][0]);
            }
        });
        if constexpr (FIRST + HELD < UNITS) {
            asm volatile("" ::: "memory");
            start<FIRST + HELD>(to, rows, first, end, width, thread);
            finish<FIRST + HELD>(to, rows, first, end, width, thread);
        }
    }
};

// Where lanes multiply, weights change lanes through LDS that a wave has for itself.
template <typename T, bool = BY_LANES<T>> struct Exchange {};
template <typename T> struct Exchange<T, true> { Slab<T, TILE_SIDE, TILE_SIDE> slab; };

// The tile as the queries' factors of a product along its other side, rounded to T.
template <typename T>
struct Weights {
    static constexpr unsigned int STEPS = TILE_SIDE / STEP<T>;
    Queries<T> of[STEPS];

    __device__ __forceinline__ Weights(Scores<T> &tile, Exchange<T> &exchange) {
        if constexpr (BY_LANES<T>) {
            typedef Slab<T, TILE_SIDE, TILE_SIDE> Own;
            __syncwarp();
#pragma unroll
            for (unsigned int e = 0; e < HELD_QUERIES<T> * HELD_OTHERS<T>; ++e) {
                const unsigned int i = e / HELD_OTHERS<T>, j = e % HELD_OTHERS<T>;
                *exchange.slab.at(Own::place(query_line<T>(i), other_line<T>(j))) = static_cast<T>(element<T>(tile, i, j));
            }
            __syncwarp();
#pragma unroll
            for (unsigned int step = 0; step < STEPS; ++step) {
                of[step] = exchange.slab.template read<Queries<T>>(Own::template lane_place<Queries<T>>(), 0, step * STEP<T>);
            }
        } else {
#if !defined(TILES_BY_LANES)
            of[0] = as_factor<T, QUERIES<T>>(tile);
#endif
        }
    }
};

// A slab whose lines are values' columns, or keys where matrix units read them turned: the place where a lane reads, and the
// factor of 16 columns, a step along the keys.
template <typename T, typename S>
__device__ __forceinline__ unsigned int lane_of_columns() {
#if defined(TILES_BY_MMA)
    if constexpr (!TURNED<T>) {
        return S::place(Others<T>::turned_line(), Others<T>::turned_k());
    }
#endif
    return S::template lane_place<Others<T>>();
}
template <typename T, typename S>
__device__ __forceinline__ Others<T> read_columns(const S &slab, unsigned int lane, unsigned int column, unsigned int key) {
#if defined(TILES_BY_MMA)
    if constexpr (!TURNED<T>) {
        return Others<T>::turned(slab.at(lane, key, column));
    }
#endif
    return slab.template read<Others<T>>(lane, column, key);
}
