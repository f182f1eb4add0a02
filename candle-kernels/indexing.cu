// index_select, gather, scatter, scatter_add and index_add with the CPU device's results. The first three only move elements: one kernel per size, named by the
// dtype that carries it. An index out of range stops nothing and touches no foreign memory: the kernel writes down the
// first one in the module's fault record, yields 0 or skips the element, and goes on.
#include "cuda_utils.cuh"
#include <stdint.h>

// Read by the host after it has waited for the stream; `op == 0` means no fault. Host memory, so that it can be read
// without a copy.
struct CandleFault {
    uint32_t op;
    // How many faults the host has taken: whose turn it is to write the record.
    uint32_t turn;
    int64_t index;
    uint64_t bound;
};

// Set by the host once after loading the module; null switches the records off.
extern "C" __device__ CandleFault *candle_fault;
__device__ CandleFault *candle_fault = nullptr;

// How many faults were written. In device memory: not every link to the host's carries atomic operations.
__device__ uint32_t faults_written = 0;

// The largest value of an index type stands for "no element": reads give 0, writes are left out.
template <typename I>
struct NoElement;
template <>
struct NoElement<uint8_t> {
    static constexpr uint8_t value = 0xff;
};
template <>
struct NoElement<int16_t> {
    static constexpr int16_t value = 0x7fff;
};
template <>
struct NoElement<int32_t> {
    static constexpr int32_t value = 0x7fffffff;
};
template <>
struct NoElement<uint32_t> {
    static constexpr uint32_t value = 0xffffffffu;
};
template <>
struct NoElement<int64_t> {
    static constexpr int64_t value = 0x7fffffffffffffffll;
};

// Only one lane of all finds the count that the host knows, so that no two write the record at once.
__device__ __forceinline__ void report(int64_t index, uint64_t bound, uint32_t op) {
    volatile CandleFault *fault = candle_fault;
    if (fault->op != 0) {
        return;
    }
    const uint32_t turn = fault->turn;
    if (atomicCAS(&faults_written, turn, turn + 1) != turn) {
        return;
    }
    fault->index = index;
    fault->bound = bound;
    __threadfence_system();
    fault->op = op;
}

// True if `id` names one of `bound` elements. Reports it if it is neither that nor "no element".
template <typename I>
__device__ __forceinline__ bool names_element(I id, size_t bound, uint32_t op) {
    // A negative id becomes a huge number.
    if ((uint64_t)(int64_t)id < (uint64_t)bound && id != NoElement<I>::value) {
        return true;
    }
    if (id != NoElement<I>::value && candle_fault != nullptr) {
        report((int64_t)id, bound, op);
    }
    return false;
}

// E4M3 has no arithmetic of its own: it is added in f32 and rounded once.
template <typename T>
__device__ __forceinline__ T add(T a, T b) {
    return a + b;
}
template <>
__device__ __forceinline__ __nv_fp8_e4m3 add(__nv_fp8_e4m3 a, __nv_fp8_e4m3 b) {
    return __nv_fp8_e4m3((float)a + (float)b);
}

// Launches have at most 2^31 threads and elements, so 32 bits count them.
#define FOR_EACH(i, numel) \
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < numel; i += blockDim.x * gridDim.x)

// out[l, j, r] = inp[l, ids[j], r]; the ids may be strided.
template <typename T, typename I>
__device__ void index_select(const size_t numel, const size_t num_dims, const size_t *info, const I *ids, const T *inp,
                             T *out, const size_t left_size, const size_t src_dim_size, const size_t ids_dim_size,
                             const size_t right_size) {
    const size_t ids_stride = num_dims == 0 ? 1 : info[num_dims];
    FOR_EACH(dst_i, numel) {
        const uint32_t row = dst_i / (uint32_t)right_size;
        const uint32_t right_i = dst_i - row * (uint32_t)right_size;
        const uint32_t left_i = row / (uint32_t)ids_dim_size;
        const I id = ids[(row - left_i * (uint32_t)ids_dim_size) * ids_stride];
        out[dst_i] = names_element(id, src_dim_size, CANDLE_FAULT_INDEX_SELECT)
                         ? inp[(left_i * src_dim_size + (size_t)id) * right_size + right_i]
                         : static_cast<T>(0);
    }
}

// out[l, j, r] = inp[l, ids[l, j, r], r], with the dims of the ids. Where those before or after `dim` are fewer than
// the source's, l and r count through the source's first ones as on the CPU device.
template <typename T, typename I>
__device__ void gather(const size_t numel, const I *ids, const T *inp, T *out, const size_t left_size,
                       const size_t src_dim_size, const size_t ids_dim_size, const size_t right_size,
                       const size_t src_right_size) {
    FOR_EACH(i, numel) {
        const uint32_t row = i / (uint32_t)right_size;
        const uint32_t right_i = i - row * (uint32_t)right_size;
        const uint32_t left_i = row / (uint32_t)ids_dim_size;
        const I id = ids[i];
        out[i] = names_element(id, src_dim_size, CANDLE_FAULT_GATHER)
                     ? inp[(left_i * src_dim_size + (size_t)id) * src_right_size + right_i]
                     : static_cast<T>(0);
    }
}

// out[l, ids[l, j, r], r] = inp[l, j, r], or += if ADD. One thread walks along j, so that the order is fixed.
template <bool ADD, typename T, typename I>
__device__ void scatter(const I *ids, const T *inp, T *out, const size_t left_size, const size_t src_dim_size,
                        const size_t dst_dim_size, const size_t right_size) {
    FOR_EACH(i, left_size * right_size) {
        const uint32_t left_i = i / (uint32_t)right_size;
        const uint32_t right_i = i - left_i * (uint32_t)right_size;
        for (size_t j = 0; j < src_dim_size; ++j) {
            const size_t src_i = (left_i * src_dim_size + j) * right_size + right_i;
            const I id = ids[src_i];
            if (names_element(id, dst_dim_size, ADD ? CANDLE_FAULT_SCATTER_ADD : CANDLE_FAULT_SCATTER)) {
                T *dst = out + (left_i * dst_dim_size + (size_t)id) * right_size + right_i;
                *dst = ADD ? add(*dst, inp[src_i]) : inp[src_i];
            }
        }
    }
}

// out[l, ids[j], r] += inp[l, j, r]. One thread walks along j, so that the order is fixed.
template <typename T, typename I>
__device__ void index_add(const I *ids, const size_t ids_dim_size, const T *inp, T *out, const size_t left_size,
                          const size_t src_dim_size, const size_t dst_dim_size, const size_t right_size) {
    FOR_EACH(i, left_size * right_size) {
        const uint32_t left_i = i / (uint32_t)right_size;
        const uint32_t right_i = i - left_i * (uint32_t)right_size;
        for (size_t j = 0; j < ids_dim_size; ++j) {
            const I id = ids[j];
            if (names_element(id, dst_dim_size, CANDLE_FAULT_INDEX_ADD)) {
                T *dst = out + (left_i * dst_dim_size + (size_t)id) * right_size + right_i;
                *dst = add(*dst, inp[(left_i * ids_dim_size + j) * right_size + right_i]);
            }
        }
    }
}

#define MOVING_OPS(T, T_NAME, I, I_NAME)                                                                              \
    extern "C" __global__ void is_##I_NAME##_##T_NAME(                                                                \
        const size_t numel, const size_t num_dims, const size_t *info, const I *ids, const T *inp, T *out,            \
        const size_t left_size, const size_t src_dim_size, const size_t ids_dim_size, const size_t right_size) {      \
        index_select(numel, num_dims, info, ids, inp, out, left_size, src_dim_size, ids_dim_size, right_size);        \
    }                                                                                                                 \
    extern "C" __global__ void gather_##I_NAME##_##T_NAME(                                                            \
        const size_t numel, const I *ids, const T *inp, T *out, const size_t left_size, const size_t src_dim_size,    \
        const size_t ids_dim_size, const size_t right_size, const size_t src_right_size) {                            \
        gather(numel, ids, inp, out, left_size, src_dim_size, ids_dim_size, right_size, src_right_size);              \
    }                                                                                                                 \
    extern "C" __global__ void s_##I_NAME##_##T_NAME(const I *ids, const T *inp, T *out, const size_t left_size,      \
                                                     const size_t src_dim_size, const size_t dst_dim_size,            \
                                                     const size_t right_size) {                                       \
        scatter<false>(ids, inp, out, left_size, src_dim_size, dst_dim_size, right_size);                             \
    }

#define MOVING_OPS_FOR(T, T_NAME)        \
    MOVING_OPS(T, T_NAME, uint8_t, u8)   \
    MOVING_OPS(T, T_NAME, uint32_t, u32) \
    MOVING_OPS(T, T_NAME, int64_t, i64)

MOVING_OPS_FOR(uint8_t, u8)
MOVING_OPS_FOR(uint16_t, f16)
MOVING_OPS_FOR(uint32_t, u32)
MOVING_OPS_FOR(int64_t, i64)

#define ADDING_OPS(T, T_NAME, I, I_NAME)                                                                              \
    extern "C" __global__ void sa_##I_NAME##_##T_NAME(const I *ids, const T *inp, T *out, const size_t left_size,     \
                                                      const size_t src_dim_size, const size_t dst_dim_size,           \
                                                      const size_t right_size) {                                      \
        scatter<true>(ids, inp, out, left_size, src_dim_size, dst_dim_size, right_size);                              \
    }                                                                                                                 \
    extern "C" __global__ void ia_##I_NAME##_##T_NAME(                                                                \
        const I *ids, const size_t ids_dim_size, const T *inp, T *out, const size_t left_size,                        \
        const size_t src_dim_size, const size_t dst_dim_size, const size_t right_size) {                              \
        index_add(ids, ids_dim_size, inp, out, left_size, src_dim_size, dst_dim_size, right_size);                    \
    }

#define ADDING_OPS_FOR(T, T_NAME)        \
    ADDING_OPS(T, T_NAME, uint8_t, u8)   \
    ADDING_OPS(T, T_NAME, int16_t, i16)  \
    ADDING_OPS(T, T_NAME, int32_t, i32)  \
    ADDING_OPS(T, T_NAME, uint32_t, u32) \
    ADDING_OPS(T, T_NAME, int64_t, i64)

ADDING_OPS_FOR(uint8_t, u8)
ADDING_OPS_FOR(int16_t, i16)
ADDING_OPS_FOR(int32_t, i32)
ADDING_OPS_FOR(uint32_t, u32)
ADDING_OPS_FOR(int64_t, i64)
ADDING_OPS_FOR(__half, f16)
ADDING_OPS_FOR(__nv_bfloat16, bf16)
ADDING_OPS_FOR(float, f32)
ADDING_OPS_FOR(double, f64)
ADDING_OPS_FOR(__nv_fp8_e4m3, f8e4m3)
