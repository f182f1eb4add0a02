// Routers of mixtures of experts: the choice of the experts of each row from their scores, and their weights.
#include "faults.cuh"
#include "row.cuh"

// Experts of a lane, and rows of a workgroup.
constexpr unsigned int PER_LANE = CANDLE_ROUTE_EXPERTS / LANES, LINES = CANDLE_BLOCK / LANES;

__device__ __forceinline__ float number_or_least(float x) { return x == x ? x : -INFINITY; }
__device__ __forceinline__ float sum_of(float a, float b) { return a + b; }

// An expert with the score by which it is chosen, and the value from which its weight is computed.
struct Candidate {
    float score, value;
    unsigned int expert;

    // Returns true if it is chosen before another: of equal scores, the first expert's.
    __device__ __forceinline__ bool precedes(const Candidate &other) const {
        return score > other.score || (score == other.score && expert < other.expert);
    }
};

// LANES lanes share a row. Every lane holds the experts whose numbers are its own plus multiples of LANES.
struct RouterRow {
    float values[PER_LANE], choice[PER_LANE];
    unsigned int lane, stack;

    __device__ __forceinline__ unsigned int expert(unsigned int i) const { return lane + i * LANES; }
    __device__ __forceinline__ bool is_there(unsigned int i) const { return expert(i) < stack; }
    template <typename F>
    __device__ __forceinline__ void each(F f) {
        // One condition for several experts: each takes registers.
#pragma unroll
        for (unsigned int first = 0; first < PER_LANE; first += 4) {
            if (first * LANES < stack) {
#pragma unroll
                for (unsigned int i = first; i < first + 4; ++i) {
                    f(i);
                }
            }
        }
    }

    __device__ __forceinline__ void softmax() {
        float highest = -INFINITY, sum = 0;
        each([&](unsigned int i) INLINE { highest = fmaxf(highest, values[i]); });
        highest = reduce_lanes(highest, LANES, fmaxf);
        const float base = highest == -INFINITY ? 0 : highest;
        each([&](unsigned int i) INLINE {
            values[i] = is_there(i) ? expf(values[i] - base) : 0;
            sum += values[i];
        });
        sum = reduce_lanes(sum, LANES, sum_of);
        each([&](unsigned int i) INLINE { values[i] /= sum; });
    }

    // Sets the scores of experts outside of the `used` best groups to 0. `scores` and `groups` are the row's LDS.
    __device__ __forceinline__ void limit_groups(float *scores, float *best, unsigned int groups, unsigned int used, bool by_two) {
        const unsigned int size = stack / groups;
        each([&](unsigned int i) INLINE {
            if (is_there(i)) {
                scores[expert(i)] = choice[i];
            }
        });
        __syncthreads();
        if (lane < groups) {
            float first = -INFINITY, second = -INFINITY;
            for (unsigned int i = 0; i < size; ++i) {
                const float score = scores[lane * size + i];
                second = fmaxf(second, fminf(first, score));
                first = fmaxf(first, score);
            }
            best[lane] = by_two ? first + second : first;
        }
        __syncthreads();
        each([&](unsigned int i) INLINE {
            if (is_there(i)) {
                const float own = best[expert(i) / size];
                unsigned int better = 0;
                for (unsigned int group = 0; group < groups; ++group) {
                    better += best[group] > own;
                }
                choice[i] = better < used ? choice[i] : 0;
            }
        });
    }

    // Returns the sum of exp(value - own) over the experts that are not taken and whose value is near `own`.
    __device__ __forceinline__ float near(float own, float tolerance, uint32_t taken) {
        float sum = 0;
        each([&](unsigned int i) INLINE {
            const float value = values[i];
            const bool counts = (taken >> i & 1) == 0 && own - value <= tolerance * fmaxf(fabsf(value), own);
            sum += counts ? expf(value - own) : 0;
        });
        return reduce_lanes(sum, LANES, sum_of);
    }
};

extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) route(
    const float *scores, const float *correction, uint32_t *experts, float *weights, const unsigned int rows,
    const unsigned int stack, const unsigned int used, const unsigned int groups, const unsigned int used_groups,
    const unsigned int function, const unsigned int normalized, const float scale, const float tolerance) {
    __shared__ float shared_scores[LINES][CANDLE_ROUTE_EXPERTS], shared_groups[LINES][LANES];
    const unsigned int line = threadIdx.x / LANES, number = blockIdx.x * LINES + line, row = min(number, rows - 1);
    RouterRow of;
    of.lane = threadIdx.x % LANES;
    of.stack = stack;
    of.each([&](unsigned int i) INLINE {
        of.values[i] = of.is_there(i) ? number_or_least(scores[(size_t)row * stack + of.expert(i)]) : -INFINITY;
    });
    if (function == CANDLE_ROUTE_SOFTMAX) {
        of.softmax();
    } else if (function == CANDLE_ROUTE_SIGMOID) {
        of.each([&](unsigned int i) INLINE { of.values[i] = 1 / (1 + expf(-of.values[i])); });
    }
    of.each([&](unsigned int i) INLINE {
        const float score = of.values[i] + (correction != nullptr && of.is_there(i) ? correction[of.expert(i)] : 0);
        of.choice[i] = of.is_there(i) ? number_or_least(score) : -INFINITY;
    });
    if (groups > 1) {
        of.limit_groups(shared_scores[line], shared_groups[line], groups, used_groups, correction != nullptr);
    }

    // Each lane keeps one of the chosen experts. Numbers past the last expert have the least score, and follow it.
    uint32_t taken = 0;
    unsigned int own_expert = 0;
    float own_weight = 0, first = 0, sum = 0;
#pragma unroll 1
    for (unsigned int chosen = 0; chosen < used; ++chosen) {
        Candidate best = {-INFINITY, 0, ~0u};
        of.each([&](unsigned int i) INLINE {
            const Candidate next = {of.choice[i], of.values[i], of.expert(i)};
            if ((taken >> i & 1) == 0 && next.precedes(best)) {
                best = next;
            }
        });
        best = reduce_lanes(best, LANES, [](const Candidate &a, const Candidate &b) INLINE { return b.precedes(a) ? b : a; });
        first = chosen == 0 ? best.value : first;
        float weight = best.value;
        if (function == CANDLE_ROUTE_CHOSEN_SOFTMAX) {
            weight = expf(best.value - first);
        } else if (function == CANDLE_ROUTE_SPARSE_MIXER) {
            weight = 1 / of.near(best.value, tolerance, taken);
        }
        sum += weight;
        own_expert = of.lane == chosen ? best.expert : own_expert;
        own_weight = of.lane == chosen ? weight : own_weight;
        taken |= of.lane == best.expert % LANES ? 1u << (best.expert / LANES) : 0;
    }
    if (function == CANDLE_ROUTE_CHOSEN_SOFTMAX) {
        own_weight /= sum;
    } else if (normalized) {
        own_weight /= sum + 1e-20f;
    }
    if (number < rows && of.lane < used) {
        experts[(size_t)row * used + of.lane] = own_expert;
        weights[(size_t)row * used + of.lane] = own_weight * scale;
    }
}

// A pair of running numbers of products and of tiles.
struct Counts { unsigned int products, tiles; };

// Orders products by their experts, in one workgroup, and divides those of each expert into tiles of QFEW_SIDE: its number, the
// first product and the end, in the order. Tiles after the last one are empty.
extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) group_products(const uint32_t *experts, uint32_t *order,
                                                                          uint32_t *tiles, const unsigned int count,
                                                                          const unsigned int stack, const unsigned int max_tiles) {
    constexpr unsigned int EACH = CANDLE_ROUTE_EXPERTS / CANDLE_BLOCK, SIDE = CANDLE_QFEW_SIDE;
    __shared__ unsigned int next[CANDLE_ROUTE_EXPERTS];
    __shared__ Counts before[CANDLE_BLOCK];
    const unsigned int thread = threadIdx.x;
    for (unsigned int expert = thread; expert < CANDLE_ROUTE_EXPERTS; expert += CANDLE_BLOCK) {
        next[expert] = 0;
    }
    __syncthreads();
    for (unsigned int i = thread; i < count; i += CANDLE_BLOCK) {
        const uint32_t expert = experts[i];
        atomicAdd(&next[is_within(expert, stack, CANDLE_FAULT_EXPERT) ? expert : 0], 1u);
    }
    __syncthreads();
    Counts own = {0, 0};
    unsigned int counts[EACH];
#pragma unroll
    for (unsigned int i = 0; i < EACH; ++i) {
        counts[i] = next[thread * EACH + i];
        own = {own.products + counts[i], own.tiles + (counts[i] + SIDE - 1) / SIDE};
    }
    Counts end = own;
    before[thread] = end;
    for (unsigned int step = 1; step < CANDLE_BLOCK; step *= 2) {
        __syncthreads();
        const Counts other = thread >= step ? before[thread - step] : Counts{0, 0};
        __syncthreads();
        end = {end.products + other.products, end.tiles + other.tiles};
        before[thread] = end;
    }
    __syncthreads();
    Counts at = {end.products - own.products, end.tiles - own.tiles};
#pragma unroll
    for (unsigned int i = 0; i < EACH; ++i) {
        const unsigned int expert = thread * EACH + i, last = at.products + counts[i];
        next[expert] = at.products;
        for (unsigned int first = at.products; first < last; first += SIDE) {
            uint32_t *tile = tiles + 3 * at.tiles++;
            tile[0] = expert;
            tile[1] = first;
            tile[2] = min(first + SIDE, last);
        }
        at.products = last;
    }
    for (unsigned int i = 3 * before[CANDLE_BLOCK - 1].tiles + thread; i < 3 * max_tiles; i += CANDLE_BLOCK) {
        tiles[i] = 0;
    }
    __syncthreads();
    for (unsigned int i = thread; i < count; i += CANDLE_BLOCK) {
        const uint32_t expert = experts[i];
        order[atomicAdd(&next[expert < stack ? expert : 0], 1u)] = i;
    }
}

// Returns an element of the bias of an expert, or 0 without biases.
__device__ __forceinline__ float bias_of(const void *bias, unsigned int dtype, uint32_t expert, unsigned int stack,
                                         unsigned int n, unsigned int column) {
    return bias == nullptr ? 0 : load_float(bias, dtype, (size_t)(expert < stack ? expert : 0) * n + column);
}

// Computes activation(gate) * up of rows of products that consist of a gate and up. y of the grid numbers the rows.
extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) gate_products(
    const void *products, const void *bias, const uint32_t *experts, void *out, const unsigned int width,
    const unsigned int stack, const unsigned int dtype, const unsigned int out_dtype, const unsigned int activation) {
    const unsigned int column = blockIdx.x * CANDLE_BLOCK + threadIdx.x, row = blockIdx.y;
    if (column >= width) {
        return;
    }
    const auto part = [=](unsigned int at) INLINE {
        return load_float(products, dtype, (size_t)row * 2 * width + at) +
               bias_of(bias, out_dtype, experts[row], stack, 2 * width, at);
    };
    store_float(out, out_dtype, (size_t)row * width + column, gated(activation, part(column), part(width + column)));
}

// Sums the products of each row, times their factors, in their order. y of the grid numbers the rows.
extern "C" __global__ void __launch_bounds__(CANDLE_BLOCK) combine_products(
    const void *products, const void *bias, const void *summand, const uint32_t *experts, const float *factors, void *out,
    const unsigned int n, const unsigned int stack, const unsigned int used, const unsigned int dtype,
    const unsigned int bias_dtype, const unsigned int summand_dtype, const unsigned int out_dtype) {
    const unsigned int column = blockIdx.x * CANDLE_BLOCK + threadIdx.x, row = blockIdx.y;
    if (column >= n) {
        return;
    }
    float sum = 0;
#pragma unroll 4
    for (unsigned int j = 0; j < used; ++j) {
        const unsigned int product = row * used + j;
        const float value = load_float(products, dtype, (size_t)product * n + column);
        sum += factors[product] * (value + bias_of(bias, bias_dtype, experts[product], stack, n, column));
    }
    const size_t at = (size_t)row * n + column;
    store_float(out, out_dtype, at, summand == nullptr ? sum : sum + load_float(summand, summand_dtype, at));
}
