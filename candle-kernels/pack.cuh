// Packs of elements that one access moves, and map(), the template of all elementwise kernels.
#pragma once
#include "index.cuh"

template <unsigned int BYTES> struct Bits;
template <> struct Bits<1> { typedef uint8_t type; };
template <> struct Bits<2> { typedef uint16_t type; };
template <> struct Bits<4> { typedef uint32_t type; };
template <> struct Bits<8> { typedef uint64_t type; };

// The type for sums, differences and products: unsigned for integers, whose overflow wraps instead of being
// undefined.
template <typename T>
struct WrappingType { typedef T type; };
template <> struct WrappingType<int16_t> { typedef uint32_t type; };
template <> struct WrappingType<int32_t> { typedef uint32_t type; };
template <> struct WrappingType<int64_t> { typedef uint64_t type; };

// The type in which functions of floats are computed.
template <typename T> struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };

// N elements in registers, at most as many as one access moves. A vector of integers, because structs would be
// loaded member by member.
template <typename T, unsigned int N = CANDLE_PACK_BYTES / sizeof(T)>
struct Pack {
    typedef typename Bits<sizeof(T)>::type Word;
    typedef Word Words __attribute__((ext_vector_type(N)));
    Words words;

    __device__ __forceinline__ T operator[](unsigned int i) const { return candle_bits<T>((Word)words[i]); }
    __device__ __forceinline__ void set(unsigned int i, T value) { words[i] = candle_bits<Word>(value); }
    __device__ __forceinline__ static Pack read(const T *from) { return Pack{*(const Words *)from}; }
    __device__ __forceinline__ static Pack splat(T value) { return Pack{(Words)candle_bits<Word>(value)}; }
    __device__ __forceinline__ void write(T *to) const { *(Words *)to = words; }
    // Reads or writes single elements at unaligned addresses, here and below.
    __device__ __forceinline__ static Pack read_anywhere(const T *from) {
        if ((size_t)from % sizeof(Words) == 0) {
            return read(from);
        }
        Pack pack;
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            pack.set(i, from[i]);
        }
        return pack;
    }
    // Writes the first `count` elements.
    __device__ __forceinline__ void write(T *to, size_t count) const {
        if (count >= N && (size_t)to % sizeof(Words) == 0) {
            return write(to);
        }
#pragma unroll
        for (unsigned int i = 0; i < N; ++i) {
            if (i < count) {
                to[i] = (*this)[i];
            }
        }
    }
    // Hides the elements from the optimizer, so that derived values are computed here and not earlier.
    __device__ __forceinline__ void make_opaque() {
        uint32_t registers[sizeof(Words) / 4];
        __builtin_memcpy(registers, &words, sizeof(Words));
#pragma unroll
        for (uint32_t &word : registers) {
            asm volatile("" : CANDLE_IN_REGISTER(word));
        }
        __builtin_memcpy(&words, registers, sizeof(Words));
    }
    // Returns true if the pointer and all strides except the innermost are aligned to packs.
    __device__ __forceinline__ static bool fits(const T *at, unsigned int num_dims, const size_t *strides) {
        size_t bits = (size_t)at / sizeof(T) | (size_t)at % sizeof(T);
#pragma unroll 1
        for (unsigned int d = 0; d + 1 < num_dims; ++d) {
            bits |= strides[d];
        }
        return bits % N == 0;
    }
};

// Offsets of COUNT elements, given by their row-major index, in each of LISTS operands.
template <unsigned int COUNT, unsigned int LISTS>
struct ElementOffsets {
    unsigned int element[COUNT];
    size_t at[COUNT][LISTS + 1];

    // Computes the offsets from `element`, which is overwritten.
    __device__ __forceinline__ void find(unsigned int num_dims, const size_t *info) {
        for (unsigned int i = 0; i < COUNT; ++i) {
            for (unsigned int list = 0; list < LISTS; ++list) {
                at[i][list] = num_dims == 0 ? element[i] : 0;
            }
        }
#pragma unroll 1
        for (unsigned int d = num_dims; d-- > 0;) {
            const Divisor dim(info[d]);
            for (unsigned int i = 0; i < COUNT; ++i) {
                const unsigned int rest = d == 0 ? 0 : dim.quotient(element[i]);
                const unsigned int digit = element[i] - rest * dim.by;
                for (unsigned int list = 0; list < LISTS; ++list) {
                    at[i][list] += digit * info[(1 + list) * num_dims + d];
                }
                element[i] = rest;
            }
        }
    }
};

// One pack of each operand.
template <unsigned int W, typename... In>
struct Packs {};
template <unsigned int W, typename First, typename... Rest>
struct Packs<W, First, Rest...> {
    Pack<First, W> first;
    Packs<W, Rest...> rest;
};

// Reads a pack of each operand. `inner` holds their innermost strides, which are 0 or 1 unless W is 1.
template <unsigned int W>
__device__ __forceinline__ void read(Packs<W> &, const size_t *, const size_t *) {}
template <unsigned int W, typename First, typename... Rest>
__device__ __forceinline__ void read(Packs<W, First, Rest...> &packs, const size_t *at, const size_t *inner,
                                     const First *first, const Rest *...rest) {
    if (W > 1 && *inner == 0) {
        packs.first = Pack<First, W>::splat(first[*at]);
    } else {
        packs.first = Pack<First, W>::read(first + *at);
    }
    read(packs.rest, at + 1, inner + 1, rest...);
}

// A function that a kernel's argument chooses among types F of functions, to share the accesses and
// offsets of one kernel. The branch is uniform and taken once for all packs of a thread.
template <typename... F>
struct Choice { unsigned int chosen; };

// Calls `use` with f, or with the function that it chooses; the last one is the default.
template <typename F, typename U>
__device__ __forceinline__ void with_function(const F &f, const U &use) { use(f); }
template <typename First, typename... Rest, typename U>
__device__ __forceinline__ void with_function(const Choice<First, Rest...> &f, const U &use) {
    if constexpr (sizeof...(Rest) == 0) {
        use(First());
    } else if (f.chosen == 0) {
        use(First());
    } else {
        with_function(Choice<Rest...>{f.chosen - 1}, use);
    }
}

// Applies f to element i of each pack.
template <typename F, unsigned int W, typename... Done>
__device__ __forceinline__ auto apply(const F &f, const Packs<W> &, unsigned int, Done... done) {
    return f(done...);
}
template <typename F, unsigned int W, typename First, typename... Rest, typename... Done>
__device__ __forceinline__ auto apply(const F &f, const Packs<W, First, Rest...> &packs, unsigned int i, Done... done) {
    return apply(f, packs.rest, i, done..., packs.first[i]);
}

// Selects the size of packs. The host's `for_packs` computes the number of threads in the same way.
template <bool CHEAP, typename R, typename... In>
struct PackShape {
    static constexpr unsigned int widest() {
        unsigned int size = sizeof(R);
        ((size = larger(size, sizeof(In))), ...);
        return size;
    }
    static constexpr unsigned int narrowest() {
        unsigned int size = sizeof(R);
        ((size = smaller(size, sizeof(In))), ...);
        return size;
    }
    static constexpr unsigned int read_bytes = (0 + ... + (unsigned int)sizeof(In));
    // One access of the widest operand, and at least 4 bytes of the narrowest.
    static constexpr unsigned int fitting = larger(CANDLE_PACK_BYTES / widest(), 4 / narrowest());
    // Functions of f64 are long enough to keep the GPU busy with one element at a time.
    static constexpr unsigned int costly = widest() == 8 ? 1 : CANDLE_COSTLY_PACK;
    static constexpr unsigned int width = CHEAP ? fitting : smaller(fitting, costly);
    // Packs per thread if there are more packs than threads, to have enough bytes in flight.
    static constexpr unsigned int in_flight(unsigned int width) {
        const unsigned int bytes = larger(1, read_bytes * width);
        return larger(1, smaller(CANDLE_PACKS_IN_FLIGHT, CANDLE_BYTES_IN_FLIGHT / bytes));
    }
};

// Maps the elements from `first` on, in packs of W. DENSE: all operands are contiguous. A thread reads all of its
// packs before it uses the first. ROLLED: the loop over them is not unrolled, so that the code contains f once.
template <unsigned int W, bool DENSE, bool OUT, bool ROLLED, unsigned int IN_FLIGHT, typename F, typename R, typename... In>
__device__ __forceinline__ void map_packs(unsigned int first, unsigned int numel, unsigned int num_dims,
                                          const size_t *info, const F &f, R *out, const In *...in) {
    constexpr unsigned int lists = sizeof...(In) + OUT, copies = ROLLED || !DENSE ? 1 : IN_FLIGHT;
    size_t inner[lists + 1];
    for (unsigned int list = 0; list < lists; ++list) {
        inner[list] = DENSE || W == 1 ? 1 : info[(2 + list) * num_dims - 1];
    }
    const unsigned int packs = (numel - first) / W, threads = gridDim.x * CANDLE_BLOCK;
    const unsigned int run = threads < packs ? IN_FLIGHT * CANDLE_BLOCK : CANDLE_BLOCK;
    for (size_t begin = (size_t)blockIdx.x * run; begin < packs; begin += (size_t)gridDim.x * run) {
        const unsigned int at = (unsigned int)begin + threadIdx.x, end = (unsigned int)min(begin + run, (size_t)packs);
        Packs<W, In...> x[IN_FLIGHT];
        ElementOffsets<IN_FLIGHT, lists> places;
        size_t to[IN_FLIGHT];
#pragma unroll
        for (unsigned int i = 0; i < IN_FLIGHT; ++i) {
            // Packs past the end read the last one, so that loads need no branch.
            to[i] = places.element[i] = first + min(at + i * CANDLE_BLOCK, end - 1) * W;
        }
        places.find(DENSE ? 0 : num_dims, info);
#pragma unroll
        for (unsigned int i = 0; i < IN_FLIGHT; ++i) {
            read(x[i], places.at[i], inner, in...);
            to[i] = OUT ? places.at[i][lists - 1] : to[i];
        }
#pragma unroll copies
        for (unsigned int i = 0; i < IN_FLIGHT; ++i) {
            if (at + i * CANDLE_BLOCK < end) {
                Pack<R, W> result;
                with_function(f, [&](const auto &function) __attribute__((always_inline)) {
#pragma unroll
                    for (unsigned int j = 0; j < W; ++j) {
                        result.set(j, apply(function, x[0], j));
                    }
                });
                result.write(out + to[0]);
            }
#pragma unroll
            for (unsigned int later = 1; later < IN_FLIGHT; ++later) {
                x[later - 1] = x[later];
                to[later - 1] = to[later];
            }
        }
    }
}

// Reads W elements from offset `at` to `last`: the first `left` are in one row, and the others in the next one.
template <unsigned int W, typename T>
__device__ __forceinline__ Pack<T, W> read_run(const T *from, size_t at, size_t last, size_t stride, unsigned int left) {
    typedef Pack<T, W> P;
    if (stride == 1 && last - at == W - 1 && (size_t)(from + at) % sizeof(typename P::Words) == 0) {
        return P::read(from + at);
    }
    P pack;
#pragma unroll
    for (unsigned int j = 0; j < W; ++j) {
        pack.set(j, from[j < left ? at + j * stride : last - (W - 1 - j) * stride]);
    }
    return pack;
}

// Reads a run of each operand.
template <unsigned int W>
__device__ __forceinline__ void read_runs(Packs<W> &, const size_t *, const size_t *, const size_t *, unsigned int) {}
template <unsigned int W, typename First, typename... Rest>
__device__ __forceinline__ void read_runs(Packs<W, First, Rest...> &packs, const size_t *at, const size_t *last,
                                          const size_t *inner, unsigned int left, const First *first, const Rest *...rest) {
    packs.first = read_run<W>(first, *at, *last, *inner, left);
    read_runs(packs.rest, at + 1, last + 1, inner + 1, left, rest...);
}

// Maps whole packs of a dense result whose rows are at least one pack long. A pack is in at most two rows of an operand,
// so that two offsets are computed instead of W.
template <unsigned int W, typename F, typename R, typename... In>
__device__ __forceinline__ void map_runs(unsigned int numel, unsigned int num_dims, const size_t *info, const F &f, R *out,
                                         const In *...in) {
    constexpr unsigned int lists = sizeof...(In);
    const Divisor row(info[num_dims - 1]);
    size_t inner[lists + 1];
    for (unsigned int list = 0; list < lists; ++list) {
        inner[list] = info[(2 + list) * num_dims - 1];
    }
    for (unsigned int pack = thread_index(); pack < numel / W; pack += gridDim.x * CANDLE_BLOCK) {
        const unsigned int first = pack * W, left = row.by - (first - row.quotient(first) * row.by);
        ElementOffsets<2, lists> ends;
        ends.element[0] = first;
        ends.element[1] = first + W - 1;
        ends.find(num_dims, info);
        Packs<W, In...> x;
        read_runs(x, ends.at[0], ends.at[1], inner, left, in...);
        Pack<R, W> result;
        with_function(f, [&](const auto &function) __attribute__((always_inline)) {
#pragma unroll
            for (unsigned int j = 0; j < W; ++j) {
                result.set(j, apply(function, x, j));
            }
        });
        result.write(out + first);
    }
}

// Computes out = f(in...) for all elements. `out` is dense, or with OUT it has the last strides in `info`. CHEAP: f
// is short enough to be unrolled. ROWS: rows of strided operands are also processed in packs.
template <bool CHEAP, bool OUT, bool ROWS, typename F, typename R, typename... In>
__device__ __forceinline__ void map(const size_t numel, const size_t dims, const size_t *info, const F &f, R *out,
                                    const In *...in) {
    typedef PackShape<CHEAP, R, In...> S;
    constexpr unsigned int W = S::width, costly = smaller(S::costly, 2);
    constexpr unsigned int packed = CHEAP ? S::in_flight(W) : costly, single = CHEAP ? S::in_flight(1) : costly;
    const unsigned int num_dims = (unsigned int)dims, count = (unsigned int)numel;
    unsigned int done = 0;
    if constexpr (W == 1) {
        // Packs of one element are single elements.
    } else if (num_dims == 0) {
        if (Pack<R, W>::fits(out, 0, info) && (true && ... && Pack<In, W>::fits(in, 0, info))) {
            map_packs<W, true, OUT, !CHEAP, packed>(0, count, 0, info, f, out, in...);
            done = count / W * W;
        }
    } else if constexpr (ROWS) {
        const size_t *strides = info;
        const unsigned int row = (unsigned int)info[num_dims - 1];
        bool whole = num_dims == 1 || row % W == 0;
        ((strides += num_dims,
          whole = whole && (strides[num_dims - 1] == 0 ||
                            (strides[num_dims - 1] == 1 && Pack<In, W>::fits(in, num_dims, strides)))),
         ...);
        strides += num_dims;
        if (whole && (!OUT || strides[num_dims - 1] == 1) && Pack<R, W>::fits(out, OUT ? num_dims : 0, strides)) {
            map_packs<W, false, OUT, !CHEAP, packed>(0, count, num_dims, info, f, out, in...);
            done = count / W * W;
        } else if constexpr (!OUT) {
            if (row >= W && Pack<R, W>::fits(out, 0, info)) {
                map_runs<W>(count, num_dims, info, f, out, in...);
                done = count / W * W;
            }
        }
    }
    if (done < count) {
        map_packs<1, false, OUT, !CHEAP, single>(done, count, num_dims, info, f, out, in...);
    }
}
