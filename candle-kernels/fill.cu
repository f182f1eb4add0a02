// Constants, rows copied to their places in a larger tensor, and transpositions. Elements are only moved, so there is one
// kernel per size of element, and the backend uses it for every dtype of that size.
#include "lanes.cuh"
#include "pack.cuh"

// A workgroup's part of a transposition: 8 KiB, rows of 128 bytes on the side that is read. Rows in LDS are an odd number
// of words apart, so that neither side meets in one bank.
template <typename T>
struct Tile {
    static constexpr unsigned int rows = smaller(CANDLE_TILE_ROWS, CANDLE_TILE_ROW_BYTES / sizeof(T));
    static constexpr unsigned int columns = CANDLE_TILE_BYTES / sizeof(T) / rows;
    T at[columns][rows + larger(1, 4 / sizeof(T))];

    // Both sides in packs of W elements: reads go along the rows' dim, writes along the columns'.
    template <unsigned int W>
    __device__ __forceinline__ void move(const T *inp, T *out, unsigned int rows_left, unsigned int columns_left,
                                         size_t in_stride, size_t out_stride) {
        constexpr unsigned int count = rows * columns / W, down = rows / W, along = columns / W;
        constexpr unsigned int ahead = smaller(4, count / CANDLE_BLOCK);
#pragma unroll 1
        for (unsigned int first = threadIdx.x; first < count; first += ahead * CANDLE_BLOCK) {
            Pack<T, W> packs[ahead];
#pragma unroll
            for (unsigned int i = 0; i < ahead; ++i) {
                const unsigned int k = first + i * CANDLE_BLOCK, column = k / down, row = k % down * W;
                if (row < rows_left && column < columns_left) {
                    packs[i] = Pack<T, W>::read(inp + column * in_stride + row);
                }
            }
#pragma unroll
            for (unsigned int i = 0; i < ahead * W; ++i) {
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

// out[batch][row][column] = inp[batch][column][row], where rows lie beside each other in `inp`, and columns in `out`. The
// layout is the batches', with strides of both; x of the grid counts tiles, z and y batches. `whole`: packs fit
// everywhere.
template <typename T>
__device__ __forceinline__ void transpose(Tile<T> &tile, unsigned int num_dims, const size_t *info, const T *inp, T *out,
                                          unsigned int batches, unsigned int rows, unsigned int columns,
                                          size_t in_stride, size_t out_stride, bool whole) {
    const unsigned int along = (columns + Tile<T>::columns - 1) / Tile<T>::columns;
    const unsigned int row = blockIdx.x / along * Tile<T>::rows, column = blockIdx.x % along * Tile<T>::columns;
    Places<1, 2> place;
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

// Source blockIdx.y of up to eight to its place in `out`. Four words of the layout for each: how many units it has, how
// many are in a row as a dim's word, units from row to row, and where it begins in `out`.
template <typename T>
__device__ __forceinline__ void copy_rows(const size_t *info, size_t out_pitch, const T *from, T *out) {
    const size_t *source = info + 4 * blockIdx.y;
    const Divisor row(source[1]);
    const size_t pitch = source[2];
    out += source[3];
    in_flight<4>(thread_index(), (uint32_t)source[0], gridDim.x * CANDLE_BLOCK, [=](unsigned int i) INLINE {
        return from[i + row.quotient(i) * (pitch - row.by)];
    }, [=](const T &unit, unsigned int i) INLINE {
        out[i + row.quotient(i) * (out_pitch - row.by)] = unit;
    });
}

#define COPY2D_OP(T, UNIT)                                                                                          \
    extern "C" __global__ void copy2d_##UNIT(const size_t *info, size_t out_pitch, T *out, const T *inp0,           \
                                             const T *inp1, const T *inp2, const T *inp3, const T *inp4,            \
                                             const T *inp5, const T *inp6, const T *inp7) {                         \
        const unsigned int i = blockIdx.y;                                                                          \
        const T *low = i < 2 ? (i == 0 ? inp0 : inp1) : (i == 2 ? inp2 : inp3);                                     \
        const T *high = i < 6 ? (i == 4 ? inp4 : inp5) : (i == 6 ? inp6 : inp7);                                    \
        copy_rows(info, out_pitch, i < 4 ? low : high, out);                                                        \
    }
COPY2D_OP(uint8_t, b1)
COPY2D_OP(uint16_t, b2)
COPY2D_OP(uint32_t, b4)
COPY2D_OP(uint64_t, b8)
// A vector, not a structure: the compiler keeps it in registers.
typedef uint32_t Wide16 __attribute__((ext_vector_type(4)));
COPY2D_OP(Wide16, b16)
