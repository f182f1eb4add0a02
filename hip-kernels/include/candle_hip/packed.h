// Operations on the four bytes of a 32-bit word.
#pragma once

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
