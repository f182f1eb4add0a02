// Scales, minimums and levels for a few numbers, as the CPU device finds them when it quantizes: sums run in its order,
// every operation rounds, and whole numbers are Rust's: halves go away from zero, what is out of range to its end, NaN to
// 0. Levels are whole numbers in floats.
#pragma once
#include "lanes.cuh"
#pragma clang fp contract(off)

constexpr int I32_MIN = -2147483648, I32_MAX = 2147483647;

// v without its fraction, within [least, most], and never -0.
__device__ __forceinline__ float cut(float v, float least, float most) {
    return isnan(v) ? 0.0f : truncf(fminf(fmaxf(v, least), most)) + 0.0f;
}
__device__ __forceinline__ float nearest(float v, float least, float most) { return cut(roundf(v), least, most); }
// Among all of i32; the largest float below 2^31 is 2147483520.
__device__ __forceinline__ int nearest_int(float v) {
    return roundf(v) >= 2147483648.0f ? I32_MAX : (int)nearest(v, -2147483648.0f, 2147483520.0f);
}
// As a byte that takes the low bits of any i32.
__device__ __forceinline__ float wrapped(float v) { return (float)(uint8_t)nearest_int(v); }

// w l^2, in either order.
template <bool SQUARE_FIRST>
__device__ __forceinline__ float squared(float w, float l) { return SQUARE_FIRST ? w * (l * l) : w * l * l; }

// Moves single levels where that makes the weighted error smaller. `products` and `squares` are the sums of w x l and of
// w l^2, whose ratio is the scale. POSITIVE: what is left without the level has to be so, rather than what it becomes.
template <bool SQUARE_FIRST, bool POSITIVE, unsigned int N, typename R>
__device__ __forceinline__ float improved(const float (&x)[N], const float (&w)[N], float (&level)[N], float products,
                                          float squares, R rounded) {
#pragma unroll 1
    for (unsigned int round = 0; round < 5; ++round) {
        bool changed = false;
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            float product = products - w[i] * x[i] * level[i];
            float square = squares - squared<SQUARE_FIRST>(w[i], level[i]);
            if (product > 0 && (!POSITIVE || square > 0)) {
                const float moved = rounded(x[i] * square / product);
                product += w[i] * x[i] * moved;
                square += squared<SQUARE_FIRST>(w[i], moved);
                if (moved != level[i] && (POSITIVE || square > 0) &&
                    product * product * squares > products * products * square) {
                    level[i] = moved;
                    products = product;
                    squares = square;
                    changed = true;
                }
            }
        }
        if (!changed) {
            break;
        }
    }
    return products / squares;
}

// A scale, and levels from 0 to 2 STEPS - 1 with 0 at STEPS. REFINED: levels are also found anew for the scale they gave.
template <int STEPS, bool REFINED, unsigned int N>
__device__ __forceinline__ float centred(const float (&x)[N], const float (&w)[N], float (&level)[N]) {
    const auto rounded = [](float v) INLINE { return nearest(v, -STEPS, STEPS - 1); };
    float top = 0;
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        top = fabsf(x[i]) > fabsf(top) ? x[i] : top;
        level[i] = 0;
    }
    if (top == 0) {
        return 0;
    }
    float inverse = -(float)STEPS / top, products = 0, squares = 0;
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        level[i] = rounded(inverse * x[i]);
        products += w[i] * x[i] * level[i];
        squares += squared<!REFINED>(w[i], level[i]);
    }
#pragma unroll 1
    for (unsigned int round = 0; REFINED && round < 3; ++round) {
        const float scale = products / squares, best = scale * products;
        float candidate[N], product = 0, square = 0;
        bool changed = false;
        inverse = 1 / scale;
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            candidate[i] = rounded(inverse * x[i]);
            changed |= candidate[i] != level[i];
            product += w[i] * x[i] * candidate[i];
            square += squared<!REFINED>(w[i], candidate[i]);
        }
        if (!changed || square == 0 || product * product <= best * square) {
            break;
        }
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            level[i] = candidate[i];
        }
        products = product;
        squares = square;
    }
    const float scale = improved<!REFINED, false>(x, w, level, products, squares, rounded);
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        level[i] += STEPS;
    }
    return scale;
}

// A scale, and levels from 0 to `most`, of numbers that are not negative.
template <unsigned int N>
__device__ __forceinline__ float positive(const float (&x)[N], const float (&w)[N], float (&level)[N], float most) {
    float top = 0;
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        top = x[i] > top ? x[i] : top;
        level[i] = 0;
    }
    if (top == 0) {
        return 0;
    }
    const auto error = [&](float inverse, float limit) INLINE {
        const float scale = 1 / inverse;
        float sum = 0;
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            const float difference = x[i] - scale * fminf(wrapped(inverse * x[i]), limit);
            sum += w[i] * difference * difference;
        }
        return sum;
    };
    float inverse = most / top, best = error(inverse, 255);
#pragma unroll 1
    for (int step = -4; step <= 4; ++step) {
        const float candidate = (0.1f * (float)step + most) / top, sum = error(candidate, most);
        if (step != 0 && sum < best) {
            best = sum;
            inverse = candidate;
        }
    }
    float products = 0, squares = 0;
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        level[i] = nearest(inverse * x[i], 0, most);
        products += w[i] * x[i] * level[i];
        squares += squared<true>(w[i], level[i]);
    }
    return improved<true, true>(x, w, level, products, squares,
                                [=](float v) INLINE { return fminf(wrapped(v), most); });
}

// A number x is scale * level - minimum.
struct Range { float scale, minimum; };

// Bits of floats as integers of the same order, -NaN first and NaN last, and back.
__device__ __forceinline__ int ordered(int bits) { return bits ^ ((bits >> 31) & I32_MAX); }

// For levels from 0 to STEPS: the scale is found from the levels and the minimum from both, until no level changes.
template <int STEPS, unsigned int N>
__device__ __forceinline__ Range range(const float (&x)[N]) {
    int least = I32_MAX, most = I32_MIN;
    float level[N];
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        const int bits = ordered(__float_as_int(x[i]));
        least = min(least, bits);
        most = max(most, bits);
        level[i] = 0;
    }
    float low = __int_as_float(ordered(least)), scale = 0;
    const float top = __int_as_float(ordered(most));
    if (top == low) {
        return {0, 0};
    }
    low = fminf(low, 0);
    float inverse = (float)STEPS / (top - low);
#pragma unroll 1
    for (unsigned int round = 0; round < 5; ++round) {
        float products = 0, squares = 0, sum = -0.0f;
        bool changed = false;
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            const float above = x[i] - low, l = nearest(inverse * above, 0, STEPS);
            changed |= l != level[i];
            level[i] = l;
            products += above * l;
            squares += l * l;
        }
        scale = products / squares;
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            sum += x[i] - scale * level[i];
        }
        low = sum / (float)N;
        low = low > 0 ? 0 : low;
        inverse = 1 / scale;
        if (!changed) {
            break;
        }
    }
    return {scale, -low};
}

// The same with weights: the best of 37 scales about that from the least so far to the largest number.
template <int STEPS, unsigned int N>
__device__ __forceinline__ Range weighted_range(const float (&x)[N], const float (&w)[N]) {
    float low = x[0], top = x[0], sum_w = w[0], sum_x = w[0] * x[0];
#pragma unroll
    for (unsigned int i = 1; i < N; ++i) {
        low = x[i] < low ? x[i] : low;
        top = x[i] > top ? x[i] : top;
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    low = low > 0 ? 0 : low;
    if (top <= low) {
        return {0, -low};
    }
    float level[N];
    const auto levels = [&](float inverse) INLINE {
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            level[i] = nearest(inverse * (x[i] - low), 0, STEPS);
        }
    };
    const auto error = [&](float scale, float least) INLINE {
        float sum = 0;
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            const float difference = scale * level[i] + least - x[i];
            sum += w[i] * (difference * difference);
        }
        return sum;
    };
    float inverse = (float)STEPS / (top - low), scale = 1 / inverse;
    levels(inverse);
    float best = error(scale, low);
#pragma unroll 1
    for (unsigned int step = 0; step <= 36; ++step) {
        float sum_l = 0, sum_l2 = 0, sum_xl = 0;
        levels((-0.9f + 0.05f * (float)step + (float)STEPS) / (top - low));
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            sum_l += w[i] * level[i];
            sum_l2 += w[i] * (level[i] * level[i]);
            sum_xl += w[i] * level[i] * x[i];
        }
        const float d = sum_w * sum_l2 - sum_l * sum_l;
        if (d > 0) {
            float this_scale = (sum_w * sum_xl - sum_x * sum_l) / d;
            float this_low = (sum_l2 * sum_x - sum_l * sum_xl) / d;
            if (this_low > 0) {
                this_low = 0;
                this_scale = sum_xl / sum_l2;
            }
            const float sum = error(this_scale, this_low);
            if (sum < best) {
                best = sum;
                scale = this_scale;
                low = this_low;
            }
        }
    }
    return {scale, -low};
}
