// How an Attention is made, and how much memory it takes.
#include "attention/attention.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "attention/cpu_attention.h"
#include "base/check.h"
#include "kvart/memory_plan.h"

namespace kvart {

uint64_t Attention::workspace_bytes(const PageLayout& layout, int threads, int max_rows,
                                    int max_q_heads, int error_sample_interval) {
  const Limits limits(layout, max_q_heads);
  const uint64_t staging =
      2 * static_cast<uint64_t>(max_rows) * limits.kv_values * sizeof(uint16_t);
  const uint64_t scratch =
      limits.scratch_floats() * sizeof(float) + limits.tile_rows * sizeof(VisibleRange);
  return staging + limits.staged_bytes(max_rows) + threads * scratch +
         limits.shared_floats(threads) * sizeof(float) +
         ErrorSamples::bytes(error_sample_interval, max_rows, limits.kv_heads);
}

Result<std::unique_ptr<Attention>> Attention::create(KvCache* cache, Isa isa, ThreadPool* pool,
                                                     int max_rows, int max_q_heads,
                                                     int error_sample_interval) {
  const std::vector<Isa>& available = available_isas();
  if (std::find(available.begin(), available.end(), isa) == available.end()) {
    return Error{ErrorCode::unsupported,
                 "this machine has no " + std::string(isa_name(isa)) + " instructions"};
  }
  if (max_rows < 1 || max_q_heads < 1) {
    return Error{ErrorCode::invalid_argument,
                 "attention needs at least one row and one query head, not " +
                     std::to_string(max_rows) + " and " + std::to_string(max_q_heads)};
  }
  KVART_CHECK(error_sample_interval >= 0, "every %d th block", error_sample_interval);
  const FormatInfo& open = open_block_format();
  const Limits limits(cache->page_layout(), max_q_heads);
  KVART_CHECK(open.full_precision && open.row_bytes(16) == 16 * sizeof(uint16_t) &&
                  open.parameter_bytes(16) == 0,
              "open blocks are rows of f16");
  return std::unique_ptr<Attention>(
      std::make_unique<CpuAttention>(cache, isa, pool, max_rows, limits, error_sample_interval));
}

}  // namespace kvart
