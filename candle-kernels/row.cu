// Products of one row of activations with matrices of floats or of GGML's blocks, with the operations around them.
#include "row.cuh"

#define ROW_ARGUMENTS                                                                                                  \
    const void *x, const void *gate, const void *norm, const void *bias, const void *summand, const uint8_t *w0,       \
        const uint8_t *w1, const uint8_t *w2, void *out0, void *out1, void *out2, const unsigned int end0,             \
        const unsigned int end1, const unsigned int end2, const unsigned int k, const unsigned int results,            \
        const unsigned int lanes, const unsigned int dtype, const unsigned int summand_dtype,                          \
        const unsigned int out_dtype, const unsigned int activation, const float eps
#define ROW_KERNEL(NAME) extern "C" __global__ void __launch_bounds__(CANDLE_ROW_PRODUCT_BLOCK) NAME(ROW_ARGUMENTS)
#define ROW_STRUCTS(DTYPE)                                                                                             \
    const RowMatrices matrices = {{w0, w1, w2}, {out0, out1, out2}, {end0, end1, end2}};                               \
    const RowInput input = {x, gate, norm, DTYPE, k};                                                                  \
    const RowEpilogue after = {bias, summand, results, summand_dtype, out_dtype, activation, eps};

#define FLOAT_OP(T, NAME, DTYPE)                                                                                       \
    ROW_KERNEL(row_product_##NAME) {                                                                                   \
        ROW_STRUCTS(DTYPE)                                                                                             \
        __shared__ RowSums sums;                                                                                       \
        FloatRow<T> part;                                                                                              \
        row_product(matrices, input, after, lanes, sums, part);                                                        \
    }
FLOAT_OP(__nv_bfloat16, bf16, CANDLE_FLOAT_BF16)
FLOAT_OP(__half, f16, CANDLE_FLOAT_F16)
FLOAT_OP(float, f32, CANDLE_FLOAT_F32)

// Selects how rows of a format are read.
template <typename F>
struct RowsOf {
    static constexpr bool IS_STREAM = false;
    typedef BlockRow<F> Stream;
};
template <unsigned int BITS, bool MINIMUM>
struct RowsOf<Plain<BITS, MINIMUM>> {
    static constexpr bool IS_STREAM = BITS != 5;
    typedef StreamRow<Plain<BITS, MINIMUM>, 2 + 2 * MINIMUM> Stream;
};

template <typename F>
__device__ __forceinline__ void quantized_row(const RowMatrices &matrices, const RowInput &input,
                                              const RowEpilogue &after, const unsigned int lanes) {
    extern __shared__ uint4 activations[];
    __shared__ RowSums sums;
    uint8_t *bytes = (uint8_t *)activations;
    const QuantizedInput quantized = {bytes, (Scale *)(bytes + input.k)};
    if constexpr (RowsOf<F>::IS_STREAM) {
        if (RowsOf<F>::Stream::fits(matrices, input.k)) {
            typename RowsOf<F>::Stream part = {quantized};
            row_product(matrices, input, after, lanes, sums, part);
            return;
        }
    }
    BlockRow<F> part = {quantized};
    row_product(matrices, input, after, lanes, sums, part);
}

#define QUANTIZED_OP(F, NAME, ...)                                                                                     \
    ROW_KERNEL(quantized_row_##NAME) {                                                                                 \
        ROW_STRUCTS(dtype)                                                                                             \
        quantized_row<F>(matrices, input, after, lanes);                                                               \
    }
CANDLE_EACH_FORMAT(QUANTIZED_OP)
