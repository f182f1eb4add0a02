// Memory-bound products of a few rows with a matrix whose columns are dense, such as a layer's weights, summed in
// f32; and f64 products through LDS, for GPUs without rocBLAS kernels.
#include "experts.cuh"
#include "lanes.cuh"
#include "pack.cuh"
#include "thin.cuh"

constexpr unsigned int TILE = CANDLE_PRODUCT_TILE;

// A workgroup of TILE x TILE threads computes one tile of the result; y and z use a grid stride.
__device__ void product(const double *a, const double *b, double *c, const unsigned int m, const unsigned int n, const unsigned int k,
                        const unsigned int batches, const size_t a_row, const size_t a_column, const size_t a_batch,
                        const size_t b_row, const size_t b_column, const size_t b_batch, const size_t c_row,
                        const size_t c_batch) {
    // Padded by one element per row against bank conflicts.
    __shared__ double left[TILE][TILE + 1], right[TILE][TILE + 1];
    const unsigned int x = threadIdx.x, y = threadIdx.y;
    const size_t column = (size_t)blockIdx.x * TILE + x;
    for (size_t batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        for (size_t top = (size_t)blockIdx.y * TILE; top < m; top += (size_t)gridDim.y * TILE) {
            const size_t row = top + y;
            const double *from_a = a + batch * a_batch + row * a_row;
            const double *from_b = b + batch * b_batch + column * b_column;
            double sum = 0;
            for (size_t first = 0; first < k; first += TILE) {
                left[y][x] = row < m && first + x < k ? from_a[(first + x) * a_column] : 0;
                right[y][x] = column < n && first + y < k ? from_b[(first + y) * b_row] : 0;
                __syncthreads();
                for (unsigned int i = 0; i < TILE; ++i) {
                    sum += left[y][i] * right[i][x];
                }
                __syncthreads();
            }
            if (row < m && column < n) {
                c[batch * c_batch + row * c_row + column] = sum;
            }
        }
    }
}

template <unsigned int ROWS, typename T>
struct RowSums { typename Wide<T>::type values[ROWS]; };

// Multiplies ROWS rows, `row(r)`, with a column. `width` threads divide its packs; all of them receive the sums.
template <unsigned int ROWS, typename T, typename R>
__device__ __forceinline__ RowSums<ROWS, T> row_sums(const T *from, const unsigned int k, const unsigned int width, R row) {
    typedef typename Wide<T>::type W;
    constexpr unsigned int N = CANDLE_PACK_BYTES / sizeof(T);
    struct Packs { Pack<T, N> column, row[ROWS]; };
    RowSums<ROWS, T> sums = {};
    for_each_prefetched<ROWS == 1 ? 4 : 2>(threadIdx.x & (width - 1), k / N, width, [=](unsigned int p) INLINE {
        Packs packs = {Pack<T, N>::read(from + p * N), {}};
#pragma unroll
        for (unsigned int r = 0; r < ROWS; ++r) {
            packs.row[r] = Pack<T, N>::read(row(r) + p * N);
        }
        return packs;
    }, [&](const Packs &packs, unsigned int) INLINE {
#pragma unroll
        for (unsigned int i = 0; i < ROWS * N; ++i) {
            sums.values[i / N] += (W)packs.row[i / N][i % N] * (W)packs.column[i % N];
        }
    });
    return reduce_threads<CANDLE_BLOCK>(sums, width, [](RowSums<ROWS, T> x, const RowSums<ROWS, T> &y) INLINE {
#pragma unroll
        for (unsigned int r = 0; r < ROWS; ++r) {
            x.values[r] += y.values[r];
        }
        return x;
    });
}

// Returns the column of this thread's group; x of the grid numbers the columns.
__device__ __forceinline__ unsigned int group_column(unsigned int width) {
    const unsigned int shift = log2_of(width);
    return blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
}

// Products of up to ROWS rows; `width` threads share a column of b.
template <unsigned int ROWS, typename T>
__device__ __forceinline__ void few_rows(const T *a, const T *b, T *c, const unsigned int m, const unsigned int n,
                                         const unsigned int k, const unsigned int batches, const size_t a_row,
                                         const size_t a_batch, const size_t b_column, const size_t b_batch,
                                         const size_t c_row, const size_t c_batch, const unsigned int width) {
    const unsigned int column = group_column(width);
    for (unsigned int batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        const T *rows = a + batch * a_batch, *from = b + batch * b_batch + min(column, n - 1) * b_column;
        const RowSums<ROWS, T> sums = row_sums<ROWS>(from, k, width, [=](unsigned int r) INLINE {
            return rows + min(r, m - 1) * a_row;
        });
        if ((threadIdx.x & (width - 1)) == 0 && column < n) {
#pragma unroll
            for (unsigned int r = 0; r < ROWS; ++r) {
                if (r < m) {
                    c[batch * c_batch + r * c_row + column] = (T)sums.values[r];
                }
            }
        }
        // The next batch reuses the LDS.
        __syncthreads();
    }
}

// Multiplies rows of x with the matrices (n, k) of a stack that each product selects.
template <typename T>
__device__ __forceinline__ void experts_product(const T *x, const T *weights, const Routing &routing, T *out,
                                                const unsigned int n, const unsigned int k, const unsigned int width) {
    constexpr unsigned int ROWS = CANDLE_PRODUCT_ROWS;
    const unsigned int column = group_column(width);
    each_run<ROWS>(routing, [=](size_t matrix, unsigned int begin, unsigned int end, bool there) INLINE {
        unsigned int lines[ROWS];
#pragma unroll
        for (unsigned int r = 0; r < ROWS; ++r) {
            lines[r] = routing.line(min(begin + r, end - 1));
        }
        const T *from = weights + (matrix * n + min(column, n - 1)) * k;
        const RowSums<ROWS, T> sums =
            row_sums<ROWS>(from, k, width, [=](unsigned int r) INLINE { return x + (size_t)lines[r] * k; });
        if ((threadIdx.x & (width - 1)) == 0 && column < n) {
#pragma unroll
            for (unsigned int r = 0; r < ROWS; ++r) {
                if (begin + r < end) {
                    const unsigned int place = routing.place(begin + r);
                    out[(size_t)place * n + column] = (T)(there ? sums.values[r] * routing.factor(place) : 0);
                }
            }
        }
    });
}

#define PRODUCT_ARGUMENTS(T)                                                                                      \
    const T *a, const T *b, T *c, const unsigned int m, const unsigned int n, const unsigned int k,               \
        const unsigned int batches, const size_t a_row, const size_t a_column, const size_t a_batch,              \
        const size_t b_row, const size_t b_column, const size_t b_batch, const size_t c_row, const size_t c_batch, \
        const unsigned int width
#define ROWS_OP(ROWS, T, NAME)                                                                                    \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) NAME(PRODUCT_ARGUMENTS(T)) {                       \
        few_rows<ROWS>(a, b, c, m, n, k, batches, a_row, a_batch, b_column, b_batch, c_row, c_batch, width);      \
    }
#define THIN_OP(T, NAME)                                                                                          \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK, 2) thin_##NAME(PRODUCT_ARGUMENTS(T)) {             \
        thin_product(a, b, c, m, n, k, batches, a_row, a_batch, b_column, b_batch, c_row, c_batch);               \
    }
#define FEW_OPS(T, NAME)                                 \
    ROWS_OP(1, T, row_##NAME)                            \
    ROWS_OP(CANDLE_PRODUCT_ROWS, T, rows_##NAME)         \
    THIN_OP(T, NAME)
FEW_OPS(__nv_bfloat16, bf16)
FEW_OPS(__half, f16)
FEW_OPS(float, f32)

extern "C" __global__ void __launch_bounds__(TILE * TILE) product_f64(PRODUCT_ARGUMENTS(double)) {
    product(a, b, c, m, n, k, batches, a_row, a_column, a_batch, b_row, b_column, b_batch, c_row, c_batch);
}

#define EXPERTS_OP(T, NAME)                                                                                            \
    extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) experts_##NAME(                                         \
        const T *x, const T *weights, const uint32_t *experts, const uint32_t *order, const float *factors, T *out,    \
        const unsigned int count, const unsigned int n, const unsigned int stack,                                      \
        const unsigned int rows_per_activation, const unsigned int k, const unsigned int width) {                      \
        const Routing routing = {experts, order, factors, count, stack, rows_per_activation};                          \
        experts_product(x, weights, routing, out, n, k, width);                                                        \
    }
EXPERTS_OP(__nv_bfloat16, bf16)
EXPERTS_OP(__half, f16)
