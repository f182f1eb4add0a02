// Computes one element of a matrix product per wave: the sum of 16 products and an addend. A case consists of
// 8 words of A's row (two elements each), 8 words of B's column, and the addend; see docs/how-to/validate-a-gpu.md.
#if defined(__AMDGCN__)
constexpr unsigned int CASE = 17;
typedef float Float4 __attribute__((ext_vector_type(4)));
typedef float Float8 __attribute__((ext_vector_type(8)));
typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half8 __attribute__((ext_vector_type(8)));
typedef _Float16 Half16 __attribute__((ext_vector_type(16)));
typedef short Short4 __attribute__((ext_vector_type(4)));
typedef short Short8 __attribute__((ext_vector_type(8)));
typedef short Short16 __attribute__((ext_vector_type(16)));
typedef __bf16 Brain8 __attribute__((ext_vector_type(8)));

// Returns the elements from `first` of a row or column in lanes of row and column 0; zeros in the others.
template <typename V, unsigned int N>
__device__ V elements(const unsigned int *words, unsigned int first, bool used) {
    static_assert(sizeof(V) == 2 * N);
    unsigned int parts[N / 2];
    for (unsigned int i = 0; i < N / 2; ++i) parts[i] = used ? words[first / 2 + i] : 0;
    return __builtin_bit_cast(V, parts);
}

#define MATRIX(NAME, V, N, C, PRODUCT)                                                                        \
    extern "C" __global__ void NAME(const unsigned int *in, unsigned int *out, unsigned int count) {          \
        if (blockIdx.x >= count) return;                                                                      \
        const unsigned int *one = in + CASE * blockIdx.x;                                                     \
        const unsigned int lane = threadIdx.x;                                                                \
        const unsigned int first = N == 16 ? 0 : lane / 16 * N;                                               \
        const V a = elements<V, N>(one, first, lane % 16 == 0);                                               \
        const V b = elements<V, N>(one + 8, first, lane % 16 == 0);                                           \
        C c = {};                                                                                             \
        c[0] = lane == 0 ? __builtin_bit_cast(float, one[16]) : 0.0f;                                         \
        c = PRODUCT;                                                                                          \
        if (lane == 0) out[blockIdx.x] = __builtin_bit_cast(unsigned int, (float)c[0]);                       \
    }

#if defined(__GFX12__)
MATRIX(matrix_f16, Half8, 8, Float8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c))
MATRIX(matrix_bf16, Short8, 8, Float8, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c))
#elif defined(__GFX11__)
MATRIX(matrix_f16, Half16, 16, Float8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c))
MATRIX(matrix_bf16, Short16, 16, Float8, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c))
#elif defined(__GFX9__)
MATRIX(matrix_f16, Half4, 4, Float4, __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0))
#if !defined(__gfx908__)
MATRIX(matrix_bf16, Short4, 4, Float4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0))
#endif
#endif
#endif
