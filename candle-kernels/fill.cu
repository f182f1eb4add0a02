// Constant fill, copies of rows into a larger tensor, and transposition. Elements are only moved, so there is one
// kernel per element size, which the backend uses for every dtype of that size.
#include "lanes.cuh"
#include "pack.cuh"

// A workgroup's tile of a transposition: 8 KiB, with rows of 128 bytes on the side that is read. The odd row pitch
// in LDS (in words) avoids bank conflicts in both directions.
template <typename T>
struct Tile {
    static constexpr unsigned int rows = smaller(CANDLE_TILE_ROWS, CANDLE_TILE_ROW_BYTES / sizeof(T));
    static constexpr unsigned int columns = CANDLE_TILE_BYTES / sizeof(T) / rows;
    T at[columns][rows + larger(1, 4 / sizeof(T))];

    // Reads packs of W elements along the input's contiguous dim and writes packs along the output's.
    template <unsigned int W>
    __device__ __forceinline__ void move(const T *inp, T *out, unsigned int rows_left, unsigned int columns_left,
                                         size_t in_stride, size_t out_stride) {
        constexpr unsigned int count = rows * columns / W, down = rows / W, along = columns / W;
        constexpr unsigned int prefetched = smaller(4, count / CANDLE_BLOCK);
#pragma unroll 1
        for (unsigned int first = threadIdx.x; first < count; first += prefetched * CANDLE_BLOCK) {
            Pack<T, W> packs[prefetched];
#pragma unroll
            for (unsigned int i = 0; i < prefetched; ++i) {
                const unsigned int k = first + i * CANDLE_BLOCK, column = k / down, row = k % down * W;
                if (row < rows_left && column < columns_left) {
                    packs[i] = Pack<T, W>::read(inp + column * in_stride + row);
                }
            }
#pragma unroll
            for (unsigned int i = 0; i < prefetched * W; ++i) {
                const unsigned int k = first + i / W * CANDLE_BLOCK;
                at[k / down][k % down * W + i % W] = packs[i / W][i % W];
            }
        }
        __syncthreads();
#pragma unroll 1
        for (unsigned int k = threadIdx.x; k < count; k += CANDLE_BLOCK) {
            const unsigned int row = k / along, column = k % along * W;
            Pack<T, W> result;
#pragma unroll
            for (unsigned int j = 0; j < W; ++j) {
                result.set(j, at[column + j][row]);
            }
            if (row < rows_left && column < columns_left) {
                result.write(out + row * out_stride + column);
            }
        }
    }
};

// out[batch][row][column] = inp[batch][column][row]: rows are contiguous in `inp`, columns in `out`. `info`
// describes the batch dims, with strides of both; x of the grid numbers tiles, z and y batches.
template <typename T>
__device__ __forceinline__ void transpose(Tile<T> &tile, unsigned int num_dims, const size_t *info, const T *inp, T *out,
                                          unsigned int batches, unsigned int rows, unsigned int columns,
                                          size_t in_stride, size_t out_stride, bool whole) {
    const unsigned int along = (columns + Tile<T>::columns - 1) / Tile<T>::columns;
    const unsigned int row = blockIdx.x / along * Tile<T>::rows, column = blockIdx.x % along * Tile<T>::columns;
    ElementOffsets<1, 2> place;
    place.element[0] = blockIdx.z * gridDim.y + blockIdx.y;
    if (place.element[0] >= batches) {
        return;
    }
    place.find(num_dims, info);
    const T *from = inp + place.at[0][0] + column * in_stride + row;
    T *to = out + place.at[0][1] + row * out_stride + column;
    if (whole) {
        tile.template move<CANDLE_PACK_BYTES / sizeof(T)>(from, to, rows - row, columns - column, in_stride, out_stride);
    } else {
        tile.template move<1>(from, to, rows - row, columns - column, in_stride, out_stride);
    }
}

#define FILL_OPS(T, NAME)                                                                                         \
    extern "C" __global__ void const_set_##NAME(const size_t numel, const size_t num_dims, const size_t *info,    \
                                                const T value, T *out) {                                          \
        map<true, true, true>(numel, num_dims, info, [value]() { return value; }, out);                           \
    }                                                                                                             \
    extern "C" __global__ void transpose_##NAME(const size_t num_dims, const size_t *info, const T *inp, T *out,  \
                                                uint32_t batches, uint32_t rows, uint32_t columns,                \
                                                size_t in_stride, size_t out_stride, bool whole) {                \
        __shared__ Tile<T> tile;                                                                                  \
        transpose(tile, num_dims, info, inp, out, batches, rows, columns, in_stride, out_stride, whole);          \
    }
FILL_OPS(uint8_t, u8)
FILL_OPS(uint16_t, f16)
FILL_OPS(uint32_t, u32)
FILL_OPS(uint64_t, i64)

// Copies source blockIdx.y of up to eight into `out`, or writes zeros if it is null. `info` holds four words per source:
// its number of units, the units per row as a Divisor word, its row pitch, and its offset in `out`.
template <typename T>
__device__ __forceinline__ void copy_rows(const size_t *info, size_t out_pitch, const T *from, T *out) {
    const size_t *source = info + 4 * blockIdx.y;
    const Divisor row(source[1]);
    const size_t pitch = source[2];
    out += source[3];
    for_each_prefetched<4>(thread_index(), (uint32_t)source[0], gridDim.x * CANDLE_BLOCK, [=](unsigned int i) INLINE {
        return from == nullptr ? T{} : from[i + row.quotient(i) * (pitch - row.by)];
    }, [=](const T &unit, unsigned int i) INLINE {
        out[i + row.quotient(i) * (out_pitch - row.by)] = unit;
    });
}

#define COPY2D_OP(T, UNIT)                                                                                          \
    extern "C" __global__ void copy2d_##UNIT(const size_t *info, size_t out_pitch, T *out, const T *inp0,           \
                                             const T *inp1, const T *inp2, const T *inp3, const T *inp4,            \
                                             const T *inp5, const T *inp6, const T *inp7) {                         \
        CANDLE_BEGIN_NEXT_LAUNCH();                                                                                 \
        CANDLE_WAIT_FOR_LAUNCHES();                                                                                 \
        const unsigned int i = blockIdx.y;                                                                          \
        const T *low = i < 2 ? (i == 0 ? inp0 : inp1) : (i == 2 ? inp2 : inp3);                                     \
        const T *high = i < 6 ? (i == 4 ? inp4 : inp5) : (i == 6 ? inp6 : inp7);                                    \
        copy_rows(info, out_pitch, i < 4 ? low : high, out);                                                        \
    }
COPY2D_OP(uint8_t, b1)
COPY2D_OP(uint16_t, b2)
COPY2D_OP(uint32_t, b4)
COPY2D_OP(uint64_t, b8)
// A vector instead of a struct, which the compiler keeps in registers.
typedef uint32_t Wide16 __attribute__((ext_vector_type(4)));
COPY2D_OP(Wide16, b16)
