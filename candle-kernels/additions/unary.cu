// Strided copies of the dtypes that upstream's unary.cu leaves out.
UNARY_OP(int16_t, ucopy_i16, x)
UNARY_OP(int32_t, ucopy_i32, x)
