// Tiled matrix products C = A B, accumulated in f32 and rounded once, and convolutions as implicit GEMM, which read
// B directly from the input. A workgroup computes SIDE x SIDE elements of C. LDS holds 64 bytes along k of each line
// of A and B; the next step is prefetched into registers during the products (double buffering).
#include "slabs.cuh"

template <typename T, unsigned int SIDE_>
struct Plan {
    static constexpr unsigned int SIDE = SIDE_;
    // Per step: elements of a line along k, elements of a pack, packs of a line, and packs loaded per thread
    // (UNITS).
    static constexpr unsigned int DEPTH = 64 / sizeof(T), N = 16 / sizeof(T), PACKS = DEPTH / N;
    static constexpr unsigned int UNITS = SIDE * PACKS / CANDLE_BLOCK;
    // The waves divide the columns into halves, and the rows.
    static constexpr unsigned int ROW_WAVES = CANDLE_BLOCK / WAVE / 2;
    static constexpr unsigned int ROWS = SIDE / ROW_WAVES, COLUMNS = SIDE / 2;
    typedef SharedTile<T, SIDE, DEPTH> Lines;
    struct Lds { Lines rows, columns; };
    typedef Scores<T> Sums[ROWS / TILE_SIDE][COLUMNS / TILE_SIDE];

    // Lines and k of a thread's units. "along": neighbouring threads load packs of one line, for operands contiguous
    // along k. "across": they load packs of neighbouring lines, and k is uniform over the wave.
    __device__ __forceinline__ static unsigned int line_along(unsigned int i) {
        return threadIdx.x / PACKS + i * (CANDLE_BLOCK / PACKS);
    }
    __device__ __forceinline__ static unsigned int k_along() { return threadIdx.x % PACKS * N; }
    __device__ __forceinline__ static unsigned int line_across() {
        // Packs of two granules: swaps bits 1 and 3, so that eight lines written at a time use different banks.
        const bool exchanged = Lines::GRANULE < N;
        return (exchanged ? threadIdx.x ^ (threadIdx.x / 2 ^ threadIdx.x / 8) % 2 * 10 : threadIdx.x) % SIDE;
    }
    __device__ __forceinline__ static unsigned int k_across(unsigned int i) {
        return (candle_uniform(threadIdx.x / SIDE) + i * (CANDLE_BLOCK / SIDE)) * N;
    }
    __device__ __forceinline__ static void write_along(Lines &to, unsigned int i, Pack<T> pack) {
        to.write(Lines::place(threadIdx.x / PACKS, k_along()), i * (CANDLE_BLOCK / PACKS), 0, pack);
    }
    __device__ __forceinline__ static void write_across(Lines &to, unsigned int i, Pack<T> pack) {
        to.write(Lines::place(line_across(), k_across(0)), 0, i * (CANDLE_BLOCK / SIDE) * N, pack);
    }
};

template <typename T>
__device__ __forceinline__ uint32_t word_of(const T *from) { return *(const typename Bits<sizeof(T)>::type *)from; }
template <typename T, typename M>
__device__ __forceinline__ T element_of(uint32_t word) {
    const M element = candle_bits<M>((typename Bits<sizeof(M)>::type)word);
    if constexpr (sizeof(T) == sizeof(M)) {
        return element;
    } else {
        return static_cast<T>(static_cast<float>(element));
    }
}

// Removes the first `count` elements of BYTES bytes each, and fills up with zeros at the end.
template <unsigned int BYTES, unsigned int N>
__device__ __forceinline__ void drop_first(uint32_t (&words)[N], unsigned int count) {
#pragma unroll
    for (unsigned int bytes = N * 2; bytes >= BYTES; bytes /= 2) {
        const bool drop = (count & bytes / BYTES) != 0;
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            const unsigned int from = j + bytes / 4, bits = bytes % 4 * 8;
            const uint32_t low = from < N ? words[from] : 0;
            const uint32_t word = bits == 0 ? low : low >> bits | (from + 1 < N ? words[from + 1] : 0) << (32 - bits);
            words[j] = drop ? word : words[j];
        }
    }
#pragma unroll
    for (unsigned int j = 0; j < N; ++j) {
        words[j] = count < N * 4 / BYTES ? words[j] : 0;
    }
}

// Loads the workgroup's lines of a matrix of any strides. Lines past the end repeat the last line; their results are
// not written. Elements from k = `end` on are zero.
template <typename T, typename M, unsigned int SIDE>
struct MatrixLoader {
    typedef Plan<T, SIDE> P;
    static constexpr unsigned int PACKED = P::N * sizeof(M) / 4;
    // Start of the line of each unit of the thread.
    const M *lines[P::UNITS];
    size_t stride;
    unsigned int end;
    // True if a thread reads packs along k.
    bool along;
    uint32_t words[P::UNITS][P::N];

    __device__ __forceinline__ MatrixLoader(const M *first, size_t line_stride, size_t stride, unsigned int last, unsigned int end)
        : stride(stride), end(end), along(stride == 1 && end >= P::N) {
#pragma unroll
        for (unsigned int i = 0; i < P::UNITS; ++i) {
            lines[i] = first + min(along ? P::line_along(i) : P::line_across(), last) * line_stride;
        }
    }

    __device__ __forceinline__ void start(unsigned int first) {
        if (along) {
            // Lines may be unaligned. The last pack ends at the end of its line.
            typedef uint32_t Packed __attribute__((ext_vector_type(PACKED)));
            typedef Packed Anywhere __attribute__((aligned(sizeof(M))));
            const unsigned int k = min(first + P::k_along(), end - P::N);
#pragma unroll
            for (unsigned int i = 0; i < P::UNITS; ++i) {
                const Packed packed = *(const Anywhere *)(lines[i] + k);
#pragma unroll
                for (unsigned int j = 0; j < PACKED; ++j) {
                    words[i][j] = packed[j];
                }
            }
        } else {
#pragma unroll
            for (unsigned int i = 0; i < P::UNITS; ++i) {
                const unsigned int k = first + P::k_across(i);
                size_t at = k * stride;
#pragma unroll
                for (unsigned int j = 0; j < P::N; ++j, at += stride) {
                    words[i][j] = word_of(lines[i] + (k + j < end ? at : 0));
                }
            }
        }
    }

    __device__ __forceinline__ void finish(typename P::Lines &to, unsigned int first) {
#pragma unroll
        for (unsigned int i = 0; i < P::UNITS; ++i) {
            Pack<T> pack;
            if (along) {
                uint32_t packed[PACKED];
#pragma unroll
                for (unsigned int j = 0; j < PACKED; ++j) {
                    packed[j] = opaque(words[i][j]);
                }
                if (first + P::DEPTH > end) {
                    const unsigned int k = first + P::k_along();
                    drop_first<sizeof(M)>(packed, k - min(k, end - P::N));
                }
#pragma unroll
                for (unsigned int j = 0; j < P::N; ++j) {
                    constexpr unsigned int EACH = 4 / sizeof(M);
                    pack.set(j, element_of<T, M>(packed[j / EACH] >> j % EACH * (sizeof(M) * 8)));
                }
                P::write_along(to, i, pack);
            } else {
                const unsigned int k = first + P::k_across(i);
#pragma unroll
                for (unsigned int j = 0; j < P::N; ++j) {
                    const uint32_t word = opaque(words[i][j]);
                    pack.set(j, element_of<T, M>(k + j < end ? word : 0));
                }
                P::write_across(to, i, pack);
            }
        }
    }
};

// Layout of groups of `height` rows with `width` elements: the strides between groups, rows and elements.
struct NestedLayout {
    uint32_t height, width;
    uint32_t by_group, by_row, by_column;

    __device__ __forceinline__ uint32_t to_row() const { return by_row - (width - 1) * by_column; }
    __device__ __forceinline__ uint32_t to_group() const { return by_group - (height - 1) * by_row - (width - 1) * by_column; }
};
struct NestedIndex {
    uint32_t group, row, column;

    NestedIndex() = default;
    __device__ __forceinline__ NestedIndex(uint32_t of, const NestedLayout &rows) {
        const uint32_t above = of / rows.width;
        column = of - above * rows.width;
        group = above / rows.height;
        row = above - group * rows.height;
    }
    // Advances by `more`.
    __device__ __forceinline__ void add(const NestedIndex &more, const NestedLayout &rows) {
        column += more.column;
        const bool row_ends = column >= rows.width;
        column -= row_ends ? rows.width : 0;
        row += more.row + row_ends;
        const bool group_ends = row >= rows.height;
        row -= group_ends ? rows.height : 0;
        group += more.group + group_ends;
    }
    __device__ __forceinline__ uint32_t place(const NestedLayout &rows) const {
        return group * rows.by_group + row * rows.by_row + column * rows.by_column;
    }
    // Advances by one and returns the distance in memory.
    __device__ __forceinline__ uint32_t next(const NestedLayout &rows) {
        const bool row_ends = ++column == rows.width;
        const bool group_ends = row_ends & (row + 1 == rows.height);
        column = row_ends ? 0 : column;
        row = group_ends ? 0 : row + row_ends;
        group += group_ends;
        return group_ends ? rows.to_group() : row_ends ? rows.to_row() : rows.by_column;
    }
};

// Position of the first tap of a line in the input, and the distance between taps in rows and columns. Positions
// outside of the input, which wrap to large numbers, are padding.
struct Window {
    uint32_t height, width, down, right;
    uint32_t y, x;
};
#define OUT_OF_RANGE 0x80000000u

// Iterates along k, which numbers channels, then rows of taps, then taps. All lanes of a wave load the same values
// of k for different lines, so each lane computes the offset of one k and the others read it from there.
template <typename P>
struct TapIterator {
    static constexpr unsigned int COUNT = P::UNITS * P::N;
    unsigned int k, end;
    NestedIndex number, step;

    __device__ __forceinline__ TapIterator(const NestedLayout &taps, unsigned int end) : end(end), step(P::DEPTH, taps) {
        const unsigned int own = candle_lane() % COUNT;
        k = P::k_across(0) + own / P::N * (CANDLE_BLOCK / P::SIDE * P::N) + own % P::N;
        number = NestedIndex(k, taps);
    }
    __device__ __forceinline__ bool is_there() const { return k < end; }
    __device__ __forceinline__ void advance(const NestedLayout &taps) {
        k += P::DEPTH;
        number.add(step, taps);
    }
    // Returns `found` of the lane that computed element j of unit i.
    __device__ __forceinline__ static uint32_t at(uint32_t found, unsigned int i, unsigned int j) {
#if defined(__NVPTX__)
        return __shfl_sync(~0u, found, i * P::N + j);
#else
        return __builtin_amdgcn_readlane(found, i * P::N + j);
#endif
    }
};

// Loads lines of a convolution's operand: windows of the input if WINDOWED, otherwise weights. Offsets are in bytes.
template <typename T, unsigned int SIDE, bool WINDOWED>
struct TapLoader {
    typedef Plan<T, SIDE> P;
    const char *first;
    NestedLayout taps;
    uint32_t line;
    Window window;
    TapIterator<P> &iterator;
    uint32_t words[P::UNITS][P::N];
    bool inside[P::UNITS][P::N];

    __device__ __forceinline__ TapLoader(const T *first, const NestedLayout &taps, uint32_t line, const Window &window,
                                         TapIterator<P> &iterator)
        : first((const char *)first), taps(taps), line(line), window(window), iterator(iterator) {}

    __device__ __forceinline__ void start(unsigned int) {
        const bool there = iterator.is_there();
        const uint32_t along = there ? iterator.number.place(taps) : 0;
        const uint32_t down = there ? iterator.number.row * window.down : OUT_OF_RANGE / 2, right = iterator.number.column * window.right;
#pragma unroll
        for (unsigned int i = 0; i < P::UNITS; ++i) {
#pragma unroll
            for (unsigned int j = 0; j < P::N; ++j) {
                const uint32_t at = line + iterator.at(along, i, j);
                if constexpr (WINDOWED) {
                    const uint32_t y = window.y + iterator.at(down, i, j), x = window.x + iterator.at(right, i, j);
                    inside[i][j] = y < window.height & x < window.width;
                } else {
                    inside[i][j] = true;
                }
                // A 32-bit offset, so that the load adds the scalar base address.
                words[i][j] = word_of((const T *)(first + opaque(inside[i][j] ? at : 0)));
            }
        }
        if (WINDOWED) {
            iterator.advance(taps);
        }
    }

    __device__ __forceinline__ void finish(typename P::Lines &to, unsigned int step_first) {
#pragma unroll
        for (unsigned int i = 0; i < P::UNITS; ++i) {
            Pack<T> pack;
#pragma unroll
            for (unsigned int j = 0; j < P::N; ++j) {
                const bool is = WINDOWED ? inside[i][j] : step_first + P::k_across(i) + j < iterator.end;
                const uint32_t word = opaque(words[i][j]);
                pack.set(j, element_of<T, T>(is ? word : 0));
            }
            P::write_across(to, i, pack);
        }
    }
};

// Keeps the compiler from moving products to where their sums are used. On gfx908 this would copy the accumulators
// out of their own registers.
template <typename S>
__device__ __forceinline__ void materialize(S &sums) {
#if !defined(__gfx908__)
    constexpr unsigned int COUNT = sizeof(sums) / 4;
    uint32_t each[COUNT];
    __builtin_memcpy(each, &sums, sizeof(sums));
#pragma unroll
    for (uint32_t &word : each) {
        asm volatile("" : CANDLE_IN_REGISTER(word));
    }
    __builtin_memcpy(&sums, each, sizeof(sums));
#endif
}

// The workgroup's tile of C.
template <typename T, unsigned int SIDE>
struct Product {
    typedef Plan<T, SIDE> P;
    typename P::Sums sums;

    __device__ __forceinline__ Product() : sums{} {}

    __device__ __forceinline__ static unsigned int first_row() { return candle_uniform(threadIdx.x / WAVE) / 2 * P::ROWS; }
    __device__ __forceinline__ static unsigned int first_column() {
        return candle_uniform(threadIdx.x / WAVE) % 2 * P::COLUMNS;
    }

    __device__ __forceinline__ void add(const typename P::Lds &lds) {
        constexpr unsigned int ROW_TILES = P::ROWS / TILE_SIDE, COLUMN_TILES = P::COLUMNS / TILE_SIDE;
        typedef typename P::Lines Lines;
        const unsigned int row_lane = Lines::place(first_row() + QueryFragment<T>::lane_line(), QueryFragment<T>::lane_k());
        const unsigned int column_lane = Lines::place(first_column() + KvFragment<T>::lane_line(), KvFragment<T>::lane_k());
#pragma unroll
        for (unsigned int k = 0; k < P::DEPTH; k += STEP<T>) {
            QueryFragment<T> rows[ROW_TILES];
#pragma unroll
            for (unsigned int i = 0; i < ROW_TILES; ++i) {
                rows[i] = lds.rows.template read<QueryFragment<T>>(row_lane, i * TILE_SIDE, k);
            }
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const auto column = lds.columns.template read<KvFragment<T>>(column_lane, j * TILE_SIDE, k);
#pragma unroll
                for (unsigned int i = 0; i < ROW_TILES; ++i) {
                    accumulate<T>(sums[i][j], rows[i], column);
                    materialize(sums[i][j]);
                }
                // Keeps the compiler from reading all fragments of a step in advance.
                if (BY_LANES<T> || j + 1 == COLUMN_TILES) {
                    asm volatile("" ::: "memory");
                }
            }
        }
    }

    // One barrier per step: the buffers that are written and read differ.
    template <typename A, typename B>
    __device__ __forceinline__ void run(typename P::Lds (&lds)[2], A &a, B &b, unsigned int end) {
        if (end == 0) {
            return;
        }
        a.start(0);
        b.start(0);
        unsigned int which = 0;
#pragma unroll 1
        for (unsigned int first = 0; first < end; first += P::DEPTH, which ^= 1) {
            a.finish(lds[which].rows, first);
            b.finish(lds[which].columns, first);
            __syncthreads();
            if (end - first > P::DEPTH) {
                a.start(first + P::DEPTH);
                b.start(first + P::DEPTH);
            }
            // Issues the loads before the products and uses their results afterwards.
            asm volatile("" ::: "memory");
            add(lds[which]);
            asm volatile("" ::: "memory");
        }
    }

    // Calls `use(column)` for each run of columns; it returns the function that writes a row's pack there.
    template <typename M, typename F>
    __device__ __forceinline__ void write(F use) const {
        constexpr unsigned int I = QUERIES_PER_LANE<T>, J = KEYS_PER_LANE<T>;
#pragma unroll
        for (unsigned int c = 0; c < P::COLUMNS / TILE_SIDE * J; c += RUN<T>) {
            const auto to = use(first_column() + c / J * TILE_SIDE + lane_key<T>(c % J));
#pragma unroll
            for (unsigned int r = 0; r < P::ROWS / TILE_SIDE * I; ++r) {
                Pack<M, RUN<T>> pack;
#pragma unroll
                for (unsigned int n = 0; n < RUN<T>; ++n) {
                    Scores<T> tile = sums[r / I][c / J];
                    pack.set(n, static_cast<M>(element<T>(tile, r % I, c % J + n)));
                }
                to(first_row() + r / I * TILE_SIDE + lane_query<T>(r % I), pack);
            }
        }
    }
};

// Returns the workgroup's first row and column; x of the grid numbers the tiles of `rows` first.
template <unsigned int SIDE>
__device__ __forceinline__ uint2 part_of(unsigned int rows) {
    const unsigned int parts = (rows + SIDE - 1) / SIDE, column = blockIdx.x / parts;
    return uint2{(blockIdx.x - column * parts) * SIDE, column * SIDE};
}

template <typename T, typename M, unsigned int SIDE>
__device__ __forceinline__ void tiled_product(const M *a, const M *b, M *c, const unsigned int m, const unsigned int n,
                                              const unsigned int k, const unsigned int batches, const size_t a_row,
                                              const size_t a_column, const size_t a_batch, const size_t b_row,
                                              const size_t b_column, const size_t b_batch, const size_t c_row,
                                              const size_t c_batch) {
    typedef Product<T, SIDE> P;
    __shared__ typename P::P::Lds lds[2];
    const uint2 part = part_of<SIDE>(m);
    const unsigned int row = part.x, column = part.y;
#pragma unroll 1
    for (unsigned int batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        MatrixLoader<T, M, SIDE> rows(a + batch * a_batch + row * a_row, a_row, a_column, m - 1 - row, k);
        MatrixLoader<T, M, SIDE> columns(b + batch * b_batch + column * b_column, b_column, b_row, n - 1 - column, k);
        P product;
        product.run(lds, rows, columns, k);
        M *const to = c + batch * c_batch + row * c_row + column;
        product.template write<M>([=](unsigned int x) INLINE {
            return [=](unsigned int y, auto pack) INLINE {
                if (row + y < m && column + x < n) {
                    pack.write(to + y * c_row + x, n - column - x);
                }
            };
        });
        // The next product reuses the LDS.
        __syncthreads();
    }
}

// Taps of a transposed convolution that contribute to the outputs first, first + stride, ...: `count` taps from
// `tap` on in steps of `period`. The first one reads input `source`, and each following one the input `back` before.
struct Phase {
    uint32_t first, places, tap, period, count, source, back;

    __device__ __forceinline__ Phase(uint32_t first, uint32_t size, uint32_t taps, uint32_t stride, uint32_t dilation,
                                     uint32_t padding)
        : first(first), places(first < size ? (size - first + stride - 1) / stride : 0) {
        const uint32_t reach = first + padding, step = dilation % stride;
        // Tap t contributes if stride divides reach - t * dilation.
        uint32_t rest = reach % stride;
        for (tap = 0; rest != 0 && tap < taps; ++tap) {
            rest = rest < step ? rest + stride - step : rest - step;
        }
        period = 1;
        for (uint32_t step_sum = step; step_sum != 0; ++period) {
            step_sum = step_sum + step < stride ? step_sum + step : step_sum + step - stride;
        }
        count = tap < taps && rest == 0 ? (taps - tap + period - 1) / period : 0;
        back = period * dilation / stride;
        source = (uint32_t)((int)(reach - tap * dilation) / (int)stride);
    }
};

// `info` holds dims and strides of the input, then those of the weights.
template <bool TRANSPOSED, typename T, unsigned int SIDE>
__device__ __forceinline__ void convolution(const T *src, const T *kernel, T *dst, const size_t *info,
                                            const unsigned int h_out, const unsigned int w_out,
                                            const unsigned int stride_y, const unsigned int stride_x,
                                            const unsigned int dilation_y, const unsigned int dilation_x,
                                            const unsigned int padding_y, const unsigned int padding_x) {
    typedef Product<T, SIDE> P;
    __shared__ typename P::P::Lds lds[2];
    const auto word = [=](unsigned int i) INLINE { return (uint32_t)info[i]; };
    const uint32_t images = word(0), c_in = word(1), c_out = word(TRANSPOSED ? 9 : 8), group = blockIdx.z;
    const uint32_t s_y = word(6) * sizeof(T), s_x = word(7) * sizeof(T);
    // Places are the output elements, or with TRANSPOSED those of a phase.
    NestedLayout places, tap_layout, weights;
    Window window;
    uint32_t taps;
    size_t first_place = 0, first_weight = 0;
    if constexpr (TRANSPOSED) {
        const uint32_t phase_y = blockIdx.y / stride_x, phase_x = blockIdx.y - phase_y * stride_x;
        const Phase h(phase_y, h_out, word(10), stride_y, dilation_y, padding_y);
        const Phase w(phase_x, w_out, word(11), stride_x, dilation_x, padding_x);
        places = NestedLayout{h.places, w.places, 0, stride_y * w_out, stride_x};
        first_place = (size_t)h.first * w_out + w.first;
        // Sizes of at least 1 avoid a division by zero if no tap contributes.
        taps = h.count * w.count;
        tap_layout = NestedLayout{max(h.count, 1u), max(w.count, 1u), 0, 0 - h.back * s_y, 0 - w.back * s_x};
        window = Window{word(2), word(3), 0 - h.back, 0 - w.back, h.source, w.source};
        weights = NestedLayout{tap_layout.height, tap_layout.width, word(12), h.period * word(14), w.period * word(15)};
        first_weight = h.tap * word(14) + w.tap * word(15);
    } else {
        places = NestedLayout{h_out, w_out, 0, w_out, 1};
        taps = word(10) * word(11);
        tap_layout = NestedLayout{word(10), word(11), 0, dilation_y * s_y, dilation_x * s_x};
        window = Window{word(2), word(3), dilation_y, dilation_x, 0 - padding_y, 0 - padding_x};
    }
    const uint32_t places_per_image = places.height * places.width, all = images * places_per_image;
    const uint32_t end = c_in * taps;
    const uint2 part = part_of<SIDE>(c_out);
    const unsigned int row = part.x, column = part.y;
    if (column >= all) {
        return;
    }
    const size_t channel = (size_t)h_out * w_out;
    places.by_group = gridDim.z * c_out * (uint32_t)channel;
    tap_layout.by_group = word(5) * sizeof(T);
    const uint32_t line = column + P::P::line_across();
    const NestedIndex place(min(line, all - 1), places);
    if constexpr (TRANSPOSED) {
        window.y += place.row;
        window.x += place.column;
    } else {
        window.y += place.row * stride_y;
        window.x += place.column * stride_x;
    }
    const uint32_t at = place.group * (word(4) * (uint32_t)sizeof(T)) + window.y * s_y + window.x * s_x;
    window.y = line < all ? window.y : OUT_OF_RANGE;
    TapIterator<typename P::P> iterator(tap_layout, end);
    TapLoader<T, SIDE, true> inputs(src + (size_t)group * c_in * info[5], tap_layout, at, window, iterator);
    P product;
    if constexpr (TRANSPOSED) {
        const uint32_t last = c_out - 1 - row;
        const T *from = kernel + (size_t)group * c_in * info[12] + first_weight + row * info[13];
        weights.by_group *= sizeof(T);
        weights.by_row *= sizeof(T);
        weights.by_column *= sizeof(T);
        TapLoader<T, SIDE, false> rows(from, weights, min(P::P::line_across(), last) * (word(13) * (uint32_t)sizeof(T)), window,
                                  iterator);
        product.run(lds, rows, inputs, end);
    } else {
        const T *from = kernel + ((size_t)group * c_out + row) * info[12];
        MatrixLoader<T, T, SIDE> rows(from, info[12], 1, c_out - 1 - row, end);
        product.run(lds, rows, inputs, end);
    }
    T *const to = dst + ((size_t)group * c_out + row) * channel + first_place;
    product.template write<T>([=](unsigned int x) INLINE {
        constexpr unsigned int N = RUN<T>;
        NestedIndex number(column + x, places);
        uint32_t offsets[N];
        offsets[0] = 0;
        T *const first = to + (size_t)number.group * places.by_group + (number.row * places.by_row + number.column * places.by_column);
        const bool dense = !TRANSPOSED && number.row * places.width + number.column + N <= places_per_image;
#pragma unroll
        for (unsigned int n = 1; n < N; ++n) {
            offsets[n] = offsets[n - 1] + number.next(places);
        }
        return [=](unsigned int y, auto pack) INLINE {
            if (row + y >= c_out || column + x >= all) {
                return;
            }
            T *const line = first + y * channel;
            if (dense && column + x + N <= all) {
                pack.write(line, N);
            } else {
#pragma unroll
                for (unsigned int n = 0; n < N; ++n) {
                    if (column + x + n < all) {
                        line[offsets[n]] = pack[n];
                    }
                }
            }
        };
    });
}

#define PRODUCT_OP(T, M, NAME, SIDE)                                                                                   \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) tiled_product_##SIDE##_##NAME(                       \
        const M *a, const M *b, M *c, const unsigned int m, const unsigned int n, const unsigned int k,                \
        const unsigned int batches, const size_t a_row, const size_t a_column, const size_t a_batch,                   \
        const size_t b_row, const size_t b_column, const size_t b_batch, const size_t c_row, const size_t c_batch) {   \
        tiled_product<T, M, SIDE>(a, b, c, m, n, k, batches, a_row, a_column, a_batch, b_row, b_column, b_batch, c_row, \
                                  c_batch);                                                                            \
    }
#define CONV_OP(KIND, TRANSPOSED, T, NAME, SIDE)                                                                       \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) KIND##_##SIDE##_##NAME(                              \
        const T *src, const T *kernel, T *dst, const size_t *info, const unsigned int h_out, const unsigned int w_out, \
        const unsigned int stride_y, const unsigned int stride_x, const unsigned int dilation_y,                       \
        const unsigned int dilation_x, const unsigned int padding_y, const unsigned int padding_x) {                   \
        convolution<TRANSPOSED, T, SIDE>(src, kernel, dst, info, h_out, w_out, stride_y, stride_x, dilation_y,         \
                                         dilation_x, padding_y, padding_x);                                            \
    }
#define TILED_OPS(T, NAME, SIDE)                         \
    PRODUCT_OP(T, T, NAME, SIDE)                         \
    CONV_OP(conv_tiles, false, T, NAME, SIDE)            \
    CONV_OP(conv_transpose_tiles, true, T, NAME, SIDE)
#define SIDES(SIDE)                                      \
    TILED_OPS(__half, f16, SIDE)                         \
    TILED_OPS(__nv_bfloat16, bf16, SIDE)                 \
    TILED_OPS(float, f32, SIDE)                          \
    PRODUCT_OP(__half, __nv_fp8_e4m3, f8e4m3, SIDE)
SIDES(64)
SIDES(128)
