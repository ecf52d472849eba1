// The oracle: attention in double precision, straight from the rule, with no regard to speed. It
// has no cache, no spans and no tiles; only the formats' scalar encode and decode are shared with
// the fast path.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "kvart/format.h"
#include "kvart/memory_plan.h"

namespace kvart {

// K and V of one layer of one sequence, as queries see them.
class ReferenceKv {
 public:
  // k, v: [tokens][kv_heads][head_dim], after RoPE, all of them values that f16 can hold once
  // rounded. Every full block is sealed, whatever the chunks in which it came.
  ReferenceKv(const LayerShape& shape, const LayerFormats& formats, int sink_blocks,
              std::span<const float> k, std::span<const float> v);

  // out = softmax(scale q.k) v for the query at `position`, which must be below the number of
  // tokens. q: [q_heads][head_dim]. Returns [q_heads][head_dim].
  [[nodiscard]] std::vector<double> attend(const AttentionParams& params, int64_t position,
                                           const float* q) const;

 private:
  struct Side {
    std::vector<float> open;    // rounded to f16, [kv_heads][tokens][head_dim]
    std::vector<float> sealed;  // as decoded, full blocks only
  };
  [[nodiscard]] Side make_side(const FormatInfo* format, std::span<const float> x) const;
  [[nodiscard]] const float* row(const Side& side, int64_t position, int64_t token, int head) const;

  LayerShape shape_;
  int sink_blocks_;
  int64_t tokens_;
  Side k_;
  Side v_;
};

}  // namespace kvart
