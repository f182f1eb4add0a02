// Operations on the four bytes of a 32-bit word.
#pragma once

// Returns the bytes of b:a that the nibbles of a selector number, 0 to 7.
CANDLE_DEVICE unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
#if defined(__NVPTX__)
    return __nvvm_prmt(a, b, selector);
#else
    const unsigned int bytes = (selector & 7) | (selector & 0x70) << 4 | (selector & 0x700) << 8 | (selector & 0x7000) << 12;
    return __builtin_amdgcn_perm(b, a, bytes);
#endif
}

// Returns a - b for each signed byte, saturated to [-128, 127].
CANDLE_DEVICE int __vsubss4(int a, int b) {
    unsigned int result = 0;
    for (int byte = 0; byte < 4; ++byte) {
        const int difference = (int)(signed char)(a >> (8 * byte)) - (int)(signed char)(b >> (8 * byte));
        const int saturated = max(-128, min(127, difference));
        result |= (unsigned int)(saturated & 0xff) << (8 * byte);
    }
    return (int)result;
}
