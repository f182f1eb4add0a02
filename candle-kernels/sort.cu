// The order that sorts rows, for all dtypes. Stable in both directions; NaN is larger than any number, so last in ascending order and first in descending order.
//
// Each element becomes an unsigned key whose order is the element's (turned round for descending order); equal keys
// keep the order of their places. A row that fits a tile is sorted within a workgroup's LDS by a bitonic network over
// (key, place) pairs: O(n log^2 n) comparisons. Longer rows are cut into tiles sorted in that way (asort_tiles_*),
// and sorted runs are then merged two by two until one is left (asort_merge_*): O(n log n) in log2(n / tile) passes.
// Dynamic LDS: a key and a 32-bit place for each element of the padded row or tile.
#include "cuda_utils.cuh"
#include <stdint.h>

// Of integers: the sign bit turned over.
__device__ __forceinline__ uint32_t sort_key(uint8_t x) { return x; }
__device__ __forceinline__ uint32_t sort_key(uint32_t x) { return x; }
__device__ __forceinline__ uint32_t sort_key(int16_t x) { return (uint32_t)x ^ 0x80000000u; }
__device__ __forceinline__ uint32_t sort_key(int32_t x) { return (uint32_t)x ^ 0x80000000u; }
__device__ __forceinline__ uint64_t sort_key(int64_t x) { return (uint64_t)x ^ 0x8000000000000000u; }
// Of floats: negative ones turned over, the two zeros made one, every NaN the highest key.
template <typename K, typename T>
__device__ __forceinline__ K float_key(T x) {
    constexpr K sign = (K)1 << (8 * sizeof(K) - 1);
    if (x != x) {
        return ~(K)0;
    }
    const K bits = x == 0 ? 0 : candle_bits<K>(x);
    return bits & sign ? ~bits : bits | sign;
}
__device__ __forceinline__ uint32_t sort_key(float x) { return float_key<uint32_t>(x); }
__device__ __forceinline__ uint64_t sort_key(double x) { return float_key<uint64_t>(x); }
__device__ __forceinline__ uint32_t sort_key(__half x) { return sort_key((float)x); }
__device__ __forceinline__ uint32_t sort_key(__nv_bfloat16 x) { return sort_key((float)x); }
__device__ __forceinline__ uint32_t sort_key(__nv_fp8_e4m3 x) { return sort_key((float)x); }

extern __shared__ uint64_t sort_shared[];

// Sorts columns [start, start + count) of a row within LDS. `padded` is a power of two and not less than `count`;
// the padding comes last, since no real element has so high a key and place.
template <bool DESCENDING, typename T, typename K>
__device__ void sort_tile(const T *row, unsigned int start, unsigned int count, unsigned int padded, K *keys,
                          uint32_t *places) {
    for (unsigned int i = threadIdx.x; i < padded; i += blockDim.x) {
        const K key = i < count ? sort_key(row[start + i]) : 0;
        keys[i] = i >= count ? ~(K)0 : DESCENDING ? ~key : key;
        places[i] = start + i;
    }
    for (unsigned int run = 2; run <= padded; run *= 2) {
        for (unsigned int distance = run / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (unsigned int pair = threadIdx.x; pair < padded / 2; pair += blockDim.x) {
                const unsigned int i = 2 * pair - (pair & (distance - 1)), j = i + distance;
                const K a = keys[i], b = keys[j];
                const uint32_t at = places[i], bt = places[j];
                const bool after = a > b || (a == b && at > bt);
                if (after == ((i & run) == 0)) {
                    keys[i] = b;
                    keys[j] = a;
                    places[i] = bt;
                    places[j] = at;
                }
            }
        }
    }
    __syncthreads();
}

template <bool DESCENDING, typename T>
__device__ void asort(const T *x, uint32_t *dst, const unsigned int ncols, const unsigned int ncols_pad) {
    typedef decltype(sort_key(*x)) K;
    K *keys = (K *)sort_shared;
    uint32_t *places = (uint32_t *)(keys + ncols_pad);
    const size_t row = (size_t)blockIdx.x * ncols;
    sort_tile<DESCENDING>(x + row, 0, ncols, ncols_pad, keys, places);
    for (unsigned int i = threadIdx.x; i < ncols; i += blockDim.x) {
        dst[row + i] = places[i];
    }
}

// One workgroup per tile of a row; the last tile of a row may be short.
template <bool DESCENDING, typename T, typename K>
__device__ void asort_tiles(const T *x, K *keys, uint32_t *places, const unsigned int ncols, const unsigned int tile) {
    K *tile_keys = (K *)sort_shared;
    uint32_t *tile_places = (uint32_t *)(tile_keys + tile);
    const unsigned int tiles = (ncols + tile - 1) / tile;
    const size_t row = (size_t)(blockIdx.x / tiles) * ncols;
    const unsigned int start = blockIdx.x % tiles * tile, count = min(tile, ncols - start);
    sort_tile<DESCENDING>(x + row, start, count, tile, tile_keys, tile_places);
    for (unsigned int i = threadIdx.x; i < count; i += blockDim.x) {
        keys[row + start + i] = tile_keys[i];
        places[row + start + i] = tile_places[i];
    }
}

// Merges neighbouring sorted runs of `run` elements within each row; each thread writes CANDLE_SORT_MERGED consecutive
// elements. Where a thread's elements come from is found by
// bisection (merge path): of equal keys those of the first run, whose places are lower, come first.
template <typename K>
__device__ void asort_merge(const K *keys, const uint32_t *places, K *keys_out, uint32_t *places_out,
                            const size_t threads, const unsigned int ncols, const unsigned int run) {
    const unsigned int per_row = (ncols + CANDLE_SORT_MERGED - 1) / CANDLE_SORT_MERGED;
    const size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= threads) {
        return;
    }
    const unsigned int at = (unsigned int)thread % per_row * CANDLE_SORT_MERGED;
    const size_t row = (size_t)((unsigned int)thread / per_row) * ncols;
    const unsigned int start = at / run / 2 * run * 2;
    const unsigned int middle = min(start + run, ncols), stop = min(middle + run, ncols);
    const K *a = keys + row + start, *b = keys + row + middle;
    const unsigned int a_len = middle - start, b_len = stop - middle, skip = at - start;
    unsigned int low = skip > b_len ? skip - b_len : 0, high = min(skip, a_len);
    while (low < high) {
        const unsigned int half = (low + high) / 2;
        if (a[half] <= b[skip - 1 - half]) {
            low = half + 1;
        } else {
            high = half;
        }
    }
    unsigned int i = low, j = skip - low;
    const unsigned int end = min(at + CANDLE_SORT_MERGED, stop);
    for (unsigned int to = at; to < end; ++to) {
        const bool first = j >= b_len || (i < a_len && a[i] <= b[j]);
        const size_t from = row + (first ? start + i : middle + j);
        if (keys_out) {
            keys_out[row + to] = keys[from];
        }
        places_out[row + to] = places[from];
        i += first;
        j += !first;
    }
}

#define ASORT_OP(T, K, ORDER, DESCENDING, NAME)                                                                       \
    extern "C" __global__ void asort_##ORDER##_##NAME(const T *x, uint32_t *dst, const unsigned int ncols,            \
                                                      const unsigned int ncols_pad) {                                 \
        asort<DESCENDING>(x, dst, ncols, ncols_pad);                                                                  \
    }                                                                                                                 \
    extern "C" __global__ void asort_tiles_##ORDER##_##NAME(const T *x, K *keys, uint32_t *places,                    \
                                                            const unsigned int ncols, const unsigned int tile) {      \
        asort_tiles<DESCENDING>(x, keys, places, ncols, tile);                                                        \
    }
#define ASORT_OPS(T, K, NAME)            \
    ASORT_OP(T, K, asc, false, NAME)     \
    ASORT_OP(T, K, desc, true, NAME)
ASORT_OPS(uint8_t, uint32_t, u8)
ASORT_OPS(uint32_t, uint32_t, u32)
ASORT_OPS(int16_t, uint32_t, i16)
ASORT_OPS(int32_t, uint32_t, i32)
ASORT_OPS(int64_t, uint64_t, i64)
ASORT_OPS(__nv_bfloat16, uint32_t, bf16)
ASORT_OPS(__half, uint32_t, f16)
ASORT_OPS(float, uint32_t, f32)
ASORT_OPS(double, uint64_t, f64)
ASORT_OPS(__nv_fp8_e4m3, uint32_t, f8e4m3)

#define ASORT_MERGE(K, NAME)                                                                                          \
    extern "C" __global__ void asort_merge_##NAME(const K *keys, const uint32_t *places, K *keys_out,                 \
                                                  uint32_t *places_out, const size_t threads,                         \
                                                  const unsigned int ncols, const unsigned int run) {                 \
        asort_merge(keys, places, keys_out, places_out, threads, ncols, run);                                         \
    }
ASORT_MERGE(uint32_t, u32)
ASORT_MERGE(uint64_t, u64)
