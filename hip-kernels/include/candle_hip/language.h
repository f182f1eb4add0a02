// CUDA's declaration qualifiers.
#pragma once

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
// CUDA's second argument (blocks per multiprocessor) has no counterpart on AMD; the compiler chooses the occupancy.
#if defined(__AMDGCN__)
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#else
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#endif

// Chooses a number, or any other token, for GPUs whose lanes have 256 vector registers and no accumulation registers, where a
// kernel of up to 1,024 threads has 64.
#if defined(__gfx906__) || defined(__gfx9_generic__)
#define CANDLE_FEW_REGISTERS(USUAL, FEW) FEW
#else
#define CANDLE_FEW_REGISTERS(USUAL, FEW) USUAL
#endif
// Bounds of a kernel for workgroups of CANDLE_BLOCK threads that needs more than 64 registers there.
#define CANDLE_FEW_REGISTERS_BOUNDS CANDLE_FEW_REGISTERS(, __launch_bounds__(CANDLE_BLOCK))

// Qualifiers of the functions in our own headers.
#define CANDLE_DEVICE static __device__ __forceinline__

// Compute capability in place of __CUDA_ARCH__ in hipified sources; it enables every dtype.
#define CANDLE_CUDA_ARCH 890

// Disabled, because a failed assertion would stop the whole GPU. Invalid input is reported through fault records
// instead (candle-kernels/faults.cuh).
#define assert(condition) ((void)0)
