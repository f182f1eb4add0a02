// Sums, variances, extrema and their places (indices) over any set of dims, for all dtypes.
//
// The layout lists the dims that are kept, then those that are reduced. `width` threads, a power of two, share a
// result, so that a workgroup computes blockDim.x / width of them. gridDim.y splits each result's elements into
// parts, which a second launch reduces. Threads are numbered along the reduced elements. If `across` is not 0, they
// are numbered along the results instead, and each thread has `across` neighbouring ones: the host chooses the
// contiguous direction. Part p of result r is written to p * results + r.
#include "lanes.cuh"

template <typename Acc, typename T>
struct Sum {
    Acc sum;

    static __device__ __forceinline__ Sum none(T) { return {0}; }
    __device__ __forceinline__ void accumulate(T x, uint32_t) { sum += (Acc)x; }
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
template <typename T>
struct Differences : Moments {
    float first;

    static __device__ __forceinline__ Differences none(T first) { return {{0, 0}, (float)first}; }
    __device__ __forceinline__ void accumulate(T x, uint32_t) {
        const double difference = (double)(float)x - first;
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

// The best element so far and its place, the first among equals; NaN is skipped. It starts as the worst possible
// value at place 0, which remains only if no element is better, so that element 0 equals it or is NaN.
template <bool MAX, typename T>
struct Extreme {
    typedef typename Comparable<T>::type C;
    C value;
    uint32_t place;

    static __device__ __forceinline__ Extreme none(T) {
        if constexpr ((C)0.5 != (C)0) {
            return {(C)(MAX ? -INFINITY : INFINITY), 0};
        } else {
            typedef cuda::std::numeric_limits<C> limits;
            return {MAX ? limits::lowest() : limits::max(), 0};
        }
    }
    static __device__ __forceinline__ bool is_better(C x, C y) { return MAX ? x > y : x < y; }
    // Must be called in the order of the places.
    __device__ __forceinline__ void accumulate(T x, uint32_t at) {
        const bool better = is_better((C)x, value);
        value = better ? (C)x : value;
        place = better ? at : place;
    }
    __device__ __forceinline__ void merge(const Extreme &other) {
        if (is_better(other.value, value) || (other.value == value && other.place < place)) {
            *this = other;
        }
    }
};

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
    // Calls `visit` with the function that returns an element's offset; one dim needs no division.
    template <typename F>
    __device__ __forceinline__ void along(F visit) const {
        if (num_dims <= kept_dims + 1) {
            const size_t stride = num_dims == kept_dims ? 1 : info[num_dims + kept_dims];
            visit([=](unsigned int e) INLINE { return e * stride; });
        } else {
            visit([=](unsigned int e) INLINE { return offset(e); });
        }
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

// Computes P neighbouring results per thread. `candidates` are the places that parts have found; null for all
// elements. Accumulator, a thread's own state, derives from Fold, which threads merge.
template <unsigned int P, typename Accumulator, typename Fold, typename T, typename F>
__device__ __forceinline__ void reduce_across(const ReductionTask &task, unsigned int begin, unsigned int end,
                                              const T *src, const uint32_t *candidates, Fold *shared, F finish) {
    const unsigned int columns = blockDim.x >> log2_of(task.width), column = threadIdx.x & (columns - 1);
    const unsigned int lane = threadIdx.x >> log2_of(columns), first = (blockIdx.x * columns + column) * P;
    const bool within = first < task.results;
    const size_t base = within ? task.base(first) : 0;
    constexpr unsigned int LOADS = sizeof(T) <= 2 ? 2 : 4;
    Accumulator folds[P];
    for (unsigned int j = 0; j < P; ++j) {
        folds[j] = Accumulator::none(src[base + j]);
    }
    end = within ? end : begin;
    if constexpr (P == 1) {
        for_each_prefetched<4>(begin + lane, end, task.width, [&](unsigned int e) INLINE {
            const uint32_t at = candidates ? candidates[(size_t)e * task.results + first] : e;
            return Placed<T>{src[base + task.offset(at)], at};
        }, [&](const Placed<T> &x, unsigned int) INLINE { folds[0].accumulate(x.value, x.at); });
    } else {
        task.along([&](auto offset) INLINE {
            for_each_prefetched<LOADS>(begin + lane, end, task.width, [&](unsigned int e) INLINE {
                return Pack<T, P>::read(src + base + offset(e));
            }, [&](const Pack<T, P> &pack, unsigned int e) INLINE {
#pragma unroll
                for (unsigned int j = 0; j < P; ++j) {
                    folds[j].accumulate(pack[j], e);
                }
            });
        });
    }
    constexpr unsigned int RESULTS_AT_ONCE = P < 4 ? P : 4;
#pragma unroll
    for (unsigned int j = 0; j < P; j += RESULTS_AT_ONCE) {
        __syncthreads();
#pragma unroll
        for (unsigned int k = 0; k < RESULTS_AT_ONCE; ++k) {
            shared[k * CANDLE_BLOCK + threadIdx.x] = folds[j + k];
        }
        __syncthreads();
        for (unsigned int k = lane; k < RESULTS_AT_ONCE; k += task.width) {
            Fold fold = shared[k * CANDLE_BLOCK + column];
            for (unsigned int other = 1; other < task.width; ++other) {
                fold.merge(shared[k * CANDLE_BLOCK + other * columns + column]);
            }
            if (within) {
                finish(first + j + k, base + j + k, fold);
            }
        }
    }
}

// Calls `finish` with each result's index, the offset of its first element, and the reduced value.
template <typename Fold, typename Accumulator = Fold, typename T, typename F>
__device__ __forceinline__ void reduce(const ReductionTask &task, const T *src, const uint32_t *candidates, F finish) {
    // As many neighbouring results as fit into registers; the host uses the same formula.
    constexpr unsigned int MAX_NEIGHBOURS = sizeof(Accumulator) > 16 ? 8 / sizeof(T) : CANDLE_MAX_RESULTS_PER_THREAD;
    constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T), NEIGHBOURS = N < MAX_NEIGHBOURS ? N : MAX_NEIGHBOURS;
    constexpr unsigned int LOADS = sizeof(T) == 1 ? 1 : 4;
    __shared__ Fold shared[CANDLE_BLOCK * (NEIGHBOURS < 4 ? NEIGHBOURS : 4)];
    const unsigned int part = (((task.per_result - 1) / gridDim.y + 1) + N - 1) / N * N;
    const unsigned int begin = min(blockIdx.y * part, task.per_result), end = min(begin + part, task.per_result);
    if (task.across > 1) {
        return reduce_across<NEIGHBOURS, Accumulator>(task, begin, end, src, candidates, shared, finish);
    }
    if (task.across == 1) {
        return reduce_across<1, Accumulator>(task, begin, end, src, candidates, shared, finish);
    }
    const unsigned int shift = log2_of(task.width), lane = threadIdx.x & (task.width - 1);
    const unsigned int result = blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    const bool within = result < task.results;
    const size_t base = within ? task.base(result) : 0;
    const unsigned int count = within ? end - begin : 0;
    const T *from = src + base;
    Accumulator fold = Accumulator::none(*from);
    const bool is_row = task.num_dims == task.kept_dims + 1 && task.has_packs(1);
    if (!candidates && (is_row || (task.has_packs(N) && (uintptr_t)from % CANDLE_PACK_BYTES == 0))) {
        // Packs, with single elements before and after them in unaligned rows.
        const unsigned int head = is_row ? elements_before_packs<N>(from + begin, count) : 0, packs = (count - head) / N;
        for (unsigned int e = lane; e < head; e += task.width) {
            fold.accumulate(from[begin + e], begin + e);
        }
        task.along([&](auto offset) INLINE {
            for_each_prefetched<LOADS>(lane, packs, task.width, [&](unsigned int p) INLINE {
                return Pack<T>::read(from + offset(begin + head + p * N));
            }, [&](const Pack<T> &pack, unsigned int p) INLINE {
#pragma unroll
                for (unsigned int j = 0; j < N; ++j) {
                    fold.accumulate(pack[j], begin + head + p * N + j);
                }
            });
        });
        for (unsigned int e = head + packs * N + lane; e < count; e += task.width) {
            fold.accumulate(from[begin + e], begin + e);
        }
    } else {
        for_each_prefetched<4>(begin + lane, begin + count, task.width, [&](unsigned int e) INLINE {
            const uint32_t at = candidates ? candidates[(size_t)e * task.results + result] : e;
            return Placed<T>{from[task.offset(at)], at};
        }, [&](const Placed<T> &x, unsigned int) INLINE { fold.accumulate(x.value, x.at); });
    }
    const Fold all = reduce_threads<CANDLE_ROW_BLOCK>((Fold)fold, task.width, [](Fold a, const Fold &b) INLINE {
        a.merge(b);
        return a;
    });
    if (within && lane == 0) {
        finish(result, base, all);
    }
}

#define REDUCE_SUM(ACC, IN, OUT, NAME)                                                                               \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) reduce_sum_##NAME(                                \
        const size_t results, const size_t per_result, const unsigned int width, const unsigned int across,          \
        const size_t kept_dims, const size_t num_dims, const size_t *info, const IN *src, OUT *dst,                  \
        const double scale) {                                                                                        \
        const ReductionTask task = {(unsigned int)results, (unsigned int)per_result, width, across, kept_dims,       \
                                    num_dims, info};                                                                 \
        reduce<Sum<ACC, IN>>(task, src, nullptr, [&](unsigned int result, size_t, Sum<ACC, IN> all) INLINE {         \
            dst[blockIdx.y * results + result] = (OUT)(ACC)(all.sum * (ACC)scale);                                   \
        });                                                                                                          \
    }
// Integers wrap. f32 is summed in f64, so that the result hardly depends on the order of summation.
REDUCE_SUM(uint8_t, uint8_t, uint8_t, u8_u8)
REDUCE_SUM(uint32_t, uint32_t, uint32_t, u32_u32)
REDUCE_SUM(uint16_t, int16_t, int16_t, i16_i16)
REDUCE_SUM(uint32_t, int32_t, int32_t, i32_i32)
REDUCE_SUM(uint64_t, int64_t, int64_t, i64_i64)
REDUCE_SUM(double, float, float, f32_f32)
REDUCE_SUM(double, double, double, f64_f64)
// Narrow floats are summed in f32 and rounded once: sums of parts stay in f32 between the launches.
#define REDUCE_SUM_NARROW(T, NAME)             \
    REDUCE_SUM(float, T, T, NAME##_##NAME)     \
    REDUCE_SUM(float, T, float, NAME##_f32)    \
    REDUCE_SUM(float, float, T, f32_##NAME)
REDUCE_SUM_NARROW(__half, f16)
REDUCE_SUM_NARROW(__nv_bfloat16, bf16)
REDUCE_SUM_NARROW(__nv_fp8_e4m3, f8e4m3)

#define REDUCE_VARIANCE(T, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) reduce_variance_##NAME(                           \
        const size_t results, const size_t per_result, const unsigned int width, const unsigned int across,          \
        const size_t kept_dims, const size_t num_dims, const size_t *info, const T *src, T *dst) {                   \
        const ReductionTask task = {(unsigned int)results, (unsigned int)per_result, width, across, kept_dims,       \
                                    num_dims, info};                                                                 \
        reduce<Moments, Differences<T>>(task, src, nullptr, [&](unsigned int result, size_t, Moments all) INLINE {   \
            const double count = per_result;                                                                         \
            dst[result] = (T)((all.squares - all.sum / count * all.sum) / (count - 1));                              \
        });                                                                                                          \
    }
REDUCE_VARIANCE(__nv_bfloat16, bf16)
REDUCE_VARIANCE(__half, f16)
REDUCE_VARIANCE(float, f32)

// Like a sequential search that replaces the best element only by a strictly better one: a NaN at place 0 is the
// result, and any other NaN is skipped.
#define REDUCE_EXTREME(MAX, T, NAME)                                                                                 \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_BLOCK) NAME(                                             \
        const size_t results, const size_t per_result, const unsigned int width, const unsigned int across,          \
        const size_t kept_dims, const size_t num_dims, const size_t *info, const T *src,                             \
        const uint32_t *candidates, T *values, uint32_t *places) {                                                   \
        const ReductionTask task = {(unsigned int)results, (unsigned int)per_result, width, across, kept_dims,       \
                                    num_dims, info};                                                                 \
        reduce<Extreme<MAX, T>>(task, src, candidates, [&](unsigned int result, size_t base,                         \
                                                           const Extreme<MAX, T> &best) INLINE {                     \
            const T first = src[base];                                                                               \
            if (values) {                                                                                            \
                values[result] = first != first ? first : (T)best.value;                                             \
            }                                                                                                        \
            if (places) {                                                                                            \
                places[blockIdx.y * results + result] = first != first ? 0 : best.place;                             \
            }                                                                                                        \
        });                                                                                                          \
    }
#define REDUCE_EXTREMA(T, NAME)                    \
    REDUCE_EXTREME(false, T, reduce_min_##NAME)    \
    REDUCE_EXTREME(true, T, reduce_max_##NAME)
REDUCE_EXTREMA(uint8_t, u8)
REDUCE_EXTREMA(uint32_t, u32)
REDUCE_EXTREMA(int16_t, i16)
REDUCE_EXTREMA(int32_t, i32)
REDUCE_EXTREMA(int64_t, i64)
REDUCE_EXTREMA(__half, f16)
REDUCE_EXTREMA(__nv_bfloat16, bf16)
REDUCE_EXTREMA(float, f32)
REDUCE_EXTREMA(double, f64)
REDUCE_EXTREMA(__nv_fp8_e4m3, f8e4m3)
