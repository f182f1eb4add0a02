// Streams of one instruction for the benchmark: `turns` times 128 instructions, each independent of the previous one.
#define EIGHT(INSTRUCTION)                                                                                      \
    INSTRUCTION("%0") INSTRUCTION("%1") INSTRUCTION("%2") INSTRUCTION("%3")                                     \
    INSTRUCTION("%4") INSTRUCTION("%5") INSTRUCTION("%6") INSTRUCTION("%7")
#define TWICE(...) __VA_ARGS__ __VA_ARGS__
#define ADD(REGISTER) "v_add_f32 " REGISTER ", " REGISTER ", %8\n"
#define FMA(REGISTER) "v_fma_f32 " REGISTER ", " REGISTER ", %8, %9\n"

#define STREAM(NAME, INSTRUCTION)                                                                               \
    extern "C" __global__ void NAME(unsigned int turns, float *out) {                                           \
        const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;                                           \
        float a = (float)threadIdx.x, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7; \
        const float x = a * 0.001f, y = 0.5f;                                                                   \
        for (unsigned int turn = 0; turn < turns; ++turn) {                                                     \
            asm volatile(TWICE(TWICE(TWICE(TWICE(EIGHT(INSTRUCTION)))))                                         \
                         : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h)               \
                         : "v"(x), "v"(y));                                                                     \
        }                                                                                                       \
        out[i] = a + b + c + d + e + f + g + h;                                                                 \
    }
STREAM(stream_add, ADD)
STREAM(stream_fma, FMA)

extern "C" __global__ void nothing() {}
