// Where a thread stands in its launch, the workgroup barrier, and dims and strides passed by value.
#pragma once

// The implicit arguments of code object version 5 and later, in the kernel argument segment after the
// explicit ones (LLVM's AMDGPUUsage, "Code Object V5 Kernel Argument Metadata"): the number of workgroups
// per dimension, then the workgroup size per dimension.
struct CandleImplicitArguments {
    uint32_t block_count[3];
    uint16_t group_size[3];
};

CANDLE_DEVICE const __attribute__((address_space(4))) CandleImplicitArguments *candle_implicit_arguments() {
    return (const __attribute__((address_space(4))) CandleImplicitArguments *)__builtin_amdgcn_implicitarg_ptr();
}

#define CANDLE_COORDINATES(NAME, X, Y, Z)                             \
    struct NAME {                                                     \
        __declspec(property(get = get_x)) unsigned int x;             \
        __declspec(property(get = get_y)) unsigned int y;             \
        __declspec(property(get = get_z)) unsigned int z;             \
        __device__ __forceinline__ unsigned int get_x() const { return X; } \
        __device__ __forceinline__ unsigned int get_y() const { return Y; } \
        __device__ __forceinline__ unsigned int get_z() const { return Z; } \
    };
CANDLE_COORDINATES(CandleThreadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
                   __builtin_amdgcn_workitem_id_z())
CANDLE_COORDINATES(CandleBlockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
                   __builtin_amdgcn_workgroup_id_z())
CANDLE_COORDINATES(CandleBlockDim, candle_implicit_arguments()->group_size[0],
                   candle_implicit_arguments()->group_size[1], candle_implicit_arguments()->group_size[2])
CANDLE_COORDINATES(CandleGridDim, candle_implicit_arguments()->block_count[0],
                   candle_implicit_arguments()->block_count[1], candle_implicit_arguments()->block_count[2])
#undef CANDLE_COORDINATES

// Objects without storage: `extern` declarations that only their inline getters are ever used of.
extern const __device__ __attribute__((weak)) CandleThreadIdx threadIdx;
extern const __device__ __attribute__((weak)) CandleBlockIdx blockIdx;
extern const __device__ __attribute__((weak)) CandleBlockDim blockDim;
extern const __device__ __attribute__((weak)) CandleGridDim gridDim;

// Memory of the workgroup written before the barrier is seen after it.
CANDLE_DEVICE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// What this thread has written is seen by the host and other devices before what it writes from here on.
CANDLE_DEVICE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

// Dims and strides of one launch, in the kernel argument segment instead of a buffer that the host would
// have to upload first: what a kernel's `const size_t *info` points to upstream, in the same order.
struct CandleLayout {
    size_t v[CANDLE_LAYOUT_WORDS];
    __device__ __forceinline__ operator const size_t *() const { return v; }
};

// Where element `index` in row-major order lies, in elements. Indices and dims are below 2^32, so that the
// divisions need not be 64 bits wide; the outermost dim needs none. No dims stand for contiguous data.
CANDLE_DEVICE size_t candle_offset(unsigned int index, size_t num_dims, const size_t *dims, const size_t *strides) {
    size_t offset = 0;
    for (int d = (int)num_dims - 1; d > 0; --d) {
        const unsigned int size = (unsigned int)dims[d];
        offset += (size_t)(index % size) * strides[d];
        index /= size;
    }
    return num_dims == 0 ? index : offset + index * strides[0];
}
