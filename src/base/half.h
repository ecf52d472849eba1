// f16 (IEEE binary16) and bf16 conversions in integer arithmetic: the rule that every SIMD path
// equals bit for bit. Round to nearest even; f32 -> f16 overflow gives Inf (f16_saturated: ±65504);
// NaN stays NaN (quiet).
#pragma once

#include <bit>
#include <cstdint>

namespace kvart {

[[gnu::always_inline]] constexpr float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) {  // Inf or NaN; a NaN comes out quiet, as vcvtph2ps has it
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) |
                                (mantissa ? 0x400000u : 0u));
  }
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  uint32_t shifted_exponent = 113;
  while ((mantissa & 0x400u) == 0) {
    mantissa <<= 1;
    --shifted_exponent;
  }
  return std::bit_cast<float>(sign | (shifted_exponent << 23) | ((mantissa & 0x3ffu) << 13));
}

[[gnu::always_inline]] constexpr uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: keep the top mantissa bits, quiet
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u)
    return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x33000001u) return sign;        // rounds to zero
  if (magnitude < 0x38800000u) {                   // subnormal f16
    const uint32_t exponent = magnitude >> 23;
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126 - exponent;  // 14 .. 24
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    const uint32_t half = 1u << (shift - 1);
    const uint32_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
    return static_cast<uint16_t>(sign | (kept + up));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

constexpr float f16_max = 65504.0f;

// As f32_to_f16, but what overflows becomes ±65504: scales and minima are never Inf.
[[gnu::always_inline]] constexpr uint16_t f32_to_f16_saturated(float value) {
  if (value > f16_max) return 0x7bffu;
  if (value < -f16_max) return 0xfbffu;
  return f32_to_f16(value);
}

[[gnu::always_inline]] constexpr float bf16_to_f32(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

[[gnu::always_inline]] constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace kvart
