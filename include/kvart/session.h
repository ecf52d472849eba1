// Session: a model running over one quantized cache. Many sequences step together, prompts' chunks
// and single tokens mixed; on the CPU a sequence's logits are the same bits whatever else is in the
// step and however its prompt was cut.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kvart/layer_error.h"
#include "kvart/memory_plan.h"
#include "kvart/model.h"
#include "kvart/result.h"

namespace kvart {

using SequenceId = int32_t;

struct SessionOptions {
  Policy policy;
  int64_t context_tokens = 0;  // of a sequence at most
  int64_t max_sequences = 1;
  uint64_t budget_bytes = 0;  // for the cache; 0: what max_sequences of context_tokens need
  int max_step_tokens = 512;  // of all sequences together in one step
  int threads = 1;
  bool prefix_caching = true;
  int64_t open_sequences =
      0;                    // that may run at the same time if they are short, see MemoryPlanInput
  uint64_t host_bytes = 0;  // for evicted blocks of the prefix cache, beside the plan's; 0: none
  int error_sample_interval = 0;  // every Nth sealed block counts in layer_errors(); 0: none
};

// What a session plans its memory from.
MemoryPlanInput plan_input(const ModelConfig& config, const SessionOptions& options);

enum class WantLogits { none, last, all };

struct StepRequest {
  SequenceId sequence = 0;
  std::span<const int32_t>
      tokens;  // the next tokens of the sequence; they are committed by the step
  WantLogits logits = WantLogits::last;
};

struct StepResult {
  Status status;  // out_of_memory: nothing of it was run, and what was reserved still is;
                  // invalid_data: NaN or Inf, the sequence is lost
  std::span<const float> logits;  // [wanted rows][vocab]; valid until the next step
};

struct SessionStats {
  int64_t pages_total, pages_free, pages_cached, pages_referenced;
  int64_t slots_total, slots_free, slots_cached, slots_referenced;
  int64_t parked_pages;  // of pages_cached, those that hold first blocks in full precision
  // Of the pages of one group of layers, the share that sequences hold, 0 to 1, where it is
  // largest: no group can lend another one a page, and none of them has to wait for a slot.
  double fullest_share;
  // Since the session was made: tokens given to start(), and those of them that were there; blocks
  // that gave way to others, of any group of layers.
  int64_t prefix_queries_tokens, prefix_hits_tokens, evictions;
  // Host memory: what lies there now, and since the session was made the blocks that went there,
  // came back, and were forgotten because their bytes had changed.
  int64_t host_blocks, host_bytes_used, host_bytes_total;
  int64_t swapped_out_blocks, swapped_in_blocks, damaged_host_blocks;
};

class Session {
 public:
  // model outlives the session. Takes all memory of the cache and of the forward pass.
  static Result<std::unique_ptr<Session>> create(const Model& model, const SessionOptions& options);
  virtual ~Session() = default;

  // Starts a sequence; the first cached_tokens() of `prompt` are already there (at most
  // prompt.size() - 1).
  virtual Result<SequenceId> start(std::span<const int32_t> prompt, std::string_view salt) = 0;
  // Whether a sequence that starts with what is cached of `prompt` would find room for `length`
  // tokens in all, in whatever steps, if no other sequence took any. Where no other holds anything
  // that is so for every length up to context_tokens. Changes nothing, so that one that waits may
  // ask again and again. Precondition: length >= prompt.size().
  [[nodiscard]] virtual bool can_start(std::span<const int32_t> prompt, std::string_view salt,
                                       int64_t length) const = 0;
  [[nodiscard]] virtual int64_t cached_tokens(SequenceId sequence) const = 0;
  [[nodiscard]] virtual int64_t length(SequenceId sequence) const = 0;

  // After start: brings blocks of `tokens` (those given to start) behind cached_tokens() back from
  // host memory, as far as there is room that no sequence holds; they are the bytes that were
  // evicted. Returns the length, which cached_tokens() is then too. Without host memory nothing
  // comes back. Error out_of_memory. Precondition: no step and no reserve since start.
  virtual Result<int64_t> restore(SequenceId sequence, std::span<const int32_t> tokens) = 0;

  // Room for these tokens behind the sequence's own, so that its part of the next step can't lack
  // any: that step must run exactly these tokens of it. All or nothing. Error out_of_memory: no
  // room, or more than context_tokens; invalid_data: the sequence is lost; nothing changed.
  // Precondition: no reservation, ids within the vocabulary. What may be called until that step:
  // release, unreserve, and whatever asks.
  virtual Status reserve(SequenceId sequence, std::span<const int32_t> tokens) = 0;
  // Drops the sequence's reservation, if it has one.
  virtual void unreserve(SequenceId sequence) = 0;
  // Whether `tokens` more tokens, at most 2^31 - 1, could be reserved now, by evicting cached
  // blocks where need be; the context is not looked at. A sequence that is lost has room for none.
  // Precondition: no reservation.
  [[nodiscard]] virtual bool has_room(SequenceId sequence, int64_t tokens) const = 0;

  // Runs the tokens of all requests, with the room that was reserved for them, or else with what
  // there is. Results are in the order of the requests. Precondition: each sequence once, each with
  // at least one token, all tokens together at most max_step_tokens, ids within the vocabulary.
  virtual std::span<const StepResult> step(std::span<const StepRequest> requests) = 0;

  virtual Result<SequenceId> fork(SequenceId sequence) = 0;
  // For measuring at a length that would take too long to compute: a sequence of `length` tokens
  // that holds as many pages and slots of its own as one that was computed, filled with copies of
  // those of `like` in `from`. Sealed blocks are copied in turn, over and over, sink blocks and the
  // open block from their like, so `like` must have as many tokens in its open block as `length`
  // leaves there. What it answers is nonsense, unless it has the length of `like`. The prefix cache
  // never has it. Error invalid_argument: `like` doesn't hold what is to be copied, or is lost;
  // out_of_memory; nothing changed. Precondition: `from`, which may be the same one, runs the same
  // model with the same policy; `like` has no reservation; length is at least 1.
  virtual Result<SequenceId> imitate(const Session& from, SequenceId like, int64_t length) = 0;
  // Back to `length` tokens; error before the open block.
  virtual Status truncate(SequenceId sequence, int64_t length) = 0;
  virtual void release(SequenceId sequence) = 0;
  // In host memory too.
  virtual void reset_prefix_cache() = 0;

  [[nodiscard]] virtual const MemoryPlan& plan() const = 0;
  [[nodiscard]] virtual uint64_t allocated_cache_bytes() const = 0;
  [[nodiscard]] virtual SessionStats stats() const = 0;
  // One entry for each layer; see SessionOptions::error_sample_interval. The same whatever the
  // number of threads.
  [[nodiscard]] virtual std::span<const LayerError> layer_errors() const = 0;
  // A copy of the sealed bytes of block `block` of the sequence, of all layers that still hold it:
  // full ones first, then those of each window. Empty for a block that is open or a sink.
  [[nodiscard]] virtual std::vector<uint8_t> sealed_block(SequenceId sequence,
                                                          int64_t block) const = 0;
};

}  // namespace kvart
