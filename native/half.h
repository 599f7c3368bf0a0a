// Half-precision storage formats, in plain C++: the slow way, for packing and for processors without F16C.
#pragma once

#include <cstdint>
#include <cstring>

// Headers are compiled once per instruction set: a function of theirs that were not inlined could be merged by the
// linker into the copy of another instruction set.
#define OUTRIDER_INLINE inline __attribute__((always_inline))

namespace outrider {

OUTRIDER_INLINE float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

OUTRIDER_INLINE uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

OUTRIDER_INLINE float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 0x1f;
    const uint32_t mantissa = half & 0x3ff;
    if (exponent == 0x1f) return bits_to_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent != 0) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = float(mantissa) * 0x1p-24f;  // zero or subnormal: exact in float
    return bits_to_float(sign | float_to_bits(tiny));
}

// Round to nearest even, as the F16C instructions do; too large becomes infinite, NaN stays NaN.
OUTRIDER_INLINE uint16_t float_to_half(float value) {
    const uint32_t bits = float_to_bits(value);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
    if (magnitude < 0x38800000) {                       // below 2^-14: a multiple of 2^-24
        const float scaled = bits_to_float(magnitude) + 0.5f;  // the addition itself rounds at 2^-24
        return sign | uint16_t(float_to_bits(scaled) - float_to_bits(0.5f));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return sign | uint16_t((rounded - 0x38000000) >> 13);
}

OUTRIDER_INLINE float bfloat_to_float(uint16_t value) { return bits_to_float(uint32_t(value) << 16); }

}  // namespace outrider
