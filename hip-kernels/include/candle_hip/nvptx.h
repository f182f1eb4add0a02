// NVIDIA counterpart of amdgcn.h, to run and measure these kernels on machines without an AMD GPU. The mathematical
// functions are those of NVIDIA's libdevice.
#pragma once

#define CANDLE_PLACE(NAME, REGISTER) \
    CANDLE_DEVICE unsigned int candle_##NAME() { return __nvvm_read_ptx_sreg_##REGISTER(); }
CANDLE_PLACE(thread_x, tid_x)
CANDLE_PLACE(thread_y, tid_y)
CANDLE_PLACE(thread_z, tid_z)
CANDLE_PLACE(block_x, ctaid_x)
CANDLE_PLACE(block_y, ctaid_y)
CANDLE_PLACE(block_z, ctaid_z)
CANDLE_PLACE(block_size_x, ntid_x)
CANDLE_PLACE(block_size_y, ntid_y)
CANDLE_PLACE(block_size_z, ntid_z)
CANDLE_PLACE(block_count_x, nctaid_x)
CANDLE_PLACE(block_count_y, nctaid_y)
CANDLE_PLACE(block_count_z, nctaid_z)
CANDLE_PLACE(wave_size, warpsize)
CANDLE_PLACE(lane, laneid)
#undef CANDLE_PLACE

// For NVIDIA targets, __syncthreads is a compiler builtin.
CANDLE_DEVICE void __threadfence_system() { __nvvm_membar_sys(); }
CANDLE_DEVICE void __syncwarp() { __nvvm_bar_warp_sync(~0u); }
CANDLE_DEVICE unsigned int candle_uniform(unsigned int number) { return number; }

// Returns the word of lane `source` of the wave; `lanes` is the mask of participating lanes.
CANDLE_DEVICE int candle_read_lane_word(unsigned long long lanes, int word, unsigned int source) {
    return __nvvm_shfl_sync_idx_i32((unsigned int)lanes, word, (int)source, 31);
}

// Returns a mask of the lanes of the wave for which `predicate` is true.
CANDLE_DEVICE unsigned long long candle_ballot(unsigned long long lanes, bool predicate) {
    return (unsigned int)__nvvm_vote_ballot_sync((unsigned int)lanes, predicate);
}

// Returns c plus the dot product of the signed bytes of a and b, modulo 2^32.
CANDLE_DEVICE int __dp4a(int a, int b, int c) {
    int sum;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

// A launch may overlap with the one before it. Its first instructions then run before that launch has finished; after
// CANDLE_WAIT_FOR_LAUNCHES(), all earlier launches have finished, and their writes are visible. Every thread of a kernel that
// is launched so must wait before it accesses memory that earlier launches write, or that they read and it writes. At least one
// workgroup must wait, so that launches finish in their order. When all workgroups have executed CANDLE_BEGIN_NEXT_LAUNCH(), the
// next launch may begin.
#if __CUDA_ARCH__ >= 900
#define CANDLE_OVERLAPS_LAUNCHES 1
#define CANDLE_BEGIN_NEXT_LAUNCH() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define CANDLE_WAIT_FOR_LAUNCHES() asm volatile("griddepcontrol.wait;" ::: "memory")
#endif

// Atomic additions to global memory without the old value, by an instruction that the compiler does not select itself.
#define CANDLE_GLOBAL __attribute__((address_space(1)))
#define CANDLE_REDUCTION(NAME, T, PTX, REGISTER)                                                                \
    CANDLE_DEVICE void NAME(CANDLE_GLOBAL void *at, T value) {                                                  \
        asm volatile("red.relaxed.gpu.global.add." PTX " [%0], %1;" ::"l"(at), REGISTER(value) : "memory");     \
    }
#define CANDLE_ADDS_WORDS
CANDLE_REDUCTION(candle_add_word, int, "s32", "r")
CANDLE_REDUCTION(candle_add_word, unsigned int, "u32", "r")
CANDLE_REDUCTION(candle_add_word, long, "u64", "l")
CANDLE_REDUCTION(candle_add_word, float, "f32", "f")
CANDLE_REDUCTION(candle_add_word, double, "f64", "d")
#define CANDLE_ADDS_F16_PAIRS
CANDLE_REDUCTION(candle_add_pair_f16, unsigned int, "noftz.f16x2", "r")
#if __CUDA_ARCH__ >= 900
#define CANDLE_ADDS_BF16_PAIRS
CANDLE_REDUCTION(candle_add_pair_bf16, unsigned int, "noftz.bf16x2", "r")
#endif
#undef CANDLE_REDUCTION

// 2^x and 1 / x within one ulp; results below 2^-126 are flushed to 0.
CANDLE_DEVICE float candle_exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
CANDLE_DEVICE float candle_reciprocal(float x) { return __nvvm_rcp_approx_ftz_f(x); }
// Square root of a normal number, within one ulp.
CANDLE_DEVICE float candle_square_root(float x) { return __nvvm_sqrt_approx_ftz_f(x); }

// Sine and cosine of pi * x, with one argument reduction.
extern "C" __device__ void __nv_sincospif(float, float *, float *);
extern "C" __device__ void __nv_sincospi(double, double *, double *);
CANDLE_DEVICE void sincospif(float x, float *sine, float *cosine) { __nv_sincospif(x, sine, cosine); }
CANDLE_DEVICE void sincospi(double x, double *sine, double *cosine) { __nv_sincospi(x, sine, cosine); }

// Inline assembly constraint of an operand that is read and written in a 32-bit register.
#define CANDLE_IN_REGISTER "+r"

// The device library's names of functions with one and with two arguments.
#define CANDLE_LIBRARY1(NAME)                                                  \
    extern "C" __device__ __attribute__((const)) float __nv_##NAME##f(float);  \
    extern "C" __device__ __attribute__((const)) double __nv_##NAME(double);
#define CANDLE_LIBRARY2(NAME)                                                        \
    extern "C" __device__ __attribute__((const)) float __nv_##NAME##f(float, float); \
    extern "C" __device__ __attribute__((const)) double __nv_##NAME(double, double);
#define CANDLE_LIBRARY_F32(NAME) __nv_##NAME##f
#define CANDLE_LIBRARY_F64(NAME) __nv_##NAME
// libdevice's name of the normal cumulative distribution function differs from ocml's.
#define __nv_ncdff __nv_normcdff
#define __nv_ncdf __nv_normcdf
