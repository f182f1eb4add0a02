// Reductions of the integers that upstream's reduce.cu leaves out.

#define REDUCE_IDENTITIES(T)                                            \
    template <>                                                         \
    __device__ __forceinline__ T reduce_init_lowest<T>() {              \
        return ::cuda::std::numeric_limits<T>::lowest();                \
    }                                                                   \
    template <>                                                         \
    __device__ __forceinline__ T reduce_init_highest<T>() {             \
        return ::cuda::std::numeric_limits<T>::max();                   \
    }
REDUCE_IDENTITIES(int16_t)
REDUCE_IDENTITIES(int32_t)

FAST_OP(int16_t, fast_min_i16, fast_max_i16, fast_argmin_i16, fast_argmax_i16, fast_sum_i16)
FAST_OP(int32_t, fast_min_i32, fast_max_i32, fast_argmin_i32, fast_argmax_i32, fast_sum_i32)

#define SMALL_SUM(T, NAME)                                                                                        \
    extern "C" __global__ void fast_sum_small_##NAME(const size_t dst_el, const size_t el_to_sum_per_block,      \
                                                     const size_t num_dims, const size_t *info, const T *src,    \
                                                     T *dst) {                                                   \
        fast_sum_small_impl(dst_el, el_to_sum_per_block, num_dims, info, src, dst);                              \
    }
SMALL_SUM(int16_t, i16)
SMALL_SUM(int32_t, i32)
