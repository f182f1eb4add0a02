// `where` for the dtypes and condition types that upstream's ternary.cu leaves out.
#define WHERE_CONDITION(ID, ID_NAME)                       \
    WHERE_OP(uint8_t, ID, where_##ID_NAME##_u8)            \
    WHERE_OP(uint32_t, ID, where_##ID_NAME##_u32)          \
    WHERE_OP(int64_t, ID, where_##ID_NAME##_i64)           \
    WHERE_OP(float, ID, where_##ID_NAME##_f32)             \
    WHERE_OP(double, ID, where_##ID_NAME##_f64)            \
    WHERE_OP(__half, ID, where_##ID_NAME##_f16)            \
    WHERE_OP(__nv_bfloat16, ID, where_##ID_NAME##_bf16)
WHERE_CONDITION(int16_t, i16)
WHERE_CONDITION(int32_t, i32)

#define WHERE_DTYPE(T, NAME)                  \
    WHERE_OP(T, uint8_t, where_u8_##NAME)     \
    WHERE_OP(T, int16_t, where_i16_##NAME)    \
    WHERE_OP(T, int32_t, where_i32_##NAME)    \
    WHERE_OP(T, uint32_t, where_u32_##NAME)   \
    WHERE_OP(T, int64_t, where_i64_##NAME)
WHERE_DTYPE(int16_t, i16)
WHERE_DTYPE(int32_t, i32)
