// Formats of the cache's K and V, and policies: which layer stores its K and its V in which format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"

namespace kvart {

// A block is this many consecutive tokens of one sequence.
inline constexpr int block_tokens = 64;

// head_dim must be a multiple of 16 in [16, 256]; everything below takes only such values.
bool head_dim_is_supported(int head_dim);

// What is known of a format without touching its bytes. One side (K or V) of one KV head of one
// block is `codes` ([64 tokens][row_bytes]) followed by `parameters` (f16).
struct FormatInfo {
  std::string_view name;              // file, type and command-line name
  std::string_view description;       // one line
  int version;                        // changes when the bytes of a value change
  int code_bits;                      // bits of one code, without parameters
  bool full_precision;                // decode(encode(x)) = x for values that an open block holds
  size_t (*row_bytes)(int head_dim);  // codes of one token
  size_t (*parameter_bytes)(int head_dim);  // all parameters of the 64 tokens

  // Codes and parameters of the 64 tokens of one side.
  [[nodiscard]] size_t side_bytes(int head_dim) const {
    return block_tokens * row_bytes(head_dim) + parameter_bytes(head_dim);
  }
  // Bits per value with parameters, without padding.
  [[nodiscard]] double effective_bits(int head_dim) const {
    return 8.0 * static_cast<double>(side_bytes(head_dim)) / (block_tokens * head_dim);
  }
};

// Every format, in the order of the list in cmake/formats.cmake.
std::span<const FormatInfo* const> formats();

// The format of that exact name, or null.
const FormatInfo* find_format(std::string_view name);

struct LayerFormats {
  const FormatInfo* k = nullptr;
  const FormatInfo* v = nullptr;
};

// Layers [first, last] (last -1: to the end) with their formats. Later ranges never overlap earlier
// ones.
struct PolicyRange {
  int first = 0;
  int last = -1;
  LayerFormats formats;
};

struct Policy {
  std::string name;  // canonical text: parse_policy(name) gives the same policy
  int sink_blocks = 0;
  std::vector<PolicyRange> ranges;

  // The formats of each of `layers` layers. Error: a layer without a range, a range beyond the last
  // layer.
  [[nodiscard]] Result<std::vector<LayerFormats>> resolve(int layers) const;
};

struct ParsedPolicy {
  Policy policy;
  std::string note;  // empty, or one line for stderr: what runs instead of the word that was given
};

// text: a format name, a preset (int4, k6v4, fp8, kivi2 ...), an alias of another engine,
// `k=F,v=F`, or ranges `0-1:f16,2-:k=int8,v=int4_g32`; with `,sink=N` at the end to set the sink
// blocks (default 1 below 8 bits, else 0). Error: an unknown word (lists the right ones), a format
// that is refused by name, ranges that overlap.
Result<ParsedPolicy> parse_policy(std::string_view text);

// text: bits of K and V for each layer, as KVTuner's preset files have them (github.com/cmd2001/
// KVTuner): YAML or JSON of `layer: {nbits_key: 8, nbits_value: 4}`, all layers from 0 on; 16 bits
// are full precision, fewer the per-channel format of so many. source: the file, for messages.
// Error: a word that isn't one of these, a layer that is missing or there twice, bits without a
// format.
Result<ParsedPolicy> parse_layer_bits(std::string_view text, const std::string& source);

struct Preset {
  std::string_view name;
  std::string_view description;
};
// The presets that help texts, tables and tests go through.
std::span<const Preset> presets();

// Another engine's word and the policy that runs for it.
struct Alias {
  std::string_view word;
  std::string_view target;
  std::string_view difference;  // empty: the same meaning
};
std::span<const Alias> aliases();

}  // namespace kvart
