// What the questions under one policy add up to, and what may be judged of them.
#include <algorithm>
#include <set>
#include <utility>

#include "tools/eval/needle.h"

namespace kvart::tools {
namespace {

// The context and the number of a text.
using Text = std::pair<int64_t, int>;
Text text_of(const NeedleRecord& record) {
  return {record.context_tokens, record.text};
}

// Questions of each text, by policy.
std::map<Text, std::vector<int64_t>> texts_of(const NeedleResult& result) {
  std::map<Text, std::vector<int64_t>> texts;
  for (const NeedleRecord& record : result.records) {
    std::vector<int64_t>& counts = texts[text_of(record)];
    counts.resize(result.policies.size());
    counts[record.policy] += 1;
  }
  return texts;
}

}  // namespace

std::vector<const NeedleRecord*> records_of(const NeedleResult& result, size_t policy) {
  std::vector<const NeedleRecord*> own;
  for (const NeedleRecord& record : result.records) {
    if (record.policy == policy) own.push_back(&record);
  }
  return own;
}

std::map<int64_t, const NeedleRecord*> reference_of(const NeedleResult& result) {
  std::map<int64_t, const NeedleRecord*> reference;
  for (const NeedleRecord* record : records_of(result, 0)) reference[record->question] = record;
  return reference;
}

size_t text_count(const NeedleResult& result) {
  return texts_of(result).size();
}

NeedleResult judged_part(const NeedleResult& result) {
  std::set<Text> by_all;
  std::set<Text> by_some;
  for (const auto& [text, counts] : texts_of(result)) {
    const auto finished =
        static_cast<size_t>(std::count(counts.begin() + 1, counts.end(), counts.front()));
    if (finished + 1 == counts.size()) by_all.insert(text);
    if (finished > 0) by_some.insert(text);
  }
  const std::set<Text>& kept = by_all.empty() ? by_some : by_all;
  NeedleResult judged = result;
  std::erase_if(judged.records,
                [&](const NeedleRecord& record) { return kept.count(text_of(record)) == 0; });
  return judged;
}

NeedleSummary needle_summary(const NeedleResult& result, size_t policy) {
  const auto reference = reference_of(result);
  NeedleSummary s;
  for (const auto& [question, record] : reference) {
    s.reference_asked += record->asked.control ? 0 : 1;
  }
  for (const NeedleRecord* record : records_of(result, policy)) {
    if (record->asked.control) {
      s.controls += 1;
      s.control_score += record->score;
      continue;
    }
    const NeedleRecord& other = *reference.at(record->question);
    s.asked += 1;
    s.found += record->found() ? 1 : 0;
    s.reference_found += other.found() ? 1 : 0;
    s.kept += record->found() && other.found() ? 1 : 0;
    s.gained += record->found() && !other.found() ? 1 : 0;
    s.score += record->score;
    s.logprob += record->logprob;
    s.truncated += record->truncated ? 1 : 0;
    s.read_quantized += record->read_quantized ? 1 : 0;
  }
  if (s.controls > 0) s.control_score /= static_cast<double>(s.controls);
  if (s.asked == 0) return s;
  const auto asked = static_cast<double>(s.asked);
  s.score /= asked;
  s.logprob /= asked;
  const std::vector<double> changes = logprob_changes(result, policy);
  for (const double change : changes) s.logprob_change += change / asked;
  const std::vector<double> ones(changes.size(), 1.0);
  s.logprob_change_interval = bootstrap_ratio(changes, ones, result.asked.seed);
  s.p = mcnemar(s.lost(), s.gained);
  return s;
}

std::vector<double> logprob_changes(const NeedleResult& result, size_t policy) {
  const auto reference = reference_of(result);
  std::vector<double> changes;
  for (const NeedleRecord* record : records_of(result, policy)) {
    if (record->asked.control) continue;
    changes.push_back(record->logprob - reference.at(record->question)->logprob);
  }
  return changes;
}

Retrieval retrieval_of(const NeedleSummary& summary) {
  const bool partly = summary.asked < summary.reference_asked;
  if (partly || summary.reference_found < fewest_found) return Retrieval::unknown;
  const bool few_lost = 4 * summary.lost() <= summary.reference_found;
  if (few_lost && 20 * (summary.lost() - summary.gained) <= summary.reference_found) {
    return Retrieval::kept;
  }
  if (2 * summary.kept <= summary.reference_found) return Retrieval::destroyed;
  return Retrieval::damaged;
}

Retrieval retrieval_of(const NeedleResult& judged, size_t policy) {
  const NeedleSummary s = needle_summary(judged, policy);
  if (judged.policies[policy].quantizes && s.read_quantized == 0) return Retrieval::unknown;
  return retrieval_of(s);
}

}  // namespace kvart::tools
