// One policy at one context, ready to be measured: a session whose cache is filled with copies of a
// sequence that was computed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kvart/session.h"
#include "tools/gain/gain.h"

namespace kvart::tools {

// Tokens of a step of prefill: a GPU needs more of them to be busy.
inline constexpr int prefill_chunk = 256;
inline constexpr int prefill_chunk_on_gpu = 2048;
inline int prefill_chunk_of(const Model& model) {
  return model.device() == Device::cuda ? prefill_chunk_on_gpu : prefill_chunk;
}

// A sequence that was computed, in a session of its own, and what that took, once a round.
struct PrefilledSequence {
  std::unique_ptr<Session> session;
  SequenceId id = 0;
  int64_t tokens = 0;
  std::vector<double> seconds;
};

// Tokens that a sequence to be copied has at least: a block to seal besides the sinks, and all
// tokens but two of an open one, since decode steps are taken at two tokens below a whole block.
int64_t shortest_prefill(const std::vector<NamedPolicy>& policies);
// The longest of these that fits in `tokens` and has as full an open block; `shortest` at least.
int64_t prefill_within(int64_t tokens, int64_t shortest);

// Room for `tokens` tokens of one sequence.
Result<PrefilledSequence> open_prefill(const Model& model, const GainOptions& options,
                                       const Policy& policy, int64_t tokens);
// Computes it from the first token on, and adds the seconds that it took. is_over: asked before
// each step; where it says yes, nothing is added.
Status prefill(const Model& model, PrefilledSequence& sequence,
               const std::function<bool()>& is_over);

class PolicyRun {
 public:
  // A session for as many sequences of `context` tokens as its memory holds. Where not one fits,
  // fits() is false and nothing else may be called. source outlives it.
  static Result<PolicyRun> open(const Model& model, const GainOptions& options,
                                const NamedPolicy& policy, int64_t context,
                                const PrefilledSequence& source);

  [[nodiscard]] bool fits() const { return session_ != nullptr; }
  [[nodiscard]] GainPoint& point() { return point_; }
  [[nodiscard]] const GainPoint& point() const { return point_; }

  // The prefill of the whole context if the source is that long, else the time of a chunk in the
  // middle of it. Precondition: nothing is admitted yet.
  Status measure_prefill();
  // Starts sequences until the allocator takes no more, or all that were planned are there and one
  // more is refused; at least two of them before it asks whether the time is over.
  Status admit(const std::function<bool()>& is_over);
  // Seconds of a decode step of the first `batch` sequences, which are then as long as before.
  Result<double> step(int64_t batch);
  // Sequences that a step may have.
  [[nodiscard]] int64_t batch_max() const;

 private:
  std::unique_ptr<Session> session_;
  const PrefilledSequence* source_ = nullptr;
  int64_t batch_max_ = 0;
  int prefill_chunk_ = 0;
  std::vector<SequenceId> sequences_;
  GainPoint point_;
};

}  // namespace kvart::tools
