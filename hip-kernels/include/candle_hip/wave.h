// Shuffles between the lanes of a wave.
//
// CUDA's warps have 32 lanes. A wave has 32 or 64: without an explicit width a shuffle works within aligned
// groups of 32 lanes on both, so that kernels written for warps stay right; a kernel that means the whole wave
// names a width of 64. AMD's lanes run in lockstep and need no mask; the mask names all lanes that are there.
// A lane that is switched off must not be read from (CUDA leaves that undefined; here it reads as zero).
#pragma once

// No group is wider than the wave.
CANDLE_DEVICE unsigned int candle_group_width(int width) {
    return min((unsigned int)width, candle_wave_size());
}

// The value that lane `source` of the wave holds, moved in words of 32 bits.
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

// A source outside of the group leaves a lane its own value, here and below.
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

// A bit for each lane of the group of 32 where `predicate` holds.
CANDLE_DEVICE unsigned int __ballot_sync(unsigned long long lanes, bool predicate) {
    return (unsigned int)(candle_ballot(lanes, predicate) >> (candle_lane() & 32));
}
