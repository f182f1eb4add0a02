// Softmax and norms of dense rows; a row of group norm is a group of channels. `width` threads, a power of two,
// share a row, and a workgroup processes several short rows. A thread keeps up to 64 bytes of its row in registers
// (16 of f64); longer rows are read again. Computed in f32, or in f64 for f64.
//
// A few long rows are split into parts of `part` elements, numbered by y of the grid, and take two launches: the
// first has no `dst` and writes the statistics of each part to `partials`, which the second reads. Otherwise `partials` is
// null.
#include "lanes.cuh"

// Statistics of a row or a part of it. Softmax: the maximum and the sum of exponentials relative to it. Norms: an
// estimate of the mean, the correction to the exact mean, and the sum of squared differences to the mean.
template <typename W>
struct RowStatistics { W base, rest, sum; };

// Sum of differences, and sum of their squares.
template <typename W>
struct Moments { W first, second; };

// Elements as they are stored.
template <typename T>
struct Unchanged {
    // Packs of a thread in registers, on GPUs with few.
    static constexpr unsigned int FEW_KEPT = 2;
    __device__ __forceinline__ bool changes() const { return false; }
    __device__ __forceinline__ T changed(T x, unsigned int) const { return x; }
    __device__ __forceinline__ void change(Pack<T> &, unsigned int) const {}
};

// A row or a part of one: elements before the first aligned pack, packs, and elements after the last one. Thread
// `lane` processes every `width`th pack and keeps the first ones in registers, and one element outside of packs.
// Positions are relative to the first pack, those of the source S to the row.
template <typename Element, typename S = Unchanged<Element>>
struct Row {
    typedef Element T;
    typedef typename Wide<T>::type W;
    static constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T), KEPT = sizeof(T) == 8 ? 1 : CANDLE_FEW_REGISTERS(CANDLE_ROW_PACKS, S::FEW_KEPT);

    const T *from;
    unsigned int packs, lane, width, head;
    int single;
    bool has_single;
    S source;
    Pack<T> kept[KEPT];
    // Values derived from the elements that are used again, such as exponentials.
    W cached[KEPT][N], edge;

    __device__ __forceinline__ Row(const T *row, unsigned int elements, unsigned int number, unsigned int threads,
                                   const S &changes = S())
        : lane(number), width(threads), head(elements_before_packs<N>(row, elements)), source(changes) {
        from = row + head;
        packs = (elements - head) / N;
        single = lane < head ? (int)(lane - head) : (int)(lane - head + packs * N);
        has_single = (int)(elements - head) > single;
        each_kept([&](unsigned int p, unsigned int at) INLINE { kept[p] = Pack<T>::read(from + at); });
        edge = has_single ? (W)from[single] : (W)0;
        if (source.changes()) {
            each_kept([&](unsigned int p, unsigned int at) INLINE { source.change(kept[p], head + at); });
            edge = has_single ? (W)source.changed((T)edge, head + single) : (W)0;
        }
    }

    // Calls f with the index and position of up to COUNT kept packs, starting at index `first`.
    template <unsigned int COUNT = KEPT, typename F>
    __device__ __forceinline__ void each_kept(F f, unsigned int first = 0) const {
#pragma unroll
        for (unsigned int p = first; p < first + COUNT; ++p) {
            if (lane + p * width < packs) {
                f(p, (lane + p * width) * N);
            }
        }
    }

    // Calls f with each pack that is not kept and its position.
    template <typename F>
    __device__ __forceinline__ void each_remaining(F f) const {
        for_each_prefetched<sizeof(W) == 8 ? 1 : CANDLE_FEW_REGISTERS(2, S::FEW_KEPT)>(lane + KEPT * width, packs, width, [=](unsigned int p) INLINE {
            return Pack<T>::read(from + p * N);
        }, [=](Pack<T> pack, unsigned int p) INLINE {
            if (source.changes()) {
                source.change(pack, head + p * N);
            }
            f(pack, p * N);
        });
    }

    // Calls f with each element of a pack and its cached value.
    template <typename F>
    static __device__ __forceinline__ void each_of(const Pack<T> &pack, W *cached_value, F f) {
#pragma unroll
        for (unsigned int j = 0; j < N; ++j) {
            f((W)pack[j], cached_value[j]);
        }
    }

    // Calls f with each kept element and its cached value.
    template <typename F>
    __device__ __forceinline__ void each_held(F f) {
        // Keeps packs in their packed form, which takes few registers and leaves all loads in flight.
#pragma unroll
        for (unsigned int p = 0; p < KEPT; ++p) {
            kept[p].make_opaque();
        }
        each_kept([&](unsigned int p, unsigned int) INLINE { each_of(kept[p], cached[p], f); });
        if (has_single) {
            f(edge, edge);
        }
    }

    // Calls f with each element and its cached value, which is discarded for elements that are not kept.
    template <typename F>
    __device__ __forceinline__ void each(F f) {
        each_held(f);
        each_remaining([&](const Pack<T> &read, unsigned int) INLINE {
            W unused[N];
            each_of(read, unused, f);
        });
    }

    // Returns the mean of the elements that all threads keep.
    __device__ __forceinline__ W mean_held(unsigned int elements) {
        W sum = 0;
        each_held([&](W x, W &) INLINE { sum += x; });
        const unsigned int held = KEPT * width;
        return sum_threads<0>(sum) / (W)(elements - (packs > held ? (packs - held) * N : 0));
    }

    template <typename F>
    __device__ __forceinline__ W sum(F f) {
        W sum = 0;
        each([&](W x, W &cached_value) INLINE { sum += f(x, cached_value); });
        return sum_threads<0>(sum);
    }
    template <unsigned int PLACE>
    __device__ __forceinline__ W sum_threads(W value) const {
        return reduce_threads<CANDLE_ROW_BLOCK, PLACE>(value, width, [](W a, W b) INLINE { return a + b; });
    }
    __device__ __forceinline__ W max_threads(W value) const {
        return reduce_threads<CANDLE_ROW_BLOCK>(value, width, [](W a, W b) INLINE { return maxg(a, b); });
    }

    // Writes f(element or cached value, alpha, beta, is_kept) to dst; Op::COLUMNS is the number of operands.
    template <typename Op, typename F>
    __device__ __forceinline__ void write(T *dst, const T *alpha, const T *beta, F f) {
        constexpr unsigned int COLUMNS = Op::COLUMNS;
        // Limits the number of column packs in flight to save registers.
        constexpr unsigned int AT_ONCE = larger(KEPT >> COLUMNS, 1);
        struct Columns { Pack<T> pack[COLUMNS + 1]; };
        const T *const columns[] = {alpha + head, beta + head};
        T *const to = dst + head;
        const auto read = [&](Columns &read, unsigned int at) INLINE {
#pragma unroll
            for (unsigned int c = 0; c < COLUMNS; ++c) {
                read.pack[c] = Pack<T>::read_anywhere(columns[c] + at);
            }
        };
        const auto converted = [&](W x, auto column, bool is_kept) INLINE {
            return (T)f(x, COLUMNS > 0 ? (W)column(0) : (W)1, COLUMNS > 1 ? (W)column(1) : (W)0, is_kept);
        };
        const auto write_pack = [&](const Columns &read, unsigned int at, bool is_kept, auto element) INLINE {
            Pack<T> result;
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                result.set(j, converted(element(j), [&](unsigned int c) INLINE { return read.pack[c][j]; }, is_kept));
            }
            result.write(to + at, N);
        };
#pragma unroll
        for (unsigned int first = 0; first < KEPT; first += AT_ONCE) {
            Columns some[AT_ONCE];
            each_kept<AT_ONCE>([&](unsigned int p, unsigned int at) INLINE { read(some[p - first], at); }, first);
#pragma unroll
            for (unsigned int p = 0; p < AT_ONCE; ++p) {
                if (!Op::CACHES_EXPONENTIALS) {
                    kept[first + p].make_opaque();
                }
#pragma unroll
                for (unsigned int c = 0; c < COLUMNS; ++c) {
                    some[p].pack[c].make_opaque();
                }
            }
            each_kept<AT_ONCE>([&](unsigned int p, unsigned int at) INLINE {
                write_pack(some[p - first], at, true, [&](unsigned int j) INLINE {
                    return Op::CACHES_EXPONENTIALS ? cached[p][j] : (W)kept[p][j];
                });
            }, first);
        }
        if (has_single) {
            to[single] = converted(edge, [&](unsigned int c) INLINE { return columns[c][single]; }, true);
        }
        each_remaining([&](const Pack<T> &pack, unsigned int at) INLINE {
            Columns some;
            read(some, at);
            write_pack(some, at, false, [&](unsigned int j) INLINE { return (W)pack[j]; });
        });
    }

    // Writes f(weights)(element) to dst; `channels` returns the weights of the channel at a position.
    template <typename C, typename F>
    __device__ __forceinline__ void write_channels(T *dst, C channels, F f) {
        typedef decltype(channels(0)) Weights;
        T *const to = dst + head;
        const auto write_pack = [&](const Pack<T> &pack, const Weights &weights, unsigned int at) INLINE {
            Pack<T> result;
            if (weights.left >= N) {
                const auto shared = f(weights);
#pragma unroll
                for (unsigned int j = 0; j < N; ++j) {
                    result.set(j, (T)shared((W)pack[j]));
                }
            } else {
#pragma unroll
                for (unsigned int j = 0; j < N; ++j) {
                    result.set(j, (T)f(channels(head + at + j))((W)pack[j]));
                }
            }
            result.write(to + at, N);
        };
        Weights some[KEPT];
        each_kept([&](unsigned int p, unsigned int at) INLINE { some[p] = channels(head + at); });
        // Keeps the compiler from moving loads to their uses.
        asm volatile("" ::: "memory");
#pragma unroll
        for (unsigned int p = 0; p < KEPT; ++p) {
            kept[p].make_opaque();
        }
        each_kept([&](unsigned int p, unsigned int at) INLINE { write_pack(kept[p], some[p], at); });
        if (has_single) {
            to[single] = (T)f(channels(head + single))(edge);
        }
        each_remaining([&](const Pack<T> &pack, unsigned int at) INLINE { write_pack(pack, channels(head + at), at); });
    }
};

// Returns e^x. Narrow floats use one instruction of sufficient precision.
template <typename T, typename W>
__device__ __forceinline__ W exponential(W x) {
    if constexpr (sizeof(T) == 2) {
        return candle_exp2(x * 1.44269504f);
    } else {
        return expg(x);
    }
}

// A row of only -INFINITY gives NaN; such a part contributes nothing. Exponentials are cached.
template <bool LOG>
struct Softmax {
    static constexpr unsigned int COLUMNS = 0;
    static constexpr bool CACHES_EXPONENTIALS = !LOG;

    template <typename R, typename W = typename R::W>
    static __device__ __forceinline__ RowStatistics<W> statistics(R &row, unsigned int, bool is_part) {
        typedef typename R::T T;
        W top = -INFINITY;
        row.each([&](W x, W &) INLINE { top = maxg(top, x); });
        top = row.max_threads(top);
        const W base = is_part && top == -INFINITY ? (W)0 : top;
        const W sum = row.sum([&](W x, W &cached_value) INLINE {
            const W e = exponential<T>(x - base);
            if (CACHES_EXPONENTIALS) {
                cached_value = e;
            }
            return e;
        });
        return {top, 0, sum};
    }
    template <typename R, typename W>
    static __device__ __forceinline__ RowStatistics<W> merge_parts(R &row, const RowStatistics<W> *parts, unsigned int count,
                                                       unsigned int, unsigned int) {
        typedef typename R::T T;
        W top = -INFINITY, sum = 0;
        for (unsigned int i = row.lane; i < count; i += row.width) {
            top = maxg(top, parts[i].base);
        }
        top = row.max_threads(top);
        for (unsigned int i = row.lane; i < count; i += row.width) {
            sum += parts[i].sum * expg(parts[i].base - top);
        }
        if (CACHES_EXPONENTIALS) {
            row.each([&](W x, W &cached_value) INLINE { cached_value = exponential<T>(x - top); });
        }
        return {top, 0, row.template sum_threads<0>(sum)};
    }
    template <typename W>
    static __device__ __forceinline__ W scale(const RowStatistics<W> &row, W, W) {
        return LOG ? logg(row.sum) : (W)1 / row.sum;
    }
    template <typename T, typename W>
    static __device__ __forceinline__ W element(W x, const RowStatistics<W> &row, W scale, W, W, bool is_kept) {
        return LOG ? (x - row.base) - scale : (is_kept ? x : exponential<T>(x - row.base)) * scale;
    }
};

// The variance is computed from differences to a mean, because mean(x^2) - mean(x)^2 cancels if the mean is large.
// The mean of the kept elements is used, so that the rest is read only once; the differences also give the
// correction to the exact mean. RMS norm (MEAN = false) uses a mean of 0.
template <bool MEAN>
struct Norm {
    static constexpr unsigned int COLUMNS = MEAN ? 2 : 1;
    static constexpr bool CACHES_EXPONENTIALS = false;

    template <typename R, typename W = typename R::W>
    static __device__ __forceinline__ RowStatistics<W> statistics(R &row, unsigned int elements, bool) {
        if (!MEAN) {
            return {0, 0, row.sum([](W x, W &) INLINE { return x * x; })};
        }
        const W mean = row.mean_held(elements);
        Moments<W> moments = {0, 0};
        row.each([&](W x, W &) INLINE {
            const W difference = x - mean;
            moments.first += difference;
            moments.second += difference * difference;
        });
        moments = reduce_threads<CANDLE_ROW_BLOCK>(moments, row.width, [](Moments<W> a, Moments<W> b) INLINE {
            return Moments<W>{a.first + b.first, a.second + b.second};
        });
        const W rest = moments.first / (W)elements;
        return {mean, rest, moments.second - moments.first * rest};
    }
    template <typename R, typename W>
    static __device__ __forceinline__ RowStatistics<W> merge_parts(R &row, const RowStatistics<W> *parts, unsigned int count,
                                                       unsigned int columns, unsigned int part) {
        const W base = parts[0].base;
        W rest = 0, sum = 0;
        for (unsigned int i = row.lane; i < count; i += row.width) {
            rest += (W)min(part, columns - i * part) * ((parts[i].base - base) + parts[i].rest);
        }
        rest = row.template sum_threads<0>(rest) / (W)columns;
        for (unsigned int i = row.lane; i < count; i += row.width) {
            const W difference = ((parts[i].base - base) + parts[i].rest) - rest;
            sum += parts[i].sum + (W)min(part, columns - i * part) * difference * difference;
        }
        return {base, rest, row.template sum_threads<1>(sum)};
    }
    template <typename W>
    static __device__ __forceinline__ W scale(const RowStatistics<W> &row, W columns, W eps) {
        return (W)1 / sqrtg(row.sum / columns + eps);
    }
    template <typename T, typename W>
    static __device__ __forceinline__ W element(W x, const RowStatistics<W> &row, W scale, W alpha, W beta, bool) {
        return MEAN ? ((x - row.base) - row.rest) * scale * alpha + beta : x * scale * alpha;
    }
};

// Calls `write(row, statistics, row index, start of the part in the row, offset in the tensor)`, or stores
// statistics. `source(row index, start of the part)` changes the elements.
template <typename Op, typename T, typename F, typename S>
__device__ __forceinline__ void each_row(const T *src, const bool writes, void *partials, const unsigned int rows,
                                         const unsigned int columns, const unsigned int part, const unsigned int width,
                                         F write, S source) {
    typedef typename Wide<T>::type W;
    const unsigned int shift = log2_of(width), number = blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    const bool is_row = number < rows;
    const unsigned int begin = blockIdx.y * part, count = is_row ? min(part, columns - begin) : 0;
    const size_t first = is_row ? (size_t)number * columns + begin : 0;
    Row<T, decltype(source(number, begin))> row(src + first, count, threadIdx.x & (width - 1), width, source(number, begin));
    RowStatistics<W> *parts = (RowStatistics<W> *)partials + (is_row ? (size_t)number * gridDim.y : 0);
    RowStatistics<W> row_statistics;
    if (partials && writes) {
        row_statistics = Op::merge_parts(row, (const RowStatistics<W> *)parts, gridDim.y, columns, part);
    } else {
        row_statistics = Op::statistics(row, count, partials != nullptr);
    }
    if (!writes) {
        if (is_row && row.lane == 0) {
            parts[blockIdx.y] = row_statistics;
        }
        return;
    }
    write(row, row_statistics, number, begin, first);
}

// Rows with a factor and a summand for each column.
template <typename Op, typename T>
__device__ __forceinline__ void each_row(const T *src, T *dst, const T *alpha, const T *beta, void *partials,
                                         const unsigned int rows, const unsigned int columns, const unsigned int part,
                                         const unsigned int width, const float eps) {
    typedef typename Wide<T>::type W;
    const auto write = [=](Row<T> &row, const RowStatistics<W> &row_statistics, unsigned int, unsigned int begin, size_t first) INLINE {
        const W scale = Op::scale(row_statistics, (W)columns, (W)eps);
        row.template write<Op>(dst + first, alpha + begin, beta + begin, [=](W x, W a, W b, bool is_kept) INLINE {
            return Op::template element<T>(x, row_statistics, scale, a, b, is_kept);
        });
    };
    const auto source = [](unsigned int, unsigned int) INLINE { return Unchanged<T>(); };
    each_row<Op>(src, dst != nullptr, partials, rows, columns, part, width, write, source);
}

// Weights of a channel, and the number of elements left in it.
template <typename T>
struct Channel { T alpha, beta; unsigned int left; };

// Sums of the elements and a summand for each channel, rounded. Positions are relative to the part that begins at `begin`.
// `summands` begins with that of the first channel of the row; null changes nothing.
template <typename T>
struct ChannelSums {
    typedef typename Wide<T>::type W;
    static constexpr unsigned int FEW_KEPT = 1;
    const T *summands;
    Divisor channel;
    unsigned int begin;

    __device__ __forceinline__ bool changes() const { return summands != nullptr; }
    __device__ __forceinline__ T changed(T x, unsigned int at) const {
        return (T)((W)x + (W)summands[channel.quotient(begin + at)]);
    }
    __device__ __forceinline__ void change(Pack<T> &pack, unsigned int at) const {
        constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T);
        unsigned int past = begin + at;
        const unsigned int own = channel.split(past);
        if (channel.by - past >= N) {
            const W summand = (W)summands[own];
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                pack.set(j, (T)((W)pack[j] + summand));
            }
        } else {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                pack.set(j, changed(pack[j], at + j));
            }
        }
    }
};

// Rows that are groups of channels with `channel` elements each; the first row is group number `group`. `summands` is
// null, or has a summand for each channel of each image, which is added first. SiLU is applied last.
template <typename T>
__device__ __forceinline__ void each_group(const T *src, T *dst, const T *alpha, const T *beta, void *partials,
                                           const unsigned int rows, const unsigned int columns, const unsigned int part,
                                           const unsigned int width, const size_t channel, const size_t group_count,
                                           const unsigned int group, const double eps, const T *summands,
                                           const bool silu) {
    typedef typename Wide<T>::type W;
    typedef Norm<true> Op;
    const Divisor size(channel), groups(group_count);
    const auto source = [=](unsigned int number, unsigned int begin) INLINE {
        const T *own = summands ? summands + (size_t)(group + number) * size.quotient(columns) : nullptr;
        return ChannelSums<T>{own, size, begin};
    };
    const auto write = [=](auto &row, const RowStatistics<W> &row_statistics, unsigned int number, unsigned int begin,
                           size_t first) INLINE {
        const W scale = Op::scale(row_statistics, (W)columns, (W)eps);
        unsigned int place = group + number;
        groups.split(place);
        place *= size.quotient(columns);
        const auto channels = [=](unsigned int at) INLINE {
            unsigned int past = begin + at;
            const unsigned int own = place + size.split(past);
            return Channel<T>{alpha[own], beta[own], size.by - past};
        };
        row.write_channels(dst + first, channels, [=](const Channel<T> &channel) INLINE {
            const W factor = scale * (W)channel.alpha, summand = (W)channel.beta - row_statistics.rest * factor;
            return [=](W x) INLINE {
                const W y = (x - row_statistics.base) * factor + summand;
                return silu ? y / ((W)1 + exponential<T>(-y)) : y;
            };
        });
    };
    each_row<Op>(src, dst != nullptr, partials, rows, columns, part, width, write, source);
}

#define ROW_KERNEL(NAME) extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) NAME
#define ROWS const unsigned int rows, const unsigned int columns, const unsigned int part, const unsigned int width
#define ROW_OPS(T, NAME)                                                                                         \
    ROW_KERNEL(softmax_##NAME)(const T *src, T *dst, void *partials, ROWS) {                                     \
        each_row<Softmax<false>>(src, dst, src, src, partials, rows, columns, part, width, 0);                   \
    }                                                                                                            \
    ROW_KERNEL(logsoftmax_##NAME)(const T *src, T *dst, void *partials, ROWS) {                                  \
        each_row<Softmax<true>>(src, dst, src, src, partials, rows, columns, part, width, 0);                    \
    }                                                                                                            \
    ROW_KERNEL(rmsnorm_##NAME)(const T *src, T *dst, const T *alpha, void *partials, ROWS, const float eps) {    \
        each_row<Norm<false>>(src, dst, alpha, src, partials, rows, columns, part, width, eps);                  \
    }                                                                                                            \
    ROW_KERNEL(layernorm_##NAME)(const T *src, T *dst, const T *alpha, const T *beta, void *partials, ROWS,      \
                                 const float eps) {                                                              \
        each_row<Norm<true>>(src, dst, alpha, beta, partials, rows, columns, part, width, eps);                  \
    }                                                                                                            \
    ROW_KERNEL(groupnorm_##NAME)(const T *src, T *dst, const T *alpha, const T *beta, void *partials, ROWS,      \
                                 const size_t channel, const size_t groups, const unsigned int group,            \
                                 const double eps, const T *summands, const bool silu) {                         \
        each_group(src, dst, alpha, beta, partials, rows, columns, part, width, channel, groups, group, eps,     \
                   summands, silu);                                                                              \
    }
ROW_OPS(__nv_bfloat16, bf16)
ROW_OPS(__half, f16)
ROW_OPS(float, f32)
ROW_OPS(double, f64)
