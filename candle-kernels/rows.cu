// Softmax and norms of dense rows. `width` threads share a row, a power of two; a workgroup has several short rows, and
// a thread keeps up to ROW_HELD elements of its row in registers: what a row has beyond that is read again. Computed in
// f32, or f64 for f64.
//
// Few long rows are cut into parts of `part` elements, counted by the grid's y dimension, in two launches: the first has
// no `dst` and leaves what it knows of each part in `known`, the second reads that. Else `known` is null.
#include "lanes.cuh"

template <typename T>
struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };

// What is known of a row, or of a part of it. Softmax: the largest element and the sum of the exponentials of the
// distances to it. Norms: the mean, what it was rounded by, and the sum of squares of the distances to both.
template <typename W>
struct Known { W base, rest, sum; };

// A sum of differences, and one of their squares.
template <typename W>
struct Moments { W first, second; };

// A row or a part of one: elements before the first aligned pack, packs, and elements behind the last one. Thread
// `lane` has every `width`th pack, and one of the elements outside of packs.
template <typename T>
struct Row {
    typedef typename Wide<T>::type W;
    static constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T);
    // 16 elements, of f64 2.
    static constexpr unsigned int PACKS = sizeof(W) == 8 ? 1 : 16 / N;

    const T *from;
    unsigned int elements, lane, width, head, packs, single;
    W held[PACKS][N], edge;

    __device__ __forceinline__ Row(const T *row, unsigned int count, unsigned int number, unsigned int threads)
        : from(row), elements(count), lane(number), width(threads) {
        head = before_packs<N>(from, elements);
        packs = (elements - head) / N;
        single = lane < head ? lane : lane + packs * N;
        LanePack<T> raw[PACKS];
#pragma unroll
        for (unsigned int p = 0; p < PACKS; ++p) {
            if (lane + p * width < packs) {
                raw[p] = ((const LanePack<T> *)(from + head))[lane + p * width];
            }
        }
        edge = single < elements ? (W)from[single] : (W)0;
#pragma unroll
        for (unsigned int p = 0; p < PACKS; ++p) {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                held[p][j] = (W)raw[p].v[j];
            }
        }
    }

    // f of each element that is held, which it may change.
    template <typename F>
    __device__ __forceinline__ void each_held(F f) {
#pragma unroll
        for (unsigned int p = 0; p < PACKS; ++p) {
            if (lane + p * width < packs) {
#pragma unroll
                for (unsigned int j = 0; j < N; ++j) {
                    f(held[p][j]);
                }
            }
        }
        if (single < elements) {
            f(edge);
        }
    }

    // f of each element.
    template <typename F>
    __device__ __forceinline__ void each(F f) {
        each_held(f);
        further([&](const LanePack<T> &pack, unsigned int) INLINE {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                W x = (W)pack.v[j];
                f(x);
            }
        });
    }

    // The packs that are not held, with their numbers.
    template <typename F>
    __device__ __forceinline__ void further(F f) const {
        const LanePack<T> *first = (const LanePack<T> *)(from + head);
        in_flight<sizeof(W) == 8 ? 1 : 2>(lane + PACKS * width, packs, width, [=](unsigned int p) INLINE { return first[p]; }, f);
    }

    template <typename F>
    __device__ __forceinline__ W sum(F f) {
        W sum = 0;
        each([&](W &x) INLINE { sum += f(x); });
        return added(sum);
    }

    __device__ __forceinline__ W added(W value) const {
        return combined<CANDLE_ROW_BLOCK>(value, width, [](W a, W b) INLINE { return a + b; });
    }
    __device__ __forceinline__ W largest(W value) const {
        return combined<CANDLE_ROW_BLOCK>(value, width, [](W a, W b) INLINE { return maxg(a, b); });
    }

    // f of each element, its factor and summand, as Op has them, and whether it is held, to dst.
    template <typename Op, typename F>
    __device__ __forceinline__ void write(T *dst, const T *alpha, const T *beta, F f) const {
        const auto pack = [&](unsigned int number, bool is_held, auto element) INLINE {
            const unsigned int at = head + number * N;
            LanePack<T> a, b, result;
            if (Op::FACTORS) {
                a = load_pack<N>(alpha + at);
            }
            if (Op::SUMMANDS) {
                b = load_pack<N>(beta + at);
            }
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                result.v[j] = (T)f(element(j), Op::FACTORS ? (W)a.v[j] : (W)1, Op::SUMMANDS ? (W)b.v[j] : (W)0, is_held);
            }
            store_pack(dst + at, result);
        };
#pragma unroll
        for (unsigned int p = 0; p < PACKS; ++p) {
            if (lane + p * width < packs) {
                pack(lane + p * width, true, [&](unsigned int j) INLINE { return held[p][j]; });
            }
        }
        if (single < elements) {
            const W a = Op::FACTORS ? (W)alpha[single] : (W)1, b = Op::SUMMANDS ? (W)beta[single] : (W)0;
            dst[single] = (T)f(edge, a, b, true);
        }
        further([&](const LanePack<T> &raw, unsigned int number) INLINE {
            pack(number, false, [&](unsigned int j) INLINE { return (W)raw.v[j]; });
        });
    }
};

// A row of -INFINITY only gives NaN: the distance of two infinities is none. A part of a row may be so: it adds nothing.
// Exponentials take the place of the elements that are held.
template <bool LOG>
struct Softmax {
    static constexpr bool FACTORS = false, SUMMANDS = false;

    template <typename T, typename W = typename Row<T>::W>
    static __device__ __forceinline__ Known<W> of(Row<T> &row, bool is_part) {
        W top = -INFINITY;
        row.each([&](W &x) INLINE { top = maxg(top, x); });
        top = row.largest(top);
        const W base = is_part && top == -INFINITY ? (W)0 : top;
        const W sum = row.sum([&](W &x) INLINE {
            const W e = expg(x - base);
            if (!LOG) {
                x = e;
            }
            return e;
        });
        return {top, 0, sum};
    }
    template <typename T, typename W>
    static __device__ __forceinline__ Known<W> of_parts(Row<T> &row, const Known<W> *parts, unsigned int count,
                                                       unsigned int, unsigned int) {
        W top = -INFINITY, sum = 0;
        for (unsigned int i = row.lane; i < count; i += row.width) {
            top = maxg(top, parts[i].base);
        }
        top = row.largest(top);
        for (unsigned int i = row.lane; i < count; i += row.width) {
            sum += parts[i].sum * expg(parts[i].base - top);
        }
        if (!LOG) {
            row.each_held([&](W &x) INLINE { x = expg(x - top); });
        }
        return {top, 0, row.added(sum)};
    }
    template <typename W>
    static __device__ __forceinline__ W scale(const Known<W> &known, W, W) {
        return LOG ? logg(known.sum) : (W)1 / known.sum;
    }
    template <typename W>
    static __device__ __forceinline__ W element(W x, const Known<W> &known, W scale, W, W, bool is_held) {
        return LOG ? (x - known.base) - scale : (is_held ? x : expg(x - known.base)) * scale;
    }
};

// The variance is that of the differences to the mean: mean(x^2) - mean(x)^2 would lose most digits where the mean
// is large. What the mean was rounded by is known from the same differences, and taken off. Without a mean, it is 0.
template <bool MEAN>
struct Norm {
    static constexpr bool FACTORS = true, SUMMANDS = MEAN;

    template <typename T, typename W = typename Row<T>::W>
    static __device__ __forceinline__ Known<W> of(Row<T> &row, bool) {
        if (!MEAN) {
            return {0, 0, row.sum([](W &x) INLINE { return x * x; })};
        }
        const W mean = row.sum([](W &x) INLINE { return x; }) / (W)row.elements;
        Moments<W> moments = {0, 0};
        row.each([&](W &x) INLINE {
            const W difference = x - mean;
            moments.first += difference;
            moments.second += difference * difference;
        });
        moments = combined<CANDLE_ROW_BLOCK>(moments, row.width, [](Moments<W> a, Moments<W> b) INLINE {
            return Moments<W>{a.first + b.first, a.second + b.second};
        });
        const W rest = moments.first / (W)row.elements;
        return {mean, rest, moments.second - moments.first * rest};
    }
    template <typename T, typename W>
    static __device__ __forceinline__ Known<W> of_parts(Row<T> &row, const Known<W> *parts, unsigned int count,
                                                       unsigned int columns, unsigned int part) {
        const W base = parts[0].base;
        W rest = 0, sum = 0;
        for (unsigned int i = row.lane; i < count; i += row.width) {
            rest += (W)min(part, columns - i * part) * ((parts[i].base - base) + parts[i].rest);
        }
        rest = row.added(rest) / (W)columns;
        for (unsigned int i = row.lane; i < count; i += row.width) {
            const W difference = ((parts[i].base - base) + parts[i].rest) - rest;
            sum += parts[i].sum + (W)min(part, columns - i * part) * difference * difference;
        }
        return {base, rest, row.added(sum)};
    }
    template <typename W>
    static __device__ __forceinline__ W scale(const Known<W> &known, W columns, W eps) {
        return (W)1 / sqrtg(known.sum / columns + eps);
    }
    template <typename W>
    static __device__ __forceinline__ W element(W x, const Known<W> &known, W scale, W alpha, W beta, bool) {
        return MEAN ? ((x - known.base) - known.rest) * scale * alpha + beta : x * scale * alpha;
    }
};

template <typename Op, typename T>
__device__ __forceinline__ void each_row(const T *src, T *dst, const T *alpha, const T *beta, void *known,
                                         const unsigned int rows, const unsigned int columns, const unsigned int part,
                                         const unsigned int width, const float eps) {
    typedef typename Row<T>::W W;
    const unsigned int shift = log2_of(width), number = blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    const bool is_row = number < rows;
    const unsigned int begin = blockIdx.y * part;
    const size_t first = is_row ? (size_t)number * columns + begin : 0;
    Row<T> row(src + first, is_row ? min(part, columns - begin) : 0, threadIdx.x & (width - 1), width);
    Known<W> *parts = (Known<W> *)known + (is_row ? (size_t)number * gridDim.y : 0);
    Known<W> whole;
    if (known && dst) {
        whole = Op::of_parts(row, (const Known<W> *)parts, gridDim.y, columns, part);
    } else {
        whole = Op::of(row, known != nullptr);
    }
    if (!dst) {
        if (is_row && row.lane == 0) {
            parts[blockIdx.y] = whole;
        }
        return;
    }
    const W scale = Op::scale(whole, (W)columns, (W)eps);
    row.template write<Op>(dst + first, alpha + begin, beta + begin, [&](W x, W a, W b, bool is_held) INLINE {
        return Op::element(x, whole, scale, a, b, is_held);
    });
}

#define ROW_KERNEL(NAME) extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) NAME
#define ROWS const unsigned int rows, const unsigned int columns, const unsigned int part, const unsigned int width
#define ROW_OPS(T, NAME)                                                                                         \
    ROW_KERNEL(softmax_##NAME)(const T *src, T *dst, void *known, ROWS) {                                        \
        each_row<Softmax<false>>(src, dst, src, src, known, rows, columns, part, width, 0);                      \
    }                                                                                                            \
    ROW_KERNEL(logsoftmax_##NAME)(const T *src, T *dst, void *known, ROWS) {                                     \
        each_row<Softmax<true>>(src, dst, src, src, known, rows, columns, part, width, 0);                       \
    }                                                                                                            \
    ROW_KERNEL(rmsnorm_##NAME)(const T *src, T *dst, const T *alpha, void *known, ROWS, const float eps) {       \
        each_row<Norm<false>>(src, dst, alpha, src, known, rows, columns, part, width, eps);                     \
    }                                                                                                            \
    ROW_KERNEL(layernorm_##NAME)(const T *src, T *dst, const T *alpha, const T *beta, void *known, ROWS,         \
                                 const float eps) {                                                              \
        each_row<Norm<true>>(src, dst, alpha, beta, known, rows, columns, part, width, eps);                     \
    }
ROW_OPS(__nv_bfloat16, bf16)
ROW_OPS(__half, f16)
ROW_OPS(float, f32)
ROW_OPS(double, f64)
