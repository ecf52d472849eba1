// How far each policy's distribution of the next token is from that of a cache in full precision,
// over a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/eval/policy_report.h"
#include "tools/eval/running.h"
#include "tools/eval/statistics.h"
#include "tools/eval/text.h"
#include "tools/report.h"

namespace kvart::tools {

struct DivergenceOptions {
  std::vector<NamedPolicy> policies;  // the first one is the reference
  EvaluationText text;
  int64_t context_tokens = 0;  // of a window; 0: 2,048, or what the model was made for
  int64_t text_tokens = 0;     // at most; 0: one window
  int chunk_tokens = 64;       // given in one step; 1: token by token, as in decode
  int threads = 1;
  uint64_t seed = 1;  // of the intervals
};

// One policy's figures of every scored token, in the order of the text.
struct PolicyDivergence {
  NamedPolicy policy;
  PolicyBytes bytes;
  bool quantizes = false;
  std::vector<float> kl;  // empty for the reference
  std::vector<float> delta_p;
  std::vector<uint8_t> same_top;
  std::vector<float> logprobs;  // of the text's token
  // Over all scored tokens, earlier ones that the layer that sees most read from sealed blocks.
  int64_t quantized_reads = 0;
  int64_t quantized_tokens = 0;  // scored tokens that read any
};

struct DivergenceResult {
  DivergenceOptions asked;  // as it was done: nothing is 0
  nlohmann::ordered_json model;
  int windows = 0;
  uint64_t tokens_hash = 0;
  std::vector<int32_t> positions;  // of each scored token in its window
  std::vector<PolicyDivergence> policies;
  bool incomplete = false;
};

// Tokens that a window needs so that its last one reads a quantized block under every policy.
int64_t shortest_window(const std::vector<NamedPolicy>& policies);

// Runs all policies side by side, a chunk at a time: no more than one chunk's logits are kept of
// each. Error: a text or a context so short that nothing would be read quantized.
Result<DivergenceResult> measure_divergence(const Model& model, const DivergenceOptions& options,
                                            Watch& watch);

// Sums of one policy's KL divergence by block of 64 positions, for intervals: neighbours in a text
// are alike.
struct BlockSums {
  std::vector<double> kl;
  std::vector<double> tokens;
};
// Of the positions from `first` to `last` - 1.
BlockSums block_sums(const DivergenceResult& result, size_t policy, int64_t first, int64_t last);

struct DivergenceSummary {
  double kl_mean = 0;
  std::optional<Interval> kl_interval;
  double kl_median = 0, kl_p90 = 0, kl_p99 = 0, kl_p999 = 0, kl_max = 0;
  double same_top = 0;  // share
  Interval same_top_interval;
  double delta_p_rms = 0;
  double perplexity = 0;
};
// Precondition: at least one scored token; not the reference.
DivergenceSummary summary_of(const DivergenceResult& result, size_t policy);
double perplexity_of(const PolicyDivergence& policy);

// A mean divergence up to which answers stay about as close to full precision as with 8-bit floats,
// and the one from which on retrieval is lost: what was measured on small models beside retrieval
// (docs/evaluation.md).
inline constexpr double close_kl = 0.02;
inline constexpr double destroyed_kl = 0.05;

// Tokens that read something quantized, where it was ended early: fewer say too little of a policy.
inline constexpr int64_t least_quantized_tokens = 256;

// Whether a token was scored that read something quantized, under any policy that quantizes: until
// then a divergence of 0 says nothing.
bool says_anything(const DivergenceResult& result);

// Whether so much of a policy was read quantized that its divergence may be judged.
bool is_enough(const DivergenceResult& result, size_t policy);
bool is_any_enough(const DivergenceResult& result);

// The policy that quantizes to the fewest bytes and stays within close_kl; 0: none does. Those that
// aren't enough don't count.
size_t smallest_close_policy(const DivergenceResult& result);
// Those of destroyed_kl or more, with it.
std::vector<DestroyedPolicy> destroyed_policies(const DivergenceResult& result);
// " Destroyed (mean divergence of 0.05 or more): ..."; empty where none is.
std::string destroyed_text(const std::vector<DestroyedPolicy>& destroyed);
// The verdict where is_any_enough is false.
void set_too_little(const DivergenceResult& result, Report* report);

Report divergence_report(const DivergenceResult& result);

}  // namespace kvart::tools
