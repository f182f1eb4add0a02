// Products of single rows of activations with the matrices of their experts, for decoding: each workgroup reads rows of one
// matrix (expert_row), or the same rows of the matrices of all experts of a row of activations (expert_sum).
#include "faults.cuh"
#include "row_parts.cuh"

__device__ __forceinline__ unsigned int bytes_of(unsigned int dtype) { return dtype == CANDLE_FLOAT_F32 ? 4 : 2; }
__device__ __forceinline__ const void *offset_by(const void *from, unsigned int dtype, size_t elements) {
    return from == nullptr ? from : (const uint8_t *)from + elements * bytes_of(dtype);
}
// Returns the number of an expert, or of the first one if it is out of range, which is reported.
__device__ __forceinline__ size_t checked_expert(uint32_t expert, unsigned int stack) {
    return is_within(expert, stack, CANDLE_FAULT_EXPERT) ? expert : 0;
}

// Matrices of a row's experts, and the operations after their products.
struct ExpertSum {
    const uint8_t *weights;
    const uint32_t *experts;
    const float *factors;
    const void *bias, *summand;
    void *out;
    unsigned int n, stack, used, results, summand_dtype, out_dtype;
};

// Adds the products of `used` rows, the input's, with the matrices of their experts, times their factors. Neighbouring groups
// of lanes have different experts, so that each holds its part of one row in registers.
template <typename M>
__device__ __forceinline__ void expert_sum(const ExpertSum &of, const RowInput &input, const unsigned int lanes,
                                           RowSums &sums, M &part) {
    const unsigned int first = blockIdx.x * of.results, count = min(of.results, of.n - first);
    const uint32_t *experts = of.experts + (size_t)blockIdx.y * of.used;
    // Experts are rounded up to a power of two; those past the end repeat the last one.
    const unsigned int held = of.used > 1 ? 1u << (32 - __builtin_clz(of.used - 1)) : 1;
    const unsigned int shift = log2_of(lanes), wave = threadIdx.x / LANES, waves = lanes > LANES ? lanes / LANES : 1;
    const unsigned int group = threadIdx.x >> shift, own = group & (held - 1), step = (ROW_THREADS >> shift) / held;
    const unsigned int line = group / held, leader = (wave * LANES >> shift) / held;
    const RowLanes place = {lanes, threadIdx.x & (lanes - 1), M::units(input.k)};
    const unsigned int row = min(own, of.used - 1);
    const size_t row_bytes = M::bytes_of_row(input.k);
    const uint8_t *rows = of.weights + (checked_expert(experts[row], of.stack) * of.n + first) * row_bytes;
    const auto read = [=](unsigned int at, unsigned int segment) INLINE {
        return M::read(rows + min(at, count - 1) * row_bytes, place, segment);
    };
    float squares[1] = {};
    for (unsigned int segment = 0; segment < place.units; segment += lanes * M::UNITS) {
        typename M::Raw ahead[M::AHEAD];
#pragma unroll
        for (unsigned int i = 0; i < M::AHEAD; ++i) {
            if (leader + i * step < count) {
                ahead[i] = read(line + i * step, segment);
            }
        }
        // Keeps these loads before the others.
        asm volatile("" ::: "memory");
        if (segment == 0) {
            // All rows as a long one.
            part.prepare(RowInput{input.x, nullptr, nullptr, input.dtype, input.k * of.used, 1}, squares);
        }
        const typename M::Activations x = part.activations(input, place, segment, row, squares[0]);
#pragma unroll 1
        for (unsigned int done = 0; leader + done < count; done += M::AHEAD * step) {
#pragma unroll
            for (unsigned int i = 0; i < M::AHEAD; ++i) {
                const unsigned int before = done + i * step;
                if (leader + before < count) {
                    float sum = M::product(ahead[i], x, place, segment);
                    if (leader + before + M::AHEAD * step < count) {
                        ahead[i] = read(line + before + M::AHEAD * step, segment);
                    }
                    sum = reduce_lanes(sum, min(lanes, LANES), [](float a, float b) INLINE { return a + b; });
                    if (place.lane % LANES == 0 && line + before < count && own < of.used) {
                        float &to = sums.tasks[((line + before) * held + own) * waves + place.lane / LANES];
                        to = segment == 0 ? sum : to + sum;
                    }
                }
            }
        }
    }
    __syncthreads();
    for (unsigned int i = threadIdx.x; i < count; i += ROW_THREADS) {
        float result = 0;
#pragma unroll 1
        for (unsigned int j = 0; j < of.used; ++j) {
            float sum = 0;
            for (unsigned int w = 0; w < waves; ++w) {
                sum += sums.tasks[(i * held + j) * waves + w];
            }
            if (of.bias != nullptr) {
                const size_t matrix = experts[j] < of.stack ? experts[j] : 0;
                sum += load_float(of.bias, input.dtype, matrix * of.n + first + i);
            }
            result += of.factors[(size_t)blockIdx.y * of.used + j] * sum;
        }
        const size_t at = (size_t)blockIdx.y * of.n + first + i;
        if (of.summand != nullptr) {
            result += load_float(of.summand, of.summand_dtype, at);
        }
        store_float(of.out, of.out_dtype, at, result);
    }
}

#define EXPERT_ROW_KERNEL(NAME, DTYPE, LDS, ...)                                                                       \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_PRODUCT_BLOCK) expert_row_##NAME(                          \
        const void *x, const void *norm, const void *bias, const uint8_t *weights, const uint32_t *experts, void *out, \
        const unsigned int n, const unsigned int stack, const unsigned int rows_per_activation, const unsigned int k,  \
        const unsigned int results, const unsigned int lanes, const unsigned int dtype, const unsigned int out_dtype,  \
        const unsigned int activation, const float eps) {                                                              \
        const size_t expert = checked_expert(experts[blockIdx.y], stack);                                              \
        const unsigned int columns = activation == CANDLE_ACTIVATION_NONE ? n : n / 2;                                 \
        const void *row = offset_by(x, DTYPE, (size_t)(blockIdx.y / rows_per_activation) * k);                         \
        void *to = (void *)offset_by(out, out_dtype, (size_t)blockIdx.y * columns);                                    \
        const RowInput input = {row, nullptr, norm, DTYPE, k, 1};                                                      \
        const RowEpilogue after = {offset_by(bias, DTYPE, expert * n), nullptr, results, 0, out_dtype, activation, eps}; \
        __shared__ RowSums sums;                                                                                       \
        LDS                                                                                                            \
        const auto run = [&](auto &part) INLINE {                                                                      \
            typedef typename Part<decltype(&part)>::Of M;                                                              \
            const size_t row_bytes = M::bytes_of_row(k);                                                               \
            const uint8_t *first = weights + expert * n * row_bytes, *up = first + columns * row_bytes;                \
            const RowMatrices matrices = {{first, up, up}, {to, to, to}, {columns, n, n}};                             \
            row_product<M, 1>(matrices, input, after, lanes, sums, part);                                              \
        };                                                                                                             \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(CANDLE_ROW_PRODUCT_BLOCK) expert_sum_##NAME(                          \
        const void *x, const void *bias, const void *summand, const uint8_t *weights, const uint32_t *experts,         \
        const float *factors, void *out, const unsigned int n, const unsigned int stack, const unsigned int used,      \
        const unsigned int k, const unsigned int results, const unsigned int lanes, const unsigned int dtype,          \
        const unsigned int summand_dtype, const unsigned int out_dtype) {                                              \
        const ExpertSum of = {weights, experts, factors, bias, summand, out, n, stack, used, results, summand_dtype, out_dtype}; \
        const RowInput input = {offset_by(x, DTYPE, (size_t)blockIdx.y * used * k), nullptr, nullptr, DTYPE, k, used}; \
        __shared__ RowSums sums;                                                                                       \
        LDS                                                                                                            \
        const auto run = [&](auto &part) INLINE { expert_sum(of, input, lanes, sums, part); };                         \
        __VA_ARGS__                                                                                                    \
    }

// Type of the part that a pointer points to.
template <typename P> struct Part;
template <typename M> struct Part<M *> { typedef M Of; };

#define FLOAT_OP(T, NAME, DTYPE)                                                                                       \
    EXPERT_ROW_KERNEL(NAME, DTYPE, , FloatRow<T, 1, CANDLE_FEW_REGISTERS(2, 1)> part; run(part);)
FLOAT_OP(__nv_bfloat16, bf16, CANDLE_FLOAT_BF16)
FLOAT_OP(__half, f16, CANDLE_FLOAT_F16)
FLOAT_OP(float, f32, CANDLE_FLOAT_F32)

// Calls `run` with the rows of blocks of a format, as a stream if `fits`.
template <typename F, typename R>
__device__ __forceinline__ void with_blocks(void *lds, const RowInput &input, const bool fits, R run) {
    if constexpr (RowsOf<F, 1>::IS_STREAM) {
        if (fits) {
            typedef typename RowsOf<F, 1>::Stream Stream;
            Stream part = {Stream::at(lds, input)};
            run(part);
            return;
        }
    }
    BlockRow<F, 1> part = {BlockRow<F, 1>::at(lds, input)};
    run(part);
}
#define QUANTIZED_OP(F, NAME, ...)                                                                                     \
    EXPERT_ROW_KERNEL(NAME, dtype, extern __shared__ uint4 activations[];,                                             \
        with_blocks<F>(activations, input, ((size_t)weights | k / F::WEIGHTS * F::BYTES) % CANDLE_PACK_BYTES == 0, run);)
CANDLE_EACH_FORMAT(QUANTIZED_OP)
