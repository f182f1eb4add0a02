// Sums, variances, extrema and their places (indices) over any set of dims, for all dtypes.
//
// The layout lists the dims that are kept, then those that are reduced. `width` threads, a power of two, share a
// result, so that a workgroup computes blockDim.x / width of them. gridDim.y splits each result's elements into
// parts, which a second launch reduces. Threads are numbered along the reduced elements. If `across` is not 0, they
// are numbered along the results instead, and each thread has `across` neighbouring ones: the host chooses the
// contiguous direction. Part p of result r is written to p * results + r.
#include "lanes.cuh"

template <typename Acc>
struct Sum {
    Acc sum;

    static __device__ __forceinline__ Sum none(Acc) { return {0}; }
    __device__ __forceinline__ void accumulate(Acc x, uint32_t) { sum += x; }
    __device__ __forceinline__ void merge(const Sum &other) { sum += other.sum; }
};

// Differences to the first element of the result, in f64. Because that element is one of the result's own,
// cancellation costs the variance at most a relative error of 2^-53 per element.
struct Moments {
    double sum, squares;

    __device__ __forceinline__ void merge(const Moments &other) {
        sum += other.sum;
        squares += other.squares;
    }
};
struct Differences : Moments {
    float first;

    static __device__ __forceinline__ Differences none(float first) { return {{0, 0}, first}; }
    __device__ __forceinline__ void accumulate(float x, uint32_t) {
        const double difference = (double)x - first;
        sum += difference;
        squares += difference * difference;
    }
};

// Narrow floats are compared as f32.
template <typename T>
struct Comparable { typedef T type; };
template <> struct Comparable<__half> { typedef float type; };
template <> struct Comparable<__nv_bfloat16> { typedef float type; };
template <> struct Comparable<__nv_fp8_e4m3> { typedef float type; };

// Keys whose maximum is that of the elements or, if `flips` is not 0, their minimum: it changes the sign of floats and
// all bits of integers, which reverses the order of both.
template <typename T>
struct Keys {
    typedef typename Comparable<T>::type C;
    typedef typename Bits<sizeof(C)>::type B;
    static constexpr bool IS_FLOAT = (C)0.5 != (C)0;
    B flips;

    explicit __device__ __forceinline__ Keys(bool smallest)
        : flips(!smallest ? 0 : IS_FLOAT ? (B)((B)1 << (8 * sizeof(B) - 1)) : (B)~(B)0) {}
    // Its own inverse.
    __device__ __forceinline__ C flip(C x) const { return candle_bits<C>((B)(candle_bits<B>(x) ^ flips)); }
    __device__ __forceinline__ C operator()(T x) const { return flip((C)x); }
};

// The largest key so far and its place, the first among equals; NaN is skipped. It starts as the smallest possible key
// at place 0, which remains only if no key is larger, so that element 0 equals it or is NaN.
template <typename C>
struct Extreme {
    C key;
    uint32_t place;

    static __device__ __forceinline__ Extreme none(C) {
        if constexpr ((C)0.5 != (C)0) {
            return {(C)-INFINITY, 0};
        } else {
            return {cuda::std::numeric_limits<C>::lowest(), 0};
        }
    }
    // Must be called in the order of the places.
    __device__ __forceinline__ void accumulate(C x, uint32_t at) {
        const bool better = x > key;
        key = better ? x : key;
        place = better ? at : place;
    }
    __device__ __forceinline__ void merge(const Extreme &other) {
        if (other.key > key || (other.key == key && other.place < place)) {
            *this = other;
        }
    }
};

// Calls `use` with `from[e * stride]` and e for e = first, first + step, ... below end. LOADS loads are in flight, and only
// the last batch compares its indices with the end.
template <unsigned int LOADS, typename T, typename F>
__device__ __forceinline__ void for_each_strided(const T *from, unsigned int first, unsigned int end, unsigned int step,
                                                 size_t stride, F use) {
    const size_t next = step * stride;
    const T *at = from + first * stride;
    for (; first + (LOADS - 1) * step < end; first += LOADS * step) {
        T loaded[LOADS];
#pragma unroll
        for (unsigned int k = 0; k < LOADS; ++k) {
            loaded[k] = *at;
            at += next;
        }
        // Keeps the compiler from moving loads to their uses.
        asm volatile("" ::: "memory");
#pragma unroll
        for (unsigned int k = 0; k < LOADS; ++k) {
            use(loaded[k], first + k * step);
        }
    }
    for_each_prefetched<LOADS>(first, end, step, [&](unsigned int e) INLINE { return from[e * stride]; }, use);
}

// An element and its place within the elements of a result.
template <typename T>
struct Placed { T value; uint32_t at; };

struct ReductionTask {
    unsigned int results, per_result, width, across;
    size_t kept_dims, num_dims;
    const size_t *info;

    // base(): offset of a result's first element. offset(): offset of an element relative to it.
    __device__ __forceinline__ size_t base(unsigned int result) const { return place(result, 0, kept_dims); }
    __device__ __forceinline__ size_t offset(unsigned int element) const { return place(element, kept_dims, num_dims); }
    __device__ __forceinline__ size_t place(unsigned int index, size_t first, size_t end) const {
        size_t at = 0;
#pragma unroll 1
        for (size_t d = end; d > first + 1; --d) {
            const unsigned int size = (unsigned int)info[d - 1];
            at += index % size * info[num_dims + d - 1];
            index /= size;
        }
        return at + index * (first == end ? 1 : info[num_dims + first]);
    }
    // True if the reduced elements have one stride.
    __device__ __forceinline__ bool has_stride() const { return num_dims <= kept_dims + 1; }
    __device__ __forceinline__ size_t stride() const { return num_dims == kept_dims ? 1 : info[num_dims + kept_dims]; }
    // Returns the function offset(); one dim needs no division. The branch between both forms is uniform.
    __device__ __forceinline__ auto offsets() const {
        const bool is_single = has_stride();
        const size_t step = stride();
        return [=, *this](unsigned int e) INLINE { return is_single ? e * step : offset(e); };
    }
    // Returns true if elements n * i to n * i + n - 1 are contiguous, and aligned if the first element is.
    __device__ __forceinline__ bool has_packs(unsigned int n) const {
        bool has = num_dims > kept_dims && info[2 * num_dims - 1] == 1 && info[num_dims - 1] % n == 0;
        for (size_t d = kept_dims; d + 1 < num_dims; ++d) {
            has &= info[num_dims + d] % n == 0;
        }
        return has;
    }
};

// Threads are numbered along the results: merges the accumulators of the `width` threads of a column of P neighbouring
// results, and calls `finish` with each result's number in the column and its value.
template <unsigned int P, typename Accumulator, typename Fold, typename F>
__device__ __forceinline__ void merge_columns(const Accumulator (&folds)[P], unsigned int width, Fold *shared, F finish) {
    const unsigned int columns = blockDim.x >> log2_of(width), column = threadIdx.x & (columns - 1);
    constexpr unsigned int RESULTS_AT_ONCE = P < 4 ? P : 4;
#pragma unroll
    for (unsigned int j = 0; j < P; j += RESULTS_AT_ONCE) {
        __syncthreads();
#pragma unroll
        for (unsigned int k = 0; k < RESULTS_AT_ONCE; ++k) {
            shared[k * CANDLE_BLOCK + threadIdx.x] = folds[j + k];
        }
        __syncthreads();
#pragma unroll 1
        for (unsigned int k = threadIdx.x >> log2_of(columns); k < RESULTS_AT_ONCE; k += width) {
            Fold fold = shared[k * CANDLE_BLOCK + column];
#pragma unroll 1
            for (unsigned int other = 1; other < width; ++other) {
                fold.merge(shared[k * CANDLE_BLOCK + other * columns + column]);
            }
            finish(j + k, fold);
        }
    }
}

// Calls `finish` with each result's index, the offset of its first element, and the reduced value. `convert` maps
// elements to what is accumulated. `candidates` are the places that parts have found; null for all elements.
// Accumulator, a thread's own state, derives from Fold, which threads merge.
template <typename Fold, typename Accumulator = Fold, typename T, typename C, typename F>
__device__ __forceinline__ void reduce(const ReductionTask &task, const T *src, const uint32_t *candidates, C convert,
                                       F finish) {
    // As many neighbouring results as fit into registers; the host uses the same formula.
    constexpr unsigned int MAX_NEIGHBOURS = sizeof(Accumulator) > 16 ? 8 / sizeof(T) : CANDLE_MAX_RESULTS_PER_THREAD;
    constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T), P = N < MAX_NEIGHBOURS ? N : MAX_NEIGHBOURS;
    __shared__ Fold shared[CANDLE_BLOCK * (P < 4 ? P : 4)];
    const unsigned int part = (((task.per_result - 1) / gridDim.y + 1) + N - 1) / N * N;
    const unsigned int begin = min(blockIdx.y * part, task.per_result), end = min(begin + part, task.per_result);
    const bool across = task.across != 0;
    const unsigned int shift = log2_of(task.width), columns = blockDim.x >> shift;
    const unsigned int lane = across ? threadIdx.x >> log2_of(columns) : threadIdx.x & (task.width - 1);
    const unsigned int column = across ? threadIdx.x & (columns - 1) : threadIdx.x >> shift;
    const unsigned int result = (blockIdx.x * columns + column) * (task.across > 1 ? P : 1);
    const bool within = result < task.results;
    const size_t base = within ? task.base(result) : 0;
    const unsigned int count = within ? end - begin : 0;
    const T *from = src + base;
    const auto offset = task.offsets();
    const auto finish_column = [&](unsigned int j, const Fold &fold) INLINE {
        if (within) {
            finish(result + j, base + j, fold);
        }
    };
    if (task.across > 1) {
        constexpr unsigned int LOADS = sizeof(T) <= 2 ? 2 : 4;
        Accumulator folds[P];
        for (unsigned int j = 0; j < P; ++j) {
            folds[j] = Accumulator::none(convert(from[j]));
        }
        for_each_prefetched<LOADS>(begin + lane, begin + count, task.width, [&](unsigned int e) INLINE {
            return Pack<T, P>::read(from + offset(e));
        }, [&](const Pack<T, P> &pack, unsigned int e) INLINE {
#pragma unroll
            for (unsigned int j = 0; j < P; ++j) {
                folds[j].accumulate(convert(pack[j]), e);
            }
        });
        return merge_columns(folds, task.width, shared, finish_column);
    }
    Accumulator folds[1] = {Accumulator::none(convert(*from))}, &fold = folds[0];
    const bool is_row = task.num_dims == task.kept_dims + 1 && task.has_packs(1);
    if (!across && !candidates && (is_row || (task.has_packs(N) && (uintptr_t)from % CANDLE_PACK_BYTES == 0))) {
        // Packs, with single elements before and after them in unaligned rows.
        constexpr unsigned int LOADS = sizeof(T) == 1 ? 1 : 4;
        const unsigned int head = is_row ? elements_before_packs<N>(from + begin, count) : 0, packs = (count - head) / N;
#pragma unroll 1
        for (unsigned int e = lane; e < head; e += task.width) {
            fold.accumulate(convert(from[begin + e]), begin + e);
        }
        for_each_prefetched<LOADS>(lane, packs, task.width, [&](unsigned int p) INLINE {
            return Pack<T>::read(from + offset(begin + head + p * N));
        }, [&](const Pack<T> &pack, unsigned int p) INLINE {
#pragma unroll
            for (unsigned int j = 0; j < N; ++j) {
                fold.accumulate(convert(pack[j]), begin + head + p * N + j);
            }
        });
#pragma unroll 1
        for (unsigned int e = head + packs * N + lane; e < count; e += task.width) {
            fold.accumulate(convert(from[begin + e]), begin + e);
        }
    } else if (candidates) {
        for_each_prefetched<4>(begin + lane, begin + count, task.width, [&](unsigned int e) INLINE {
            const uint32_t at = candidates[(size_t)e * task.results + result];
            return Placed<T>{from[offset(at)], at};
        }, [&](const Placed<T> &x, unsigned int) INLINE { fold.accumulate(convert(x.value), x.at); });
    } else {
        const auto accumulate = [&](T x, unsigned int e) INLINE { fold.accumulate(convert(x), e); };
        if (task.has_stride()) {
            constexpr unsigned int LOADS = sizeof(T) <= 4 ? 8 : 4;
            for_each_strided<LOADS>(from, begin + lane, begin + count, task.width, task.stride(), accumulate);
        } else {
            for_each_prefetched<4>(begin + lane, begin + count, task.width,
                                   [&](unsigned int e) INLINE { return from[task.offset(e)]; }, accumulate);
        }
    }
    if (across) {
        return merge_columns(folds, task.width, shared, finish_column);
    }
    const Fold all = reduce_threads<CANDLE_ROW_BLOCK>((Fold)fold, task.width, [](Fold a, const Fold &b) INLINE {
        a.merge(b);
        return a;
    });
    if (lane == 0) {
        finish_column(0, all);
    }
}

// Writes a result as the chosen one of the dtypes Out.
template <typename First, typename... Rest, typename Acc>
__device__ __forceinline__ void write_as(unsigned int chosen, void *out, size_t at, Acc value) {
    if (sizeof...(Rest) == 0 || chosen == 0) {
        ((First *)out)[at] = (First)value;
    } else if constexpr (sizeof...(Rest) > 0) {
        write_as<Rest...>(chosen - 1, out, at, value);
    }
}

// The dtypes after the input's are those of the result, of which `to` chooses one.
#define REDUCE_SUM(NAME, ACC, IN, ...)                                                                               \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) reduce_sum_##NAME(                                \
        const size_t results, const size_t per_result, const unsigned int width, const unsigned int across,          \
        const size_t kept_dims, const size_t num_dims, const size_t *info, const IN *src, void *dst,                 \
        const double scale, const size_t to) {                                                                       \
        const ReductionTask task = {(unsigned int)results, (unsigned int)per_result, width, across, kept_dims,       \
                                    num_dims, info};                                                                 \
        const auto convert = [](IN x) INLINE { return (ACC)x; };                                                     \
        reduce<Sum<ACC>>(task, src, nullptr, convert, [&](unsigned int result, size_t, Sum<ACC> all) INLINE {        \
            write_as<__VA_ARGS__>((unsigned int)to, dst, blockIdx.y * results + result, (ACC)(all.sum * (ACC)scale));              \
        });                                                                                                          \
    }
// Integers wrap. f32 is summed in f64, so that the result hardly depends on the order of summation.
REDUCE_SUM(u8, uint8_t, uint8_t, uint8_t)
REDUCE_SUM(i16, uint16_t, uint16_t, uint16_t)
REDUCE_SUM(u32, uint32_t, uint32_t, uint32_t)
REDUCE_SUM(i64, uint64_t, uint64_t, uint64_t)
REDUCE_SUM(f32, double, float, float)
REDUCE_SUM(f64, double, double, double)
// Narrow floats are summed in f32 and rounded once: sums of parts stay in f32 between the launches.
REDUCE_SUM(f16, float, __half, __half, float)
REDUCE_SUM(bf16, float, __nv_bfloat16, __nv_bfloat16, float)
REDUCE_SUM(f8e4m3, float, __nv_fp8_e4m3, __nv_fp8_e4m3, float)
REDUCE_SUM(parts, float, float, __half, __nv_bfloat16, __nv_fp8_e4m3)

#define REDUCE_VARIANCE(T, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) reduce_variance_##NAME(                           \
        const size_t results, const size_t per_result, const unsigned int width, const unsigned int across,          \
        const size_t kept_dims, const size_t num_dims, const size_t *info, const T *src, T *dst) {                   \
        const ReductionTask task = {(unsigned int)results, (unsigned int)per_result, width, across, kept_dims,       \
                                    num_dims, info};                                                                 \
        const auto convert = [](T x) INLINE { return (float)x; };                                                    \
        reduce<Moments, Differences>(task, src, nullptr, convert, [&](unsigned int result, size_t, Moments all) INLINE { \
            const double count = per_result;                                                                         \
            dst[result] = (T)((all.squares - all.sum / count * all.sum) / (count - 1));                              \
        });                                                                                                          \
    }
REDUCE_VARIANCE(__nv_bfloat16, bf16)
REDUCE_VARIANCE(__half, f16)
REDUCE_VARIANCE(float, f32)

// Like a sequential search that replaces the best element only by a strictly better one: a NaN at place 0 is the
// result, and any other NaN is skipped.
#define REDUCE_EXTREME(T, NAME)                                                                                      \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) reduce_extreme_##NAME(                            \
        const size_t results, const size_t per_result, const unsigned int width, const unsigned int across,          \
        const size_t kept_dims, const size_t num_dims, const size_t *info, const T *src,                             \
        const uint32_t *candidates, T *values, uint32_t *places, const bool smallest) {                              \
        CANDLE_BEGIN_NEXT_LAUNCH();                                                                                  \
        CANDLE_WAIT_FOR_LAUNCHES();                                                                                  \
        const ReductionTask task = {(unsigned int)results, (unsigned int)per_result, width, across, kept_dims,       \
                                    num_dims, info};                                                                 \
        const Keys<T> keys(smallest);                                                                                \
        typedef Extreme<Keys<T>::C> Best;                                                                            \
        reduce<Best>(task, src, candidates, keys, [&](unsigned int result, size_t base, const Best &best) INLINE {   \
            const T first = src[base];                                                                               \
            if (values) {                                                                                            \
                values[result] = first != first ? first : (T)keys.flip(best.key);                                    \
            }                                                                                                        \
            if (places) {                                                                                            \
                places[blockIdx.y * results + result] = first != first ? 0 : best.place;                             \
            }                                                                                                        \
        });                                                                                                          \
    }
REDUCE_EXTREME(uint8_t, u8)
REDUCE_EXTREME(uint32_t, u32)
REDUCE_EXTREME(int16_t, i16)
REDUCE_EXTREME(int32_t, i32)
REDUCE_EXTREME(int64_t, i64)
REDUCE_EXTREME(__half, f16)
REDUCE_EXTREME(__nv_bfloat16, bf16)
REDUCE_EXTREME(float, f32)
REDUCE_EXTREME(double, f64)
REDUCE_EXTREME(__nv_fp8_e4m3, f8e4m3)
