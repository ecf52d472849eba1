// f16: full precision, 16 bits a value, no parameters.
#pragma once

#include "format/values.h"

namespace kvart::KVART_ISA {

// The rule of one value (format/values.h).
struct F16Values : SixteenBitValues {
  static constexpr CodeKind kind = CodeKind::halves;

  static constexpr unsigned code(float x, float /*scale*/, float /*minimum*/) {
    return f32_to_f16_saturated(x);
  }
  static constexpr float value(unsigned code, float /*scale*/, float /*minimum*/) {
    return f16_to_f32(static_cast<uint16_t>(code));
  }
};

struct f16 {
  using Values = F16Values;
  static constexpr int version = 1;
  static constexpr const char* description = "full precision, 16 bits";
  static constexpr int code_bits = 16;
  static constexpr bool full_precision = true;
  static constexpr Packing packing = Packing::halves;

  static size_t row_bytes(int d) { return sizeof(uint16_t) * static_cast<size_t>(d); }
  static size_t parameter_bytes(int /*d*/) { return 0; }

  static void encode(const float* x, int d, uint8_t* codes, uint16_t* /*parameters*/) {
    f32_row_to_f16_saturated(x, block_tokens * d, reinterpret_cast<uint16_t*>(codes));
  }

  static void decode(const uint8_t* codes, const uint16_t* /*parameters*/, int d, int first,
                     int count, float* out) {
    const uint16_t* rows =
        reinterpret_cast<const uint16_t*>(codes) + static_cast<ptrdiff_t>(first) * d;
    f16_row_to_f32(rows, count * d, out);
  }
};

}  // namespace kvart::KVART_ISA
