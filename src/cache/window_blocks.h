// What a sequence holds in a group of layers with a window: what the plan counts, and what is asked
// before a sequence starts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvart/memory_plan.h"

namespace kvart {

// Full blocks before an open one that a window reaches at most.
inline int64_t blocks_in_window(int window) {
  return (int64_t{window} + block_tokens - 2) / block_tokens;
}

// A step of so many tokens fills at most one block and these: to fill k takes at least 64 (k - 1) +
// 1 tokens.
inline int64_t more_blocks_filled(int64_t step_tokens) {
  return (step_tokens - 1) / block_tokens;
}

// From one block it gets at most one on and these: d on takes at least 64 (d - 1) + 2 tokens.
inline int64_t more_blocks_begun(int64_t step_tokens) {
  return std::max<int64_t>(0, step_tokens - 2) / block_tokens;
}

}  // namespace kvart
