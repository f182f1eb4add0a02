// AMD implementation of CUDA's dialect: thread indices, barriers, lanes of a wave, the dot product of bytes, and the
// ROCm device library ocml.
#pragma once

// Implicit arguments of code object version 5 and later, which follow the explicit ones (LLVM's AMDGPUUsage, "Code
// Object V5 Kernel Argument Metadata"): number of workgroups and workgroup size per dimension.
struct CandleImplicitArguments {
    uint32_t block_count[3];
    uint16_t group_size[3];
};

CANDLE_DEVICE const __attribute__((address_space(4))) CandleImplicitArguments *candle_implicit_arguments() {
    return (const __attribute__((address_space(4))) CandleImplicitArguments *)__builtin_amdgcn_implicitarg_ptr();
}

#define CANDLE_PLACE(NAME, VALUE) \
    CANDLE_DEVICE unsigned int candle_##NAME() { return VALUE; }
CANDLE_PLACE(thread_x, __builtin_amdgcn_workitem_id_x())
CANDLE_PLACE(thread_y, __builtin_amdgcn_workitem_id_y())
CANDLE_PLACE(thread_z, __builtin_amdgcn_workitem_id_z())
CANDLE_PLACE(block_x, __builtin_amdgcn_workgroup_id_x())
CANDLE_PLACE(block_y, __builtin_amdgcn_workgroup_id_y())
CANDLE_PLACE(block_z, __builtin_amdgcn_workgroup_id_z())
CANDLE_PLACE(block_size_x, candle_implicit_arguments()->group_size[0])
CANDLE_PLACE(block_size_y, candle_implicit_arguments()->group_size[1])
CANDLE_PLACE(block_size_z, candle_implicit_arguments()->group_size[2])
CANDLE_PLACE(block_count_x, candle_implicit_arguments()->block_count[0])
CANDLE_PLACE(block_count_y, candle_implicit_arguments()->block_count[1])
CANDLE_PLACE(block_count_z, candle_implicit_arguments()->block_count[2])
#undef CANDLE_PLACE

// Writes of the workgroup before the barrier are visible after it.
CANDLE_DEVICE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Earlier writes of this thread become visible to the host and other devices before later ones.
CANDLE_DEVICE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

// Makes writes of all lanes of the wave, which run in lockstep, visible to each other.
CANDLE_DEVICE void __syncwarp() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}

// Marks a number as uniform over the wave, so that it is held in a scalar register.
CANDLE_DEVICE unsigned int candle_uniform(unsigned int number) { return __builtin_amdgcn_readfirstlane(number); }

// Returns the number of lanes of a wave: 32 or 64.
CANDLE_DEVICE unsigned int candle_wave_size() { return __builtin_amdgcn_wavefrontsize(); }

// Returns the index of this lane in its wave.
CANDLE_DEVICE unsigned int candle_lane() {
    const unsigned int low = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
    return candle_wave_size() == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, low) : low;
}

// Returns the word of lane `source` of the wave. Lanes run in lockstep, so the mask of participants is ignored.
CANDLE_DEVICE int candle_read_lane_word(unsigned long long, int word, unsigned int source) {
    return __builtin_amdgcn_ds_bpermute((int)(source * 4), word);
}

// Returns a mask of the lanes of the wave for which `predicate` is true.
CANDLE_DEVICE unsigned long long candle_ballot(unsigned long long, bool predicate) {
    return __builtin_amdgcn_ballot_w64(predicate);
}

// Returns c plus the dot product of the signed bytes of a and b, modulo 2^32.
CANDLE_DEVICE int __dp4a(int a, int b, int c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || \
    defined(__gfx950__) || defined(__gfx9_4_generic__) || defined(__gfx1030__) || defined(__gfx10_3_generic__)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#else
    for (int byte = 0; byte < 4; ++byte) {
        c += (int)(signed char)(a >> (8 * byte)) * (int)(signed char)(b >> (8 * byte));
    }
    return c;
#endif
}

// Atomic additions to pairs of f16 or bf16 in global memory, on GPUs that support them.
#define CANDLE_GLOBAL __attribute__((address_space(1)))
#define CANDLE_ADD_PAIR(NAME, T)                                                           \
    CANDLE_DEVICE void candle_add_pair_##NAME(CANDLE_GLOBAL void *at, unsigned int pair) { \
        typedef T Pair __attribute__((ext_vector_type(2)));                                \
        __builtin_amdgcn_global_atomic_fadd_v2##NAME((CANDLE_GLOBAL Pair *)at, candle_bits<Pair>(pair)); \
    }
#if defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__) || defined(__GFX12__)
#define CANDLE_ADDS_BF16_PAIRS
CANDLE_ADD_PAIR(bf16, short)
#endif
#if defined(__gfx90a__) || defined(CANDLE_ADDS_BF16_PAIRS)
#define CANDLE_ADDS_F16_PAIRS
CANDLE_ADD_PAIR(f16, _Float16)
#endif
#undef CANDLE_ADD_PAIR

// 2^x and 1 / x within one ulp; results below 2^-126 are flushed to 0.
CANDLE_DEVICE float candle_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
CANDLE_DEVICE float candle_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
// Square root of a normal number, within one ulp.
CANDLE_DEVICE float candle_square_root(float x) { return __builtin_amdgcn_sqrtf(x); }

// Sine and cosine of pi * x, with one argument reduction.
extern "C" __device__ float __ocml_sincospi_f32(float, __attribute__((address_space(5))) float *);
extern "C" __device__ double __ocml_sincospi_f64(double, __attribute__((address_space(5))) double *);
CANDLE_DEVICE void sincospif(float x, float *sine, float *cosine) {
    float other;
    *sine = __ocml_sincospi_f32(x, (__attribute__((address_space(5))) float *)&other);
    *cosine = other;
}
CANDLE_DEVICE void sincospi(double x, double *sine, double *cosine) {
    double other;
    *sine = __ocml_sincospi_f64(x, (__attribute__((address_space(5))) double *)&other);
    *cosine = other;
}

// Inline assembly constraint of an operand that is read and written in a 32-bit vector register.
#define CANDLE_IN_REGISTER "+v"

// The device library's names of functions with one and with two arguments.
#define CANDLE_LIBRARY1(NAME)                                                      \
    extern "C" __device__ __attribute__((const)) float __ocml_##NAME##_f32(float); \
    extern "C" __device__ __attribute__((const)) double __ocml_##NAME##_f64(double);
#define CANDLE_LIBRARY2(NAME)                                                             \
    extern "C" __device__ __attribute__((const)) float __ocml_##NAME##_f32(float, float); \
    extern "C" __device__ __attribute__((const)) double __ocml_##NAME##_f64(double, double);
#define CANDLE_LIBRARY_F32(NAME) __ocml_##NAME##_f32
#define CANDLE_LIBRARY_F64(NAME) __ocml_##NAME##_f64
