// index_select, gather, scatter, scatter_add and index_add with the CPU device's results. The first three only move
// elements: one kernel per element size; index_select moves the widest units that divide its rows. For an index out
// of range, the kernel reports the first one in the module's fault record, returns 0 or skips the element, and
// continues.
#include "cuda_utils.cuh"
#include "faults.cuh"
#include "index.cuh"

// Indices of the dtype that the host passes as one of CANDLE_IDS. They are read as i64; the "no element" value of their
// dtype becomes that of i64.
struct Ids {
    const void *from;
    unsigned int dtype;

    template <typename I, unsigned int N>
    __device__ __forceinline__ void read_as(const size_t (&at)[N], int64_t (&ids)[N]) const {
#pragma unroll
        for (unsigned int n = 0; n < N; ++n) {
            const I id = ((const I *)from)[at[n]];
            ids[n] = id == NoElement<I>::value ? NoElement<int64_t>::value : (int64_t)id;
        }
    }
    // The branches are uniform, and taken once for N indices.
    template <unsigned int N>
    __device__ __forceinline__ void read(const size_t (&at)[N], int64_t (&ids)[N]) const {
        if (dtype == CANDLE_IDS_U32) {
            read_as<uint32_t>(at, ids);
        } else if (dtype == CANDLE_IDS_I64) {
            read_as<int64_t>(at, ids);
        } else if (dtype == CANDLE_IDS_I32) {
            read_as<int32_t>(at, ids);
        } else if (dtype == CANDLE_IDS_I16) {
            read_as<int16_t>(at, ids);
        } else {
            read_as<uint8_t>(at, ids);
        }
    }
    __device__ __forceinline__ int64_t operator[](size_t at) const {
        int64_t id[1];
        read<1>({at}, id);
        return id[0];
    }
};

// Indices l, j and r number the dims before, along and after the indexed dim. The `right` elements of a row are
// contiguous.
//
// With `gathers`: out[l, j, r] = inp[l, ids[l, j, r], r], with the dims of the ids. If these are smaller than the
// source's before or after `dim`, l and r number the source's first elements, as on the CPU device. Otherwise:
// out[l, j, r] = inp[l, ids[j], r], in units of type U; the ids may be strided.
template <typename U>
__device__ __forceinline__ void take(const uint32_t numel, const Ids &ids, const U *inp, U *out, const size_t ids_stride,
                                     const size_t src_dim_size, const size_t src_right_size, const Divisor right,
                                     const Divisor count, const bool gathers) {
    constexpr uint32_t N = smaller(CANDLE_GATHER_UNITS_PER_THREAD, CANDLE_GATHER_BYTES_PER_THREAD / sizeof(U));
    size_t place[N], row[N];
    int64_t id[N];
    U value[N] = {};
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        const uint32_t i = thread_index(k, N);
        uint32_t r = i, j = right.split(r);
        const uint32_t l = count.split(j);
        place[k] = i >= numel ? 0 : gathers ? i : j * ids_stride;
        row[k] = l * src_dim_size * src_right_size + r;
    }
    ids.read(place, id);
    bool all = true;
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        id[k] = thread_index(k, N) < numel ? id[k] : NoElement<int64_t>::value;
        if ((uint64_t)id[k] < (uint64_t)src_dim_size) {
            value[k] = inp[row[k] + (size_t)id[k] * src_right_size];
        } else {
            all = false;
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        if (thread_index(k, N) < numel) {
            out[thread_index(k, N)] = value[k];
        }
    }
    if (!all) {
        for (uint32_t k = 0; k < N; ++k) {
            names_element(id[k], src_dim_size, gathers ? CANDLE_FAULT_GATHER : CANDLE_FAULT_INDEX_SELECT);
        }
    }
}

// out[l, d, r] = inp[l, last[l, d, r] - 1, r] where last_places() has found a place; other elements remain. Only loads from
// `inp` are scattered; `count` is the destination's size along the dim.
template <typename T>
__device__ __forceinline__ void take_last(const uint32_t numel, const uint32_t *last, const T *inp, T *out,
                                          const uint32_t size, const Divisor right, const Divisor count) {
    constexpr uint32_t N = CANDLE_GATHER_UNITS_PER_THREAD;
    uint32_t place[N];
    T value[N];
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        place[k] = thread_index(k, N) < numel ? last[thread_index(k, N)] : 0;
    }
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        uint32_t r = thread_index(k, N), d = right.split(r);
        const uint32_t l = count.split(d);
        if (place[k] != 0) {
            value[k] = inp[((size_t)l * size + (place[k] - 1)) * right.by + r];
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        if (place[k] != 0) {
            out[thread_index(k, N)] = value[k];
        }
    }
}

// out[l, id, r] = inp[l, j, r] for the last place j with each id; other elements remain. A workgroup has `columns` neighbouring
// r of an l, and finds their last places in LDS. `columns` is a power of two.
template <typename T>
__device__ __forceinline__ void scatter_lines(const Ids &ids, const T *inp, T *out, const uint32_t size,
                                              const uint32_t dst_dim_size, const uint32_t right, const uint32_t columns) {
    extern __shared__ uint32_t last[];
    constexpr uint32_t N = CANDLE_GATHER_UNITS_PER_THREAD;
    const uint32_t tiles = (right + columns - 1) / columns, l = blockIdx.x / tiles;
    const uint32_t column = threadIdx.x & (columns - 1), row = threadIdx.x / columns, step = blockDim.x / columns;
    const uint32_t r = (blockIdx.x - l * tiles) * columns + column;
    const bool inside = r < right;
    for (uint32_t i = threadIdx.x; i < dst_dim_size * columns; i += blockDim.x) {
        last[i] = 0;
    }
    __syncthreads();
    inp += (size_t)l * size * right + r;
    out += (size_t)l * dst_dim_size * right + r;
    const size_t first = (size_t)l * size * right + r;
    for (uint32_t j = inside ? row : size; j < size; j += N * step) {
        size_t place[N];
        int64_t id[N];
        // Places past the end repeat the first one.
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            place[n] = first + (size_t)(j + n * step < size ? j + n * step : j) * right;
        }
        ids.read(place, id);
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            if (j + n * step < size && names_element(id[n], dst_dim_size, CANDLE_FAULT_SCATTER)) {
                atomicMax(last + (uint32_t)id[n] * columns + column, j + n * step + 1);
            }
        }
    }
    __syncthreads();
    for (uint32_t d = inside ? row : dst_dim_size; d < dst_dim_size; d += N * step) {
        uint32_t place[N];
        T value[N];
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            place[n] = d + n * step < dst_dim_size ? last[(d + n * step) * columns + column] : 0;
            if (place[n] != 0) {
                value[n] = inp[(size_t)(place[n] - 1) * right];
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < N; ++n) {
            if (place[n] != 0) {
                out[(size_t)(d + n * step) * right] = value[n];
            }
        }
    }
}

// out[l, id, r] = inp[l, j, r], or += with ADD. The id is ids[j] if `are_shared`, otherwise ids[l, j, r].
// There is a thread for each j, which adds atomically; or `runs` is 1, and one thread per (l, r) iterates over all
// j. With `order`, the permutation that sorts the ids, the first thread of each id processes all places with this id
// in order. With `last`, there is a thread for each 4 elements of the destination: take_last().
template <bool ADD, typename T>
__device__ __forceinline__ void put(const uint32_t numel, const Ids &ids, const uint32_t *order, const uint32_t *last,
                                    const T *inp, T *out, const uint32_t size, const size_t dst_dim_size, const Divisor right,
                                    const Divisor runs, const bool are_shared) {
    const uint32_t op = !ADD         ? CANDLE_FAULT_SCATTER
                        : are_shared ? CANDLE_FAULT_INDEX_ADD
                                     : CANDLE_FAULT_SCATTER_ADD;
    if constexpr (!ADD) {
        if (last != nullptr) {
            return take_last(numel, last, inp, out, size, right, runs);
        }
    }
    uint32_t r = thread_index();
    if (r >= numel) {
        return;
    }
    uint32_t j = right.split(r);
    const uint32_t l = runs.split(j);
    const size_t base = l * dst_dim_size * right.by + r;
    out += base;
    inp += (size_t)l * size * right.by + r;
    const size_t step = are_shared ? 1 : right.by, first = are_shared ? 0 : (size_t)l * size * right.by + r;
    if (order != nullptr) {
        order += first;
        uint32_t place = order[j * step];
        const int64_t id = ids[first + place * step];
        if ((j > 0 && ids[first + order[(j - 1) * step] * step] == id) || !names_element(id, dst_dim_size, op)) {
            return;
        }
        T value = out[(size_t)id * right.by];
        do {
            const T next = inp[(size_t)place * right.by];
            if constexpr (ADD) {
                value = value + next;
            } else {
                value = next;
            }
            place = ++j < size ? order[j * step] : 0;
        } while (j < size && ids[first + place * step] == id);
        out[(size_t)id * right.by] = value;
        return;
    }
    if constexpr (!ADD) {
        // N at a time, to have their loads in flight together; indices past the end repeat the last one.
        constexpr uint32_t N = 8;
        for (; j < size; j += N) {
            size_t place[N];
            int64_t id[N];
            T value[N];
#pragma unroll
            for (uint32_t n = 0; n < N; ++n) {
                const uint32_t at = j + n < size ? j + n : size - 1;
                place[n] = first + at * step;
                value[n] = inp[(size_t)at * right.by];
            }
            ids.read(place, id);
#pragma unroll
            for (uint32_t n = 0; n < N; ++n) {
                if (names_element(id[n], dst_dim_size, op)) {
                    out[(size_t)id[n] * right.by] = value[n];
                }
            }
        }
    } else {
        const bool is_sequential = runs.by == 1;
        for (const uint32_t end = is_sequential ? size : j + 1; j < end; ++j) {
            const int64_t id = ids[first + j * step];
            if (names_element(id, dst_dim_size, op)) {
                T *dst = out + (size_t)id * right.by;
                const T value = inp[(size_t)j * right.by];
                if (is_sequential) {
                    *dst = *dst + value;
                } else {
                    candle_add(dst, value);
                }
            }
        }
    }
}

#define TAKE(T, UNIT)                                                                                                 \
    extern "C" __global__ void take_##UNIT(                                                                           \
        const size_t numel, const void *ids, const T *inp, T *out, const size_t ids_stride, const size_t src_dim_size, \
        const size_t src_right_size, const size_t right_size, const size_t ids_dim_size, const size_t ids_dtype,      \
        const bool gathers) {                                                                                         \
        CANDLE_BEGIN_NEXT_LAUNCH();                                                                                   \
        CANDLE_WAIT_FOR_LAUNCHES();                                                                                   \
        take((uint32_t)numel, Ids{ids, (unsigned int)ids_dtype}, inp, out, ids_stride, src_dim_size, src_right_size,  \
             Divisor(right_size), Divisor(ids_dim_size), gathers);                                                    \
    }
TAKE(uint8_t, b1)
TAKE(uint16_t, b2)
TAKE(uint32_t, b4)
TAKE(uint64_t, b8)
// A vector instead of a struct, which the compiler keeps in registers.
typedef uint32_t Wide __attribute__((ext_vector_type(4)));
TAKE(Wide, b16)

// Raises last[l, id, r] to j + 1 for each place j with this id, so that the last place remains. Reports ids out of range as
// those of scatter.
extern "C" __global__ void last_places(const size_t numel, const void *ids, uint32_t *last, const size_t dst_dim_size,
                                       const size_t right_size, const size_t ids_dim_size, const size_t ids_dtype) {
    const uint32_t i = thread_index();
    if (i >= numel) {
        return;
    }
    const Divisor right(right_size), count(ids_dim_size);
    uint32_t r = i, j = right.split(r);
    const uint32_t l = count.split(j);
    const int64_t id = Ids{ids, (unsigned int)ids_dtype}[i];
    if (names_element(id, dst_dim_size, CANDLE_FAULT_SCATTER)) {
        atomicMax(last + (l * dst_dim_size + (size_t)id) * right.by + r, j + 1);
    }
}

#define SCATTER_LINES(T, NAME)                                                                                        \
    extern "C" __global__ void scatter_lines_##NAME(                                                                  \
        const void *ids, const T *inp, T *out, const size_t src_dim_size, const size_t dst_dim_size,                  \
        const size_t right_size, const size_t columns, const size_t ids_dtype) {                                      \
        scatter_lines(Ids{ids, (unsigned int)ids_dtype}, inp, out, (uint32_t)src_dim_size, (uint32_t)dst_dim_size,    \
                      (uint32_t)right_size, (uint32_t)columns);                                                       \
    }
SCATTER_LINES(uint8_t, u8)
SCATTER_LINES(uint16_t, f16)
SCATTER_LINES(uint32_t, u32)
SCATTER_LINES(int64_t, i64)

#define PUT(KIND, ADD, T, NAME)                                                                                       \
    extern "C" __global__ void CANDLE_FEW_REGISTERS_BOUNDS KIND##_##NAME(                                                                         \
        const size_t numel, const void *ids, const uint32_t *order, const uint32_t *last, const T *inp, T *out,       \
        const size_t src_dim_size, const size_t dst_dim_size, const size_t right_size, const size_t runs,             \
        const size_t ids_dtype, const bool are_shared) {                                                              \
        put<ADD>((uint32_t)numel, Ids{ids, (unsigned int)ids_dtype}, order, last, inp, out, (uint32_t)src_dim_size,   \
                 dst_dim_size, Divisor(right_size), Divisor(runs), are_shared);                                       \
    }
PUT(scatter, false, uint8_t, u8)
PUT(scatter, false, uint16_t, f16)
PUT(scatter, false, uint32_t, u32)
PUT(scatter, false, int64_t, i64)
PUT(add, true, uint8_t, u8)
PUT(add, true, int16_t, i16)
PUT(add, true, int32_t, i32)
PUT(add, true, uint32_t, u32)
PUT(add, true, int64_t, i64)
PUT(add, true, __half, f16)
PUT(add, true, __nv_bfloat16, bf16)
PUT(add, true, float, f32)
PUT(add, true, double, f64)
PUT(add, true, __nv_fp8_e4m3, f8e4m3)
