// Sorting of the integers that upstream's sort.cu leaves out.
ASORT_OP(int16_t, i16)
ASORT_OP(int32_t, i32)
