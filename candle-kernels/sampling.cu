// Samples a token from each row of logits: penalties, bias, mask, temperature, top-k, top-p, min-p. A workgroup per
// row reads the row a few times: once for the largest logit, once per refinement of a threshold, and once to draw.
// Before, it writes the logits that bias and penalties change into the row; afterwards, it restores them.
//
// All decisions are made on integers, so that the token depends neither on the order of sums nor on the device. A
// logit's key is its distance to the largest logit, divided by the temperature, in units of 2^-26: the smaller, the
// more likely. Its weight is e^-distance in fixed point, such that the weights of a row add up to at most 2^62.
// Thresholds are keys: the smallest key such that all tokens up to it suffice. Tokens with equal keys are kept together.
#include "prefix.cuh"
#pragma clang fp contract(off)

// As many packs are loaded ahead as fit into registers: fewer beside a mask or a second key.
constexpr unsigned int THREADS = CANDLE_SAMPLE_BLOCK, PACK = 4, PACKS_AHEAD = 4, FEWER_PACKS_AHEAD = 3;
static_assert(THREADS == LANES * LANES, "the sums of all groups fit into one group");

// Keys per unit, and the exponent of their units.
constexpr float KEYS = 0x1p26f;
// log2(e) in units of 2^-30: its product with a key has units of 2^-56.
constexpr uint32_t LOG2_E = 1549082005;
constexpr unsigned int MAX_WEIGHT_BITS = 62, MANTISSA_BITS = 24;

// Bins of a histogram of keys: 11, 11 and 10 bits of a key are resolved one after the other.
constexpr unsigned int BINS = 2048, FIRST_SHIFT = 21, SECOND_SHIFT = 10;

constexpr uint32_t NONE = ~0u, IS_GREEDY = 1, HAS_LOGPROBS = 2;

// Settings of a row. Positions are words in the buffer of all settings.
struct Settings {
    float scale;             // keys per logit: 2^26 / temperature
    uint32_t draw;           // uniform random number in units of 2^-32
    uint32_t top_k;          // NONE for all
    uint32_t top_p;          // in units of 2^-32; NONE for all
    uint32_t last_key;       // largest key that min-p keeps
    uint32_t flags;
    uint32_t top;            // number of most likely tokens to return
    uint32_t mask;           // position of a bit per token; 0 if all are allowed
    uint32_t biases, bias_count;
    uint32_t occurrences, occurrence_count;
    float repetition, presence, frequency;
    uint32_t unused;
};
static_assert(sizeof(Settings) == 4 * CANDLE_SAMPLE_SETTINGS_WORDS, "the host writes these words");

// Change of a token's logit: its bias, or how often the generated text has it. A list has a token at most once. While the
// row is changed, the value is the logit before this change.
struct Change {
    uint32_t token, value;
};

// Result of a row. The most likely tokens follow in any order, as pairs of token and logit.
struct Result {
    uint32_t token, bad_token;
    float largest;           // largest logit after all changes
    float logit;             // unchanged logit of the token
    float raw_largest;       // largest unchanged logit; 0 without log probabilities
    uint32_t raw_sum[2];     // sum of the weights of all unchanged logits at a temperature of 1; 0 without log probabilities
};
static_assert(sizeof(Result) == 4 * CANDLE_SAMPLE_RESULT_WORDS, "the host reads these words");

struct Shared {
    uint64_t bins[BINS], sums[LANES], before, amount;
    uint32_t bin, token, found;
};

__device__ __forceinline__ uint64_t high_product(uint64_t a, uint64_t b) {
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

// Returns the sum over the threads before this one, and sets `total` to the sum over all.
__device__ __forceinline__ uint64_t sum_before(Shared &shared, uint64_t value, uint64_t &total) {
    const unsigned int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const uint64_t before = sum_before(value);
    if (lane == LANES - 1) {
        shared.sums[group] = before + value;
    }
    __syncthreads();
    const uint64_t sum = shared.sums[lane], earlier = sum_before(sum);
    total = __shfl_sync(~0u, earlier + sum, LANES - 1, LANES);
    const uint64_t own = __shfl_sync(~0u, earlier, group, LANES) + before;
    __syncthreads();
    return own;
}

// Maps a float that is not NaN to an integer with the same order.
__device__ __forceinline__ uint32_t ordered(float x) {
    const uint32_t bits = candle_bits<uint32_t>(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Replaces each listed logit by changed(logit, value), but at most by the largest finite number. NaN and infinity stay in the
// row, which is then reported.
template <typename F>
__device__ __forceinline__ void apply_changes(float *logits, Change *changes, unsigned int count, F changed) {
    for (unsigned int i = threadIdx.x; i < count; i += THREADS) {
        const Change change = changes[i];
        const float logit = logits[change.token];
        changes[i].value = candle_bits<uint32_t>(logit);
        if (logit < INFINITY) {
            logits[change.token] = fminf(changed(logit, change.value), __FLT_MAX__);
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void restore(float *logits, const Change *changes, unsigned int count) {
    for (unsigned int i = threadIdx.x; i < count; i += THREADS) {
        logits[changes[i].token] = candle_bits<float>(changes[i].value);
    }
    __syncthreads();
}

// A row of logits. Each group of lanes reads `span` neighbouring tokens.
template <typename T>
struct Row {
    T *logits;
    unsigned int vocabulary, span, weight_shift;
    const uint32_t *mask;

    // Calls f(token, logit, logit without the mask) for COUNT tokens, which are in one word of the mask.
    template <bool MASKED, unsigned int COUNT, typename F>
    __device__ __forceinline__ void visit(uint32_t token, const float (&logits)[COUNT], F f) const {
        const uint32_t allowed = MASKED && mask ? mask[token / 32] >> token % 32 : ~0u;
#pragma unroll
        for (unsigned int i = 0; i < COUNT; ++i) {
            f(token + i, MASKED && !(allowed >> i & 1) ? -INFINITY : logits[i], logits[i]);
        }
    }
    // Calls f(token, logit, logit without the mask) for all tokens of this thread, in ascending order. Past the end of the
    // row it passes logits of -INFINITY. Without a mask, loads AHEAD packs before it uses them.
    template <bool MAY_MASK, unsigned int AHEAD = PACKS_AHEAD, typename F>
    __device__ __forceinline__ void each(F f) const {
        // Tested once for the row, instead of for each pack.
        if (MAY_MASK && mask != nullptr) {
            visit_all<true, FEWER_PACKS_AHEAD>(f);
        } else {
            visit_all<false, AHEAD>(f);
        }
    }
    template <bool MASKED, unsigned int AHEAD, typename F>
    __device__ __forceinline__ void visit_all(F f) const {
        // A span past the end of the row has no packs.
        const unsigned int begin = threadIdx.x / LANES * span, end = min(begin + span, vocabulary);
        const bool is_aligned = ((uintptr_t)logits / sizeof(T) | vocabulary) % PACK == 0;
        const auto load = [&](unsigned int pack) INLINE {
            const unsigned int at = pack * PACK;
            if (is_aligned) {
                return Pack<T, PACK>::read(logits + at);
            }
            Pack<T, PACK> values;
#pragma unroll
            for (unsigned int i = 0; i < PACK; ++i) {
                values.set(i, at + i < vocabulary ? logits[at + i] : (T)-INFINITY);
            }
            return values;
        };
        const unsigned int first = begin / PACK + threadIdx.x % LANES, past = (end + PACK - 1) / PACK;
        for_each_prefetched<AHEAD>(first, past, LANES, load, [&](const Pack<T, PACK> &values, unsigned int pack) INLINE {
            float converted[PACK];
#pragma unroll
            for (unsigned int i = 0; i < PACK; ++i) {
                converted[i] = (float)values[i];
            }
            visit<MASKED>(pack * PACK, converted, f);
        });
    }
    // Returns the weight of a key. 2^-fraction is a polynomial with a relative error of 5e-7.
    __device__ __forceinline__ uint64_t weight(uint32_t key) const {
        const uint64_t power = (uint64_t)key * LOG2_E;
        const float f = (float)((uint32_t)(power >> 32) & 0xffffff) * 0x1p-24f;
        float exponential = fmaf(-0x1.07188p-10f, f, 0x1.323118p-7f);
        exponential = fmaf(exponential, f, -0x1.c5e82cp-5f);
        exponential = fmaf(exponential, f, 0x1.ebf5aep-3f);
        exponential = fmaf(exponential, f, -0x1.62e428p-1f);
        exponential = fmaf(exponential, f, 1.0f);
        const unsigned int halvings = (unsigned int)(power >> 56);
        return halvings < 64 ? (uint64_t)(uint32_t)(exponential * 0x1p24f) << weight_shift >> halvings : 0;
    }
};

// Returns the key of a logit; conversions to integers saturate.
__device__ __forceinline__ uint32_t key_of(float logit, float largest, float scale) {
    return (uint32_t)((largest - logit) * scale);
}

// A threshold: no key lies between the threshold itself and `last`. `through` is the amount of all keys up to it. If that
// is more than wanted, `before` is the amount of all smaller keys.
struct Threshold {
    uint32_t last;
    uint64_t before, through;
};

// Returns the smallest key such that the amounts of all keys up to it add up to `wanted(total)`. `each_key` calls its
// argument for each key of this thread, and A holds sums of `amount(key)`. Keys that are not in the threshold's bin of
// a histogram need no further resolution.
template <typename A, typename E, typename M, typename W>
__device__ __forceinline__ Threshold find_threshold(Shared &shared, E each_key, M amount, W wanted) {
    A *bins = (A *)shared.bins;
    uint32_t low = 0, shift = FIRST_SHIFT, size = BINS;
    uint64_t before = 0, least = 0;
#pragma unroll 1
    while (true) {
        for (unsigned int i = threadIdx.x; i < BINS; i += THREADS) {
            bins[i] = 0;
        }
        __syncthreads();
        each_key([&](uint32_t key) INLINE {
            const uint32_t bin = (key - low) >> shift;
            if (bin < size) {
                atomicAdd(&bins[bin], (A)amount(key));
            }
        });
        __syncthreads();
        const uint64_t first = bins[2 * threadIdx.x], second = bins[2 * threadIdx.x + 1];
        uint64_t total;
        const uint64_t earlier = before + sum_before(shared, first + second, total);
        if (shift == FIRST_SHIFT) {
            const uint64_t most = total, asked = wanted(total);
            least = asked < 1 ? 1 : asked > most ? most : asked;
        }
        if (earlier < least && least <= earlier + first + second) {
            const bool is_second = earlier + first < least;
            shared.bin = 2 * threadIdx.x + is_second;
            shared.before = earlier + (is_second ? first : 0);
            shared.amount = is_second ? second : first;
        }
        __syncthreads();
        low += shared.bin << shift;
        before = shared.before;
        const uint64_t through = before + shared.amount;
        const uint32_t last = low + ((1u << shift) - 1);
        // Without any of the bin's keys, whose amounts are at least that of the last one, there is too little.
        if (shift == 0 || through - amount(last) < least) {
            return {last, before, through};
        }
        size = shift == FIRST_SHIFT ? 1u << (FIRST_SHIFT - SECOND_SHIFT) : 1u << SECOND_SHIFT;
        shift = shift == FIRST_SHIFT ? SECOND_SHIFT : 0;
    }
}

// Draws a token in proportion to the weights of all keys up to `last`, in the order of the vocabulary.
template <typename T>
__device__ __forceinline__ uint32_t draw_token(Shared &shared, const Row<T> &row, float largest, float scale, uint32_t last,
                                               uint32_t draw) {
    const unsigned int lane = threadIdx.x % LANES;
    const auto weight = [&](float logit) INLINE {
        const uint32_t key = key_of(logit, largest, scale);
        return key <= last ? row.weight(key) : 0;
    };
    uint64_t own = 0;
    row.template each<true>([&](uint32_t, float logit, float) INLINE { own += weight(logit); });
    own = reduce_lanes(own, LANES, [](uint64_t a, uint64_t b) INLINE { return a + b; });
    if (lane == 0) {
        shared.sums[threadIdx.x / LANES] = own;
    }
    __syncthreads();
    // Each group of lanes finds the group whose tokens contain the drawn one.
    const uint64_t sum = shared.sums[lane], before = sum_before(sum);
    const uint64_t total = __shfl_sync(~0u, before + sum, LANES - 1, LANES), target = high_product(total, (uint64_t)draw << 32);
    const unsigned int group = __builtin_ctz(__ballot_sync(~0u, before <= target && target < before + sum));
    uint64_t rest = target - __shfl_sync(~0u, before, group, LANES);
    __syncthreads();
    // All threads share its tokens.
    const unsigned int each = (row.span + THREADS - 1) / THREADS, begin = group * row.span;
    const unsigned int first = min(begin + threadIdx.x * each, min(begin + row.span, row.vocabulary));
    const unsigned int past = min(first + each, min(begin + row.span, row.vocabulary));
    const auto weight_of = [&](uint32_t token) INLINE {
        const float logits[1] = {(float)row.logits[token]};
        uint64_t found;
        row.template visit<true>(token, logits, [&](uint32_t, float logit, float) INLINE { found = weight(logit); });
        return found;
    };
    own = 0;
    for (uint32_t token = first; token < past; ++token) {
        own += weight_of(token);
    }
    uint64_t unused;
    const uint64_t earlier = sum_before(shared, own, unused);
    if (earlier <= rest && rest < earlier + own) {
        rest -= earlier;
        for (uint32_t token = first; token < past; ++token) {
            const uint64_t w = weight_of(token);
            if (rest < w) {
                shared.token = token;
                break;
            }
            rest -= w;
        }
    }
    __syncthreads();
    return shared.token;
}

// Writes the `count` most likely tokens without the mask; of equal ones, the first.
template <typename T>
__device__ __forceinline__ void write_top(Shared &shared, const Row<T> &row, uint32_t count, uint32_t *out) {
    const auto one = [](uint32_t) INLINE { return 1u; };
    const auto wanted = [](uint64_t amount) INLINE { return [=](uint64_t) INLINE { return amount; }; };
    const Threshold logits = find_threshold<uint32_t>(shared, [&](auto f) INLINE {
        row.template each<false>([&](uint32_t, float logit, float) INLINE { f(~ordered(logit)); });
    }, one, wanted(count));
    uint32_t last_token = NONE;
    if (logits.through > count) {
        last_token = find_threshold<uint32_t>(shared, [&](auto f) INLINE {
            row.template each<false, FEWER_PACKS_AHEAD>([&](uint32_t token, float logit, float) INLINE {
                if (~ordered(logit) == logits.last) {
                    f(token);
                }
            });
        }, one, wanted(count - logits.before)).last;
    }
    if (threadIdx.x == 0) {
        shared.found = 0;
    }
    __syncthreads();
    row.template each<false>([&](uint32_t token, float logit, float) INLINE {
        const uint32_t key = ~ordered(logit);
        if (token < row.vocabulary && (key < logits.last || (key == logits.last && token <= last_token))) {
            const uint32_t at = 2 * atomicAdd(&shared.found, 1u);
            out[at] = token;
            out[at + 1] = candle_bits<uint32_t>(logit);
        }
    });
}

template <typename T>
__device__ __forceinline__ void sample(T *logits, uint32_t *words, uint32_t *out, const unsigned int vocabulary,
                                       const unsigned int out_words) {
    __shared__ Shared shared;
    // A copy: the lists after it are written.
    const Settings settings = ((const Settings *)words)[blockIdx.x];
    const unsigned int bits = vocabulary <= 1 ? 0 : 32 - __builtin_clz(vocabulary - 1);
    Row<T> row;
    row.logits = logits + (size_t)blockIdx.x * vocabulary;
    row.vocabulary = vocabulary;
    // A span begins with a word of the mask.
    row.span = (vocabulary + LANES * LANES - 1) / (LANES * LANES) * LANES;
    row.weight_shift = MAX_WEIGHT_BITS - MANTISSA_BITS - bits;
    row.mask = settings.mask == 0 ? nullptr : words + settings.mask;
    Change *biases = (Change *)(words + settings.biases), *occurrences = (Change *)(words + settings.occurrences);
    // Rows of narrower types have no lists, because changed logits need the precision of f32.
    const bool is_changed = __is_same(T, float) && settings.bias_count + settings.occurrence_count > 0;
    if constexpr (__is_same(T, float)) {
        if (is_changed) {
            apply_changes(row.logits, biases, settings.bias_count, [](float logit, uint32_t bias) INLINE {
                return logit + candle_bits<float>(bias);
            });
            apply_changes(row.logits, occurrences, settings.occurrence_count, [&](float logit, uint32_t count) INLINE {
                const float repeated = logit > 0 ? logit / settings.repetition : logit * settings.repetition;
                return repeated - ((count > 0 ? settings.presence : 0.0f) + settings.frequency * (float)count);
            });
        }
    }

    float best = -INFINITY;
    uint32_t at = NONE, bad = NONE;
    row.template each<true>([&](uint32_t token, float logit, float unmasked) INLINE {
        bad = unmasked < INFINITY ? bad : min(bad, token);
        at = logit > best ? token : at;
        best = logit > best ? logit : best;
    });
    const auto most = [](auto a, auto b) INLINE { return a < b ? b : a; };
    // The first of the largest logits.
    const uint64_t word = reduce_threads<THREADS>((uint64_t)ordered(best) << 32 | (uint32_t)~at, THREADS, most);
    bad = ~reduce_threads<THREADS>(~bad, THREADS, most);
    const uint32_t order = (uint32_t)(word >> 32);
    best = candle_bits<float>(order & 0x80000000u ? order ^ 0x80000000u : ~order);
    uint32_t token = ~(uint32_t)word;
    // Rows of such logits are reported as errors.
    const bool is_valid = bad == NONE && best > -INFINITY;
    if (is_valid && !(settings.flags & IS_GREEDY)) {
        uint32_t last = NONE;
        const auto each_key = [&](auto f) INLINE {
            row.template each<true>([&](uint32_t, float logit, float) INLINE {
                const uint32_t key = key_of(logit, best, settings.scale);
                if (key <= last) {
                    f(key);
                }
            });
        };
        if (settings.top_k != NONE) {
            last = find_threshold<uint32_t>(shared, each_key, [](uint32_t) INLINE { return 1u; },
                                            [&](uint64_t) INLINE { return (uint64_t)settings.top_k; }).last;
        }
        if (settings.top_p != NONE) {
            const Threshold found = find_threshold<uint64_t>(shared, each_key,
                                                             [&](uint32_t key) INLINE { return row.weight(key); },
                                                             [&](uint64_t total) INLINE {
                return high_product(total, (uint64_t)settings.top_p << 32);
            });
            // The last key of a bin may be beyond the threshold of top-k.
            last = min(last, found.last);
        }
        token = draw_token(shared, row, best, settings.scale, min(last, settings.last_key), settings.draw);
    }
    if constexpr (__is_same(T, float)) {
        if (is_changed) {
            // There was a barrier after the last read of changed logits.
            restore(row.logits, occurrences, settings.occurrence_count);
            restore(row.logits, biases, settings.bias_count);
        }
    }
    out += (size_t)blockIdx.x * out_words;
    uint32_t top = 0;
    uint64_t raw_sum = 0;
    float raw_best = 0;
    if (is_valid && (settings.flags & HAS_LOGPROBS)) {
        raw_best = best;
        if (is_changed || row.mask != nullptr) {
            raw_best = -INFINITY;
            row.template each<false>([&](uint32_t, float logit, float) INLINE { raw_best = logit > raw_best ? logit : raw_best; });
            raw_best = reduce_threads<THREADS>(raw_best, THREADS, most);
        }
        uint64_t own = 0;
        row.template each<false>([&](uint32_t, float logit, float) INLINE { own += row.weight(key_of(logit, raw_best, KEYS)); });
        sum_before(shared, own, raw_sum);
        top = settings.top;
        if (top > 0) {
            write_top(shared, row, top, out + CANDLE_SAMPLE_RESULT_WORDS);
        }
    }
    for (unsigned int i = CANDLE_SAMPLE_RESULT_WORDS + 2 * top + threadIdx.x; i < out_words; i += THREADS) {
        out[i] = 0;
    }
    if (threadIdx.x == 0) {
        const float logit = is_valid ? (float)row.logits[token] : 0.0f;
        *(Result *)out = {token, bad, best, logit, raw_best, {(uint32_t)raw_sum, (uint32_t)(raw_sum >> 32)}};
    }
}

#define SAMPLE(T, NAME)                                                                                          \
    extern "C" __global__ __launch_bounds__(CANDLE_SAMPLE_BLOCK) void sample_##NAME(                             \
        T *logits, uint32_t *settings, uint32_t *out, const unsigned int vocabulary, const unsigned int out_words) { \
        sample(logits, settings, out, vocabulary, out_words);                                                    \
    }
SAMPLE(__nv_bfloat16, bf16)
SAMPLE(__half, f16)
SAMPLE(float, f32)
