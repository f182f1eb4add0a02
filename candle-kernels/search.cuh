// Search for the scales, minimums and quantized levels of a few numbers, bit for bit like the CPU device: sums have
// its order, every operation rounds, and conversions to integers are Rust's (ties away from zero, saturating, NaN to
// 0). Levels are integers stored in floats.
#pragma once
#include "lanes.cuh"
#pragma clang fp contract(off)

constexpr int I32_MIN = -2147483648, I32_MAX = 2147483647;

// Truncates v and clamps it to [least, most]; never returns -0.
__device__ __forceinline__ float truncate_clamped(float v, float least, float most) {
    return isnan(v) ? 0.0f : truncf(fminf(fmaxf(v, least), most)) + 0.0f;
}
__device__ __forceinline__ float round_clamped(float v, float least, float most) { return truncate_clamped(roundf(v), least, most); }
// Rounds and saturates to i32; the largest float below 2^31 is 2147483520.
__device__ __forceinline__ int round_to_int(float v) {
    return roundf(v) >= 2147483648.0f ? I32_MAX : (int)round_clamped(v, -2147483648.0f, 2147483520.0f);
}
// Rounds to i32 and keeps the low byte.
__device__ __forceinline__ float round_to_byte(float v) { return (float)(uint8_t)round_to_int(v); }

// Returns w l^2, evaluated in either order.
template <bool SQUARE_FIRST>
__device__ __forceinline__ float weighted_square(float w, float l) { return SQUARE_FIRST ? w * (l * l) : w * l * l; }

// Changes single levels as long as the weighted error decreases, and returns the scale: the ratio of `products`, the
// sum of w x l, and `squares`, the sum of w l^2. With POSITIVE, the remaining square without the level must be
// positive; otherwise the one with the changed level.
template <bool SQUARE_FIRST, bool POSITIVE, unsigned int N, typename R>
__device__ __forceinline__ float refine_levels(const float (&x)[N], const float (&w)[N], float (&level)[N], float products,
                                          float squares, R rounded) {
#pragma unroll 1
    for (unsigned int round = 0; round < 5; ++round) {
        bool changed = false;
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            float product = products - w[i] * x[i] * level[i];
            float square = squares - weighted_square<SQUARE_FIRST>(w[i], level[i]);
            if (product > 0 && (!POSITIVE || square > 0)) {
                const float moved = rounded(x[i] * square / product);
                product += w[i] * x[i] * moved;
                square += weighted_square<SQUARE_FIRST>(w[i], moved);
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

// Returns a scale, and levels from 0 to 2 STEPS - 1 with zero at STEPS (candle's make_q3_quants). With REFINED,
// levels are also recomputed from the resulting scale (make_qx_quants).
template <int STEPS, bool REFINED, unsigned int N>
__device__ __forceinline__ float signed_levels(const float (&x)[N], const float (&w)[N], float (&level)[N]) {
    const auto rounded = [](float v) INLINE { return round_clamped(v, -STEPS, STEPS - 1); };
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
        squares += weighted_square<!REFINED>(w[i], level[i]);
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
            square += weighted_square<!REFINED>(w[i], candidate[i]);
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
    const float scale = refine_levels<!REFINED, false>(x, w, level, products, squares, rounded);
#pragma unroll
    for (unsigned int i = 0; i < N; ++i) {
        level[i] += STEPS;
    }
    return scale;
}

// Returns a scale, and levels from 0 to `most`, for numbers that are not negative (candle's make_qp_quants).
template <unsigned int N>
__device__ __forceinline__ float unsigned_levels(const float (&x)[N], const float (&w)[N], float (&level)[N], float most) {
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
            const float difference = x[i] - scale * fminf(round_to_byte(inverse * x[i]), limit);
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
        level[i] = round_clamped(inverse * x[i], 0, most);
        products += w[i] * x[i] * level[i];
        squares += weighted_square<true>(w[i], level[i]);
    }
    return refine_levels<true, true>(x, w, level, products, squares,
                                [=](float v) INLINE { return fminf(round_to_byte(v), most); });
}

// x = scale * level - minimum.
struct Range { float scale, minimum; };

// Maps a float's bits to an integer with the same order (-NaN first, NaN last), and back.
__device__ __forceinline__ int ordered(int bits) { return bits ^ ((bits >> 31) & I32_MAX); }

// For levels from 0 to STEPS (candle's make_qkx1_quants): iterates until no level changes.
template <int STEPS, unsigned int N>
__device__ __forceinline__ Range range_levels(const float (&x)[N]) {
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
            const float above = x[i] - low, l = round_clamped(inverse * above, 0, STEPS);
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

// Weighted version (candle's make_qkx3_quants): keeps the best of 37 scales.
template <int STEPS, unsigned int N>
__device__ __forceinline__ Range weighted_range_levels(const float (&x)[N], const float (&w)[N]) {
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
            level[i] = round_clamped(inverse * (x[i] - low), 0, STEPS);
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
