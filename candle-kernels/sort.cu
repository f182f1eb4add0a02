// Argsort of rows, by the bits of their elements. Stable in both directions. NaN is larger than any number: last in
// ascending order and first in descending order.
//
// Each element is mapped to an unsigned key with the same order; equal keys keep the order of their places (indices
// in the row). One launch sorts rows that fit into a tile, as words of key and place. Longer rows use an LSD radix
// sort with 8-bit digits: each tile counts its digits, a prefix sum over the tiles gives the target positions, and
// each tile moves its elements there.
#include "index.cuh"
#include "prefix.cuh"

// Maps bits to keys. `sign` is the sign bit, 0 for unsigned types; `infinity` the bits of the largest value that is
// not NaN, 0 for integers; `descending_mask` is all ones for descending order. All are 0 if the elements are keys already.
template <typename K>
struct Keys {
    K sign, infinity, descending_mask;

    __device__ __forceinline__ K operator()(K bits) const {
        const K magnitude = bits & ~sign;
        K key = bits ^ sign;
        if (infinity != 0) {
            // Both zeros have one key, negative numbers are inverted, and every NaN has the highest key.
            key = magnitude > infinity ? (K)~(K)0 : magnitude == 0 ? sign : bits & sign ? (K)~bits : key;
        }
        return key ^ descending_mask;
    }
};

// The word for a key and, in its lower 32 bits (16 for narrow keys), its place.
template <typename K> struct KeyWithPlace { typedef uint32_t type; static constexpr int shift = 16; };
template <> struct KeyWithPlace<uint32_t> { typedef uint64_t type; static constexpr int shift = 32; };
template <> struct KeyWithPlace<uint64_t> { typedef unsigned __int128 type; static constexpr int shift = 32; };

// Words per thread, consecutive in the sorted row.
constexpr unsigned int KEYS_PER_THREAD = CANDLE_SORT_KEYS_PER_THREAD;

// Returns the word of the lane whose index differs by `mask`. 128-bit words have 96 significant bits.
template <typename V>
__device__ __forceinline__ V from_lane(V word, unsigned int mask) {
    if constexpr (sizeof(V) == 16) {
        const V high = __shfl_xor_sync(~0u, (uint32_t)(word >> 64), mask, LANES);
        return high << 64 | __shfl_xor_sync(~0u, (uint64_t)word, mask, LANES);
    } else {
        return __shfl_xor_sync(~0u, word, mask, LANES);
    }
}

// Compares and swaps each pair of a thread's words whose indices differ by `mask`.
template <typename V>
__device__ __forceinline__ void order_in_thread(V (&words)[KEYS_PER_THREAD], unsigned int mask) {
#pragma unroll
    for (unsigned int i = 0; i < KEYS_PER_THREAD; ++i) {
        if ((i ^ mask) > i) {
            const V a = words[i], b = words[i ^ mask];
            words[i] = b < a ? b : a;
            words[i ^ mask] = b < a ? a : b;
        }
    }
}

// Compares and swaps words of threads whose indices differ by `bit`. FLIPPED: mirrored within the run.
template <bool FLIPPED, typename V>
__device__ __forceinline__ void order_across_threads(V (&words)[KEYS_PER_THREAD], unsigned int bit, V *shared) {
    const unsigned int mask = FLIPPED ? 2 * bit - 1 : bit;
    const bool lower = (threadIdx.x & bit) == 0;
    V other[KEYS_PER_THREAD];
    if (bit < LANES) {
#pragma unroll
        for (unsigned int i = 0; i < KEYS_PER_THREAD; ++i) {
            other[i] = from_lane(words[FLIPPED ? KEYS_PER_THREAD - 1 - i : i], mask);
        }
    } else {
        __syncthreads();
#pragma unroll
        for (unsigned int i = 0; i < KEYS_PER_THREAD; ++i) {
            shared[i * blockDim.x + threadIdx.x] = words[i];
        }
        __syncthreads();
#pragma unroll
        for (unsigned int i = 0; i < KEYS_PER_THREAD; ++i) {
            other[i] = shared[(FLIPPED ? KEYS_PER_THREAD - 1 - i : i) * blockDim.x + (threadIdx.x ^ mask)];
        }
    }
#pragma unroll
    for (unsigned int i = 0; i < KEYS_PER_THREAD; ++i) {
        words[i] = (other[i] < words[i]) == lower ? other[i] : words[i];
    }
}

// Bitonic sort of the rows of a workgroup, each by `width` threads, a power of two.
template <typename K>
__device__ __forceinline__ void asort(const K *x, uint32_t *dst, const size_t rows, const unsigned int ncols, const unsigned int width,
                      const Keys<K> keys) {
    typedef typename KeyWithPlace<K>::type V;
    extern __shared__ unsigned __int128 sort_shared[];
    const unsigned int t = threadIdx.x & (width - 1);
    const size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / width, begin = row * ncols;
    const unsigned int count = row < rows ? ncols : 0;
    V words[KEYS_PER_THREAD];
#pragma unroll
    for (unsigned int i = 0; i < KEYS_PER_THREAD; ++i) {
        // Padding comes last: no element has such a high key and place.
        const unsigned int place = i * width + t;
        const K key = place < count ? keys(x[begin + place]) : (K)~(K)0;
        words[i] = (V)key << KeyWithPlace<K>::shift | place;
    }
#pragma unroll
    for (unsigned int run = 2; run <= KEYS_PER_THREAD; run *= 2) {
        order_in_thread(words, run - 1);
#pragma unroll
        for (unsigned int distance = run / 4; distance > 0; distance /= 2) {
            order_in_thread(words, distance);
        }
    }
    for (unsigned int bit = 1; bit < width; bit *= 2) {
        order_across_threads<true>(words, bit, (V *)sort_shared);
        for (unsigned int distance = bit / 2; distance > 0; distance /= 2) {
            order_across_threads<false>(words, distance, (V *)sort_shared);
        }
#pragma unroll
        for (unsigned int distance = KEYS_PER_THREAD / 2; distance > 0; distance /= 2) {
            order_in_thread(words, distance);
        }
    }
    Pack<uint32_t, KEYS_PER_THREAD> places;
#pragma unroll
    for (unsigned int i = 0; i < KEYS_PER_THREAD; ++i) {
        places.set(i, (uint32_t)words[i] & (uint32_t)((1ull << KeyWithPlace<K>::shift) - 1));
    }
    places.write(dst + begin + t * KEYS_PER_THREAD, t * KEYS_PER_THREAD < count ? count - t * KEYS_PER_THREAD : 0);
}

// One thread per value of a digit.
constexpr unsigned int DIGITS = CANDLE_BLOCK, GROUPS = CANDLE_BLOCK / LANES;

// A tile of a row with ROUNDS elements per thread; the elements of a group of lanes are consecutive.
constexpr unsigned int ROUNDS = CANDLE_SORT_TILE_KEYS_PER_THREAD, SIZE = ROUNDS * CANDLE_BLOCK;
template <typename K>
struct Tile {
    unsigned int tile, first, count;
    size_t row;

    __device__ __forceinline__ Tile(unsigned int ncols, unsigned int tiles)
        : tile(blockIdx.x % tiles), first(tile * SIZE), count(min(SIZE, ncols - first)), row(blockIdx.x / tiles) {}
    __device__ __forceinline__ static unsigned int at(unsigned int round) {
        return (threadIdx.x / LANES * ROUNDS + round) * LANES + threadIdx.x % LANES;
    }
    // Reads the keys of this thread's elements, the highest key past the end. `from` is the tile's first element.
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

// Replaces counts by their exclusive prefix sums over the tiles; a group of lanes sums the list of one row and
// digit.
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

// Moves elements through LDS, so that elements of one digit are written contiguously. A null `places` stands for
// each element's own index. A null `keys_out` skips writing keys.
template <typename K>
__device__ __forceinline__ void move_by_digit(const K *x, const uint32_t *places, K *keys_out, uint32_t *places_out,
                              const uint32_t *counts, const uint32_t *totals, const unsigned int ncols,
                              const unsigned int tiles, const unsigned int shift, const Keys<K> keys) {
    __shared__ uint64_t area[SIZE * larger(sizeof(K), sizeof(uint32_t)) / sizeof(uint64_t)];
    __shared__ uint64_t sums[GROUPS];
    // Per digit: start in the sorted tile, and offset from there to the position in the row.
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
    // Ranks each element among those of its group with the same digit. Padding comes last.
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
    // Counts of this thread's digit: of the row in the upper, of the tile in the lower 32 bits.
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

#define KEYS const size_t sign, const size_t infinity, const size_t descending_mask
#define OF_KEYS(K) Keys<K>{(K)sign, (K)infinity, (K)descending_mask}
#define ASORT(K, NAME)                                                                                                 \
    extern "C" __global__ __launch_bounds__(CANDLE_SORT_BLOCK) void asort_##NAME(                                      \
        const K *x, uint32_t *dst, const size_t rows, const unsigned int ncols, const unsigned int width, KEYS) {      \
        asort(x, dst, rows, ncols, width, OF_KEYS(K));                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void asort_count_##NAME(const K *x, uint32_t *counts, const unsigned int ncols,              \
                                                  const unsigned int tiles, const unsigned int shift, KEYS) {          \
        count_digits(x, counts, ncols, tiles, shift, OF_KEYS(K));                                                      \
    }                                                                                                                  \
    extern "C" __global__ void CANDLE_FEW_REGISTERS_BOUNDS asort_move_##NAME(const K *x, const uint32_t *places, K *keys_out,                      \
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
