// Whether a model still finds facts in a long text when its cache is quantized.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/eval/needle_prompt.h"
#include "tools/eval/running.h"
#include "tools/report.h"

namespace kvart::tools {

struct NeedleOptions {
  std::vector<NamedPolicy> policies;  // the first one is the reference
  NeedleTask task = NeedleTask::multikey;
  std::vector<int64_t> contexts;       // tokens of prompt and reply; empty: usual_contexts()
  std::vector<double> depths_percent;  // empty: evenly, as many as `needles`
  int needles = 0;                     // keys, values or variables in a text; 0: usual for the task
  int texts = 1;                       // for each context
  std::string haystack;                // a text; empty: generated
  std::string haystack_name;
  bool raw = false;
  int64_t reply_tokens = 24;
  int threads = 1;
  uint64_t seed = 1;
};

struct NeedlePolicy {
  NamedPolicy policy;
  PolicyBytes bytes;
  bool quantizes = false;
};

// One question under one policy.
struct NeedleRecord {
  size_t policy = 0;
  int64_t question = 0;  // the same number: the same prompt
  int64_t context_tokens = 0;
  int text = 0;
  Question asked;
  double true_depth_percent = 0;  // by tokens; a control: that of the question
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  bool read_quantized = false;  // the fact lies in a block that the question read quantized
  std::string reply;            // what follows the lead
  double score = 0;
  double logprob = 0;  // mean over the right answer's tokens
  bool truncated = false;
  double duration_s = 0;
  std::string timestamp_utc;

  [[nodiscard]] bool found() const { return score >= 1; }
};

struct NeedleResult {
  NeedleOptions asked;  // as it was done: nothing is empty or 0
  nlohmann::ordered_json model;
  uint64_t prompts_hash = 0;
  std::vector<NeedlePolicy> policies;
  std::vector<NeedleRecord> records;  // of each question the reference's comes first
  bool incomplete = false;
};

// 1k, 2k and 4k, as far as the model was made for them.
std::vector<int64_t> usual_contexts(const ModelConfig& config);

// The prompts that share a session: all about one text, or, of single facts, one for each depth.
struct NeedleGroup {
  int64_t context_tokens = 0;
  int text = 0;
  int64_t reply_tokens = 0;
  std::vector<NeedlePrompt> prompts;
};

// All that is to be asked, before the first question is.
struct PreparedNeedle {
  NeedleResult result;  // without records
  std::vector<NeedleGroup> groups;
  bool ended = false;  // before all of them were made
};

// Error: a context that the model wasn't made for, that has no room for the facts, or so short that
// nothing is read quantized.
Result<PreparedNeedle> prepare_needle(const Model& model, const NeedleOptions& options,
                                      Watch& watch);
Result<NeedleResult> run_needle(const Model& model, const PreparedNeedle& prepared, Watch& watch);
// Both.
Result<NeedleResult> measure_needle(const Model& model, const NeedleOptions& options, Watch& watch);

// Records of one policy, by question.
std::vector<const NeedleRecord*> records_of(const NeedleResult& result, size_t policy);
// The reference's, by the number of the question.
std::map<int64_t, const NeedleRecord*> reference_of(const NeedleResult& result);
size_t text_count(const NeedleResult& result);

// One policy against the reference, over the questions that both were asked.
struct NeedleSummary {
  int64_t asked = 0;
  int64_t found = 0;
  int64_t reference_asked = 0;  // all that the reference was asked, of this policy or not
  int64_t reference_found = 0;  // of those that this policy was asked
  int64_t kept = 0;             // of those that the reference found
  int64_t gained = 0;           // found, but not by the reference
  double score = 0;             // mean
  double logprob = 0;           // mean
  double logprob_change = 0;
  std::optional<Interval> logprob_change_interval;
  double p = 1;  // McNemar's
  int64_t controls = 0;
  double control_score = 0;  // mean
  int64_t truncated = 0;
  int64_t read_quantized = 0;

  [[nodiscard]] int64_t lost() const { return reference_found - kept; }
};
NeedleSummary needle_summary(const NeedleResult& result, size_t policy);

// What may be judged of a measurement that was ended early: the texts of which every policy was
// asked all questions; where there is none, those of which some policy beside the reference was.
NeedleResult judged_part(const NeedleResult& result);

// What each right answer's mean log-probability changed by, in the order of the questions.
std::vector<double> logprob_changes(const NeedleResult& result, size_t policy);

// Fewer than these that the reference finds say nothing of another policy.
inline constexpr int64_t fewest_found = 4;

enum class Retrieval { unknown, kept, damaged, destroyed };
// Of a summary of what may be judged. unknown: the reference itself finds fewer than four, or was
// asked more. kept: of what it finds at most one in twenty is lost more than is gained beyond it,
// and at most a quarter at all. destroyed: half of it or more is lost.
Retrieval retrieval_of(const NeedleSummary& summary);
// Of what may be judged. unknown as well: a policy that quantizes, of which no fact was read
// quantized.
Retrieval retrieval_of(const NeedleResult& judged, size_t policy);

Report needle_report(const NeedleResult& result);

}  // namespace kvart::tools
