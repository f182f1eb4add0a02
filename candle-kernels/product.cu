// A plain product of matrices through LDS, for GPUs that rocBLAS has no kernels for. A workgroup of TILE x TILE threads
// makes one tile of the result, an element per thread; y and z of the grid are walked in steps of the grid. Summed in
// f32, or f64 for f64.
#include "pack.cuh"

constexpr unsigned int TILE = CANDLE_PRODUCT_TILE;

template <typename T>
__device__ void product(const T *a, const T *b, T *c, const unsigned int m, const unsigned int n, const unsigned int k,
                        const unsigned int batches, const size_t a_row, const size_t a_column, const size_t a_batch,
                        const size_t b_row, const size_t b_column, const size_t b_batch, const size_t c_row,
                        const size_t c_batch) {
    typedef typename Wide<T>::type W;
    // A word more per row, so that a column does not lie in one bank.
    __shared__ W left[TILE][TILE + 1], right[TILE][TILE + 1];
    const unsigned int x = threadIdx.x, y = threadIdx.y;
    const size_t column = (size_t)blockIdx.x * TILE + x;
    for (size_t batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        for (size_t top = (size_t)blockIdx.y * TILE; top < m; top += (size_t)gridDim.y * TILE) {
            const size_t row = top + y;
            const T *from_a = a + batch * a_batch + row * a_row;
            const T *from_b = b + batch * b_batch + column * b_column;
            W sum = 0;
            for (size_t first = 0; first < k; first += TILE) {
                left[y][x] = row < m && first + x < k ? (W)from_a[(first + x) * a_column] : (W)0;
                right[y][x] = column < n && first + y < k ? (W)from_b[(first + y) * b_row] : (W)0;
                __syncthreads();
                for (unsigned int i = 0; i < TILE; ++i) {
                    sum += left[y][i] * right[i][x];
                }
                __syncthreads();
            }
            if (row < m && column < n) {
                c[batch * c_batch + row * c_row + column] = (T)sum;
            }
        }
    }
}

#define PRODUCT_OP(T, NAME)                                                                                       \
    extern "C" __global__ void __launch_bounds__(TILE * TILE) product_##NAME(                                     \
        const T *a, const T *b, T *c, const unsigned int m, const unsigned int n, const unsigned int k,           \
        const unsigned int batches, const size_t a_row, const size_t a_column, const size_t a_batch,              \
        const size_t b_row, const size_t b_column, const size_t b_batch, const size_t c_row,                      \
        const size_t c_batch) {                                                                                   \
        product(a, b, c, m, n, k, batches, a_row, a_column, a_batch, b_row, b_column, b_batch, c_row, c_batch);   \
    }
PRODUCT_OP(__nv_bfloat16, bf16)
PRODUCT_OP(__half, f16)
PRODUCT_OP(float, f32)
PRODUCT_OP(double, f64)
