// Device-side subset of HIP's header that Composable Kernel's attention needs, so that ROCm need not be installed.
// clang's own HIP wrapper, included earlier, defines the qualifiers and the math functions.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __forceinline__ inline __attribute__((always_inline))
#define CANDLE_DEVICE static inline __device__ __attribute__((always_inline))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
CANDLE_DEVICE constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

// Head of code object version 5's implicit arguments: workgroups, then threads per workgroup, by dimension.
struct CandleImplicit {
    uint32_t groups[3];
    uint16_t threads[3];
};
CANDLE_DEVICE const __attribute__((address_space(4))) CandleImplicit *candle_implicit() {
    return (const __attribute__((address_space(4))) CandleImplicit *)__builtin_amdgcn_implicitarg_ptr();
}

// Defines an object without storage whose getters return X, Y and Z.
#define CANDLE_INDEX(NAME, OBJECT, X, Y, Z)                       \
    struct NAME {                                                 \
        __declspec(property(get = get_x)) unsigned x;             \
        __declspec(property(get = get_y)) unsigned y;             \
        __declspec(property(get = get_z)) unsigned z;             \
        __device__ inline unsigned get_x() const { return X; }    \
        __device__ inline unsigned get_y() const { return Y; }    \
        __device__ inline unsigned get_z() const { return Z; }    \
    };                                                            \
    extern const __device__ __attribute__((weak)) NAME OBJECT;
CANDLE_INDEX(CandleThreadIdx, threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
             __builtin_amdgcn_workitem_id_z())
CANDLE_INDEX(CandleBlockIdx, blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
             __builtin_amdgcn_workgroup_id_z())
CANDLE_INDEX(CandleBlockDim, blockDim, candle_implicit()->threads[0], candle_implicit()->threads[1],
             candle_implicit()->threads[2])
CANDLE_INDEX(CandleGridDim, gridDim, candle_implicit()->groups[0], candle_implicit()->groups[1],
             candle_implicit()->groups[2])

CANDLE_DEVICE int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
CANDLE_DEVICE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
CANDLE_DEVICE unsigned __lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
CANDLE_DEVICE int __shfl(int value, int lane) { return __builtin_amdgcn_ds_bpermute(lane * 4, value); }
CANDLE_DEVICE int __shfl_xor(int value, int mask) { return __shfl(value, (int)__lane_id() ^ mask); }
CANDLE_DEVICE int __shfl_up(int value, unsigned by) { return __shfl(value, (int)(__lane_id() - by)); }
CANDLE_DEVICE int __shfl_down(int value, unsigned by) { return __shfl(value, (int)(__lane_id() + by)); }
CANDLE_DEVICE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
CANDLE_DEVICE void *memcpy(void *to, const void *from, size_t bytes) { return __builtin_memcpy(to, from, bytes); }

// Declared only: templates that attention does not instantiate refer to them.
template <typename T> __device__ T atomicCAS(T *, T, T);
template <typename T, typename V> __device__ T atomicAdd(T *, V);
