// The functions of a format for one instruction set, and their table. Attention and cache sealing
// call these pointers; nothing above this layer knows a format's bytes.
#pragma once

#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "kvart/format.h"

namespace kvart {

// What a scale belongs to.
enum class ScaleAxis {
  none,     // values are not integer codes
  channel,  // a channel, over IntegerCodes::group tokens
  token,    // a token, over IntegerCodes::group channels (or all of them, if there are fewer)
};

// How integer codes lie for products that add neighbours: 16-bit words, or unsigned bytes of code +
// IntegerCodes::zero where an instruction multiplies and adds four bytes at a time.
enum class CodeLayout { words, bytes };

// How the stored values of a row lie, for products that read them where they are.
enum class Packing {
  other,  // they must be unpacked or decoded
  // Integer codes.
  signed_bytes,       // byte c is code[c]
  bytes,              // byte c is code[c] + 128
  nibbles,            // byte c is (code[c] + 8) | (code[c + head_dim / 2] + 8) << 4
  nibbles_and_bits,   // 5 bits: code + 16 as a plane of its upper four bits and one of the last
  nibbles_and_pairs,  // 6 bits: code + 32, likewise, and one of the last two (rows.h)
  // Floats.
  halves,   // f16
  bfloats,  // bf16
  e4m3,     // times FormatKernels::token_scales
};

constexpr bool is_float(Packing packing) {
  return packing == Packing::halves || packing == Packing::bfloats || packing == Packing::e4m3;
}

// Formats whose values are value = code * scale + offset with integer codes, -128 <= code < 128,
// offer them for integer arithmetic.
struct IntegerCodes {
  ScaleAxis axis = ScaleAxis::none;
  int group = 0;            // a multiple of 16
  bool has_offset = false;  // else all offsets are 0
  CodeLayout layout = CodeLayout::words;
  int zero = 0;  // the byte of code 0

  // The codes of tokens [first, first + count). out: [count][head_dim] words or bytes.
  void (*rows)(const uint8_t* codes, int head_dim, int first, int count, void* out) = nullptr;
  // Those of some tokens side by side, two words or four bytes: first and count are multiples of
  // four. out: [count/2][head_dim][2] words or [count/4][head_dim][4] bytes.
  void (*columns)(const uint8_t* codes, int head_dim, int first, int count, void* out) = nullptr;
  // Scales and offsets of group number `index` of the block, one for each channel ([head_dim]) or
  // token ([64]).
  void (*parameters)(const uint16_t* parameters, int head_dim, int index, float* scales,
                     float* offsets) = nullptr;
};

struct FormatKernels {
  const FormatInfo* info = nullptr;

  // Quantizes one side of a block. x: [64][head_dim], finite. codes: [64][row_bytes]; parameters:
  // f16. The bytes are the same on every instruction set. Writes exactly side_bytes.
  void (*encode)(const float* x, int head_dim, uint8_t* codes, uint16_t* parameters);

  // Decodes tokens [first, first + count). out: [count][head_dim]. Also the same values on every
  // instruction set.
  void (*decode)(const uint8_t* codes, const uint16_t* parameters, int head_dim, int first,
                 int count, float* out);

  IntegerCodes integers;
  Packing packing = Packing::other;
  // Scales of the block's 64 tokens, where packed floats have them.
  void (*token_scales)(const uint16_t* parameters, float* scales) = nullptr;
};

// The kernels of `format` for `isa`. isa must be one that this machine has.
const FormatKernels& format_kernels(const FormatInfo* format, Isa isa);

}  // namespace kvart
