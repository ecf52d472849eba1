// Session: a model running over one quantized cache. Many sequences step together, prompts' chunks
// and single tokens mixed; on the CPU a sequence's logits are the same bits whatever else is in the
// step and however its prompt was cut.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kvart/memory_plan.h"
#include "kvart/model.h"
#include "kvart/result.h"

namespace kvart {

using SequenceId = int32_t;

struct SessionOptions {
  Policy policy;
  int64_t context_tokens = 0;  // per sequence
  int64_t max_sequences = 1;
  uint64_t budget_bytes = 0;  // for the cache; 0: what max_sequences of context_tokens need
  int max_step_tokens = 512;  // of all sequences together in one step
  int threads = 1;
  bool prefix_caching = true;
};

enum class WantLogits { none, last, all };

struct StepRequest {
  SequenceId sequence = 0;
  std::span<const int32_t>
      tokens;  // the next tokens of the sequence; they are committed by the step
  WantLogits logits = WantLogits::last;
};

struct StepResult {
  Status status;  // out_of_memory: nothing of it was run; invalid_data: NaN or Inf, the sequence is
                  // lost
  std::span<const float> logits;  // [wanted rows][vocab]; valid until the next step
};

struct SessionStats {
  int64_t pages_total, pages_free, pages_cached, pages_referenced;
  int64_t slots_total, slots_free, slots_cached, slots_referenced;
};

class Session {
 public:
  // model outlives the session. Takes all memory of the cache and of the forward pass.
  static Result<std::unique_ptr<Session>> create(const Model& model, const SessionOptions& options);
  virtual ~Session() = default;

  // Starts a sequence; the first cached_tokens() of `prompt` are already there (at most
  // prompt.size() - 1).
  virtual Result<SequenceId> start(std::span<const int32_t> prompt, std::string_view salt) = 0;
  [[nodiscard]] virtual int64_t cached_tokens(SequenceId sequence) const = 0;
  [[nodiscard]] virtual int64_t length(SequenceId sequence) const = 0;

  // Runs the tokens of all requests. Results are in the order of the requests. Precondition: each
  // sequence once, each with at least one token, all tokens together at most max_step_tokens, ids
  // within the vocabulary.
  virtual std::span<const StepResult> step(std::span<const StepRequest> requests) = 0;

  virtual Result<SequenceId> fork(SequenceId sequence) = 0;
  // Back to `length` tokens; error before the open block.
  virtual Status truncate(SequenceId sequence, int64_t length) = 0;
  virtual void release(SequenceId sequence) = 0;
  virtual void reset_prefix_cache() = 0;

  [[nodiscard]] virtual const MemoryPlan& plan() const = 0;
  [[nodiscard]] virtual uint64_t allocated_cache_bytes() const = 0;
  [[nodiscard]] virtual SessionStats stats() const = 0;
  // A copy of the sealed bytes of block `block` of the sequence, of all layers that still hold it:
  // full ones first, then those of each window. Empty for a block that is open or a sink.
  [[nodiscard]] virtual std::vector<uint8_t> sealed_block(SequenceId sequence,
                                                          int64_t block) const = 0;
};

}  // namespace kvart
