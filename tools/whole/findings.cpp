// The choice, its words, and findings as JSON.
#include "findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "tools/units.h"

namespace kvart::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 4> kept_names = {"unknown", "kept", "damaged", "destroyed"};

// Slower or faster by less than that is the same.
constexpr double least_difference = 1.05;

Json policy_json(const PolicyFindings& policy) {
  return {{"policy", policy.word},
          {"share_of_f16", policy.share},
          {"kld_mean", policy.kl ? Json(*policy.kl) : Json()},
          {"close", policy.close},
          {"retrieval", kept_names[static_cast<size_t>(policy.retrieval)]},
          {"found", policy.found},
          {"f16_found", policy.full_found},
          {"sequences_ratio", policy.sequences_ratio},
          {"speed_up", policy.speed_up},
          {"speed_up_low", policy.speed_up_low},
          {"speed_up_high", policy.speed_up_high},
          {"speed_up_estimated", policy.speed_up_estimated}};
}

// A member of a type; *ok says whether all were.
template <class T>
T member(const Json& json, const char* key, bool (Json::*is)() const noexcept, bool* ok) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (found != json.end() && ((*found).*is)()) return found->template get<T>();
  *ok = false;
  return {};
}

PolicyFindings read_policy(const Json& json, bool* ok) {
  PolicyFindings policy;
  policy.word = member<std::string>(json, "policy", &Json::is_string, ok);
  policy.share = member<double>(json, "share_of_f16", &Json::is_number, ok);
  bool known = true;
  const auto kl = member<double>(json, "kld_mean", &Json::is_number, &known);
  if (known) policy.kl = kl;
  policy.close = member<bool>(json, "close", &Json::is_boolean, ok);
  const auto retrieval = member<std::string>(json, "retrieval", &Json::is_string, ok);
  const auto* place = std::find(kept_names.begin(), kept_names.end(), retrieval);
  if (place == kept_names.end()) *ok = false;
  policy.retrieval = static_cast<Retrieval>(place - kept_names.begin());
  policy.found = member<int64_t>(json, "found", &Json::is_number_integer, ok);
  policy.full_found = member<int64_t>(json, "f16_found", &Json::is_number_integer, ok);
  policy.sequences_ratio = member<double>(json, "sequences_ratio", &Json::is_number, ok);
  policy.speed_up = member<double>(json, "speed_up", &Json::is_number, ok);
  policy.speed_up_low = member<double>(json, "speed_up_low", &Json::is_number, ok);
  policy.speed_up_high = member<double>(json, "speed_up_high", &Json::is_number, ok);
  policy.speed_up_estimated = member<bool>(json, "speed_up_estimated", &Json::is_boolean, ok);
  return policy;
}

// What one policy costs: "finds 8 of the 8 facts that f16 finds, KL divergence 0.0035".
std::string cost_text(const PolicyFindings& policy, const std::string& full) {
  std::string text;
  if (policy.retrieval != Retrieval::unknown) {
    text = fmt::format("finds {} of the facts where {} finds {}", policy.found, full,
                       policy.full_found);
  }
  if (policy.kl) {
    text += fmt::format("{}mean KL divergence {:.2g}", text.empty() ? "" : ", ", *policy.kl);
  }
  return text;
}

// "1.39 times as many tokens a second (1.31 to 1.44 in the rounds, measured)"
std::string times_text(const PolicyFindings& policy) {
  return fmt::format(
      "{:.2f} times as many tokens a second ({:.2f} to {:.2f} in the rounds, {})", policy.speed_up,
      policy.speed_up_low, policy.speed_up_high,
      policy.speed_up_estimated ? "estimated from steps of fewer sequences" : "measured");
}

std::string gain_text(const PolicyFindings& policy, const Findings& findings) {
  if (policy.speed_up <= 0) return {};
  const bool unsure = policy.speed_up_low <= 1 && policy.speed_up_high >= 1;
  return fmt::format(
      " At {} tokens the same memory holds {:.2f} times as many sequences, and all of them "
      "together decode {}{}.",
      tokens_text(findings.gain_context_tokens), policy.sequences_ratio, times_text(policy),
      unsure ? ": a gain in speed isn't certain" : "");
}

}  // namespace

PolicyFindings& Findings::of(const std::string& word) {
  const auto found = std::find_if(policies.begin(), policies.end(),
                                  [&](const PolicyFindings& one) { return one.word == word; });
  if (found != policies.end()) return *found;
  policies.emplace_back();
  policies.back().word = word;
  return policies.back();
}

void add_retrieval(const NeedleResult& result, Findings* findings) {
  const NeedleResult judged = judged_part(result);
  for (size_t i = 1; i < judged.policies.size(); ++i) {
    const NeedleSummary summary = needle_summary(judged, i);
    if (summary.asked == 0 || summary.asked < summary.reference_asked) continue;
    PolicyFindings& found = findings->of(judged.policies[i].policy.word);
    found.share = judged.policies[i].bytes.share();
    found.retrieval = retrieval_of(judged, i);
    found.found = summary.found;
    found.full_found = summary.reference_found;
  }
}

Json findings_json(const Findings& findings) {
  Json json{{"gain_context_tokens", findings.gain_context_tokens}, {"policies", Json::array()}};
  for (const PolicyFindings& policy : findings.policies) {
    json["policies"].push_back(policy_json(policy));
  }
  return json;
}

Result<Findings> read_findings(const Json& json) {
  bool ok = true;
  Findings findings;
  findings.gain_context_tokens =
      member<int64_t>(json, "gain_context_tokens", &Json::is_number_integer, &ok);
  const auto policies = member<Json>(json, "policies", &Json::is_array, &ok);
  for (const Json& policy : policies) findings.policies.push_back(read_policy(policy, &ok));
  if (!ok) return Error{ErrorCode::invalid_data, "not findings that were saved"};
  return findings;
}

bool keeps_answers(const PolicyFindings& policy) {
  if (policy.retrieval == Retrieval::damaged || policy.retrieval == Retrieval::destroyed)
    return false;
  if (policy.kl) return policy.close;
  return policy.retrieval == Retrieval::kept;
}

Choice choose(const Findings& findings) {
  Choice choice;
  for (const PolicyFindings& policy : findings.policies) {
    if (policy.retrieval == Retrieval::destroyed) choice.destroyed.push_back(policy.word);
    if (!keeps_answers(policy) || policy.share >= 1) continue;
    if (choice.smallest == nullptr || policy.share < choice.smallest->share) {
      choice.smallest = &policy;
    }
  }
  if (choice.smallest == nullptr) return choice;
  double best = choice.smallest->speed_up * least_difference;
  if (best <= 0) return choice;
  for (const PolicyFindings& policy : findings.policies) {
    if (!keeps_answers(policy) || policy.speed_up <= best) continue;
    if (policy.speed_up_low <= choice.smallest->speed_up) continue;
    choice.fastest = &policy;
    best = policy.speed_up;
  }
  return choice;
}

std::string whole_verdict(const Findings& findings, const Choice& choice, const std::string& full) {
  std::string text;
  if (choice.smallest == nullptr) {
    const bool measured = std::any_of(
        findings.policies.begin(), findings.policies.end(), [](const PolicyFindings& policy) {
          return policy.kl.has_value() || policy.retrieval != Retrieval::unknown;
        });
    text = measured ? fmt::format("Keep {}: no policy that was tried keeps its answers.", full)
                    : "What quantizing costs wasn't measured yet: no policy can be named.";
  } else {
    const PolicyFindings& policy = *choice.smallest;
    text = fmt::format("Use {}: {:.0f} % of the bytes of 16 bits, {}.", policy.word,
                       100 * policy.share, cost_text(policy, full));
    text += gain_text(policy, findings);
    if (policy.speed_up > 0 && policy.speed_up < 1.1 && policy.sequences_ratio < 1.1) {
      text = fmt::format("Not worth it here: {}", text);
    }
  }
  if (choice.fastest != nullptr) {
    text += fmt::format(" {} decodes faster, {}, at {:.0f} % of the bytes ({}).",
                        choice.fastest->word, times_text(*choice.fastest),
                        100 * choice.fastest->share, cost_text(*choice.fastest, full));
  }
  if (!choice.destroyed.empty()) {
    text +=
        fmt::format(" Don't use {}: retrieval is destroyed.", fmt::join(choice.destroyed, ", "));
  }
  return text;
}

}  // namespace kvart::tools
