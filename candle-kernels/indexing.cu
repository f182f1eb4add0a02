// index_select, gather, scatter, scatter_add and index_add with the CPU device's results. The first three only move
// elements: one kernel per element size; index_select moves the widest units that divide its rows. For an index out
// of range, the kernel reports the first one in the module's fault record, returns 0 or skips the element, and
// continues.
#include "cuda_utils.cuh"
#include "faults.cuh"
#include "index.cuh"

// Indices l, j and r number the dims before, along and after the indexed dim. The `right` elements of a row are
// contiguous.
//
// GATHER: out[l, j, r] = inp[l, ids[l, j, r], r], with the dims of the ids. If these are smaller than the source's
// before or after `dim`, l and r number the source's first elements, as on the CPU device. Otherwise: out[l, j, r] =
// inp[l, ids[j], r], in units of type U; the ids may be strided.
template <bool GATHER, typename U, typename I>
__device__ __forceinline__ void take(const uint32_t numel, const I *ids, const U *inp, U *out, const size_t ids_stride,
                                     const size_t src_dim_size, const size_t src_right_size, const Divisor right,
                                     const Divisor count) {
    constexpr uint32_t N = CANDLE_GATHER_UNITS_PER_THREAD * sizeof(U) < CANDLE_GATHER_BYTES_PER_THREAD ? CANDLE_GATHER_UNITS_PER_THREAD : CANDLE_GATHER_BYTES_PER_THREAD / sizeof(U);
    I id[N];
    const U *from[N];
    U value[N] = {};
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        const uint32_t i = thread_index(k, N);
        uint32_t r = i, j = right.split(r);
        const uint32_t l = count.split(j);
        id[k] = NoElement<I>::value;
        if (i < numel) {
            id[k] = GATHER ? ids[i] : ids[j * ids_stride];
        }
        from[k] = inp + (l * src_dim_size + (size_t)id[k]) * src_right_size + r;
    }
    bool all = true;
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        if ((uint64_t)(int64_t)id[k] < (uint64_t)src_dim_size & id[k] != NoElement<I>::value) {
            value[k] = *from[k];
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
            names_element(id[k], src_dim_size, GATHER ? CANDLE_FAULT_GATHER : CANDLE_FAULT_INDEX_SELECT);
        }
    }
}

enum WriteMode { SET, SCATTER_ADD, INDEX_ADD };

// out[l, id, r] = inp[l, j, r], or += with the ADD modes; the id is ids[j] for INDEX_ADD, otherwise ids[l, j, r].
// There is a thread for each j, which adds atomically; or `runs` is 1, and one thread per (l, r) iterates over all
// j. With `order`, the permutation that sorts the ids, the first thread of each id processes all places with this id
// in order.
template <WriteMode MODE, typename T, typename I>
__device__ __forceinline__ void put(const uint32_t numel, const I *ids, const uint32_t *order, const T *inp, T *out,
                                    const uint32_t size, const size_t dst_dim_size, const Divisor right,
                                    const Divisor runs) {
    constexpr uint32_t op = MODE == SET           ? CANDLE_FAULT_SCATTER
                            : MODE == SCATTER_ADD ? CANDLE_FAULT_SCATTER_ADD
                                                 : CANDLE_FAULT_INDEX_ADD;
    uint32_t r = thread_index();
    if (r >= numel) {
        return;
    }
    uint32_t j = right.split(r);
    const uint32_t l = runs.split(j);
    out += l * dst_dim_size * right.by + r;
    inp += (size_t)l * size * right.by + r;
    const size_t step = MODE == INDEX_ADD ? 1 : right.by;
    ids += MODE == INDEX_ADD ? 0 : (size_t)l * size * right.by + r;
    if (order != nullptr) {
        order += MODE == INDEX_ADD ? 0 : (size_t)l * size * right.by + r;
        uint32_t place = order[j * step];
        const I id = ids[place * step];
        if ((j > 0 && ids[order[(j - 1) * step] * step] == id) || !names_element(id, dst_dim_size, op)) {
            return;
        }
        T value = out[(size_t)id * right.by];
        do {
            const T next = inp[(size_t)place * right.by];
            value = MODE == SET ? next : value + next;
            place = ++j < size ? order[j * step] : 0;
        } while (j < size && ids[place * step] == id);
        out[(size_t)id * right.by] = value;
        return;
    }
    if constexpr (MODE == SET) {
        // N at a time, to have their loads in flight together; indices past the end repeat the last one.
        constexpr uint32_t N = 8;
        for (; j < size; j += N) {
            I id[N];
            T value[N];
#pragma unroll
            for (uint32_t n = 0; n < N; ++n) {
                const uint32_t at = j + n < size ? j + n : size - 1;
                id[n] = ids[at * step];
                value[n] = inp[(size_t)at * right.by];
            }
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
            const I id = ids[j * step];
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

#define TAKE(KIND, GATHER, T, T_NAME, I, I_NAME)                                                                      \
    extern "C" __global__ void KIND##_##I_NAME##_##T_NAME(                                                            \
        const size_t numel, const I *ids, const T *inp, T *out, const size_t ids_stride, const size_t src_dim_size,   \
        const size_t src_right_size, const size_t right_size, const size_t ids_dim_size) {                            \
        take<GATHER>((uint32_t)numel, ids, inp, out, ids_stride, src_dim_size, src_right_size, Divisor(right_size),   \
                     Divisor(ids_dim_size));                                                                          \
    }
#define PUT(KIND, MODE, T, T_NAME, I, I_NAME)                                                                         \
    extern "C" __global__ void KIND##_##I_NAME##_##T_NAME(                                                            \
        const size_t numel, const I *ids, const uint32_t *order, const T *inp, T *out, const size_t src_dim_size,     \
        const size_t dst_dim_size, const size_t right_size, const size_t runs) {                                      \
        put<MODE>((uint32_t)numel, ids, order, inp, out, (uint32_t)src_dim_size, dst_dim_size, Divisor(right_size),   \
                 Divisor(runs));                                                                                      \
    }
#define MOVING_IDS(OP, KIND, MODE, T, T_NAME)   \
    OP(KIND, MODE, T, T_NAME, uint8_t, u8)      \
    OP(KIND, MODE, T, T_NAME, uint32_t, u32)    \
    OP(KIND, MODE, T, T_NAME, int64_t, i64)
#define ADDING_IDS(OP, KIND, MODE, T, T_NAME)   \
    MOVING_IDS(OP, KIND, MODE, T, T_NAME)       \
    OP(KIND, MODE, T, T_NAME, int16_t, i16)     \
    OP(KIND, MODE, T, T_NAME, int32_t, i32)

#define MOVING_OPS(T, T_NAME, UNIT)               \
    MOVING_IDS(TAKE, is, false, T, UNIT)          \
    MOVING_IDS(TAKE, gather, true, T, UNIT)       \
    MOVING_IDS(PUT, s, SET, T, T_NAME)
MOVING_OPS(uint8_t, u8, b1)
MOVING_OPS(uint16_t, f16, b2)
MOVING_OPS(uint32_t, u32, b4)
MOVING_OPS(int64_t, i64, b8)
// A vector instead of a struct, which the compiler keeps in registers.
typedef uint32_t Wide __attribute__((ext_vector_type(4)));
MOVING_IDS(TAKE, is, false, Wide, b16)

#define ADDING_OPS(T, T_NAME)                         \
    ADDING_IDS(PUT, sa, SCATTER_ADD, T, T_NAME)       \
    ADDING_IDS(PUT, ia, INDEX_ADD, T, T_NAME)
ADDING_OPS(uint8_t, u8)
ADDING_OPS(int16_t, i16)
ADDING_OPS(int32_t, i32)
ADDING_OPS(uint32_t, u32)
ADDING_OPS(int64_t, i64)
ADDING_OPS(__half, f16)
ADDING_OPS(__nv_bfloat16, bf16)
ADDING_OPS(float, f32)
ADDING_OPS(double, f64)
ADDING_OPS(__nv_fp8_e4m3, f8e4m3)
