// How a quantized weight matrix lies in memory for the matrix product: tiles of 16 output rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/file/weight_type.h"

namespace kvart {

// Every quantized type comes down to one form: an unsigned code of 4, 5, 6 or 8 bits, and for each
// group of 32 (or half group of 16) columns a scale and perhaps a minimum:
//
//   value = scale·(code − 2^offset_bits)      or      value = scale·code + minimum
//
// A tile holds 16 rows, its groups one after the other. The 32 columns of a group are 8 quads of 4.
// A *line* is 64 bytes, byte 4·row + i belongs to column i of a quad of that row, so that one load
// of a line times one broadcast of 4 activations gives 16 outputs without a horizontal sum:
//
//   8 bits:  8 lines, one for each quad
//   4 bits:  4 lines, line l = code of quad 2l | code of quad 2l + 1 << 4
//   5 bits:  the 4 lines of the low four bits, 1 line: bit q = high bit of quad q
//   6 bits:  the 4 lines of the low four bits, 2 lines: line h = Σ high bits of quad 4h + s << 2s
//
// The parameters of a group stand before its lines, [16] rows each:
enum class GroupParameters {
  scale,              // f16 scale
  scale_minimum,      // f16 scale | f16 minimum
  nested_minimum,     // u8 s | u8 m: scale = d·s, minimum = n·m. d, n: f16, in front of 8 groups
  nested_half_scale,  // i8 s0 | i8 s1: a scale d·s for each half group. d: f16, in front of 8
                      // groups
  nested_half_minimum,  // u8 s0 | u8 s1 | u8 m0 | u8 m1: a scale d·s and a minimum n·m for each
                        // half group. d, n: f16, in front of 8 groups
};

inline constexpr int tile_rows = 16;
inline constexpr int group_columns = 32;
inline constexpr int group_quads = 8;
inline constexpr int line_bytes = 64;
inline constexpr int nested_groups = 8;

// The one list of packed types: type, bits of a code, parameters, offset bits (0: a minimum). Types
// whose codes are places in a table are stored as the table's values.
#define KVART_PACKED_TYPES(X)        \
  X(Q4_0, 4, scale, 3)               \
  X(Q4_1, 4, scale_minimum, 0)       \
  X(Q5_0, 5, scale, 4)               \
  X(Q5_1, 5, scale_minimum, 0)       \
  X(Q8_0, 8, scale, 7)               \
  X(Q4_K, 4, nested_minimum, 0)      \
  X(Q5_K, 5, nested_minimum, 0)      \
  X(Q6_K, 6, nested_half_scale, 5)   \
  X(Q2_K, 4, nested_half_minimum, 0) \
  X(Q3_K, 6, nested_half_scale, 5)   \
  X(IQ4_NL, 8, scale, 7)             \
  X(IQ4_XS, 8, nested_half_scale, 7) \
  X(MXFP4, 8, scale, 7)

// F32, F16 and BF16 weights stay as they are: tile[column][16 rows].
#define KVART_PLAIN_TYPES(X) \
  X(F32, float)              \
  X(F16, uint16_t)           \
  X(BF16, uint16_t)

template <int bits_, GroupParameters parameters_, int offset_bits_>
struct PackedLayout {
  static constexpr int bits = bits_;
  static constexpr GroupParameters parameters = parameters_;
  static constexpr int offset_bits = offset_bits_;
  static constexpr bool has_minimum = offset_bits == 0;
  static constexpr int halves = parameters == GroupParameters::nested_half_scale ||
                                        parameters == GroupParameters::nested_half_minimum
                                    ? 2
                                    : 1;
  static constexpr bool nested = halves == 2 || parameters == GroupParameters::nested_minimum;

  static constexpr int parameter_bytes =
      tile_rows * (parameters == GroupParameters::scale_minimum ||
                           parameters == GroupParameters::nested_half_minimum
                       ? 4
                       : 2);
  static constexpr int header_bytes = !nested ? 0 : tile_rows * (has_minimum ? 4 : 2);
  static constexpr int group_bytes = parameter_bytes + line_bytes * bits;

  static constexpr size_t tile_bytes(int64_t columns) {
    const int64_t groups = columns / group_columns;
    return static_cast<size_t>(groups * group_bytes + groups / nested_groups * header_bytes);
  }
  // Where in a tile the header that governs a group stands, and the group's own parameters.
  static constexpr int64_t header_offset(int64_t group) {
    return group / nested_groups * (nested_groups * group_bytes + header_bytes);
  }
  static constexpr int64_t group_offset(int64_t group) {
    return group * group_bytes + (group / nested_groups + 1) * header_bytes;
  }
};

// Calls visit.template packed<PackedLayout<...>>() or visit.template plain<type, Element>().
template <class Visitor>
auto visit_layout(WeightType type, const Visitor& visit) {
  switch (type) {
#define KVART_CASE(name, bits, parameters, offset_bits) \
  case WeightType::name:                                \
    return visit.template packed<PackedLayout<bits, GroupParameters::parameters, offset_bits>>();
    KVART_PACKED_TYPES(KVART_CASE)
#undef KVART_CASE
#define KVART_CASE(name, Element) \
  case WeightType::name:          \
    return visit.template plain<WeightType::name, Element>();
    KVART_PLAIN_TYPES(KVART_CASE)
#undef KVART_CASE
  }
  __builtin_unreachable();  // a WeightType is only made from the list of weight types
}

}  // namespace kvart
