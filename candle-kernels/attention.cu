// Scaled dot product attention with an online softmax: the scores of a query are never all there at once.
//
// A group of lanes takes the keys of one query, one key per lane at a time: each lane scores its own key,
// then all lanes together add up the values, each in the columns lane, lane + GROUP, ... of the result.
#include "cuda_utils.cuh"
#include <stdint.h>

// Lanes that share a query. It is the width of every shuffle, and divides the wave of every GPU.
constexpr int GROUP = CANDLE_ATTENTION_GROUP;
// Groups in a workgroup.
constexpr int GROUPS = CANDLE_ATTENTION_GROUPS;

__device__ __forceinline__ float group_max(float x) {
    for (int step = GROUP / 2; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step, GROUP));
    }
    return x;
}

__device__ __forceinline__ float group_sum(float x) {
    for (int step = GROUP / 2; step > 0; step /= 2) {
        x += __shfl_xor_sync(~0u, x, step, GROUP);
    }
    return x;
}

// What the softmax is taken relative to. A query whose keys are all masked out has no finite score: with any
// finite base its weights become zero instead of NaN.
__device__ __forceinline__ float softmax_base(float top) { return top == -INFINITY ? 0.0f : top; }

// ROWS queries per workgroup. With less than one per group, the groups of a query take turns at its keys, and
// their parts are put together at the end. Queries of all heads that share a key head are neighbours, so that
// a workgroup reads the same keys and values. blockIdx.y counts pieces of COLUMNS * GROUP value columns.
//
// `info` holds heads, key heads, queries, keys, width, value width, then the four strides of q, k, v and
// mask.
template <typename T, int ROWS, int COLUMNS>
__device__ void attention(const T *q, const T *k, const T *v, const T *mask, T *out, const size_t *info,
                          const float scale, const float softcap, const unsigned int causal) {
    constexpr int SPLITS = GROUPS / ROWS;
    const size_t heads = info[0], key_heads = info[1], queries = info[2], keys = info[3];
    const size_t width = info[4], value_width = info[5];
    const size_t *q_strides = info + 6, *k_strides = info + 10;
    const size_t *v_strides = info + 14, *mask_strides = info + 18;

    const int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
    const int split = group % SPLITS;
    const size_t sharing = heads / key_heads;
    const size_t tiles = (sharing * queries + ROWS - 1) / ROWS;
    const size_t batch = blockIdx.x / tiles / key_heads, key_head = blockIdx.x / tiles % key_heads;
    const size_t row = blockIdx.x % tiles * ROWS + group / SPLITS;
    const bool used = row < sharing * queries;
    const size_t head = key_head * sharing + row / queries, query = row % queries;
    const size_t first_column = (size_t)blockIdx.y * (COLUMNS * GROUP) + lane;

    extern __shared__ float all_rows[];
    float *q_row = all_rows + group / SPLITS * width;
    if (used) {
        const T *from = q + batch * q_strides[0] + head * q_strides[1] + query * q_strides[2];
        for (size_t i = split * GROUP + lane; i < width; i += SPLITS * GROUP) {
            q_row[i] = scale * static_cast<float>(from[i * q_strides[3]]);
        }
    }
    __syncthreads();
    // Only groups with a query of their own can be unused: there is no further barrier for them.
    if (!used) return;

    k += batch * k_strides[0] + key_head * k_strides[1];
    v += batch * v_strides[0] + key_head * v_strides[1] + first_column * v_strides[3];
    if (mask != nullptr) {
        mask += batch * mask_strides[0] + head * mask_strides[1] + query * mask_strides[2];
    }
    // The last query sees all keys, each one before it one key less.
    const size_t seen = query + 1 + keys > queries ? query + 1 + keys - queries : 0;
    const size_t end = causal ? min(seen, keys) : keys;

    // The columns from this lane's first one on.
    const unsigned int columns = first_column < value_width ? (unsigned int)(value_width - first_column) : 0;
    float top = -INFINITY, sum = 0.0f;
    float result[COLUMNS] = {};
    for (size_t first = split * GROUP; first < end; first += SPLITS * GROUP) {
        const size_t key = first + lane;
        float score = -INFINITY;
        if (key < end) {
            const T *from = k + key * k_strides[2];
            score = 0.0f;
            for (size_t i = 0; i < width; ++i) {
                score += q_row[i] * static_cast<float>(from[i * k_strides[3]]);
            }
            if (softcap != 1.0f) {
                score = tanhf(score / softcap) * softcap;
            }
            if (mask != nullptr) {
                score += static_cast<float>(mask[key * mask_strides[3]]);
            }
        }
        const float higher = fmaxf(top, group_max(score));
        const float base = softmax_base(higher);
        const float weight = expf(score - base), fade = expf(top - base);
        top = higher;
        // Each lane sums up the weights of its own keys; the lanes' sums meet after the loop.
        sum = sum * fade + weight;
        for (int j = 0; j < COLUMNS; ++j) {
            result[j] *= fade;
        }
        const int count = (int)min((size_t)GROUP, end - first);
        for (int i = 0; i < count; ++i) {
            const float w = __shfl_sync(~0u, weight, i, GROUP);
            const T *from = v + (first + i) * v_strides[2];
            for (unsigned int j = 0; j < COLUMNS; ++j) {
                if (j * GROUP < columns) {
                    result[j] += w * static_cast<float>(*from);
                }
                from += GROUP * v_strides[3];
            }
        }
    }
    sum = group_sum(sum);

    out += ((batch * heads + head) * queries + query) * value_width + first_column;
    if constexpr (SPLITS == 1) {
        for (int j = 0; j < COLUMNS; ++j) {
            if (j * GROUP < columns) {
                out[j * GROUP] = static_cast<T>(sum == 0.0f ? 0.0f : result[j] / sum);
            }
        }
    } else {
        static_assert(ROWS == 1, "the groups of a workgroup share one query or none");
        __shared__ float tops[GROUPS], sums[GROUPS], parts[GROUPS][COLUMNS * GROUP];
        tops[group] = top;
        sums[group] = sum;
        for (int j = 0; j < COLUMNS; ++j) {
            parts[group][j * GROUP + lane] = result[j];
        }
        __syncthreads();
        for (int i = 0; i < GROUPS; ++i) {
            top = fmaxf(top, tops[i]);
        }
        const float base = softmax_base(top);
        float total = 0.0f;
        for (int i = 0; i < GROUPS; ++i) {
            total += sums[i] * expf(tops[i] - base);
        }
        for (int j = group; j < COLUMNS; j += GROUPS) {
            if (j * GROUP < columns) {
                float value = 0.0f;
                for (int i = 0; i < GROUPS; ++i) {
                    value += parts[i][j * GROUP + lane] * expf(tops[i] - base);
                }
                out[j * GROUP] = static_cast<T>(total == 0.0f ? 0.0f : value / total);
            }
        }
    }
}

// sdpa_tile: a query per group. sdpa_row: a query per workgroup, for when there are few of them.
// The number in a name is how many value columns a workgroup makes.
#define SDPA_KERNEL(T, T_NAME, KIND, ROWS, COLUMNS, WIDE)                                                \
    extern "C" __global__ void __launch_bounds__(GROUPS * GROUP) sdpa_##KIND##_##WIDE##_##T_NAME(        \
        const T *q, const T *k, const T *v, const T *mask, T *out, const size_t *info, const float scale, \
        const float softcap, const unsigned int causal) {                                                         \
        static_assert(COLUMNS * GROUP == WIDE, "the name tells the width");                              \
        attention<T, ROWS, COLUMNS>(q, k, v, mask, out, info, scale, softcap, causal);                   \
    }
#define SDPA_WIDTH(T, T_NAME, COLUMNS, WIDE)            \
    SDPA_KERNEL(T, T_NAME, tile, GROUPS, COLUMNS, WIDE) \
    SDPA_KERNEL(T, T_NAME, row, 1, COLUMNS, WIDE)
#define SDPA(T, T_NAME)               \
    SDPA_WIDTH(T, T_NAME, 2, 64)      \
    SDPA_WIDTH(T, T_NAME, 4, 128)     \
    SDPA_WIDTH(T, T_NAME, 8, 256)     \
    SDPA_WIDTH(T, T_NAME, 16, 512)

SDPA(float, f32)
SDPA(__half, f16)
SDPA(__nv_bfloat16, bf16)
