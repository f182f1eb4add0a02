// Sums, extrema and their places over any set of dims, for all dtypes.
//
// The layout has the dims that are kept first, then those that are reduced. `width` threads share a result (a power
// of two), so a workgroup has blockDim.x / width of them; gridDim.y cuts each result's elements into parts that a
// second launch reduces again. Threads are numbered along the reduced elements, or across the results if `across`
// is not 0: whichever lie closer together in memory. Part p of result r is written to place p * results + r.
#include "cuda_utils.cuh"
#include <stdint.h>

struct ReductionTask {
    unsigned int lane, pitch; // this thread's number within its result, and how far apart in LDS its neighbours are
    unsigned int result, begin, end;
    size_t base;
    bool writes;
};

__device__ __forceinline__ ReductionTask reduction_task(unsigned int results, unsigned int per_result, unsigned int width,
                                                        unsigned int across, size_t kept_dims, size_t num_dims,
                                                        const size_t *info) {
    ReductionTask task;
    const unsigned int groups = blockDim.x / width;
    const unsigned int group = across ? threadIdx.x % groups : threadIdx.x / width;
    task.lane = across ? threadIdx.x / groups : threadIdx.x % width;
    task.pitch = across ? groups : 1;
    task.result = blockIdx.x * groups + group;
    const unsigned int part = (per_result + gridDim.y - 1) / gridDim.y;
    const bool within = task.result < results;
    task.begin = min(blockIdx.y * part, per_result);
    task.end = within ? min(task.begin + part, per_result) : task.begin;
    task.base = within ? candle_offset(task.result, kept_dims, info, info + num_dims) : 0;
    task.writes = within && task.lane == 0;
    return task;
}

// As many elements as one access moves.
template <typename T>
struct alignas(CANDLE_PACK_BYTES) ReductionPack { T v[CANDLE_PACK_BYTES / sizeof(T)]; };

template <typename Acc, typename In, typename Out>
__device__ void reduce_sum(const size_t results, const size_t per_result, const unsigned int width,
                           const unsigned int across, const size_t kept_dims, const size_t num_dims,
                           const size_t *info, const In *src, Out *dst) {
    __shared__ Acc shared[CANDLE_BLOCK];
    const ReductionTask task = reduction_task(results, per_result, width, across, kept_dims, num_dims, info);
    const size_t *dims = info + kept_dims, *strides = info + num_dims + kept_dims;
    Acc sum = 0;
    unsigned int e = task.begin + task.lane;
    if (num_dims <= kept_dims + 1) {
        // One reduced dim: its elements lie at one distance, and next to each other can be read in packs.
        const size_t stride = num_dims == kept_dims ? 1 : strides[0];
        const In *from = src + task.base;
        if (stride == 1 && is_aligned_16(from + task.begin)) {
            constexpr unsigned int elements = CANDLE_PACK_BYTES / sizeof(In);
            const unsigned int packs = (task.end - task.begin) / elements;
            for (unsigned int p = task.lane; p < packs; p += width) {
                const ReductionPack<In> pack = ((const ReductionPack<In> *)(from + task.begin))[p];
                for (unsigned int j = 0; j < elements; ++j) {
                    sum += (Acc)pack.v[j];
                }
            }
            e += packs * elements;
        }
        for (; e < task.end; e += width) {
            sum += (Acc)from[e * stride];
        }
    } else {
        for (; e < task.end; e += width) {
            sum += (Acc)src[task.base + candle_offset(e, num_dims - kept_dims, dims, strides)];
        }
    }
    if (width > 1) {
        shared[threadIdx.x] = sum;
        for (unsigned int half = width / 2; half > 0; half /= 2) {
            __syncthreads();
            if (task.lane < half) {
                sum += shared[threadIdx.x + half * task.pitch];
                shared[threadIdx.x] = sum;
            }
        }
    }
    if (task.writes) {
        dst[blockIdx.y * results + task.result] = (Out)sum;
    }
}

// The best element so far and its place. As if the elements came one by one and each replaced the last if it was
// strictly better: a NaN in place 0 stays, any other NaN is passed over, of equal elements the first counts.
template <typename T, bool MAX>
struct Extreme {
    static constexpr uint32_t NONE = 0xffffffff;
    T value;
    uint32_t place;

    __device__ __forceinline__ void take(T x, uint32_t at) {
        const bool first_nan = at == 0 && x != x;
        if (at == NONE || (x != x && !first_nan) || (place == 0 && value != value)) {
            return;
        }
        const bool better = MAX ? value < x : value > x;
        if (place == NONE || first_nan || better || (value == x && at < place)) {
            value = x;
            place = at;
        }
    }
};

// The elements are all of src's, or those at the `candidates` that parts have left; a part without any leaves NONE.
template <bool MAX, typename T>
__device__ void reduce_extreme(const size_t results, const size_t per_result, const unsigned int width,
                               const unsigned int across, const size_t kept_dims, const size_t num_dims,
                               const size_t *info, const T *src, const uint32_t *candidates, T *values,
                               uint32_t *places) {
    __shared__ T shared_values[CANDLE_BLOCK];
    __shared__ uint32_t shared_places[CANDLE_BLOCK];
    const ReductionTask task = reduction_task(results, per_result, width, across, kept_dims, num_dims, info);
    const size_t *dims = info + kept_dims, *strides = info + num_dims + kept_dims;
    Extreme<T, MAX> best = {T(), Extreme<T, MAX>::NONE};
    for (unsigned int e = task.begin + task.lane; e < task.end; e += width) {
        const uint32_t at = candidates ? candidates[e * results + task.result] : e;
        if (at != best.NONE) {
            best.take(src[task.base + candle_offset(at, num_dims - kept_dims, dims, strides)], at);
        }
    }
    if (width > 1) {
        shared_values[threadIdx.x] = best.value;
        shared_places[threadIdx.x] = best.place;
        for (unsigned int half = width / 2; half > 0; half /= 2) {
            __syncthreads();
            if (task.lane < half) {
                const unsigned int other = threadIdx.x + half * task.pitch;
                best.take(shared_values[other], shared_places[other]);
                shared_values[threadIdx.x] = best.value;
                shared_places[threadIdx.x] = best.place;
            }
        }
    }
    if (task.writes && values) {
        values[task.result] = best.value;
    }
    if (task.writes && places) {
        places[blockIdx.y * results + task.result] = best.place;
    }
}

#define REDUCE_SUM(ACC, IN, OUT, NAME)                                                                              \
    extern "C" __global__ void reduce_sum_##NAME(                                                                   \
        const size_t results, const size_t per_result, const unsigned int width, const unsigned int across,         \
        const size_t kept_dims, const size_t num_dims, const size_t *info, const IN *src, OUT *dst) {               \
        reduce_sum<ACC>(results, per_result, width, across, kept_dims, num_dims, info, src, dst);                   \
    }
// Integers wrap. f32 is summed in f64, so that the result does not depend on how its elements are dealt out.
REDUCE_SUM(uint8_t, uint8_t, uint8_t, u8_u8)
REDUCE_SUM(uint32_t, uint32_t, uint32_t, u32_u32)
REDUCE_SUM(uint16_t, int16_t, int16_t, i16_i16)
REDUCE_SUM(uint32_t, int32_t, int32_t, i32_i32)
REDUCE_SUM(uint64_t, int64_t, int64_t, i64_i64)
REDUCE_SUM(double, float, float, f32_f32)
REDUCE_SUM(double, double, double, f64_f64)
// Narrow floats are summed in f32 and rounded once: sums of parts stay f32 between the launches.
#define REDUCE_SUM_NARROW(T, NAME)             \
    REDUCE_SUM(float, T, T, NAME##_##NAME)     \
    REDUCE_SUM(float, T, float, NAME##_f32)    \
    REDUCE_SUM(float, float, T, f32_##NAME)
REDUCE_SUM_NARROW(__half, f16)
REDUCE_SUM_NARROW(__nv_bfloat16, bf16)
REDUCE_SUM_NARROW(__nv_fp8_e4m3, f8e4m3)

#define REDUCE_EXTREME(MAX, T, NAME)                                                                                \
    extern "C" __global__ void NAME(                                                                                \
        const size_t results, const size_t per_result, const unsigned int width, const unsigned int across,         \
        const size_t kept_dims, const size_t num_dims, const size_t *info, const T *src,                            \
        const uint32_t *candidates, T *values, uint32_t *places) {                                                  \
        reduce_extreme<MAX>(results, per_result, width, across, kept_dims, num_dims, info, src, candidates,         \
                            values, places);                                                                        \
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
