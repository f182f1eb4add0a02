// Atomic operations on global and LDS memory: relaxed, visible to the whole device, returning the old value.
//
// The compiler uses an atomic add instruction only if it is exact (rounding and subnormals as in a plain addition).
// Otherwise it generates a compare-and-swap loop, for narrow types on the surrounding word.
#pragma once

#define CANDLE_ATOMIC(NAME, BUILTIN, T)                                                         \
    CANDLE_DEVICE T NAME(T *address, T value) {                                                 \
        return BUILTIN(address, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);             \
    }
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, unsigned char)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, short)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, int)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, unsigned int)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, long)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, unsigned long)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, unsigned long long)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, __half)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, float)
CANDLE_ATOMIC(atomicAdd, __scoped_atomic_fetch_add, double)
CANDLE_ATOMIC(atomicMax, __scoped_atomic_fetch_max, int)
CANDLE_ATOMIC(atomicMax, __scoped_atomic_fetch_max, unsigned int)
CANDLE_ATOMIC(atomicMax, __scoped_atomic_fetch_max, long long)
CANDLE_ATOMIC(atomicMax, __scoped_atomic_fetch_max, unsigned long long)
CANDLE_ATOMIC(atomicMin, __scoped_atomic_fetch_min, int)
CANDLE_ATOMIC(atomicMin, __scoped_atomic_fetch_min, unsigned int)
CANDLE_ATOMIC(atomicMin, __scoped_atomic_fetch_min, long long)
CANDLE_ATOMIC(atomicMin, __scoped_atomic_fetch_min, unsigned long long)
CANDLE_ATOMIC(atomicExch, __scoped_atomic_exchange_n, unsigned int)
#undef CANDLE_ATOMIC

#define CANDLE_ATOMIC_CAS(T)                                                                                  \
    CANDLE_DEVICE T atomicCAS(T *address, T expected, T desired) {                                            \
        __scoped_atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_RELAXED,               \
                                           __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);                           \
        return expected;                                                                                      \
    }
CANDLE_ATOMIC_CAS(int)
CANDLE_ATOMIC_CAS(unsigned int)
CANDLE_ATOMIC_CAS(unsigned long long)
#undef CANDLE_ATOMIC_CAS

// GPUs have no 16-bit compare-and-swap, so it uses the surrounding aligned 32-bit word, whose other half is written
// back unchanged.
CANDLE_DEVICE unsigned short atomicCAS(unsigned short *address, unsigned short expected, unsigned short desired) {
    const uintptr_t location = (uintptr_t)address;
    unsigned int *word = (unsigned int *)(location & ~(uintptr_t)3);
    const unsigned int shift = (unsigned int)(location & 2) * 8;
    unsigned int seen = __scoped_atomic_load_n(word, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    while (true) {
        const unsigned short current = (unsigned short)(seen >> shift);
        if (current != expected) {
            return current;
        }
        const unsigned int replaced = (seen & ~(0xffffu << shift)) | ((unsigned int)desired << shift);
        const unsigned int before = atomicCAS(word, seen, replaced);
        if (before == seen) {
            return expected;
        }
        seen = before;
    }
}

// Uses the compiler's __bf16, which rounds every sum in the same way.
CANDLE_DEVICE __nv_bfloat16 atomicAdd(__nv_bfloat16 *address, __nv_bfloat16 value) {
    return candle_bits<__nv_bfloat16>(__scoped_atomic_fetch_add((__bf16 *)address, candle_bits<__bf16>(value),
                                                                __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE));
}
// E4M3 has no native arithmetic. The loop compares bits, so that it terminates for NaN.
CANDLE_DEVICE __nv_fp8_e4m3 atomicAdd(__nv_fp8_e4m3 *address, __nv_fp8_e4m3 value) {
    unsigned char *bits = (unsigned char *)address;
    unsigned char old = __scoped_atomic_load_n(bits, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    while (!__scoped_atomic_compare_exchange_n(
        bits, &old, (candle_bits<__nv_fp8_e4m3>(old) + value).__x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
        __MEMORY_SCOPE_DEVICE)) {
    }
    return candle_bits<__nv_fp8_e4m3>(old);
}

// Atomic addition to global memory without returning the old value: atomicAdd, or an instruction. Those for f16 and
// bf16 add to the surrounding pair; adding -0 leaves its other half unchanged.
template <typename T>
CANDLE_DEVICE void candle_add(T *address, T value) {
#ifdef CANDLE_ADDS_WORDS
    if constexpr (sizeof(T) >= 4) {
        candle_add_word((CANDLE_GLOBAL void *)address, value);
        return;
    }
#endif
    atomicAdd(address, value);
}
#define CANDLE_ADD_TO_PAIR(T, NAME)                                                                                 \
    CANDLE_DEVICE void candle_add(T *address, T value) {                                                            \
        const unsigned int shift = (unsigned int)(uintptr_t)address % 4 * 8;                                        \
        const unsigned int pair = (unsigned int)candle_bits<unsigned short>(value) << shift | 0x80000000u >> shift; \
        candle_add_pair_##NAME((CANDLE_GLOBAL void *)((uintptr_t)address & ~(uintptr_t)3), pair);                   \
    }
#ifdef CANDLE_ADDS_F16_PAIRS
CANDLE_ADD_TO_PAIR(__half, f16)
#endif
#ifdef CANDLE_ADDS_BF16_PAIRS
CANDLE_ADD_TO_PAIR(__nv_bfloat16, bf16)
#endif
#undef CANDLE_ADD_TO_PAIR
