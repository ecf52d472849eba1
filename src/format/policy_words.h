// The words that name a policy: presets, other engines' aliases, and words that are refused with a
// reason.
#pragma once

#include <span>
#include <string_view>

#include "kvart/format.h"

namespace kvart {

struct PresetRow {
  Preset preset;
  std::string_view k;
  std::string_view v;
};
std::span<const PresetRow> preset_rows();

// An alias that means the same is silent; another is accepted with a note of what differs.
using AliasRow = Alias;
std::span<const AliasRow> alias_rows();

struct RefusedRow {
  std::string_view word;
  std::string_view reason;  // why, and what to use instead
};
std::span<const RefusedRow> refused_rows();

}  // namespace kvart
