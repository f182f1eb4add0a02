// Kernels that test the compatibility headers: tests/headers.rs launches them and compares the results with
// formulas on the host. One thread per element unless noted otherwise.

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

// Reads the input's bits as FROM, converts by EXPRESSION, writes the result's bits.
#define CONVERSION(NAME, FROM, IN_BITS, OUT_BITS, EXPRESSION)                                        \
    extern "C" __global__ void NAME(unsigned int count, const IN_BITS *inputs, OUT_BITS *outputs) {  \
        if (INDEX < count) {                                                                         \
            const FROM x = candle_bits<FROM>(inputs[INDEX]);                                         \
            outputs[INDEX] = candle_bits<OUT_BITS>(EXPRESSION);                                      \
        }                                                                                            \
    }
CONVERSION(f32_to_bf16, float, uint32_t, uint16_t, __float2bfloat16(x))
CONVERSION(f64_to_bf16, double, uint64_t, uint16_t, __nv_bfloat16(x))
CONVERSION(bf16_to_f32, __nv_bfloat16, uint16_t, uint32_t, __bfloat162float(x))
CONVERSION(f32_to_f16, float, uint32_t, uint16_t, __float2half(x))
CONVERSION(f64_to_f16, double, uint64_t, uint16_t, (__half)x)
CONVERSION(f16_to_f32, __half, uint16_t, uint32_t, __half2float(x))
CONVERSION(f32_to_e4m3, float, uint32_t, uint8_t, __nv_fp8_e4m3(x))
CONVERSION(f64_to_e4m3, double, uint64_t, uint8_t, __nv_fp8_e4m3(x))
CONVERSION(e4m3_to_f32, __nv_fp8_e4m3, uint8_t, uint32_t, (float)x)
CONVERSION(e4m3_to_f16, __nv_fp8_e4m3, uint8_t, uint16_t, (__half)__nv_cvt_fp8_to_halfraw(x.__x, __NV_E4M3))

// results[COUNT * i ..]: values computed from elements i of both operands.
#define BITS(X) candle_bits<uint16_t>((decltype(a))(X))
#define OF_PAIRS(NAME, T, COUNT, ...)                                                                        \
    extern "C" __global__ void NAME(unsigned int count, const uint16_t *as, const uint16_t *bs,              \
                                    uint16_t *results) {                                                     \
        if (INDEX < count) {                                                                                 \
            const T a = candle_bits<T>(as[INDEX]), b = candle_bits<T>(bs[INDEX]);                            \
            const uint16_t values[COUNT] = {__VA_ARGS__};                                                    \
            for (int i = 0; i < COUNT; ++i) {                                                                \
                results[COUNT * INDEX + i] = values[i];                                                      \
            }                                                                                                \
        }                                                                                                    \
    }
#define ARITHMETIC(NAME, T) OF_PAIRS(NAME, T, 5, BITS(a + b), BITS(a - b), BITS(a * b), BITS(a / b), a < b)
ARITHMETIC(arithmetic_f16, __half)
ARITHMETIC(arithmetic_bf16, __nv_bfloat16)
#define EXTREMA(NAME, T) \
    OF_PAIRS(NAME, T, 4, BITS(__hmax(a, b)), BITS(__hmin(a, b)), BITS(__hmax_nan(a, b)), BITS(__hmin_nan(a, b)))
EXTREMA(extrema_f16, __half)
EXTREMA(extrema_bf16, __nv_bfloat16)

// All threads concurrently add their values to the given 16-bit cells.
#define ATOMIC_ADD(NAME, T)                                                                                  \
    extern "C" __global__ void NAME(unsigned int count, const uint32_t *cells, const uint16_t *values,       \
                                    uint16_t *memory) {                                                      \
        if (INDEX < count) {                                                                                 \
            atomicAdd((T *)(memory + cells[INDEX]), candle_bits<T>(values[INDEX]));                          \
        }                                                                                                    \
    }
ATOMIC_ADD(atomic_add_f16, __half)
ATOMIC_ADD(atomic_add_bf16, __nv_bfloat16)

// Every thread tries to replace `expected` in its cell by its own index plus one.
extern "C" __global__ void atomic_claim(unsigned int count, const uint32_t *cells, unsigned int expected,
                                        uint16_t *memory, uint16_t *seen) {
    if (INDEX < count) {
        seen[INDEX] = atomicCAS((unsigned short *)memory + cells[INDEX], (unsigned short)expected,
                                (unsigned short)(INDEX + 1));
    }
}

// kind 0: from lane `amount`, 1: xor, 2: up, 3: down.
#define SHUFFLE(NAME, T)                                                                          \
    extern "C" __global__ void NAME(int kind, int amount, int width, const T *inputs, T *outputs) { \
        const T value = inputs[INDEX];                                                            \
        T result;                                                                                 \
        switch (kind) {                                                                           \
        case 0: result = __shfl_sync(0xffffffff, value, amount, width); break;                    \
        case 1: result = __shfl_xor_sync(0xffffffff, value, amount, width); break;                \
        case 2: result = __shfl_up_sync(0xffffffff, value, amount, width); break;                 \
        default: result = __shfl_down_sync(0xffffffff, value, amount, width); break;              \
        }                                                                                         \
        outputs[INDEX] = result;                                                                  \
    }
SHUFFLE(shuffle_u8, uint8_t)
SHUFFLE(shuffle_u16, __half)
SHUFFLE(shuffle_u32, float)
SHUFFLE(shuffle_u64, double)

extern "C" __global__ void dot_bytes(unsigned int count, const int *as, const int *bs, const int *cs, int *results) {
    if (INDEX < count) {
        results[INDEX] = __dp4a(as[INDEX], bs[INDEX], cs[INDEX]);
    }
}

extern "C" __global__ void subtract_bytes(unsigned int count, const int *as, const int *bs, int *results) {
    if (INDEX < count) {
        results[INDEX] = __vsubss4(as[INDEX], bs[INDEX]);
    }
}

// Writes for every thread its block index, block size and grid size, followed by the sum of a by-value layout.
extern "C" __global__ void where_am_i(CandleLayout layout, unsigned int words, uint32_t *places, uint64_t *sum) {
    const unsigned int row = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned int lane = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned int thread = row * blockDim.x * blockDim.y * blockDim.z + lane;
    const unsigned int place[12] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z,
                                    blockDim.x,  blockDim.y,  blockDim.z,  gridDim.x,  gridDim.y,  gridDim.z};
    for (int i = 0; i < 12; ++i) {
        places[12 * thread + i] = place[i];
    }
    if (thread == 0) {
        const size_t *v = layout;
        uint64_t total = 0;
        for (unsigned int i = 0; i < words; ++i) {
            total += (i + 1) * v[i];
        }
        *sum = total;
    }
}
