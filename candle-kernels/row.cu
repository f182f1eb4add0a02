// Products of one to four rows of activations with matrices of floats or of GGML's blocks, with the operations around them.
#include "row_parts.cuh"

#define ROW_ARGUMENTS                                                                                                  \
    const void *x, const void *gate, const void *norm, const void *bias, const void *summand, const uint8_t *w0,       \
        const uint8_t *w1, const uint8_t *w2, void *out0, void *out1, void *out2, const unsigned int end0,             \
        const unsigned int end1, const unsigned int end2, const unsigned int k, const unsigned int rows,               \
        const unsigned int results, const unsigned int lanes, const unsigned int dtype,                                \
        const unsigned int summand_dtype, const unsigned int out_dtype, const unsigned int activation, const float eps
#define ROW_KERNEL(NAME) extern "C" __global__ void __launch_bounds__(CANDLE_ROW_PRODUCT_BLOCK) NAME(ROW_ARGUMENTS)
#define ROW_STRUCTS(DTYPE, ROWS)                                                                                       \
    const RowMatrices matrices = {{w0, w1, w2}, {out0, out1, out2}, {end0, end1, end2}};                               \
    const RowInput input = {x, gate, norm, DTYPE, k, ROWS == 1 ? 1 : rows};                                            \
    const RowEpilogue after = {bias, summand, results, summand_dtype, out_dtype, activation, eps};                     \
    __shared__ RowSums sums;

#define FLOAT_OP(T, NAME, DTYPE, ROWS)                                                                                 \
    ROW_KERNEL(row_product_##ROWS##_##NAME) {                                                                          \
        ROW_STRUCTS(DTYPE, ROWS)                                                                                       \
        FloatRow<T, ROWS> part;                                                                                        \
        row_product<FloatRow<T, ROWS>, ROWS>(matrices, input, after, lanes, sums, part);                               \
    }
#define FLOAT_OPS(T, NAME, DTYPE) FLOAT_OP(T, NAME, DTYPE, 1) FLOAT_OP(T, NAME, DTYPE, 4)
FLOAT_OPS(__nv_bfloat16, bf16, CANDLE_FLOAT_BF16)
FLOAT_OPS(__half, f16, CANDLE_FLOAT_F16)
FLOAT_OPS(float, f32, CANDLE_FLOAT_F32)

template <typename F, unsigned int ROWS>
__device__ __forceinline__ void quantized_row(const RowMatrices &matrices, const RowInput &input,
                                              const RowEpilogue &after, const unsigned int lanes, RowSums &sums) {
    extern __shared__ uint4 activations[];
    if constexpr (RowsOf<F, ROWS>::IS_STREAM) {
        typedef typename RowsOf<F, ROWS>::Stream Stream;
        if (Stream::fits(matrices, input.k)) {
            Stream part = {Stream::at(activations, input)};
            row_product<Stream, ROWS>(matrices, input, after, lanes, sums, part);
            return;
        }
    }
    BlockRow<F, ROWS> part = {BlockRow<F, ROWS>::at(activations, input)};
    row_product<BlockRow<F, ROWS>, ROWS>(matrices, input, after, lanes, sums, part);
}

#define QUANTIZED_OP(F, NAME, ROWS)                                                                                    \
    ROW_KERNEL(quantized_row_##ROWS##_##NAME) {                                                                        \
        ROW_STRUCTS(dtype, ROWS)                                                                                       \
        quantized_row<F, ROWS>(matrices, input, after, lanes, sums);                                                   \
    }
#define ONE_ROW_OP(F, NAME, ...) QUANTIZED_OP(F, NAME, 1)
#define FOUR_ROWS_OP(F, NAME, ...) QUANTIZED_OP(F, NAME, 4)
CANDLE_EACH_FORMAT(ONE_ROW_OP)
CANDLE_EACH_SMALL_FORMAT(FOUR_ROWS_OP)
