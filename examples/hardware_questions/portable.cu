// Kernels that observe scheduling, local memory and atomics on any GPU; see docs/how-to/validate-a-gpu.md.
constexpr unsigned int LOCAL_WORDS = 4096;

// Keeps one wave busy for `steps` steps.
extern "C" __global__ void spin(unsigned int *out, unsigned int steps) {
    unsigned int state = steps;
    for (unsigned int step = 0; step < steps; ++step) state = state * 1664525u + 1013904223u ^ state >> 7;
    out[threadIdx.x] = state;
}

extern "C" __global__ void nothing(unsigned int *out) {
    if (out == nullptr) __builtin_trap();
}

// Fills the local memory of a workgroup with a word.
extern "C" __global__ void fill_local(unsigned int *out, unsigned int word) {
    __shared__ unsigned int local[LOCAL_WORDS];
    volatile unsigned int *cells = local;
    for (unsigned int i = threadIdx.x; i < LOCAL_WORDS; i += blockDim.x) cells[i] = word;
    __syncthreads();
    if (cells[threadIdx.x] != word) out[0] = 1;
}

// Counts the initial words in a workgroup's local memory: `word`, zeros, all ones, and others.
extern "C" __global__ void read_local(unsigned int *out, unsigned int word, unsigned int write) {
    __shared__ unsigned int local[LOCAL_WORDS];
    volatile unsigned int *cells = local;
    // Never executed: prevents the compiler from assuming that the memory is never written.
    if (write != 0) cells[write % LOCAL_WORDS] = write;
    for (unsigned int i = threadIdx.x; i < LOCAL_WORDS; i += blockDim.x) {
        const unsigned int found = cells[i];
        atomicAdd(&out[found == word ? 0 : found == 0 ? 1 : found == ~0u ? 2 : 3], 1u);
    }
}

// The first wave waits for the second one in at most `most` iterations; returns the number of iterations.
extern "C" __global__ void hand_over(unsigned int *out, unsigned int most) {
    __shared__ unsigned int flag;
    volatile unsigned int *told = &flag;
    if (threadIdx.x == 0) *told = 0;
    __syncthreads();
    if (threadIdx.x < 64) {
        unsigned int waited = 0;
        while (*told == 0 && waited < most) ++waited;
        if (threadIdx.x == 0) out[0] = waited;
    } else if (threadIdx.x == 64) {
        *told = 1;
    }
}

// Returns the old values that the lanes of one wave receive; `places` are zeros unknown to the compiler.
extern "C" __global__ void lane_order(unsigned int *counter, const unsigned int *places, unsigned int *out) {
    out[threadIdx.x] = atomicAdd(&counter[places[threadIdx.x]], 1u + places[threadIdx.x]);
}

// Adds numbers of very different magnitude in an unspecified order.
extern "C" __global__ void float_order(float *sum, const unsigned int *places) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&sum[places[threadIdx.x]], 1.0f / (1.0f + (float)(i * 7919u % 10007u)));
}

// Writes to an invalid address to test the driver's error. Only with --risky.
extern "C" __global__ void write_nowhere(unsigned int *out, size_t address) {
    *(volatile unsigned int *)address = 1;
    out[0] = 1;
}
