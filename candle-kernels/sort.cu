// The order that sorts rows, by the bits of their elements. Stable in both directions; NaN is larger than any number, so
// last in ascending order and first in descending order.
//
// Each element becomes an unsigned key whose order is the element's; equal keys keep the order of their places. A row that
// fits a tile is sorted by one launch, as words that hold key and place. Longer ones are sorted by eight bits of the key at
// a time, the lowest first: each tile counts its elements of each digit, the counts are summed up along the tiles, and each
// tile's elements go where the counts say.
#include "index.cuh"
#include "lanes.cuh"

// Makes keys of bits. `sign` is the sign bit, 0 where there is none; `infinity` the bits of the largest value that is no
// NaN, 0 for integers; `turned` is all ones for descending order. All are 0 for what is a key already.
template <typename K>
struct Keys {
    K sign, infinity, turned;

    __device__ __forceinline__ K operator()(K bits) const {
        const K magnitude = bits & ~sign;
        K key = bits ^ sign;
        if (infinity != 0) {
            // The two zeros are one, negative numbers turned over, and every NaN is the highest key.
            key = magnitude > infinity ? (K)~(K)0 : magnitude == 0 ? sign : bits & sign ? (K)~bits : key;
        }
        return key ^ turned;
    }
};

// A word for a key with 32 bits for the place below it; 16 bits where that makes it narrower.
template <typename K> struct Keyed { typedef uint32_t type; static constexpr int shift = 16; };
template <> struct Keyed<uint32_t> { typedef uint64_t type; static constexpr int shift = 32; };
template <> struct Keyed<uint64_t> { typedef unsigned __int128 type; static constexpr int shift = 32; };

// Words of each thread, neighbours in the sorted row.
constexpr unsigned int HELD = CANDLE_SORT_HELD;

// What the thread whose number differs by `mask` passes. The wider ones have 32 bits above 64.
template <typename V>
__device__ __forceinline__ V from_lane(V word, unsigned int mask) {
    if constexpr (sizeof(V) == 16) {
        const V high = __shfl_xor_sync(~0u, (uint32_t)(word >> 64), mask, LANES);
        return high << 64 | __shfl_xor_sync(~0u, (uint64_t)word, mask, LANES);
    } else {
        return __shfl_xor_sync(~0u, word, mask, LANES);
    }
}

// Orders each pair of a thread's words whose numbers differ by `mask`.
template <typename V>
__device__ __forceinline__ void order_held(V (&words)[HELD], unsigned int mask) {
#pragma unroll
    for (unsigned int i = 0; i < HELD; ++i) {
        if ((i ^ mask) > i) {
            const V a = words[i], b = words[i ^ mask];
            words[i] = b < a ? b : a;
            words[i ^ mask] = b < a ? a : b;
        }
    }
}

// Orders words of threads whose numbers differ by `bit`. FLIPPED: each with its mirror image in the run of both.
template <bool FLIPPED, typename V>
__device__ __forceinline__ void order_across(V (&words)[HELD], unsigned int bit, V *shared) {
    const unsigned int mask = FLIPPED ? 2 * bit - 1 : bit;
    const bool lower = (threadIdx.x & bit) == 0;
    V other[HELD];
    if (bit < LANES) {
#pragma unroll
        for (unsigned int i = 0; i < HELD; ++i) {
            other[i] = from_lane(words[FLIPPED ? HELD - 1 - i : i], mask);
        }
    } else {
        __syncthreads();
#pragma unroll
        for (unsigned int i = 0; i < HELD; ++i) {
            shared[i * blockDim.x + threadIdx.x] = words[i];
        }
        __syncthreads();
#pragma unroll
        for (unsigned int i = 0; i < HELD; ++i) {
            other[i] = shared[(FLIPPED ? HELD - 1 - i : i) * blockDim.x + (threadIdx.x ^ mask)];
        }
    }
#pragma unroll
    for (unsigned int i = 0; i < HELD; ++i) {
        words[i] = (other[i] < words[i]) == lower ? other[i] : words[i];
    }
}

// A bitonic network over the rows of a workgroup, of `width` threads each, a power of two.
template <typename K>
__device__ __forceinline__ void asort(const K *x, uint32_t *dst, const size_t rows, const unsigned int ncols, const unsigned int width,
                      const Keys<K> keys) {
    typedef typename Keyed<K>::type V;
    extern __shared__ unsigned __int128 sort_shared[];
    const unsigned int t = threadIdx.x & (width - 1);
    const size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / width, begin = row * ncols;
    const unsigned int count = row < rows ? ncols : 0;
    V words[HELD];
#pragma unroll
    for (unsigned int i = 0; i < HELD; ++i) {
        // What is not there comes last: no element has so high a key and place.
        const unsigned int place = i * width + t;
        const K key = place < count ? keys(x[begin + place]) : (K)~(K)0;
        words[i] = (V)key << Keyed<K>::shift | place;
    }
#pragma unroll
    for (unsigned int run = 2; run <= HELD; run *= 2) {
        order_held(words, run - 1);
#pragma unroll
        for (unsigned int distance = run / 4; distance > 0; distance /= 2) {
            order_held(words, distance);
        }
    }
    for (unsigned int bit = 1; bit < width; bit *= 2) {
        order_across<true>(words, bit, (V *)sort_shared);
        for (unsigned int distance = bit / 2; distance > 0; distance /= 2) {
            order_across<false>(words, distance, (V *)sort_shared);
        }
#pragma unroll
        for (unsigned int distance = HELD / 2; distance > 0; distance /= 2) {
            order_held(words, distance);
        }
    }
    Pack<uint32_t, HELD> places;
#pragma unroll
    for (unsigned int i = 0; i < HELD; ++i) {
        places.set(i, (uint32_t)words[i] & (uint32_t)((1ull << Keyed<K>::shift) - 1));
    }
    places.write(dst + begin + t * HELD, t * HELD < count ? count - t * HELD : 0);
}

// A thread for each value of a digit.
constexpr unsigned int DIGITS = CANDLE_BLOCK, GROUPS = CANDLE_BLOCK / LANES;

// A tile of a row, of `ROUNDS` elements of each thread: those of a group of lanes follow each other.
constexpr unsigned int ROUNDS = CANDLE_SORT_ROUNDS, SIZE = ROUNDS * CANDLE_BLOCK;
template <typename K>
struct Tile {
    unsigned int tile, first, count;
    size_t row;

    __device__ __forceinline__ Tile(unsigned int ncols, unsigned int tiles)
        : tile(blockIdx.x % tiles), first(tile * SIZE), count(min(SIZE, ncols - first)), row(blockIdx.x / tiles) {}
    __device__ __forceinline__ static unsigned int at(unsigned int round) {
        return (threadIdx.x / LANES * ROUNDS + round) * LANES + threadIdx.x % LANES;
    }
    // The keys of this thread's elements; of what is not there, the highest. `from` is the tile's first element.
    __device__ __forceinline__ void read(const K *from, const Keys<K> keys, K (&read)[ROUNDS]) const {
#pragma unroll
        for (unsigned int i = 0; i < ROUNDS; ++i) {
            read[i] = at(i) < count ? keys(from[at(i)]) : (K)~(K)0;
        }
    }
};

template <typename K>
__device__ __forceinline__ void count_digits(const K *x, uint32_t *counts, const unsigned int ncols, const unsigned int tiles,
                             const unsigned int shift, const Keys<K> keys) {
    __shared__ uint32_t found[DIGITS];
    const Tile<K> tile(ncols, tiles);
    K key[ROUNDS];
    tile.read(x + tile.row * ncols + tile.first, keys, key);
    found[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (unsigned int i = 0; i < ROUNDS; ++i) {
        if (tile.at(i) < tile.count) {
            atomicAdd(&found[key[i] >> shift & (DIGITS - 1)], 1u);
        }
    }
    __syncthreads();
    counts[(tile.row * DIGITS + threadIdx.x) * tiles + tile.tile] = found[threadIdx.x];
}

// The sum of the values of the lanes before this one in its group.
template <typename V>
__device__ __forceinline__ V sum_before(V value) {
    V sum = value;
#pragma unroll
    for (unsigned int step = 1; step < LANES; step *= 2) {
        const V other = __shfl_up_sync(~0u, sum, step, LANES);
        sum += threadIdx.x % LANES < step ? 0 : other;
    }
    return sum - value;
}

// How many elements each tile has before its own, for each digit of each row, which a group of lanes sums up.
__device__ __forceinline__ void sum_counts(uint32_t *counts, uint32_t *totals, const size_t lists, const unsigned int tiles) {
    constexpr unsigned int COUNT = 8;
    const size_t list = (size_t)blockIdx.x * GROUPS + threadIdx.x / LANES;
    uint32_t sum = 0;
    counts += list * tiles;
    for (unsigned int first = 0; first < tiles; first += COUNT * LANES) {
        const unsigned int begin = first + threadIdx.x % LANES * COUNT;
        uint32_t count[COUNT], own = 0;
#pragma unroll
        for (unsigned int i = 0; i < COUNT; ++i) {
            count[i] = list < lists && begin + i < tiles ? counts[begin + i] : 0;
            own += count[i];
        }
        uint32_t before = sum + sum_before(own);
        sum = __shfl_sync(~0u, before + own, LANES - 1, LANES);
#pragma unroll
        for (unsigned int i = 0; i < COUNT; ++i) {
            if (list < lists && begin + i < tiles) {
                counts[begin + i] = before;
            }
            before += count[i];
        }
    }
    if (list < lists && threadIdx.x % LANES == 0) {
        totals[list] = sum;
    }
}

// Through LDS, so that elements of one digit are written side by side. `places` may be null: each element's own;
// `keys_out` too: nobody wants them.
template <typename K>
__device__ __forceinline__ void move_by_digit(const K *x, const uint32_t *places, K *keys_out, uint32_t *places_out,
                              const uint32_t *counts, const uint32_t *totals, const unsigned int ncols,
                              const unsigned int tiles, const unsigned int shift, const Keys<K> keys) {
    __shared__ uint64_t area[SIZE * larger(sizeof(K), sizeof(uint32_t)) / sizeof(uint64_t)];
    __shared__ uint64_t sums[GROUPS];
    // Where the tile's elements of a digit begin, in the tile and, less that, in the row.
    __shared__ uint32_t within[DIGITS], beyond[DIGITS];
    const Tile<K> tile(ncols, tiles);
    const size_t row = tile.row * ncols;
    const unsigned int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    uint32_t *before = (uint32_t *)area, *own = before + group * DIGITS;
    K key[ROUNDS];
    uint32_t to[ROUNDS];
    tile.read(x + row + tile.first, keys, key);
    for (unsigned int i = 0; i < GROUPS; ++i) {
        before[i * DIGITS + threadIdx.x] = 0;
    }
    __syncthreads();
    const auto digit = [shift] INLINE(K key) { return (unsigned int)(key >> shift) & (DIGITS - 1); };
    // How many of the group's elements of the same digit come before each. What is not there comes after all.
#pragma unroll
    for (unsigned int i = 0; i < ROUNDS; ++i) {
        uint32_t same = ~0u;
        const unsigned int d = digit(key[i]);
#pragma unroll
        for (unsigned int bit = 1; bit < DIGITS; bit *= 2) {
            const bool set = (d & bit) != 0;
            const uint32_t others = __ballot_sync(~0u, set);
            same &= set ? others : ~others;
        }
        const unsigned int leader = __builtin_ctz(same);
        uint32_t earlier = 0;
        if (lane == leader) {
            earlier = atomicAdd(&own[digit(key[i])], (uint32_t)__builtin_popcount(same));
        }
        to[i] = __shfl_sync(~0u, earlier, leader, LANES) + __builtin_popcount(same & ((1u << lane) - 1));
    }
    __syncthreads();
    // The elements of this thread's digit: those of the row above, those of the tile below bit 32.
    uint32_t here = 0;
    for (unsigned int i = 0; i < GROUPS; ++i) {
        const uint32_t count = before[i * DIGITS + threadIdx.x];
        before[i * DIGITS + threadIdx.x] = here;
        here += count;
    }
    const size_t list = tile.row * DIGITS + threadIdx.x;
    const uint64_t both = (uint64_t)totals[list] << 32 | here;
    uint64_t lower = sum_before(both);
    if (lane == LANES - 1) {
        sums[group] = lower + both;
    }
    __syncthreads();
    for (unsigned int i = 0; i < group; ++i) {
        lower += sums[i];
    }
    within[threadIdx.x] = (uint32_t)lower;
    beyond[threadIdx.x] = (uint32_t)(lower >> 32) + counts[list * tiles + tile.tile] - (uint32_t)lower;
    __syncthreads();
#pragma unroll
    for (unsigned int i = 0; i < ROUNDS; ++i) {
        to[i] += within[digit(key[i])] + own[digit(key[i])];
    }
    __syncthreads();
    K *sorted = (K *)area;
#pragma unroll
    for (unsigned int i = 0; i < ROUNDS; ++i) {
        sorted[to[i]] = key[i];
    }
    __syncthreads();
    uint32_t target[ROUNDS];
#pragma unroll
    for (unsigned int i = 0; i < ROUNDS; ++i) {
        const unsigned int at = i * CANDLE_BLOCK + threadIdx.x;
        const K moved = sorted[at];
        target[i] = at + beyond[digit(moved)];
        if (keys_out != nullptr && at < tile.count) {
            keys_out[row + target[i]] = moved;
        }
    }
    __syncthreads();
    uint32_t *moved = (uint32_t *)area;
#pragma unroll
    for (unsigned int i = 0; i < ROUNDS; ++i) {
        const unsigned int from = tile.first + tile.at(i);
        moved[to[i]] = places != nullptr && tile.at(i) < tile.count ? places[row + from] : from;
    }
    __syncthreads();
#pragma unroll
    for (unsigned int i = 0; i < ROUNDS; ++i) {
        const unsigned int at = i * CANDLE_BLOCK + threadIdx.x;
        if (at < tile.count) {
            places_out[row + target[i]] = moved[at];
        }
    }
}

#define KEYS const size_t sign, const size_t infinity, const size_t turned
#define OF_KEYS(K) Keys<K>{(K)sign, (K)infinity, (K)turned}
#define ASORT(K, NAME)                                                                                                 \
    extern "C" __global__ __launch_bounds__(CANDLE_SORT_BLOCK) void asort_##NAME(                                      \
        const K *x, uint32_t *dst, const size_t rows, const unsigned int ncols, const unsigned int width, KEYS) {      \
        asort(x, dst, rows, ncols, width, OF_KEYS(K));                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void asort_count_##NAME(const K *x, uint32_t *counts, const unsigned int ncols,              \
                                                  const unsigned int tiles, const unsigned int shift, KEYS) {          \
        count_digits(x, counts, ncols, tiles, shift, OF_KEYS(K));                                                      \
    }                                                                                                                  \
    extern "C" __global__ void asort_move_##NAME(const K *x, const uint32_t *places, K *keys_out,                      \
                                                 uint32_t *places_out, const uint32_t *counts,                         \
                                                 const uint32_t *totals, const unsigned int ncols,                     \
                                                 const unsigned int tiles, const unsigned int shift, KEYS) {           \
        move_by_digit(x, places, keys_out, places_out, counts, totals, ncols, tiles, shift, OF_KEYS(K));               \
    }
ASORT(uint8_t, u8)
ASORT(uint16_t, f16)
ASORT(uint32_t, u32)
ASORT(uint64_t, i64)

extern "C" __global__ void asort_sum(uint32_t *counts, uint32_t *totals, const size_t lists, const unsigned int tiles) {
    sum_counts(counts, totals, lists, tiles);
}
