// Engine: many requests on one model and one quantized cache. A thread of its own takes the waiting
// requests in, steps all running sequences together (chunks of prompts and single tokens mixed),
// samples, and hands out text as it comes. On the CPU an answer's tokens are the same alone and
// among any others: a sequence's logits are the same bits, and every choice draws from a generator
// of its own.
//
// Memory that is full never ends a running request: the one that came last gives its place up, and
// is computed again later, from the blocks that are still cached.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvart/model.h"
#include "kvart/result.h"
#include "kvart/sampler.h"
#include "kvart/session.h"
#include "kvart/shared_list.h"

namespace kvart {

// How one answer is made.
struct GenerationOptions {
  SamplingOptions sampling;            // choice i draws with the seed sampling.seed + i
  int64_t max_tokens = 16;             // 0: only the prompt is scored
  int64_t min_tokens = 0;              // before that many, nothing but max_tokens ends the answer
  SharedList<std::string> stop;        // texts that end it; not empty ones
  SharedList<int32_t> stop_token_ids;  // tokens that end it, besides the model's own
  bool include_stop_text = false;      // the text that ended it is part of the answer
  bool ignore_eos = false;             // the model's own ends don't end it
  bool show_special_tokens = false;    // their names are part of the text
  int logprobs = -1;                   // alternatives to score beside each token; -1: no scores
  int prompt_logprobs = -1;            // the same for the prompt's tokens; the prompt is computed
                                       // whole then, without the prefix cache
};

struct GenerationRequest {
  std::vector<int32_t> prompt;
  GenerationOptions options;
  int choices = 1;   // answers to one prompt, which is computed once
  int priority = 0;  // lower runs first; equal ones in order of arrival
  std::string salt;  // prompts share cached blocks only under the same salt
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // of the model, before penalties, temperature and bias
};

struct ScoredToken {
  int32_t token = 0;
  float logprob = 0;
  int64_t rank = 1;               // 1: the most likely
  std::vector<TokenLogprob> top;  // the most likely first
};

enum class FinishReason {
  none,       // goes on
  stop,       // a stop text, a stop token or the model's own end
  length,     // max_tokens, or the context is full
  cancelled,  // cancel(), or the engine is shutting down
  deadline,   // the request's time was over
  error,      // see GenerationOutput::error
};

// What is new of one choice.
struct ChoiceOutput {
  int choice = 0;
  std::string text;                 // whole characters; nothing that may become a stop text
  std::vector<int32_t> tokens;      // those whose text is out, or that have none
  std::vector<ScoredToken> scores;  // one for each of `tokens`, where logprobs were asked for
  FinishReason finish = FinishReason::none;
  // What ended it, where finish is stop: a text, or a token; neither for the model's own end.
  std::string stop_text;
  std::optional<int32_t> stop_token;
};

// What is new of a request. Choices have at most one entry each.
struct GenerationOutput {
  std::vector<ScoredToken> prompt_scores;  // one for each token of the prompt, all at once; the
                                           // first has no score: its `top` is empty
  std::vector<ChoiceOutput> choices;
  bool finished = false;  // every choice has ended; nothing follows
  Status error;           // why, for FinishReason::error
};

// So far; all of it grows only.
struct GenerationUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt, when it was first started
  int64_t completion_tokens = 0;  // of all choices, those that ended an answer included
  int64_t preemptions = 0;
};

// One request in the engine. All functions may be called from any thread. Dropping the last
// reference cancels it.
class Generation {
 public:
  virtual ~Generation() = default;
  // What has come since the last call; never waits. While more than EngineOptions::
  // output_tokens_max lie here untaken, the request pauses.
  virtual GenerationOutput take() = 0;
  // Idempotent; of no effect once it has finished. The choices end with FinishReason::cancelled,
  // soon.
  virtual void cancel() = 0;
  [[nodiscard]] virtual GenerationUsage usage() const = 0;
};

struct EngineOptions {
  SessionOptions session;           // max_step_tokens: of all sequences in a step together
  int max_running = 32;             // sequences in a step
  int64_t max_waiting = 1024;       // requests; more are refused
  int64_t output_tokens_max = 256;  // of one choice, untaken
};

// Counts by upper bound: counts[i] of values <= bounds[i] and above the bound before; the last one
// is of all above.
struct Histogram {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;  // bounds.size() + 1
  double sum = 0;

  explicit Histogram(std::vector<double> upper_bounds)
      : bounds(std::move(upper_bounds)), counts(bounds.size() + 1) {}
  void add(double value);
  [[nodiscard]] uint64_t count() const;
};

struct EngineStats {
  int64_t running = 0;  // sequences that hold memory
  int64_t waiting = 0;  // sequences that don't: new ones and preempted ones
  int64_t paused = 0;   // of the running, those whose output nobody takes
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;  // of requests whose prompt is done
  uint64_t generation_tokens = 0;
  std::array<uint64_t, 6> finished{};  // requests, by FinishReason
  uint64_t refused = 0;                // requests that submit() did not take
  SessionStats session{};
  std::vector<LayerError> layer_errors;  // see SessionOptions::error_sample_interval
  Histogram time_to_first_token_s, inter_token_s, end_to_end_s, queue_s, prefill_s, decode_s;
  Histogram time_per_output_token_s, step_tokens, prompt_lengths, completion_lengths;

  EngineStats();
};

class Engine {
 public:
  // model outlives the engine. Takes all memory of the cache and of the forward pass.
  static Result<std::unique_ptr<Engine>> create(const Model& model, const EngineOptions& options);
  // Cancels what still runs, and waits for the step that is under way.
  virtual ~Engine() = default;

  // notify: called from the engine's thread whenever take() has something new after it had nothing;
  // must not block and must not call the engine. It may be called once more after the Generation
  // was dropped. Error invalid_argument: an option out of range, an id outside the vocabulary, a
  // prompt that with one more token exceeds the context: the message has the figures;
  // out_of_memory: too many wait already, or shutting down.
  virtual Result<std::shared_ptr<Generation>> submit(GenerationRequest request,
                                                     std::function<void()> notify) = 0;
  // Cached prefixes are forgotten before the next step; running requests keep theirs.
  virtual void reset_prefix_cache() = 0;
  // Takes no new requests; returns when all that were taken have finished, or at `deadline`, when
  // the rest is cancelled.
  virtual void drain(std::chrono::steady_clock::time_point deadline) = 0;

  [[nodiscard]] virtual EngineStats stats() const = 0;
  [[nodiscard]] virtual const MemoryPlan& plan() const = 0;
  [[nodiscard]] virtual const EngineOptions& options() const = 0;
};

}  // namespace kvart
