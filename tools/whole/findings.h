// What the measurements found of each policy, and what follows from all of it together.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvart/result.h"
#include "tools/eval/needle.h"

namespace kvart::tools {

struct PolicyFindings {
  std::string word;
  double share = 0;          // of the bytes that 16 bits take
  std::optional<double> kl;  // mean divergence
  bool close = false;        // and so small that answers stay close
  Retrieval retrieval = Retrieval::unknown;
  int64_t found = 0, full_found = 0;  // facts, by this policy and by full precision
  // At the longest context that was measured, over full precision; 0: not known.
  double sequences_ratio = 0;
  double speed_up = 0;  // the median of the rounds, the least and the largest
  double speed_up_low = 0;
  double speed_up_high = 0;
  bool speed_up_estimated = false;  // extrapolated from steps of fewer sequences
};

struct Findings {
  int64_t gain_context_tokens = 0;
  std::vector<PolicyFindings> policies;  // full precision isn't one of them

  // The entry of `word`, added where there is none.
  PolicyFindings& of(const std::string& word);
};

// Retrieval of the policies that were asked all that full precision was, of the texts that may be
// judged.
void add_retrieval(const NeedleResult& result, Findings* findings);

nlohmann::ordered_json findings_json(const Findings& findings);
// Error: something that findings_json doesn't write.
Result<Findings> read_findings(const nlohmann::ordered_json& json);

// Whether everything that is known of a policy speaks for it, and something is.
bool keeps_answers(const PolicyFindings& policy);

struct Choice {
  const PolicyFindings* smallest = nullptr;  // of those that keep the answers; null: none does
  // Of those, where it decodes 5 % faster than `smallest`, and faster in every round.
  const PolicyFindings* fastest = nullptr;
  std::vector<std::string> destroyed;
};
Choice choose(const Findings& findings);

// In a few sentences. full: full precision's word.
std::string whole_verdict(const Findings& findings, const Choice& choice, const std::string& full);

}  // namespace kvart::tools
