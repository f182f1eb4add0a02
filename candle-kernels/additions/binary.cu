// Operations and comparisons of the integers that upstream's binary.cu leaves out.
#define INTEGER_OPS(T, NAME)                      \
    BINARY_OP(T, badd_##NAME, x + y)              \
    BINARY_OP(T, bsub_##NAME, x - y)              \
    BINARY_OP(T, bmul_##NAME, x * y)              \
    BINARY_OP(T, bdiv_##NAME, x / y)              \
    BINARY_OP(T, bminimum_##NAME, ming(x, y))     \
    BINARY_OP(T, bmaximum_##NAME, maxg(x, y))     \
    BINARY_OP_OUT(T, uint8_t, eq_##NAME, x == y)  \
    BINARY_OP_OUT(T, uint8_t, ne_##NAME, x != y)  \
    BINARY_OP_OUT(T, uint8_t, lt_##NAME, x < y)   \
    BINARY_OP_OUT(T, uint8_t, le_##NAME, x <= y)  \
    BINARY_OP_OUT(T, uint8_t, gt_##NAME, x > y)   \
    BINARY_OP_OUT(T, uint8_t, ge_##NAME, x >= y)
INTEGER_OPS(int16_t, i16)
INTEGER_OPS(int32_t, i32)
