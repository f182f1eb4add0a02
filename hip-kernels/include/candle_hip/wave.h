// Shuffles between the lanes of a wave.
//
// CUDA's warps have 32 lanes, AMD's waves 32 or 64. Without an explicit width, a shuffle works within aligned groups
// of 32 lanes on both, so that kernels written for warps remain correct; a width of 64 selects the whole wave. AMD's
// lanes run in lockstep and ignore the mask, which must name all active lanes. Reading from an inactive lane is
// undefined in CUDA and gives zero here.
#pragma once

// Limits a group to the width of the wave.
CANDLE_DEVICE unsigned int candle_group_width(int width) {
    return min((unsigned int)width, candle_wave_size());
}

// Returns the value of lane `source` of the wave, moved in 32-bit words.
template <typename T>
CANDLE_DEVICE T candle_read_lane(unsigned long long lanes, T value, unsigned int source) {
    static_assert(sizeof(T) <= 16, "a shuffle moves at most 16 bytes");
    constexpr int words = (sizeof(T) + 3) / 4;
    int buffer[words] = {};
    __builtin_memcpy(buffer, &value, sizeof(T));
    for (int word = 0; word < words; ++word) {
        buffer[word] = candle_read_lane_word(lanes, buffer[word], source);
    }
    __builtin_memcpy(&value, buffer, sizeof(T));
    return value;
}

template <typename T>
CANDLE_DEVICE T __shfl_sync(unsigned long long lanes, T value, int source, int width = 32) {
    const unsigned int mask = candle_group_width(width) - 1;
    return candle_read_lane(lanes, value, (candle_lane() & ~mask) | ((unsigned int)source & mask));
}

// If the source is outside of the group, a lane keeps its own value, here and below.
template <typename T>
CANDLE_DEVICE T __shfl_xor_sync(unsigned long long lanes, T value, int lane_mask, int width = 32) {
    const unsigned int lane = candle_lane();
    const unsigned int last = lane | (candle_group_width(width) - 1);
    const unsigned int source = lane ^ (unsigned int)lane_mask;
    return candle_read_lane(lanes, value, source > last ? lane : source);
}

template <typename T>
CANDLE_DEVICE T __shfl_up_sync(unsigned long long lanes, T value, unsigned int delta, int width = 32) {
    const unsigned int lane = candle_lane();
    const unsigned int within = lane & (candle_group_width(width) - 1);
    return candle_read_lane(lanes, value, within < delta ? lane : lane - delta);
}

template <typename T>
CANDLE_DEVICE T __shfl_down_sync(unsigned long long lanes, T value, unsigned int delta, int width = 32) {
    const unsigned int lane = candle_lane();
    const unsigned int last = lane | (candle_group_width(width) - 1);
    return candle_read_lane(lanes, value, delta > last - lane ? lane : lane + delta);
}

// Returns a mask of the lanes of the group of 32 for which `predicate` is true.
CANDLE_DEVICE unsigned int __ballot_sync(unsigned long long lanes, bool predicate) {
    return (unsigned int)(candle_ballot(lanes, predicate) >> (candle_lane() & 32));
}
