// What the questions add up to: tables, heat maps, a verdict.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tools/eval/needle.h"
#include "tools/eval/policy_report.h"
#include "tools/hash.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

constexpr double truncated_limit = 0.01;

Cell share_cell(int64_t of, int64_t count) {
  return {fmt::format("{} of {}", count, of), count};
}

Cell found_interval(int64_t found, int64_t of) {
  return of == 0 ? missing_cell() : percent_interval_cell(wilson(found, of), 0);
}

std::string_view retrieval_name(Retrieval retrieval) {
  switch (retrieval) {
    case Retrieval::kept:
      return "kept";
    case Retrieval::damaged:
      return "damaged";
    case Retrieval::destroyed:
      return "destroyed";
    case Retrieval::unknown:
      break;
  }
  return "unknown";
}

// What a policy has beside the reference; the reference has none of it.
std::vector<Cell> against_reference(const NeedleSummary& s, bool is_reference) {
  if (is_reference) return std::vector<Cell>(4, missing_cell());
  return {share_cell(s.reference_found, s.kept), integer_cell(static_cast<uint64_t>(s.lost())),
          integer_cell(static_cast<uint64_t>(s.gained)), number_cell(s.p, 4)};
}

std::vector<Cell> summary_row(const NeedlePolicy& policy, const NeedleSummary& s,
                              Retrieval retrieval, bool is_reference) {
  std::vector<Cell> row = policy_cells(policy.policy.word, policy.bytes);
  append_cells(&row,
               {integer_cell(static_cast<uint64_t>(s.found)),
                integer_cell(static_cast<uint64_t>(s.asked)), found_interval(s.found, s.asked)});
  append_cells(&row, against_reference(s, is_reference));
  append_cells(&row, {number_cell(s.score, 3), number_cell(s.logprob, 3)});
  row.push_back(is_reference ? missing_cell() : number_cell(s.logprob_change, 3));
  row.push_back(is_reference ? missing_cell() : interval_cell(s.logprob_change_interval, 3));
  row.push_back(s.controls == 0 ? missing_cell() : number_cell(s.control_score, 2));
  append_cells(&row,
               {integer_cell(static_cast<uint64_t>(s.truncated)),
                integer_cell(static_cast<uint64_t>(s.read_quantized)),
                text_cell(is_reference ? "reference" : std::string(retrieval_name(retrieval)))});
  return row;
}

Table summary_table(const NeedleResult& result, const NeedleResult& judged) {
  Table table{"needle", "Facts found, and the right answers' probability (measured)", {}, {}};
  table.columns = policy_columns();
  for (const Column& column : {Column{"found", "found"},
                               {"asked", "of"},
                               {"found_percent_interval", "95 %\ninterval"},
                               {"kept", "kept of what\nf16 finds"},
                               {"lost", "lost"},
                               {"gained", "gained"},
                               {"mcnemar_p", "McNemar\np"},
                               {"score_mean", "mean\nscore"},
                               {"logprob_mean", "log p of\nthe answer"},
                               {"logprob_change", "change"},
                               {"logprob_change_interval", "95 %\ninterval"},
                               {"control_score", "control\nscore"},
                               {"truncated", "cut\nreplies"},
                               {"read_quantized", "facts read\nquantized"},
                               {"retrieval", "retrieval", false}}) {
    table.columns.push_back(column);
  }
  for (size_t i = 0; i < result.policies.size(); ++i) {
    const NeedleSummary s = needle_summary(result, i);
    if (s.asked == 0) continue;
    const Retrieval retrieval = retrieval_of(judged, i);
    table.rows.push_back(summary_row(result.policies[i], s, retrieval, i == 0));
  }
  return table;
}

// Mean score and probability of one policy in one place of the grid.
struct GridCell {
  int64_t questions = 0;
  int64_t found = 0;
  double score = 0;
  double logprob = 0;
  int64_t reference_found = 0;

  void add(const NeedleRecord& record, const NeedleRecord& reference) {
    questions += 1;
    found += record.found() ? 1 : 0;
    score += record.score;
    logprob += record.logprob;
    reference_found += reference.found() ? 1 : 0;
  }
  [[nodiscard]] double mean_score() const { return score / static_cast<double>(questions); }
};

// [policy][context, depth]
using Place = std::pair<int64_t, double>;
std::vector<std::map<Place, GridCell>> grid_of(const NeedleResult& result) {
  const auto reference = reference_of(result);
  std::vector<std::map<Place, GridCell>> grid(result.policies.size());
  for (const NeedleRecord& record : result.records) {
    if (record.asked.control) continue;
    const Place place{record.context_tokens, record.asked.depth_percent};
    grid[record.policy][place].add(record, *reference.at(record.question));
  }
  return grid;
}

std::vector<double> depths_of(const NeedleResult& result) {
  std::vector<double> depths;
  for (const NeedleRecord& record : result.records) {
    if (!record.asked.control) depths.push_back(record.asked.depth_percent);
  }
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return depths;
}

std::string depth_text(double depth) {
  return fmt::format("{:.4g}", depth);
}

// The number in a cell; in brackets where full precision fails as well.
HeatCell heat_cell(const std::map<Place, GridCell>& grid, const Place& place) {
  const auto found = grid.find(place);
  if (found == grid.end()) return {};
  const double score = found->second.mean_score();
  const bool aside = found->second.reference_found == 0;
  const std::string text = fmt::format("{:.2g}", score);
  return {score, aside ? "(" + text + ")" : text, aside};
}

Table grid_table(const NeedleResult& result, const std::vector<std::map<Place, GridCell>>& grid) {
  Table table{"grid",
              "Mean score by context and depth; in brackets where f16 finds nothing either",
              {{"context_length", "context"}, {"depth_percent", "depth %"}},
              {}};
  for (const NeedlePolicy& policy : result.policies) {
    table.columns.push_back({"score_" + policy.policy.word, policy.policy.word});
  }
  for (const int64_t context : result.asked.contexts) {
    for (const double depth : depths_of(result)) {
      std::vector<Cell> row = {integer_cell(static_cast<uint64_t>(context)),
                               {depth_text(depth), depth}};
      for (const auto& own : grid) {
        const HeatCell cell = heat_cell(own, {context, depth});
        row.push_back(cell.value ? Cell{cell.text, *cell.value} : missing_cell());
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

HeatMap heat_map(const NeedleResult& result, const NeedlePolicy& policy,
                 const std::map<Place, GridCell>& grid) {
  HeatMap map{.title = fmt::format("Facts found with {}", policy.policy.word),
              .x_label = "Token Limit",
              .y_label = "Depth Percent",
              .columns = {},
              .rows = {},
              .cells = {}};
  for (const int64_t context : result.asked.contexts) map.columns.push_back(tokens_text(context));
  for (const double depth : depths_of(result)) {
    map.rows.push_back(depth_text(depth));
    std::vector<HeatCell> row;
    for (const int64_t context : result.asked.contexts) {
      row.push_back(heat_cell(grid, {context, depth}));
    }
    map.cells.push_back(std::move(row));
  }
  return map;
}

// Of what full precision finds at one depth, in all contexts.
struct DepthShare {
  int64_t of = 0;
  int64_t kept = 0;
};
DepthShare depth_share(const NeedleResult& result, size_t policy, double depth) {
  const auto reference = reference_of(result);
  DepthShare share;
  for (const NeedleRecord* record : records_of(result, policy)) {
    const bool counts = !record->asked.control && record->asked.depth_percent == depth &&
                        reference.at(record->question)->found();
    share.of += counts ? 1 : 0;
    share.kept += counts && record->found() ? 1 : 0;
  }
  return share;
}

// By depth, all contexts together, where full precision finds the fact.
Table depth_table(const NeedleResult& result, LineChart* chart) {
  Table table{"depths",
              "Share of the facts found by depth, all contexts, of those that f16 finds",
              {{"depth_percent", "depth %"}, {"f16_found", "f16\nfinds"}},
              {}};
  *chart = {.title = "Facts found against depth",
            .x_label = "depth in the text, percent",
            .y_label = "share of what f16 finds",
            .lines = {}};
  std::vector<std::string> words;
  for (size_t i = 1; i < result.policies.size(); ++i) {
    words.push_back(result.policies[i].policy.word);
  }
  add_policy_series(words, "kept", &table, chart);
  for (const double depth : depths_of(result)) {
    const int64_t found = depth_share(result, 0, depth).of;
    std::vector<Cell> row = {{depth_text(depth), depth},
                             integer_cell(static_cast<uint64_t>(found))};
    for (size_t i = 1; i < result.policies.size(); ++i) {
      const auto [of, kept] = depth_share(result, i, depth);
      if (of == 0) {
        add_value_cells(&row, missing_cell(), {});
        continue;
      }
      const double share = static_cast<double>(kept) / static_cast<double>(of);
      const Interval interval = wilson(kept, of);
      row.push_back(number_cell(share, 2));
      row.push_back(interval_cell(interval, 2));
      chart->lines[i - 1].points.push_back(point_of(depth, share, interval));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

// One for each question and policy, under the names that other needle tools write.
Table cell_records(const NeedleResult& result) {
  Table table{"cells", "", {}, {}};
  for (const char* key : {"model",
                          "context_length",
                          "depth_percent",
                          "version",
                          "needle",
                          "model_response",
                          "score",
                          "test_duration_seconds",
                          "test_timestamp_utc",
                          "policy",
                          "question_number",
                          "text_number",
                          "question",
                          "expected",
                          "control",
                          "set_aside",
                          "answer_logprob",
                          "truncated",
                          "read_quantized",
                          "true_depth_percent",
                          "prompt_tokens",
                          "cached_tokens"}) {
    table.columns.push_back({key, key});
  }
  const auto reference = reference_of(result);
  const auto value = [](nlohmann::ordered_json json) { return Cell{"", std::move(json)}; };
  for (const NeedleRecord& record : result.records) {
    const Question& asked = record.asked;
    table.rows.push_back({value(result.model["name"]),
                          value(record.context_tokens),
                          value(asked.depth_percent),
                          value(1),
                          value(asked.needle),
                          value(record.reply),
                          value(record.score),
                          value(record.duration_s),
                          value(record.timestamp_utc),
                          value(result.policies[record.policy].policy.word),
                          value(record.question),
                          value(record.text),
                          value(asked.text + " " + asked.lead),
                          value(asked.expected),
                          value(asked.control),
                          value(!asked.control && !reference.at(record.question)->found()),
                          value(record.logprob),
                          value(record.truncated),
                          value(record.read_quantized),
                          value(record.true_depth_percent),
                          value(record.prompt_tokens),
                          value(record.cached_tokens)});
  }
  return table;
}

// The smallest policy that quantizes, was asked every question and lost nothing to speak of; 0:
// none.
size_t smallest_that_keeps(const NeedleResult& result) {
  size_t best = 0;
  for (size_t i = 1; i < result.policies.size(); ++i) {
    const NeedleSummary s = needle_summary(result, i);
    if (!result.policies[i].quantizes || retrieval_of(result, i) != Retrieval::kept) continue;
    const double bytes = result.policies[i].bytes.bytes_per_token;
    const double least = result.policies[best].bytes.bytes_per_token;
    const bool better = best == 0 || bytes < least ||
                        (bytes == least && s.logprob > needle_summary(result, best).logprob);
    if (better) best = i;
  }
  return best;
}

// Why a policy that quantizes can't be judged; empty: each can.
std::string why_unjudged(const NeedleResult& result) {
  std::string why;
  for (size_t i = 1; i < result.policies.size(); ++i) {
    const NeedleSummary s = needle_summary(result, i);
    if (s.asked < s.reference_asked) return "it was ended before enough was asked of every policy";
    if (result.policies[i].quantizes && s.read_quantized == 0) {
      why = "no fact was read quantized; ask for facts at other --depths, or in longer --contexts";
    }
  }
  return why;
}

std::vector<DestroyedPolicy> destroyed_policies(const NeedleResult& result) {
  std::vector<DestroyedPolicy> destroyed;
  for (size_t i = 1; i < result.policies.size(); ++i) {
    if (retrieval_of(result, i) != Retrieval::destroyed) continue;
    const NeedleSummary s = needle_summary(result, i);
    destroyed.push_back(
        {result.policies[i].policy.word, fmt::format("{} of {}", s.kept, s.reference_found)});
  }
  return destroyed;
}

// result: what may be judged.
void set_verdict(const NeedleResult& result, Report& report) {
  const NeedleSummary reference = needle_summary(result, 0);
  report.verdict_facts["f16_found"] = reference.found;
  report.verdict_facts["asked"] = reference.asked;
  const bool compares = std::any_of(result.policies.begin(), result.policies.end(),
                                    [](const NeedlePolicy& one) { return one.quantizes; });
  if (!compares) {
    set_nothing_compared(&report);
    return;
  }
  report.verdict_facts["policy"] = nullptr;
  const std::vector<DestroyedPolicy> destroyed = destroyed_policies(result);
  const size_t best = smallest_that_keeps(result);
  const std::string why = reference.asked == 0
                              ? "it was ended before enough was asked of any policy"
                              : why_unjudged(result);
  if (reference.asked == 0 || (best == 0 && !why.empty())) {
    set_destroyed(destroyed, &report);
    report.verdict = fmt::format("No verdict: {}.{}", why, destroyed_text(destroyed, ""));
    return;
  }
  if (reference.found < fewest_found) {
    report.verdict = fmt::format(
        "f16 itself finds only {} of {}: this says nothing of the policies but by the change of "
        "log p. Take a shorter context, fewer keys, or a larger model.",
        reference.found, reference.asked);
    return;
  }
  const NeedlePolicy& chosen = result.policies[best];
  begin_verdict(chosen.policy.word, chosen.bytes, destroyed, &report);
  if (best == 0) {
    report.verdict = fmt::format("No policy keeps what f16 finds ({} of {}). Use {}.",
                                 reference.found, reference.asked, report.flag);
  } else {
    const NeedleSummary s = needle_summary(result, best);
    report.verdict_facts["kept"] = s.kept;
    report.verdict =
        fmt::format("Use {}: the fewest bytes ({} of 16 bits) that keep what f16 finds: {} of {}.",
                    report.flag, percent_text(chosen.bytes.share(), 0), s.kept, s.reference_found);
  }
  report.verdict += destroyed_text(destroyed, "");
}

std::vector<std::string> notes_of(const NeedleResult& result) {
  std::vector<std::string> notes;
  for (size_t i = 0; i < result.policies.size(); ++i) {
    const NeedlePolicy& policy = result.policies[i];
    const NeedleSummary s = needle_summary(result, i);
    const std::string& word = policy.policy.word;
    if (static_cast<double>(s.truncated) > truncated_limit * static_cast<double>(s.asked)) {
      notes.push_back(fmt::format(
          "{}: {} of {} replies were cut at {} tokens before they were complete; where f16's are, "
          "the score is too low: raise --reply-tokens",
          word, s.truncated, s.asked, result.asked.reply_tokens));
    }
    if (policy.quantizes && s.asked > 0 && s.read_quantized < s.asked) {
      notes.push_back(fmt::format("{}: {} of {} facts lie in blocks of full precision", word,
                                  s.asked - s.read_quantized, s.asked));
    }
    if (s.control_score > 0) {
      notes.push_back(
          fmt::format("{}: a question about what isn't in the text was answered "
                      "\"right\": the score is worth nothing",
                      word));
    }
    if (i > 0 && s.asked < needle_summary(result, 0).asked) {
      notes.push_back(fmt::format("{}: asked {} questions only", word, s.asked));
    }
  }
  notes.push_back(
      "A control asks for what isn't in the text. log p: mean over the right answer's tokens, in "
      "nats. What f16 doesn't find isn't held against a policy.");
  return notes;
}

void set_inputs(const NeedleResult& result, Report& report) {
  const NeedleOptions& asked = result.asked;
  report.inputs["model"] = result.model;
  nlohmann::ordered_json options;
  options["task"] = task_name(asked.task);
  options["contexts"] = asked.contexts;
  options["depths_percent"] = asked.depths_percent;
  options["texts"] = asked.texts;
  options["chat_template"] = !asked.raw;
  options["reply_tokens"] = asked.reply_tokens;
  options["seed"] = asked.seed;
  report.hashes["model"] = result.model["fingerprint"];
  report.hashes["prompts"] = hash_text(result.prompts_hash);
  report.hashes["options"] = hash_of(options);
  for (const auto& [key, value] : options.items()) report.inputs[key] = value;
  report.inputs["haystack"] = asked.haystack.empty() ? "generated" : asked.haystack_name;
}

}  // namespace

Report needle_report(const NeedleResult& result) {
  Report report;
  report.command = "eval-needle";
  report.incomplete = result.incomplete;
  set_inputs(result, report);
  const NeedleOptions& asked = result.asked;
  report.facts = {fmt::format(
      "{}, {}: {} in each of {} of {} to {} tokens, {}; greedy answers of at most {} tokens",
      result.model["name"].get<std::string>(), task_name(asked.task),
      counted(asked.depths_percent.size(), "depth"),
      counted(asked.contexts.size() * static_cast<size_t>(asked.texts), "text"),
      tokens_text(asked.contexts.front()), tokens_text(asked.contexts.back()),
      asked.raw ? "without a chat template" : "in the model's chat template", asked.reply_tokens)};
  if (needle_summary(result, 0).asked == 0) {
    report.verdict = "Nothing was measured: it ended before the first question was answered.";
    return report;
  }
  const auto grid = grid_of(result);
  const NeedleResult judged = judged_part(result);
  LineChart chart;
  report.tables = {summary_table(result, judged), grid_table(result, grid),
                   depth_table(result, &chart)};
  for (size_t i = 0; i < result.policies.size(); ++i) {
    if (grid[i].empty()) continue;
    report.figures.push_back({heat_map(result, result.policies[i], grid[i]), "grid"});
  }
  report.figures.push_back({std::move(chart), "depths"});
  report.records = {cell_records(result)};
  report.notes = notes_of(result);
  if (judged.records.size() < result.records.size()) {
    report.notes.push_back(
        fmt::format("Retrieval and the verdict are about {} of {} texts: those that every policy "
                    "was asked all questions of, or, where there is none, one policy at least.",
                    text_count(judged), text_count(result)));
  }
  add_incomplete_note(&report);
  set_verdict(judged, report);
  return report;
}

}  // namespace kvart::tools
