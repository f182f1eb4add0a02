// Constants and copies of the dtypes that upstream's fill.cu leaves out.
extern "C" __global__ void fill_i16(int16_t *buf, int16_t value, const size_t numel) { fill_with(buf, value, numel); }
extern "C" __global__ void fill_i32(int32_t *buf, int32_t value, const size_t numel) { fill_with(buf, value, numel); }
COPY2D_OP(int16_t, copy2d_i16)
COPY2D_OP(int32_t, copy2d_i32)
CONST_SET_OP(int16_t, const_set_i16)
CONST_SET_OP(int32_t, const_set_i32)
