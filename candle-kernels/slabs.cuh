// Tiles of keys and values: loading them from memory, their layout in LDS, and reading fragments from there.
#pragma once
#include "encoded.cuh"
#include "index.cuh"
#include "warpgroup.cuh"

// Queries are the columns of a tile of scores if that makes a lane's scores its part of the next product's fragment.
// With NVIDIA's mma, and where lanes multiply, they are the rows.
#if defined(TILES_BY_MMA)
template <typename T> constexpr Side QUERY_SIDE = Side::ROWS;
#else
template <typename T> constexpr Side QUERY_SIDE = BY_LANES<T> ? Side::ROWS : Side::COLUMNS;
#endif
template <typename T> constexpr Side KV_SIDE = QUERY_SIDE<T> == Side::ROWS ? Side::COLUMNS : Side::ROWS;
template <typename T> constexpr unsigned int QUERIES_PER_LANE = LaneLayout<QUERY_SIDE<T>, BY_LANES<T>>::COUNT;
template <typename T> constexpr unsigned int KEYS_PER_LANE = LaneLayout<KV_SIDE<T>, BY_LANES<T>>::COUNT;
template <typename T> using QueryFragment = Fragment<T, STEP<T>, QUERY_SIDE<T>>;
template <typename T> using KvFragment = Fragment<T, STEP<T>, KV_SIDE<T>>;
template <typename T> using Scores = Tile<float, BY_LANES<T>>;

// Number of consecutive keys (or value columns) of a lane.
#if defined(TILES_BY_MMA)
template <typename T> constexpr unsigned int RUN = BY_LANES<T> ? 1 : 2;
#else
template <typename T> constexpr unsigned int RUN = BY_LANES<T> ? 1 : KEYS_PER_LANE<T>;
#endif

// Returns the element of a lane's query i and key j.
template <typename T>
__device__ __forceinline__ float &element(Scores<T> &tile, unsigned int i, unsigned int j) {
    return QUERY_SIDE<T> == Side::ROWS ? tile.values[i][j] : tile.values[j][i];
}
template <typename T>
__device__ __forceinline__ unsigned int lane_query(unsigned int i) { return LaneLayout<QUERY_SIDE<T>, BY_LANES<T>>::at(i); }
template <typename T>
__device__ __forceinline__ unsigned int lane_key(unsigned int j) { return LaneLayout<KV_SIDE<T>, BY_LANES<T>>::at(j); }
template <typename T>
__device__ __forceinline__ void accumulate(Scores<T> &tile, const QueryFragment<T> &queries, const KvFragment<T> &others) {
    if constexpr (QUERY_SIDE<T> == Side::ROWS) {
        multiply(tile, queries, others);
    } else {
        multiply(tile, others, queries);
    }
}

// Lines of DEPTH elements in LDS, with swizzled granules: a wave accesses each bank once, whether it reads one k of
// neighbouring lines or along one line. The offset of the sum of two pairs (line, k) without common bits is the XOR
// of both offsets. IN_PANELS: the lines are cut into panels of 128 bytes, as products of warpgroups read them.
template <typename T, unsigned int LINES, unsigned int DEPTH, bool IN_PANELS = false>
struct alignas(IN_PANELS ? PANEL_BYTES * PANEL_ROWS : 16) SharedTile {
    static constexpr unsigned int PANEL = PANEL_BYTES / sizeof(T);
#if defined(TILES_BY_MFMA)
    static constexpr unsigned int GRANULE = sizeof(T) == 2 ? 4 : 16 / sizeof(T);
#else
    static constexpr unsigned int GRANULE = 16 / sizeof(T);
#endif
    // Number of granules that cover all banks, and granules of a line.
    static constexpr unsigned int GRANULES_PER_BANK_ROW = 128 / sizeof(T) / GRANULE, GRANULES = DEPTH / GRANULE;
    static_assert(GRANULES % GRANULES_PER_BANK_ROW == 0 || GRANULES_PER_BANK_ROW % GRANULES == 0, "granules change places within a line");
    // Number of lines that cover all banks; these lines are swizzled, too.
    static constexpr unsigned int LINES_PER_BANK_ROW = GRANULES < GRANULES_PER_BANK_ROW ? GRANULES_PER_BANK_ROW / GRANULES : 1;
    T values[LINES * DEPTH];

    __device__ __forceinline__ static constexpr unsigned int swizzle(unsigned int line) {
        if (IN_PANELS) {
            return line % PANEL_ROWS;
        }
        const unsigned int all = GRANULES_PER_BANK_ROW == 16 ? (line ^ line / 16) % 16
                                             : (line ^ line / 16) % 4 + (line / 4 ^ line / 8) % 2 * 4;
        return all / LINES_PER_BANK_ROW;
    }
    // Returns the offset of an element, in bytes like all offsets here.
    __device__ __forceinline__ static constexpr unsigned int place(unsigned int line, unsigned int k) {
        if (IN_PANELS) {
            return xor_offset(line, k) + line_offset(line, k);
        }
        return ((line ^ line / 16 % LINES_PER_BANK_ROW) * DEPTH + (k / GRANULE ^ swizzle(line)) * GRANULE + k % GRANULE) * sizeof(T);
    }
    // Returns the value to XOR with an offset to advance by `lines` and `k`, and the value to add afterwards.
    __device__ __forceinline__ static constexpr unsigned int xor_offset(unsigned int lines, unsigned int k) {
        if (IN_PANELS) {
            return ((k / GRANULE ^ swizzle(lines)) * GRANULE + k % GRANULE) % PANEL * sizeof(T);
        }
        return ((lines ^ lines / 16) % LINES_PER_BANK_ROW * DEPTH + (k / GRANULE ^ swizzle(lines)) * GRANULE + k % GRANULE) * sizeof(T);
    }
    __device__ __forceinline__ static constexpr unsigned int line_offset(unsigned int lines, unsigned int k) {
        if (IN_PANELS) {
            return (k / PANEL * LINES + lines) * PANEL_BYTES;
        }
        return lines / LINES_PER_BANK_ROW * LINES_PER_BANK_ROW * (DEPTH * sizeof(T));
    }
    // Returns the address `lines` and `k` beyond `place`; both are compile-time constants.
    __device__ __forceinline__ const T *at(unsigned int place, unsigned int lines = 0, unsigned int k = 0) const {
        return (const T *)((const char *)values + (place ^ xor_offset(lines, k)) + line_offset(lines, k));
    }
    __device__ __forceinline__ T *at(unsigned int place, unsigned int lines = 0, unsigned int k = 0) {
        return const_cast<T *>(static_cast<const SharedTile *>(this)->at(place, lines, k));
    }
#if defined(TILES_BY_WGMMA)
    // Returns the position of a line, for operand().
    __device__ __forceinline__ unsigned int position(unsigned int line = 0) const {
        return operand_position((const char *)values + line * PANEL_BYTES);
    }
    // Returns the operand that starts at a line behind the position and at k, both multiples of a fragment's 16. It ends
    // within a panel.
    __device__ __forceinline__ static uint64_t operand(unsigned int position, unsigned int line, unsigned int k) {
        static_assert(IN_PANELS, "products of warpgroups read panels");
        return operand_descriptor(position, line_offset(line, k) + k % PANEL * sizeof(T));
    }
#endif
    // Returns the offset at which a lane reads fragments, and the fragment of 16 lines and one step along k.
    template <typename F>
    __device__ __forceinline__ static unsigned int lane_place() { return place(F::lane_line(), F::lane_k()); }
    template <typename F>
    __device__ __forceinline__ F read(unsigned int lane, unsigned int first, unsigned int k) const {
        return F::from([&](unsigned int line, unsigned int more) INLINE { return at(lane, first + line, k + more); });
    }
    // Writes 16 bytes of a line: one granule, or two whose order depends on the swizzle.
    __device__ __forceinline__ void write(unsigned int place, unsigned int lines, unsigned int k, Pack<T> pack) {
        if constexpr (GRANULE * sizeof(T) == 16) {
            *(Pack<T> *)at(place, lines, k) = pack;
        } else {
            constexpr unsigned int BYTES = GRANULE * sizeof(T);
            const unsigned int first = place ^ xor_offset(lines, k);
            const uint4 words = candle_bits<uint4>(pack);
            const bool read_transposed = (first & BYTES) != 0;
            char *const to = (char *)values + (first & ~BYTES) + line_offset(lines, k);
            *(uint4 *)to = read_transposed ? uint4{words.z, words.w, words.x, words.y} : words;
        }
    }
};

// Rows of keys or values, dense or in the pages of a page table. 64 rows must be smaller than 4 GiB.
template <typename S>
struct KeyRows {
    const S *first;
    unsigned int stride, page_stride;
    const uint32_t *table;
    // Number of rows of a page, and number of pages.
    Divisor page = Divisor(1);
    unsigned int pages;
    RowScales<S> scales = {};

    // Returns the address of a column of row `from` + `more`; `from` is uniform over the wave.
    template <bool PAGED>
    __device__ __forceinline__ const S *at(unsigned int from, unsigned int more, unsigned int column) const {
        if (!PAGED) {
            return first + (size_t)from * stride + (more * stride + column);
        }
        // page.quotient(key) would take more scalar registers, of which gfx9 has too few.
        const unsigned int key = from + more, which = key / page.by;
        // A page number out of range has been reported already.
        const unsigned int number = min(table[which], pages - 1);
        return first + (size_t)number * page_stride + ((size_t)(key - which * page.by) * stride + column);
    }
    // Reads a pack of a row, encoded or not.
    template <bool PAGED>
    __device__ __forceinline__ auto read(unsigned int from, unsigned int more, unsigned int column) const {
        if constexpr (IS_ENCODED<S>) {
            const unsigned int key = from + more, which = key / page.by, row = key - which * page.by;
            const unsigned int number = min(table[which], pages - 1);
            const S *const bytes = first + (size_t)number * page_stride + ((size_t)row * stride + column);
            return EncodedPack{EncodedBytes::read((const uint8_t *)bytes), scales.pair((size_t)number * page.by + row)};
        } else {
            return Pack<S>::read(at<PAGED>(from, more, column));
        }
    }
};

// True if values are transposed in LDS, so that keys are contiguous. NVIDIA's ldmatrix transposes while reading.
#if defined(TILES_BY_MMA)
template <typename T> constexpr bool VALUES_TRANSPOSED = BY_LANES<T>;
#else
template <typename T> constexpr bool VALUES_TRANSPOSED = true;
#endif

// Copy of COUNT rows from memory to LDS by LOAD_GROUP threads, split into start() and finish() so that loads overlap
// with products. Columns from `width` on are zero. Rows from `end` on repeat the last row.
template <typename T, unsigned int COUNT, unsigned int WIDTH, unsigned int LOAD_GROUP, bool TRANSPOSE, bool IN_PANELS = false, typename S = T>
struct StagedTile {
    typedef KeyRows<S> Rows;
    static constexpr unsigned int N = 16 / sizeof(T);
    // Number of keys whose packs a thread transposes together.
    static constexpr unsigned int KEYS = TRANSPOSE ? 4 : 1;
    static constexpr unsigned int CHUNKS = WIDTH / N, ALL = COUNT / KEYS * CHUNKS, UNITS = (ALL + LOAD_GROUP - 1) / LOAD_GROUP;
    typedef SharedTile<T, TRANSPOSE ? WIDTH : COUNT, TRANSPOSE ? COUNT : WIDTH, IN_PANELS> To;
#if defined(TILES_BY_MMA)
    static constexpr bool ASYNC_COPY = !TRANSPOSE && !IS_ENCODED<S>;
#else
    static constexpr bool ASYNC_COPY = false;
#endif
    // Bit of the thread index that is swapped with bit 3, or 0. It makes the 16 lanes of a step store groups of four
    // keys into different banks.
    static constexpr unsigned int SWAPPED_BIT = !TRANSPOSE                                                            ? 0
                                              : To::GRANULE == 2 * KEYS && CHUNKS > 8 && LOAD_GROUP >= 2 * CHUNKS ? CHUNKS
                                              : To::GRANULE == KEYS && CHUNKS == 8 && To::GRANULES == 8     ? 16
                                                                                                             : 0;
    // Number of units that are held in registers at a time.
    static constexpr unsigned int UNITS_IN_REGISTERS = ASYNC_COPY || UNITS * KEYS <= (WIDTH * sizeof(T) > 1024 ? CANDLE_FEW_REGISTERS(4, 2) : 8) ? UNITS : CANDLE_FEW_REGISTERS(4, (KEYS > 2 ? 4 : 2)) / KEYS;
    // Packs of S as they were read.
    typedef decltype(Rows().template read<true>(0, 0, 0)) Read;
    Read packs[ASYNC_COPY ? 1 : UNITS_IN_REGISTERS][KEYS];

    // Calls `use(key, column, more_keys, more_columns, i)` for each unit of a thread; the last three are constants.
    template <unsigned int FIRST, typename F>
    __device__ __forceinline__ static void units(unsigned int thread, F use) {
        if constexpr (SWAPPED_BIT != 0) {
            thread ^= (thread / 8 ^ thread / SWAPPED_BIT) % 2 * (8 | SWAPPED_BIT);
        }
        thread = opaque(thread);
        // In a vector register even if it is uniform.
        const unsigned int key = opaque(thread / CHUNKS * KEYS);
#pragma unroll
        for (unsigned int i = 0; i < UNITS_IN_REGISTERS && FIRST + i < UNITS; ++i) {
            const unsigned int more = (FIRST + i) * LOAD_GROUP;
            if (ALL % LOAD_GROUP != 0 && thread + more >= ALL) {
                break;
            }
            use(key, thread % CHUNKS * N, more / CHUNKS * KEYS, more % CHUNKS * N, i);
        }
    }

    template <unsigned int FIRST, bool PAGED>
    __device__ __forceinline__ void read(To &to, const Rows &rows, unsigned int first, unsigned int last,
                                         unsigned int width, unsigned int thread) {
        units<FIRST>(thread, [&](unsigned int key, unsigned int column, unsigned int keys, unsigned int columns, unsigned int i) INLINE {
            const bool inside = column + columns < width;
#pragma unroll
            for (unsigned int j = 0; j < KEYS; ++j) {
                const unsigned int more = min(key + keys + j, last - first);
                if constexpr (ASYNC_COPY) {
#if defined(TILES_BY_MMA)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                                     shared_address(to.at(To::place(key, column), keys, columns))),
                                 "l"(rows.template at<PAGED>(first, more, inside ? column + columns : 0)),
                                 "r"(inside ? 16 : 0)
                                 : "memory");
#endif
                } else {
                    packs[i][j] = inside ? rows.template read<PAGED>(first, more, column + columns) : Read{};
                }
            }
        });
    }

    template <unsigned int FIRST = 0>
    __device__ __forceinline__ void start(To &to, const Rows &rows, unsigned int first, unsigned int end,
                                          unsigned int width, unsigned int thread) {
        if (!IS_ENCODED<S> && rows.table == nullptr) {
            read<FIRST, false>(to, rows, first, end - 1, width, thread);
        } else {
            read<FIRST, true>(to, rows, first, end - 1, width, thread);
        }
#if defined(TILES_BY_MMA)
        if constexpr (ASYNC_COPY) {
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
#endif
    }

    // Stores the units in registers.
    template <unsigned int FIRST>
    __device__ __forceinline__ void store(To &to, unsigned int thread) {
        units<FIRST>(thread, [&](unsigned int key, unsigned int column, unsigned int keys, unsigned int columns, unsigned int i) INLINE {
            if constexpr (TRANSPOSE) {
                const unsigned int place = To::place(column, key);
                struct alignas(4 * sizeof(T)) Four { T values[4]; };
#pragma unroll
                for (unsigned int c = 0; c < N; ++c) {
                    Four four;
#pragma unroll
                    for (unsigned int j = 0; j < KEYS; ++j) {
                        four.values[j] = packs[i][j][c];
                    }
                    *(Four *)to.at(place, columns + c, keys) = four;
                }
            } else {
                to.write(To::place(key, column), keys, columns, packs[i][0]);
            }
        });
    }
    // Like store(), decodes them by the encoding E.
    template <unsigned int FIRST, typename E>
    __device__ __forceinline__ void store_decoded(To &to, const Rows &rows, unsigned int thread) {
        units<FIRST>(thread, [&](unsigned int key, unsigned int column, unsigned int keys, unsigned int columns, unsigned int i) INLINE {
            float scale[KEYS];
#pragma unroll
            for (unsigned int j = 0; j < KEYS; ++j) {
                scale[j] = packs[i][j].template scale<E>(rows.scales.is_value);
            }
            if constexpr (TRANSPOSE) {
                const unsigned int place = To::place(column, key);
#pragma unroll
                for (unsigned int c = 0; c < N; c += 2) {
                    uint32_t pair[KEYS];
#pragma unroll
                    for (unsigned int j = 0; j < KEYS; ++j) {
                        pair[j] = packs[i][j].template pair<T, E>(c, scale[j]);
                    }
                    const auto low = [&](unsigned int j) INLINE { return (pair[j] & 0xffff) | pair[j + 1] << 16; };
                    const auto high = [&](unsigned int j) INLINE { return pair[j] >> 16 | (pair[j + 1] & 0xffff0000); };
                    *(uint2 *)to.at(place, columns + c, keys) = uint2{low(0), low(2)};
                    *(uint2 *)to.at(place, columns + c + 1, keys) = uint2{high(0), high(2)};
                    // Keeps the compiler from decoding more than registers hold.
                    asm volatile("" ::: "memory");
                    packs[i][0].bytes.make_opaque();
                }
            } else {
                const auto pair = [&](unsigned int c) INLINE { return packs[i][0].template pair<T, E>(c, scale[0]); };
                to.write(To::place(key, column), keys, columns, candle_bits<Pack<T>>(uint4{pair(0), pair(2), pair(4), pair(6)}));
                asm volatile("" ::: "memory");
            }
        });
    }

    // Takes the same arguments as start(); loads and stores the units that did not fit into registers as well.
    template <unsigned int FIRST = 0>
    __device__ __forceinline__ void finish(To &to, const Rows &rows, unsigned int first, unsigned int end,
                                           unsigned int width, unsigned int thread) {
#if defined(TILES_BY_MMA)
        if constexpr (ASYNC_COPY) {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
#if defined(TILES_BY_WGMMA)
            if (IN_PANELS) {
                publish_operands();
            }
#endif
            return;
        }
#endif
        if constexpr (IS_ENCODED<S>) {
            if (rows.scales.is_fp8) {
                store_decoded<FIRST, Fp8>(to, rows, thread);
            } else {
                store_decoded<FIRST, Int8>(to, rows, thread);
            }
        } else {
            store<FIRST>(to, thread);
        }
        if constexpr (FIRST + UNITS_IN_REGISTERS < UNITS) {
            asm volatile("" ::: "memory");
            start<FIRST + UNITS_IN_REGISTERS>(to, rows, first, end, width, thread);
            finish<FIRST + UNITS_IN_REGISTERS>(to, rows, first, end, width, thread);
        }
    }
};

// LDS of one wave for exchanging weights between lanes; empty if the matrix units make that unnecessary.
template <typename T, bool = BY_LANES<T>> struct LaneExchange {};
template <typename T> struct LaneExchange<T, true> { SharedTile<T, TILE_SIDE, TILE_SIDE> shared_tile; };

// A tile of weights as query fragments of the product with values, rounded to T.
template <typename T>
struct Weights {
    static constexpr unsigned int STEPS = TILE_SIDE / STEP<T>;
    QueryFragment<T> values[STEPS];

    __device__ __forceinline__ Weights(Scores<T> &tile, LaneExchange<T> &exchange) {
        if constexpr (BY_LANES<T>) {
            typedef SharedTile<T, TILE_SIDE, TILE_SIDE> Own;
            __syncwarp();
#pragma unroll
            for (unsigned int e = 0; e < QUERIES_PER_LANE<T> * KEYS_PER_LANE<T>; ++e) {
                const unsigned int i = e / KEYS_PER_LANE<T>, j = e % KEYS_PER_LANE<T>;
                *exchange.shared_tile.at(Own::place(lane_query<T>(i), lane_key<T>(j))) = static_cast<T>(element<T>(tile, i, j));
            }
            __syncwarp();
#pragma unroll
            for (unsigned int step = 0; step < STEPS; ++step) {
                values[step] = exchange.shared_tile.template read<QueryFragment<T>>(
                    Own::template lane_place<QueryFragment<T>>(), 0, step * STEP<T>);
            }
        } else {
#if !defined(TILES_BY_LANES)
            values[0] = as_fragment<T, QUERY_SIDE<T>>(tile);
#endif
        }
    }
};

// Reading values from LDS, stored transposed or not: the offset at which a lane reads, and the fragment of 16
// columns and one step along the keys.
template <typename T, typename S>
__device__ __forceinline__ unsigned int lane_of_columns() {
#if defined(TILES_BY_MMA)
    if constexpr (!VALUES_TRANSPOSED<T>) {
        return S::place(KvFragment<T>::transposed_line(), KvFragment<T>::transposed_k());
    }
#endif
    return S::template lane_place<KvFragment<T>>();
}
template <typename T, typename S>
__device__ __forceinline__ KvFragment<T> read_columns(const S &shared_tile, unsigned int lane, unsigned int column, unsigned int key) {
#if defined(TILES_BY_MMA)
    if constexpr (!VALUES_TRANSPOSED<T>) {
        return KvFragment<T>::read_transposed(shared_tile.at(lane, key, column));
    }
#endif
    return shared_tile.template read<KvFragment<T>>(lane, column, key);
}
