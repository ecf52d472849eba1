// bf16: bfloat16, no parameters.
#pragma once

#include "format/values.h"

namespace kvart::KVART_ISA {

// The rule of one value (format/values.h).
struct Bf16Values : SixteenBitValues {
  static constexpr CodeKind kind = CodeKind::bfloats;

  static constexpr unsigned code(float x, float /*scale*/, float /*minimum*/) {
    return f32_to_bf16(x);
  }
  static constexpr float value(unsigned code, float /*scale*/, float /*minimum*/) {
    return bf16_to_f32(static_cast<uint16_t>(code));
  }
};

struct bf16 {
  using Values = Bf16Values;
  static constexpr int version = 1;
  static constexpr const char* description = "16 bits with the range of f32";
  static constexpr int code_bits = 16;
  static constexpr bool full_precision = false;
  static constexpr Packing packing = Packing::bfloats;

  static size_t row_bytes(int d) { return sizeof(uint16_t) * static_cast<size_t>(d); }
  static size_t parameter_bytes(int /*d*/) { return 0; }

  static void encode(const float* x, int d, uint8_t* codes, uint16_t* /*parameters*/) {
    auto* rows = reinterpret_cast<uint16_t*>(codes);
    for (int i = 0; i < block_tokens * d; ++i) rows[i] = f32_to_bf16(x[i]);
  }

  static void decode(const uint8_t* codes, const uint16_t* /*parameters*/, int d, int first,
                     int count, float* out) {
    const uint16_t* rows =
        reinterpret_cast<const uint16_t*>(codes) + static_cast<ptrdiff_t>(first) * d;
    for (int i = 0; i < count * d; ++i) out[i] = bf16_to_f32(rows[i]);
  }
};

}  // namespace kvart::KVART_ISA
