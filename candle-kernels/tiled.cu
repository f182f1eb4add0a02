// Products of matrices on tiles, C[m][n] = sum over k of A[m][k] B[k][n], added in f32 and rounded once; and convolutions as
// such products, whose B is read where it lies in the input. A workgroup makes SIDE x SIDE of C. The lines of A and of B, 64
// bytes along k of each at a time, lie in LDS, and the next ones are on their way there: their loads are under way, into
// registers, while products are made.
#include "slabs.cuh"

template <typename T, unsigned int SIDE_>
struct Plan {
    static constexpr unsigned int SIDE = SIDE_;
    // Of a step: elements along k of a line, those of a pack, and packs that a thread brings to LDS.
    static constexpr unsigned int DEPTH = 64 / sizeof(T), N = 16 / sizeof(T), PACKS = DEPTH / N;
    static constexpr unsigned int UNITS = SIDE * PACKS / CANDLE_BLOCK;
    // The waves share the columns by halves, and the rows.
    static constexpr unsigned int ROW_WAVES = CANDLE_BLOCK / WAVE / 2;
    static constexpr unsigned int ROWS = SIDE / ROW_WAVES, COLUMNS = SIDE / 2;
    typedef Slab<T, SIDE, DEPTH> Lines;
    struct Lds { Lines rows, columns; };
    typedef Scores<T> Sums[ROWS / TILE_SIDE][COLUMNS / TILE_SIDE];

    // The lines and places along k of a thread's units: neighbours have packs of one line, where those lie beside each other,
    // or else a pack of neighbouring lines, whose place along k a whole wave has then.
    __device__ __forceinline__ static unsigned int line_along(unsigned int i) {
        return threadIdx.x / PACKS + i * (CANDLE_BLOCK / PACKS);
    }
    __device__ __forceinline__ static unsigned int k_along() { return threadIdx.x % PACKS * N; }
    __device__ __forceinline__ static unsigned int line_across() {
        // Where packs are two granules, bits 1 and 3 change places: eight lines that are written at once then lie apart.
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

// Words without the first `count` elements of so many bytes, with zeros behind those that are left.
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

// The lines of a matrix of any strides from the workgroup's first on. After the last, that one is there again: what it gives
// is not written. From k = `end` on there are zeros.
template <typename T, typename M, unsigned int SIDE>
struct Matrix {
    typedef Plan<T, SIDE> P;
    static constexpr unsigned int PACKED = P::N * sizeof(M) / 4;
    // The lines of the thread's units.
    const M *lines[P::UNITS];
    size_t stride;
    unsigned int end;
    // Whether a thread reads packs along k.
    bool along;
    uint32_t words[P::UNITS][P::N];

    __device__ __forceinline__ Matrix(const M *first, size_t line_stride, size_t stride, unsigned int last, unsigned int end)
        : stride(stride), end(end), along(stride == 1 && end >= P::N) {
#pragma unroll
        for (unsigned int i = 0; i < P::UNITS; ++i) {
            lines[i] = first + min(along ? P::line_along(i) : P::line_across(), last) * line_stride;
        }
    }

    __device__ __forceinline__ void start(unsigned int first) {
        if (along) {
            // Lines need not begin where packs do. The last pack ends where its line does.
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
                    packed[j] = anew(words[i][j]);
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
                    const uint32_t word = anew(words[i][j]);
                    pack.set(j, element_of<T, M>(k + j < end ? word : 0));
                }
                P::write_across(to, i, pack);
            }
        }
    }
};

// How numbers count through groups of rows: what lies between neighbours, and from a row and a group to the next.
struct Rows {
    uint32_t height, width;
    uint32_t by_group, by_row, by_one;

    __device__ __forceinline__ uint32_t to_row() const { return by_row - (width - 1) * by_one; }
    __device__ __forceinline__ uint32_t to_group() const { return by_group - (height - 1) * by_row - (width - 1) * by_one; }
};
struct Number {
    uint32_t group, row, column;

    Number() = default;
    __device__ __forceinline__ Number(uint32_t of, const Rows &rows) {
        const uint32_t above = of / rows.width;
        column = of - above * rows.width;
        group = above / rows.height;
        row = above - group * rows.height;
    }
    // A number more.
    __device__ __forceinline__ void add(const Number &more, const Rows &rows) {
        column += more.column;
        const bool row_ends = column >= rows.width;
        column -= row_ends ? rows.width : 0;
        row += more.row + row_ends;
        const bool group_ends = row >= rows.height;
        row -= group_ends ? rows.height : 0;
        group += more.group + group_ends;
    }
    __device__ __forceinline__ uint32_t place(const Rows &rows) const {
        return group * rows.by_group + row * rows.by_row + column * rows.by_one;
    }
    // One more; gives how much further that is.
    __device__ __forceinline__ uint32_t next(const Rows &rows) {
        const bool row_ends = ++column == rows.width;
        const bool group_ends = row_ends & (row + 1 == rows.height);
        column = row_ends ? 0 : column;
        row = group_ends ? 0 : row + row_ends;
        group += group_ends;
        return group_ends ? rows.to_group() : row_ends ? rows.to_row() : rows.by_one;
    }
};

// Where the first tap of a line lies in an input, and how far a tap is from the next, in rows and columns. A place that
// is not less than the sizes has no element.
struct Window {
    uint32_t height, width, down, right;
    uint32_t y, x;
};
#define NOWHERE 0x80000000u

// Where a wave stands along k, which counts through channels, rows of taps and taps. Its lanes have a line each and all the same
// places along k: a lane finds one of those for all.
template <typename P>
struct Walk {
    static constexpr unsigned int COUNT = P::UNITS * P::N;
    unsigned int k, end;
    Number number, step;

    __device__ __forceinline__ Walk(const Rows &taps, unsigned int end) : end(end), step(P::DEPTH, taps) {
        const unsigned int own = candle_lane() % COUNT;
        k = P::k_across(0) + own / P::N * (CANDLE_BLOCK / P::SIDE * P::N) + own % P::N;
        number = Number(k, taps);
    }
    __device__ __forceinline__ bool is_there() const { return k < end; }
    __device__ __forceinline__ void advance(const Rows &taps) {
        k += P::DEPTH;
        number.add(step, taps);
    }
    // What the lane has found that stands at place j of unit i.
    __device__ __forceinline__ static uint32_t at(uint32_t found, unsigned int i, unsigned int j) {
#if defined(__NVPTX__)
        return __shfl_sync(~0u, found, i * P::N + j);
#else
        return __builtin_amdgcn_readlane(found, i * P::N + j);
#endif
    }
};

// Lines of an operand of a convolution. SEEN: through a window, else weights. Places are bytes from `first` on.
template <typename T, unsigned int SIDE, bool SEEN>
struct Taps {
    typedef Plan<T, SIDE> P;
    const char *first;
    Rows taps;
    uint32_t line;
    Window window;
    Walk<P> &walk;
    uint32_t words[P::UNITS][P::N];
    bool inside[P::UNITS][P::N];

    __device__ __forceinline__ Taps(const T *first, const Rows &taps, uint32_t line, const Window &window, Walk<P> &walk)
        : first((const char *)first), taps(taps), line(line), window(window), walk(walk) {}

    __device__ __forceinline__ void start(unsigned int) {
        const bool there = walk.is_there();
        const uint32_t along = there ? walk.number.place(taps) : 0;
        const uint32_t down = there ? walk.number.row * window.down : NOWHERE / 2, right = walk.number.column * window.right;
#pragma unroll
        for (unsigned int i = 0; i < P::UNITS; ++i) {
#pragma unroll
            for (unsigned int j = 0; j < P::N; ++j) {
                const uint32_t at = line + walk.at(along, i, j);
                if constexpr (SEEN) {
                    const uint32_t y = window.y + walk.at(down, i, j), x = window.x + walk.at(right, i, j);
                    inside[i][j] = y < window.height & x < window.width;
                } else {
                    inside[i][j] = true;
                }
                // In 32 bits, to which the scalar unit's address is added.
                words[i][j] = word_of((const T *)(first + anew(inside[i][j] ? at : 0)));
            }
        }
        if (SEEN) {
            walk.advance(taps);
        }
    }

    __device__ __forceinline__ void finish(typename P::Lines &to, unsigned int step_first) {
#pragma unroll
        for (unsigned int i = 0; i < P::UNITS; ++i) {
            Pack<T> pack;
#pragma unroll
            for (unsigned int j = 0; j < P::N; ++j) {
                const bool is = SEEN ? inside[i][j] : step_first + P::k_across(i) + j < walk.end;
                const uint32_t word = anew(words[i][j]);
                pack.set(j, element_of<T, T>(is ? word : 0));
            }
            P::write_across(to, i, pack);
        }
    }
};

// Sums are made here, and not where they are used. gfx908 has them in registers of their own, out of which they would be moved.
template <typename S>
__device__ __forceinline__ void settle(S &sums) {
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

// The workgroup's part of C.
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
        const unsigned int row_lane = Lines::place(first_row() + Queries<T>::lane_line(), Queries<T>::lane_k());
        const unsigned int column_lane = Lines::place(first_column() + Others<T>::lane_line(), Others<T>::lane_k());
#pragma unroll
        for (unsigned int k = 0; k < P::DEPTH; k += STEP<T>) {
            Queries<T> rows[ROW_TILES];
#pragma unroll
            for (unsigned int i = 0; i < ROW_TILES; ++i) {
                rows[i] = lds.rows.template read<Queries<T>>(row_lane, i * TILE_SIDE, k);
            }
#pragma unroll
            for (unsigned int j = 0; j < COLUMN_TILES; ++j) {
                const auto column = lds.columns.template read<Others<T>>(column_lane, j * TILE_SIDE, k);
#pragma unroll
                for (unsigned int i = 0; i < ROW_TILES; ++i) {
                    accumulate<T>(sums[i][j], rows[i], column);
                    settle(sums[i][j]);
                }
                // So that not all factors of a step are read before the first is used.
                if (BY_LANES<T> || j + 1 == COLUMN_TILES) {
                    asm volatile("" ::: "memory");
                }
            }
        }
    }

    // One barrier a step: what is written is not what is read.
    template <typename A, typename B>
    __device__ __forceinline__ void run(typename P::Lds (&lds)[2], A &a, B &b, unsigned int end) {
        if (end == 0) {
            return;
        }
        const auto finish = [&](unsigned int which, unsigned int first) INLINE {
            a.finish(lds[which].rows, first);
            b.finish(lds[which].columns, first);
            __syncthreads();
        };
        a.start(0);
        b.start(0);
        finish(0, 0);
        unsigned int which = 0;
#pragma unroll 1
        for (unsigned int first = P::DEPTH; first < end; first += P::DEPTH) {
            a.start(first);
            b.start(first);
            // Loads come before, and what is made of them after the products.
            asm volatile("" ::: "memory");
            add(lds[which]);
            asm volatile("" ::: "memory");
            which ^= 1;
            finish(which, first);
        }
        add(lds[which]);
    }

    // `use(column)` gives what writes the pack of a row's neighbouring columns from there on.
    template <typename M, typename F>
    __device__ __forceinline__ void write(F use) const {
        constexpr unsigned int I = HELD_QUERIES<T>, J = HELD_OTHERS<T>;
#pragma unroll
        for (unsigned int c = 0; c < P::COLUMNS / TILE_SIDE * J; c += RUN<T>) {
            const auto to = use(first_column() + c / J * TILE_SIDE + other_line<T>(c % J));
#pragma unroll
            for (unsigned int r = 0; r < P::ROWS / TILE_SIDE * I; ++r) {
                Pack<M, RUN<T>> pack;
#pragma unroll
                for (unsigned int n = 0; n < RUN<T>; ++n) {
                    Scores<T> tile = sums[r / I][c / J];
                    pack.set(n, static_cast<M>(element<T>(tile, r % I, c % J + n)));
                }
                to(first_row() + r / I * TILE_SIDE + query_line<T>(r % I), pack);
            }
        }
    }
};

// Numbers of the workgroup's first row and column: x of the grid counts parts of `rows` first.
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
        Matrix<T, M, SIDE> rows(a + batch * a_batch + row * a_row, a_row, a_column, m - 1 - row, k);
        Matrix<T, M, SIDE> columns(b + batch * b_batch + column * b_column, b_column, b_row, n - 1 - column, k);
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
        // The next product goes through the same LDS.
        __syncthreads();
    }
}

// The taps of a transposed convolution that reach the places from `first` on, `stride` apart: the least of them, `period`
// from one to the next, and `count`. The first sees input `source`, each following one `back` before that.
struct Phase {
    uint32_t first, places, tap, period, count, source, back;

    __device__ __forceinline__ Phase(uint32_t first, uint32_t size, uint32_t taps, uint32_t stride, uint32_t dilation,
                                     uint32_t padding)
        : first(first), places(first < size ? (size - first + stride - 1) / stride : 0) {
        const uint32_t reach = first + padding, step = dilation % stride;
        // Tap t reaches these places if stride divides reach - t * dilation.
        uint32_t rest = reach % stride;
        for (tap = 0; rest != 0 && tap < taps; ++tap) {
            rest = rest < step ? rest + stride - step : rest - step;
        }
        period = 1;
        for (uint32_t walked = step; walked != 0; ++period) {
            walked = walked + step < stride ? walked + step : walked + step - stride;
        }
        count = tap < taps && rest == 0 ? (taps - tap + period - 1) / period : 0;
        back = period * dilation / stride;
        source = (uint32_t)((int)(reach - tap * dilation) / (int)stride);
    }
};

// `info`: dims and strides of the input, then those of the weights.
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
    // Places are those of the whole output, or of a phase: so many, and so far apart.
    Rows places, seen, weights;
    Window window;
    uint32_t taps;
    size_t first_place = 0, first_weight = 0;
    if constexpr (TRANSPOSED) {
        const uint32_t phase_y = blockIdx.y / stride_x, phase_x = blockIdx.y - phase_y * stride_x;
        const Phase h(phase_y, h_out, word(10), stride_y, dilation_y, padding_y);
        const Phase w(phase_x, w_out, word(11), stride_x, dilation_x, padding_x);
        places = Rows{h.places, w.places, 0, stride_y * w_out, stride_x};
        first_place = (size_t)h.first * w_out + w.first;
        // No taps at all are none of one.
        taps = h.count * w.count;
        seen = Rows{max(h.count, 1u), max(w.count, 1u), 0, 0 - h.back * s_y, 0 - w.back * s_x};
        window = Window{word(2), word(3), 0 - h.back, 0 - w.back, h.source, w.source};
        weights = Rows{seen.height, seen.width, word(12), h.period * word(14), w.period * word(15)};
        first_weight = h.tap * word(14) + w.tap * word(15);
    } else {
        places = Rows{h_out, w_out, 0, w_out, 1};
        taps = word(10) * word(11);
        seen = Rows{word(10), word(11), 0, dilation_y * s_y, dilation_x * s_x};
        window = Window{word(2), word(3), dilation_y, dilation_x, 0 - padding_y, 0 - padding_x};
    }
    const uint32_t of_image = places.height * places.width, all = images * of_image;
    const uint32_t end = c_in * taps;
    const uint2 part = part_of<SIDE>(c_out);
    const unsigned int row = part.x, column = part.y;
    if (column >= all) {
        return;
    }
    const size_t channel = (size_t)h_out * w_out;
    places.by_group = gridDim.z * c_out * (uint32_t)channel;
    seen.by_group = word(5) * sizeof(T);
    const uint32_t line = column + P::P::line_across();
    const Number place(min(line, all - 1), places);
    if constexpr (TRANSPOSED) {
        window.y += place.row;
        window.x += place.column;
    } else {
        window.y += place.row * stride_y;
        window.x += place.column * stride_x;
    }
    const uint32_t at = place.group * (word(4) * (uint32_t)sizeof(T)) + window.y * s_y + window.x * s_x;
    window.y = line < all ? window.y : NOWHERE;
    Walk<typename P::P> walk(seen, end);
    Taps<T, SIDE, true> inputs(src + (size_t)group * c_in * info[5], seen, at, window, walk);
    P product;
    if constexpr (TRANSPOSED) {
        const uint32_t last = c_out - 1 - row;
        const T *from = kernel + (size_t)group * c_in * info[12] + first_weight + row * info[13];
        weights.by_group *= sizeof(T);
        weights.by_row *= sizeof(T);
        weights.by_one *= sizeof(T);
        Taps<T, SIDE, false> rows(from, weights, min(P::P::line_across(), last) * (word(13) * (uint32_t)sizeof(T)), window,
                                  walk);
        product.run(lds, rows, inputs, end);
    } else {
        const T *from = kernel + ((size_t)group * c_out + row) * info[12];
        Matrix<T, T, SIDE> rows(from, info[12], 1, c_out - 1 - row, end);
        product.run(lds, rows, inputs, end);
    }
    T *const to = dst + ((size_t)group * c_out + row) * channel + first_place;
    product.template write<T>([=](unsigned int x) INLINE {
        constexpr unsigned int N = RUN<T>;
        Number number(column + x, places);
        uint32_t further[N];
        further[0] = 0;
        T *const first = to + (size_t)number.group * places.by_group + (number.row * places.by_row + number.column * places.by_one);
        const bool dense = !TRANSPOSED && number.row * places.width + number.column + N <= of_image;
#pragma unroll
        for (unsigned int n = 1; n < N; ++n) {
            further[n] = further[n - 1] + number.next(places);
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
                        line[further[n]] = pack[n];
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
