// Thread and workgroup indices, and dims and strides passed by value.
#pragma once

#define CANDLE_COORDINATES(NAME, X, Y, Z)                             \
    struct NAME {                                                     \
        __declspec(property(get = get_x)) unsigned int x;             \
        __declspec(property(get = get_y)) unsigned int y;             \
        __declspec(property(get = get_z)) unsigned int z;             \
        __device__ __forceinline__ unsigned int get_x() const { return X; } \
        __device__ __forceinline__ unsigned int get_y() const { return Y; } \
        __device__ __forceinline__ unsigned int get_z() const { return Z; } \
    };
CANDLE_COORDINATES(CandleThreadIdx, candle_thread_x(), candle_thread_y(), candle_thread_z())
CANDLE_COORDINATES(CandleBlockIdx, candle_block_x(), candle_block_y(), candle_block_z())
CANDLE_COORDINATES(CandleBlockDim, candle_block_size_x(), candle_block_size_y(), candle_block_size_z())
CANDLE_COORDINATES(CandleGridDim, candle_block_count_x(), candle_block_count_y(), candle_block_count_z())
#undef CANDLE_COORDINATES

// Declarations without storage; only their inline getters are used.
extern const __device__ __attribute__((weak)) CandleThreadIdx threadIdx;
extern const __device__ __attribute__((weak)) CandleBlockIdx blockIdx;
extern const __device__ __attribute__((weak)) CandleBlockDim blockDim;
extern const __device__ __attribute__((weak)) CandleGridDim gridDim;

// Dims and strides of one launch, in the kernel argument segment instead of a buffer that the host would have to
// upload. Same contents as upstream's `const size_t *info`.
struct CandleLayout {
    size_t v[CANDLE_LAYOUT_WORDS];
    __device__ __forceinline__ operator const size_t *() const { return v; }
};

// Returns the offset of element `index` in row-major order, in elements. Indices and dims are below 2^32, so that
// 32-bit divisions suffice; the outermost dim needs none. num_dims = 0 means contiguous data.
CANDLE_DEVICE size_t candle_offset(unsigned int index, size_t num_dims, const size_t *dims, const size_t *strides) {
    size_t offset = 0;
    for (int d = (int)num_dims - 1; d > 0; --d) {
        const unsigned int size = (unsigned int)dims[d];
        offset += (size_t)(index % size) * strides[d];
        index /= size;
    }
    return num_dims == 0 ? index : offset + index * strides[0];
}

// Launches of other targets do not overlap (nvptx.h).
#if !defined(CANDLE_OVERLAPS_LAUNCHES)
#define CANDLE_OVERLAPS_LAUNCHES 0
#define CANDLE_BEGIN_NEXT_LAUNCH()
#define CANDLE_WAIT_FOR_LAUNCHES()
#endif
