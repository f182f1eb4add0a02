// Instructions whose results AMD's manuals do not fully specify. Each thread reads up to four words and
// writes two. `cargo xtask validate` compiles this file for the present GPU; see docs/how-to/validate-a-gpu.md.
#if defined(__AMDGCN__)

#define QUESTION(NAME, BODY)                                                                                  \
    extern "C" __global__ void NAME(const unsigned int *in, unsigned int *out, unsigned int count) {          \
        const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;                                         \
        if (i >= count) return;                                                                               \
        const unsigned int a = in[4 * i], b = in[4 * i + 1], c = in[4 * i + 2], d = in[4 * i + 3];            \
        unsigned int x = 0, y = 0;                                                                            \
        (void)a, (void)b, (void)c, (void)d;                                                                   \
        BODY;                                                                                                 \
        out[2 * i] = x;                                                                                       \
        out[2 * i + 1] = y;                                                                                   \
    }

__device__ float f32(unsigned int bits) { return __builtin_bit_cast(float, bits); }
__device__ unsigned int u32(float value) { return __builtin_bit_cast(unsigned int, value); }
__device__ double f64(unsigned int low, unsigned int high) {
    return __builtin_bit_cast(double, (unsigned long long)high << 32 | low);
}
__device__ void put(double value, unsigned int &low, unsigned int &high) {
    const unsigned long long bits = __builtin_bit_cast(unsigned long long, value);
    low = (unsigned int)bits, high = (unsigned int)(bits >> 32);
}
__device__ _Float16 f16(unsigned int bits) { return __builtin_bit_cast(_Float16, (unsigned short)bits); }
__device__ unsigned int u16(_Float16 value) { return __builtin_bit_cast(unsigned short, value); }
typedef _Float16 Half2 __attribute__((ext_vector_type(2)));
__device__ Half2 two_f16(unsigned int bits) { return __builtin_bit_cast(Half2, bits); }

QUESTION(frexp_f32, x = u32(__builtin_amdgcn_frexp_mantf(f32(a))); y = __builtin_amdgcn_frexp_expf(f32(a)))
QUESTION(frexp_f16, x = u16(__builtin_amdgcn_frexp_manth(f16(a))); y = __builtin_amdgcn_frexp_exph(f16(a)))
QUESTION(frexp_mant_f64, put(__builtin_amdgcn_frexp_mant(f64(a, b)), x, y))
QUESTION(frexp_exp_f64, x = __builtin_amdgcn_frexp_exp(f64(a, b)))
// a is the numerator, b the denominator.
QUESTION(div_scale_numerator, bool flag; x = u32(__builtin_amdgcn_div_scalef(f32(a), f32(b), true, &flag)); y = flag)
QUESTION(div_scale_denominator, bool flag; x = u32(__builtin_amdgcn_div_scalef(f32(a), f32(b), false, &flag));
         y = flag)
QUESTION(div_fixup, x = u32(__builtin_amdgcn_div_fixupf(f32(c), f32(b), f32(a))))
// The complete division that the compiler generates.
QUESTION(division, x = u32(f32(a) / f32(b)))

QUESTION(exp2_f32, x = u32(__builtin_amdgcn_exp2f(f32(a))))
QUESTION(log2_f32, x = u32(__builtin_amdgcn_logf(f32(a))))
QUESTION(rcp_f32, x = u32(__builtin_amdgcn_rcpf(f32(a))))
QUESTION(rsq_f32, x = u32(__builtin_amdgcn_rsqf(f32(a))))
QUESTION(sqrt_f32, x = u32(__builtin_amdgcn_sqrtf(f32(a))))
QUESTION(sin_f32, x = u32(__builtin_amdgcn_sinf(f32(a))))
QUESTION(cos_f32, x = u32(__builtin_amdgcn_cosf(f32(a))))
QUESTION(rcp_f64, put(__builtin_amdgcn_rcp(f64(a, b)), x, y))
QUESTION(rsq_f64, put(__builtin_amdgcn_rsq(f64(a, b)), x, y))
QUESTION(fract_f32, x = u32(__builtin_amdgcn_fractf(f32(a))))
QUESTION(ldexp_f32, x = u32(__builtin_ldexpf(f32(a), (int)b)))

QUESTION(to_f16, x = u16((_Float16)f32(a)))
QUESTION(to_f16_towards_zero, x = __builtin_bit_cast(unsigned int, __builtin_amdgcn_cvt_pkrtz(f32(a), f32(b))))
QUESTION(dot2_f32_f16, x = u32(__builtin_amdgcn_fdot2(two_f16(a), two_f16(b), f32(c), false)))
QUESTION(med3_f32, x = u32(__builtin_amdgcn_fmed3f(f32(a), f32(b), f32(c))))

#if defined(__GFX12__)
#define MIN_MAX "_num"
#else
#define MIN_MAX ""
#endif
#define TWO(INSTRUCTION, TO, A, B) asm volatile(INSTRUCTION " %0, %1, %2" : "=v"(TO) : "v"(A), "v"(B))
QUESTION(min_max_f32, TWO("v_min" MIN_MAX "_f32", x, a, b); TWO("v_max" MIN_MAX "_f32", y, a, b))
QUESTION(min_max_f16, TWO("v_pk_min" MIN_MAX "_f16", x, a, b); TWO("v_pk_max" MIN_MAX "_f16", y, a, b))

// Lane exchange: a is an address, b a value, c a lane.
QUESTION(bpermute, x = __builtin_amdgcn_ds_bpermute((int)a, (int)b))
QUESTION(bpermute_from_idle, if ((c & 1) == 0) x = __builtin_amdgcn_ds_bpermute((int)a, (int)b); else x = 77)
QUESTION(readlane, x = __builtin_amdgcn_readlane((int)b, __builtin_amdgcn_readfirstlane((int)c)))

// Float atomics: a is the old value, b the addend.
#if defined(__GFX12__)
#define WAIT_LDS "s_wait_dscnt 0x0"
#define RETURNING " th:TH_ATOMIC_RETURN\n\ts_wait_loadcnt 0x0"
#else
#define WAIT_LDS "s_waitcnt lgkmcnt(0)"
#if defined(__gfx942__) || defined(__gfx9_4_generic__)
#define RETURNING " sc0\n\ts_waitcnt vmcnt(0)"
#else
#define RETURNING " glc\n\ts_waitcnt vmcnt(0)"
#endif
#endif
extern "C" __global__ void lds_atomic_add_f32(const unsigned int *in, unsigned int *out, unsigned int count) {
    __shared__ unsigned int cells[64];
    const unsigned int i = threadIdx.x;
    if (i >= count) return;
    volatile unsigned int *cell = &cells[i];
    *cell = in[4 * i];
    unsigned int old;
    const unsigned int at = (unsigned int)(unsigned long long)(__attribute__((address_space(3))) unsigned int *)&cells[i];
    asm volatile(WAIT_LDS "\n\tds_add_rtn_f32 %0, %1, %2\n\t" WAIT_LDS : "=&v"(old) : "v"(at), "v"(in[4 * i + 1]) : "memory");
    out[2 * i] = *cell;
    out[2 * i + 1] = old;
}
#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx9_4_generic__) || defined(__GFX11__) || defined(__GFX12__)
extern "C" __global__ void global_atomic_add_f32(const unsigned int *in, unsigned int *out, unsigned int count) {
    const unsigned int i = threadIdx.x;
    if (i >= count) return;
    unsigned int *cell = &out[2 * i];
    __hip_atomic_store(cell, in[4 * i], __ATOMIC_SEQ_CST, __HIP_MEMORY_SCOPE_AGENT);
    unsigned int old;
    asm volatile("global_atomic_add_f32 %0, %1, %2, off" RETURNING : "=&v"(old) : "v"(cell), "v"(in[4 * i + 1]) : "memory");
    out[2 * i + 1] = old;
}
#endif
#endif
