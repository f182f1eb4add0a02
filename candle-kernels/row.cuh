// Products of one to four rows of activations with matrices, with the operations around them in a decoder layer: RMS norm before;
// bias, gate and residual after.
//
// A workgroup computes consecutive results. A group of lanes shares a row of a matrix. A lane multiplies the same part of
// each row of its group, so that it holds its part of the activations in registers, and it loads the parts of later rows
// ahead. The sums of waves are combined in LDS, after one barrier for all rows. The norm is a factor of the whole row:
// it is computed beside the products and applied at the end.
#pragma once
#include "activations.cuh"

constexpr unsigned int ROW_THREADS = CANDLE_ROW_PRODUCT_BLOCK, ROW_GROUPS = ROW_THREADS / LANES;

// If true, lanes skip the multiplication of tasks past the last one. If false, with one row of activations they multiply the
// weights that their registers happen to hold, and discard the sums: this takes fewer scalar registers, but more vector registers.
constexpr bool SKIPS_TASKS = CANDLE_OVERLAPS_LAUNCHES || CANDLE_FEW_REGISTERS(false, true);

// Up to three matrices, whose rows are numbered consecutively.
struct RowMatrices {
    const uint8_t *weights[3];
    void *out[3];
    unsigned int ends[3];

    template <typename Bytes>
    __device__ __forceinline__ const uint8_t *row(unsigned int row, Bytes row_bytes) const {
        const unsigned int before = row < ends[0] ? 0 : row < ends[1] ? ends[0] : ends[1];
        return (row < ends[0] ? weights[0] : row < ends[1] ? weights[1] : weights[2]) + (size_t)(row - before) * row_bytes;
    }
    // Stores the result of a row of a matrix for a row of activations.
    __device__ __forceinline__ void store(unsigned int row, unsigned int x_row, unsigned int dtype, float value) const {
        const unsigned int before = row < ends[0] ? 0 : row < ends[1] ? ends[0] : ends[1];
        const unsigned int columns = (row < ends[0] ? ends[0] : row < ends[1] ? ends[1] : ends[2]) - before;
        store_float(row < ends[0] ? out[0] : row < ends[1] ? out[1] : out[2], dtype, (size_t)x_row * columns + row - before, value);
    }
};

// Dense rows of activations: x, x times the weights of the norm, or for a single row silu(x) * gate.
struct RowInput {
    const void *x, *gate, *norm;
    unsigned int dtype, k, rows;

    // Returns elements of a row from each place on, and adds their squares before the weights of the norm. T is the dtype; GATED:
    // there may be a gate.
    template <typename T, bool GATED, unsigned int COUNT, unsigned int N>
    __device__ __forceinline__ void load(float (&values)[COUNT][N], unsigned int x_row, const unsigned int (&at)[COUNT],
                                         const bool (&inside)[COUNT], float &squares) const {
        typedef LoadedFloats<T, N> Loaded;
        const T *const row = (const T *)x + (size_t)x_row * k;
        if (norm != nullptr) {
            Loaded elements[COUNT], weights[COUNT];
#pragma unroll
            for (unsigned int c = 0; c < COUNT; ++c) {
                elements[c] = Loaded::read(row + at[c]);
            }
#pragma unroll
            for (unsigned int c = 0; c < COUNT; ++c) {
                weights[c] = Loaded::read((const T *)norm + at[c]);
            }
            // Keeps the compiler from loading the weights after it has used the elements.
            asm volatile("" ::: "memory");
#pragma unroll
            for (unsigned int c = 0; c < COUNT; ++c) {
                float sum = 0;
#pragma unroll
                for (unsigned int i = 0; i < N; ++i) {
                    const float value = elements[c][i];
                    sum += value * value;
                    values[c][i] = value * weights[c][i];
                }
                squares += inside[c] ? sum : 0;
            }
            return;
        }
#pragma unroll
        for (unsigned int c = 0; c < COUNT; ++c) {
            const Loaded elements = Loaded::read(row + at[c]);
#pragma unroll
            for (unsigned int i = 0; i < N; ++i) {
                values[c][i] = elements[i];
            }
        }
        if (GATED && gate != nullptr) {
#pragma unroll
            for (unsigned int c = 0; c < COUNT; ++c) {
                const Loaded gates = Loaded::read((const T *)gate + at[c]);
#pragma unroll
                for (unsigned int i = 0; i < N; ++i) {
                    values[c][i] = silu(values[c][i]) * gates[i];
                }
            }
        }
    }
};

// Operations after the product. With an activation, the first matrix is the gate and the second is up.
struct RowEpilogue {
    const void *bias, *summand;
    unsigned int results, summand_dtype, out_dtype, activation;
    float eps;
};

// Lanes of a group, and the place of this lane in its row.
struct RowLanes {
    unsigned int lanes, lane, units;

    __device__ __forceinline__ unsigned int unit(unsigned int segment, unsigned int u) const {
        return segment + lane + u * lanes;
    }
    __device__ __forceinline__ bool is_inside(unsigned int segment, unsigned int u) const {
        return unit(segment, u) < units;
    }
    // Units past the end read the last one, which is not used.
    __device__ __forceinline__ unsigned int clamped(unsigned int segment, unsigned int u) const {
        return min(unit(segment, u), units - 1);
    }
};

__device__ __forceinline__ float gated(unsigned int activation, float gate, float up) {
    if (activation == CANDLE_ACTIVATION_SILU) {
        // Faster than silu(), with a relative error of some ulps that grows with the gate.
        return gate * candle_reciprocal(1.0f + candle_exp2(gate * -1.44269504f)) * up;
    }
    if (activation == CANDLE_ACTIVATION_CLAMPED) {
        const float limit = CANDLE_CLAMPED_LIMIT, least = fminf(gate, limit);
        return least / (1.0f + expf(-1.702f * least)) * (fmaxf(fminf(up, limit), -limit) + 1.0f);
    }
    return 0.5f * gate * (1.0f + tanhf(0.79788456f * gate * (1.0f + 0.044715f * gate * gate))) * up;
}

// Sums of the waves of each task, and of the squares of the row, in LDS.
struct RowSums {
    float tasks[CANDLE_ROW_PRODUCT_SUMS], squares[CANDLE_PRODUCT_ROWS][ROW_GROUPS];
};

// Adds the products of COUNT tasks over `lanes` neighbouring lanes, at most LANES. A lane below ROWS receives the sums of the row
// of activations that `row_of_lane` returns for it.
template <unsigned int ROWS, unsigned int COUNT>
__device__ __forceinline__ void reduce_rows(const float (&products)[COUNT][ROWS], float (&sums)[COUNT], unsigned int lanes) {
    static_assert(ROWS == 1 || ROWS == 4, "two steps halve the number of sums");
#pragma unroll
    for (unsigned int c = 0; c < COUNT; ++c) {
        const float(&of)[ROWS] = products[c];
        if constexpr (ROWS == 1) {
            sums[c] = of[0];
        } else {
            const bool odd = threadIdx.x & 1, second = threadIdx.x & 2;
            float half[2];
#pragma unroll
            for (unsigned int i = 0; i < 2; ++i) {
                half[i] = (odd ? of[2 + i] : of[i]) + __shfl_xor_sync(~0u, odd ? of[i] : of[2 + i], 1, LANES);
            }
            sums[c] = (second ? half[1] : half[0]) + __shfl_xor_sync(~0u, second ? half[0] : half[1], 2, LANES);
        }
    }
    // The shuffles of different tasks are independent, so that their latencies overlap.
    const auto add = [&](unsigned int step) INLINE {
#pragma unroll
        for (unsigned int c = 0; c < COUNT; ++c) {
            sums[c] += __shfl_xor_sync(~0u, sums[c], step, LANES);
        }
    };
    if (lanes == LANES) {
#pragma unroll
        for (unsigned int step = ROWS; step < LANES; step *= 2) {
            add(step);
        }
    } else {
#pragma unroll 1
        for (unsigned int step = ROWS; step < lanes; step *= 2) {
            add(step);
        }
    }
}
__device__ __forceinline__ unsigned int row_of_lane(unsigned int lane) { return (lane & 1) * 2 + (lane >> 1 & 1); }

// M multiplies a lane's part: a unit is what it multiplies at once, and UNITS of them are in registers. There are up to
// ROWS rows of activations; with more than one, at least as many lanes share a row of a matrix. The first weights are loaded
// before the wait for earlier launches: a launch that may overlap with them has weights that they do not write.
template <typename M, unsigned int ROWS>
__device__ __forceinline__ void row_product(const RowMatrices &matrices, const RowInput &input, const RowEpilogue &after,
                                            const unsigned int lanes, RowSums &sums, M &part) {
    const bool is_gated = after.activation != CANDLE_ACTIVATION_NONE;
    const unsigned int first = blockIdx.x * after.results;
    const unsigned int count = min(after.results, (is_gated ? matrices.ends[0] : matrices.ends[2]) - first);
    // A task is a row of a matrix.
    const unsigned int tasks = is_gated ? 2 * count : count, up = matrices.ends[0] - count;
    const auto row_bytes = M::bytes_of_row(input.k);
    const auto row_of = [=](unsigned int task) INLINE { return first + task + (task < count ? 0 : up); };

    // Where launches overlap, the host chooses the size of workgroups that multiply one row by floats.
    const unsigned int threads = CANDLE_OVERLAPS_LAUNCHES && M::LOADS_BY_GROUP && ROWS == 1 ? blockDim.x : ROW_THREADS;
    // Groups of less than LANES lanes are a power of two; others are whole multiples.
    const bool is_wide = lanes >= LANES;
    const unsigned int wave = threadIdx.x / LANES, waves = is_wide ? lanes / LANES : 1, shift = log2_of(lanes);
    unsigned int groups = is_wide ? threads / LANES / waves : threads >> shift;
    if constexpr (ROWS > 1) {
        // Held in a vector register: gfx90a runs out of scalar registers.
        asm("" : CANDLE_IN_REGISTER(groups));
    }
    const unsigned int group = is_wide ? wave / waves : threadIdx.x >> shift;
    const RowLanes place = {lanes, is_wide ? threadIdx.x - group * lanes : threadIdx.x & (lanes - 1), M::units(input.k)};
    // The first group of the lanes that shuffle together, so that they run the same number of iterations.
    const unsigned int leader = is_wide ? (group < groups ? group : tasks) : wave * (LANES >> shift);
    const auto read = [=](unsigned int task, unsigned int segment) INLINE {
        return M::read(matrices.row(row_of(min(task, tasks - 1)), row_bytes), place, segment);
    };

    CANDLE_BEGIN_NEXT_LAUNCH();
    // The summand of a single row is loaded before the weights, unless an earlier launch may still write it.
    const bool is_ahead = ROWS == 1 && after.summand != nullptr && threadIdx.x < count;
    const auto load_summand = [&]() INLINE {
        return is_ahead ? load_bits(after.summand, after.summand_dtype, first + threadIdx.x) : 0;
    };
    uint32_t summand = CANDLE_OVERLAPS_LAUNCHES ? 0 : load_summand();
    float squared[ROWS] = {};
    for (unsigned int segment = 0; segment < place.units; segment += lanes * M::UNITS) {
        // Hidden from the compiler, which would keep all comparisons below in scalar registers.
        unsigned int lead = leader;
        asm volatile("" : CANDLE_IN_REGISTER(lead));
        const auto has_task = [=](unsigned int before) INLINE { return !SKIPS_TASKS || lead + before < tasks; };
        typename M::Raw ahead[M::AHEAD];
#pragma unroll
        for (unsigned int i = 0; i < M::AHEAD; ++i) {
            if (has_task(i * groups)) {
                ahead[i] = read(group + i * groups, segment);
            }
        }
        // Keeps these loads before the others.
        asm volatile("" ::: "memory");
        if (segment == 0) {
#if CANDLE_OVERLAPS_LAUNCHES
            if (ROWS == 1 && input.norm != nullptr && threadIdx.x * 128 < input.k * 2) {
                // 128 bytes of the norm's weights, which are used after the wait.
                asm volatile("prefetch.global.L2 [%0];" ::"l"((const uint8_t *)input.norm + threadIdx.x * 128));
            }
            CANDLE_WAIT_FOR_LAUNCHES();
            summand = load_summand();
#endif
            part.prepare(input, squared);
        }
        typename M::Activations x[ROWS];
#pragma unroll
        for (unsigned int r = 0; r < ROWS; ++r) {
            x[r] = part.activations(input, place, segment, r < input.rows ? r : 0, squared[r]);
        }
#pragma unroll 1
        for (unsigned int done = 0; lead + done < tasks; done += M::AHEAD * groups) {
            // Number of tasks whose sums are reduced at once. More rows of activations leave registers for one.
            constexpr unsigned int BATCH = ROWS == 1 ? M::AHEAD : 1;
#pragma unroll
            for (unsigned int start = 0; start < M::AHEAD; start += BATCH) {
                if (start > 0 && lead + done + start * groups >= tasks) {
                    continue;
                }
                float products[BATCH][ROWS] = {}, task_sums[BATCH];
#pragma unroll
                for (unsigned int j = 0; j < BATCH; ++j) {
                    const unsigned int i = start + j, before = done + i * groups;
                    if (j > 0 && !has_task(before)) {
                        continue;
                    }
                    products[j][0] = M::product(ahead[i], x[0], place, segment);
#pragma unroll
                    for (unsigned int r = 1; r < ROWS; ++r) {
                        if (r < input.rows) {
                            products[j][r] = M::product(ahead[i], x[r], place, segment);
                        }
                    }
                    if (lead + before + M::AHEAD * groups < tasks) {
                        ahead[i] = read(group + before + M::AHEAD * groups, segment);
                    }
                }
                reduce_rows<ROWS>(products, task_sums, min(lanes, LANES));
#pragma unroll
                for (unsigned int j = 0; j < BATCH; ++j) {
                    const unsigned int task = group + done + (start + j) * groups;
                    if (place.lane % LANES < ROWS && task < tasks) {
                        const unsigned int row = ROWS == 1 ? 0 : row_of_lane(place.lane);
                        float &to = sums.tasks[(task * waves + place.lane / LANES) * ROWS + row];
                        to = segment == 0 ? task_sums[j] : to + task_sums[j];
                    }
                }
            }
        }
    }
    if (input.norm != nullptr) {
#pragma unroll
        for (unsigned int r = 0; r < ROWS; ++r) {
            // Only the first group counts if each group has loaded the row.
            float sum = M::LOADS_BY_GROUP && group > 0 ? 0 : squared[r];
            sum = reduce_lanes(sum, LANES, [](float a, float b) INLINE { return a + b; });
            if (threadIdx.x % LANES == 0) {
                sums.squares[r][wave] = sum;
            }
        }
    }
    __syncthreads();

    const unsigned int columns = is_gated ? matrices.ends[0] : matrices.ends[2];
#pragma unroll 1
    for (unsigned int r = 0; r < input.rows; ++r) {
        float factor = 1;
        if (input.norm != nullptr) {
            float sum = 0;
#pragma unroll
            for (unsigned int i = 0; i < ROW_GROUPS; ++i) {
                sum += i * LANES < threads ? sums.squares[r][i] : 0;
            }
            // The root requires a normal number.
            const float mean = fmaf(sum, candle_reciprocal((float)input.k), after.eps);
            factor = candle_reciprocal(candle_square_root(fmaxf(mean, 0x1p-126f)));
        }
        for (unsigned int i = threadIdx.x; i < count; i += threads) {
            const auto total = [&](unsigned int task) INLINE {
                float sum = 0;
                for (unsigned int w = 0; w < waves; ++w) {
                    sum += sums.tasks[(task * waves + w) * ROWS + r];
                }
                sum = input.norm != nullptr ? sum * factor : sum;
                return after.bias != nullptr ? sum + load_float(after.bias, input.dtype, row_of(task)) : sum;
            };
            float result = total(i);
            if (is_gated) {
                result = gated(after.activation, result, total(count + i));
            }
            if (after.summand != nullptr) {
                const bool is_loaded = ROWS == 1 && i == threadIdx.x;
                result += is_loaded ? float_of(summand, after.summand_dtype)
                                    : load_float(after.summand, after.summand_dtype, (size_t)r * columns + first + i);
            }
            matrices.store(first + i, r, after.out_dtype, result);
        }
    }
}
