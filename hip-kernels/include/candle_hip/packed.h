// Operations on the four bytes of a 32-bit word.
#pragma once

// c plus the dot product of the signed bytes of a and b, modulo 2^32.
CANDLE_DEVICE int __dp4a(int a, int b, int c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || \
    defined(__gfx950__) || defined(__gfx9_4_generic__) || defined(__gfx1030__) || defined(__gfx10_3_generic__)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#else
    for (int byte = 0; byte < 4; ++byte) {
        c += (int)(signed char)(a >> (8 * byte)) * (int)(signed char)(b >> (8 * byte));
    }
    return c;
#endif
}

// Per byte: a - b as signed numbers, saturated to [-128, 127].
CANDLE_DEVICE int __vsubss4(int a, int b) {
    unsigned int result = 0;
    for (int byte = 0; byte < 4; ++byte) {
        const int difference = (int)(signed char)(a >> (8 * byte)) - (int)(signed char)(b >> (8 * byte));
        const int saturated = max(-128, min(127, difference));
        result |= (unsigned int)(saturated & 0xff) << (8 * byte);
    }
    return (int)result;
}
