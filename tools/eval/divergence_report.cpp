// What the divergence of policies adds up to: tables, a picture, a verdict.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/eval/divergence.h"
#include "tools/eval/policy_report.h"
#include "tools/hash.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

std::vector<float> ascending(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values;
}

Table summary_table(const DivergenceResult& result) {
  Table table{
      "divergence", "Divergence from full precision, every scored token (measured)", {}, {}};
  table.columns = policy_columns();
  for (const Column& column : {Column{"kl_mean", "KL\nmean"},
                               {"kl_mean_interval", "95 %\ninterval"},
                               {"kl_median", "\nmedian"},
                               {"kl_p90", "\n90 %"},
                               {"kl_p99", "\n99 %"},
                               {"kl_p999", "\n99.9 %"},
                               {"kl_max", "\nmax"},
                               {"same_top_percent", "same\ntop %"},
                               {"same_top_percent_interval", "95 %\ninterval"},
                               {"delta_p_rms_percent", "RMS\ndelta p %"},
                               {"perplexity", "perplexity"},
                               {"quantized_reads", "quantized\nreads"}}) {
    table.columns.push_back(column);
  }
  for (size_t i = 0; i < result.policies.size(); ++i) {
    const PolicyDivergence& policy = result.policies[i];
    std::vector<Cell> row = policy_cells(policy.policy.word, policy.bytes);
    if (i == 0) {
      row.resize(table.columns.size() - 2, missing_cell());
    } else {
      const DivergenceSummary s = summary_of(result, i);
      append_cells(
          &row,
          {small_number(s.kl_mean), interval_cell(s.kl_interval), small_number(s.kl_median),
           small_number(s.kl_p90), small_number(s.kl_p99), small_number(s.kl_p999),
           small_number(s.kl_max), number_cell(100 * s.same_top, 1),
           percent_interval_cell(s.same_top_interval, 1), number_cell(100 * s.delta_p_rms, 2)});
    }
    row.push_back(number_cell(perplexity_of(policy), 3));
    row.push_back(integer_cell(static_cast<uint64_t>(policy.quantized_reads)));
    table.rows.push_back(std::move(row));
  }
  return table;
}

struct Bin {
  int64_t first = 0, last = 0;  // positions [first, last)
};

// The first block, then twice as many positions each time.
std::vector<Bin> bins_of(const DivergenceResult& result) {
  int32_t most = 0;
  for (const int32_t position : result.positions) most = std::max(most, position);
  std::vector<Bin> bins = {{0, block_tokens}};
  while (bins.back().last <= most) bins.push_back({bins.back().last, 2 * bins.back().last});
  return bins;
}

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

Table position_table(const DivergenceResult& result, LineChart* chart) {
  Table table{
      "positions",
      "Mean KL by position in the window",
      {{"position_first", "from\nposition"}, {"position_last", "to"}, {"tokens", "tokens\nscored"}},
      {}};
  *chart = {.title = "Divergence from full precision against position",
            .x_label = "position in the window, tokens",
            .y_label = "mean KL divergence, nats",
            .x_log = true,
            .y_log = true,
            .y_from_zero = false,
            .lines = {}};
  std::vector<std::string> words;
  for (size_t i = 1; i < result.policies.size(); ++i) {
    words.push_back(result.policies[i].policy.word);
  }
  add_policy_series(words, "kl_mean", &table, chart);
  for (const Bin& bin : bins_of(result)) {
    const auto scored = std::count_if(
        result.positions.begin(), result.positions.end(),
        [&](int32_t position) { return position >= bin.first && position < bin.last; });
    std::vector<Cell> row = {integer_cell(static_cast<uint64_t>(bin.first)),
                             integer_cell(static_cast<uint64_t>(bin.last - 1)),
                             integer_cell(static_cast<uint64_t>(scored))};
    for (size_t i = 1; i < result.policies.size(); ++i) {
      const BlockSums sums = block_sums(result, i, bin.first, bin.last);
      const double tokens = total(sums.tokens);
      const double mean = tokens > 0 ? total(sums.kl) / tokens : 0;
      const auto interval = bootstrap_ratio(sums.kl, sums.tokens, result.asked.seed);
      add_value_cells(&row, small_number(mean), interval);
      if (mean <= 0) continue;  // nothing to draw on a logarithmic axis
      const double middle = std::sqrt(static_cast<double>(std::max<int64_t>(1, bin.first)) *
                                      static_cast<double>(bin.last));
      chart->lines[i - 1].points.push_back(point_of(middle, mean, interval));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

void set_verdict(const DivergenceResult& result, Report& report) {
  const bool compares = std::any_of(result.policies.begin(), result.policies.end(),
                                    [](const PolicyDivergence& one) { return one.quantizes; });
  if (!compares) {
    set_nothing_compared(&report);
    return;
  }
  if (!is_any_enough(result)) {
    set_too_little(result, &report);
    return;
  }
  const std::vector<DestroyedPolicy> destroyed = destroyed_policies(result);
  const size_t best = smallest_close_policy(result);
  const PolicyDivergence& chosen = result.policies[best];
  begin_verdict(chosen.policy.word, chosen.bytes, destroyed, &report);
  report.verdict_facts["kl_limit"] = close_kl;
  report.verdict_facts["kl_destroyed"] = destroyed_kl;
  if (best == 0) {
    report.verdict = fmt::format("No policy stays within a mean divergence of {:g} here. Use {}.",
                                 close_kl, report.flag);
  } else {
    const double kl = summary_of(result, best).kl_mean;
    report.verdict_facts["kl_mean"] = kl;
    report.verdict = fmt::format(
        "Use {}: the fewest bytes ({} of 16 bits) with a mean divergence of at most {:g}: {:.2g}.",
        report.flag, percent_text(chosen.bytes.share(), 0), close_kl, kl);
  }
  report.verdict += destroyed_text(destroyed);
}

void set_inputs(const DivergenceResult& result, Report& report) {
  const DivergenceOptions& asked = result.asked;
  report.inputs["model"] = result.model;
  report.inputs["text"] = asked.text.name;
  report.inputs["text_tokens_at_most"] = asked.text_tokens;
  report.inputs["context_tokens"] = asked.context_tokens;
  report.inputs["windows"] = result.windows;
  report.inputs["tokens_scored"] = result.positions.size();
  report.inputs["tokens_per_step"] = asked.chunk_tokens;
  report.inputs["seed"] = asked.seed;
  report.hashes["model"] = result.model["fingerprint"];
  report.hashes["prompts"] = hash_text(result.tokens_hash);
  report.hashes["options"] =
      hash_of({{"context_tokens", asked.context_tokens}, {"text_tokens", asked.text_tokens}});
}

// What the policies did: without it no figure can be compared with another one.
std::vector<std::string> policy_notes(const DivergenceResult& result) {
  std::vector<std::string> notes;
  for (const PolicyDivergence& policy : result.policies) {
    if (!policy.quantizes) continue;
    notes.push_back(fmt::format("{}: {}", policy.policy.word, policy_text(policy.policy.policy)));
    if (policy.quantized_reads == 0) {
      notes.push_back(policy.policy.word + ": nothing was read quantized, so this says nothing");
    } else if (!is_enough(result, static_cast<size_t>(&policy - result.policies.data()))) {
      notes.push_back(fmt::format(
          "{}: only {} read something quantized: too few for a verdict", policy.policy.word,
          counted(static_cast<uint64_t>(policy.quantized_tokens), "token")));
    }
  }
  return notes;
}

}  // namespace

BlockSums block_sums(const DivergenceResult& result, size_t policy, int64_t first, int64_t last) {
  BlockSums sums;
  const std::vector<float>& kl = result.policies[policy].kl;
  int64_t block = -1;
  for (size_t i = 0; i < kl.size(); ++i) {
    const int32_t position = result.positions[i];
    if (position < first || position >= last) {
      block = -1;
      continue;
    }
    // The same number at the end of one window and the beginning of the next: other tokens between.
    const int64_t own = position / block_tokens;
    if (own != block || (i > 0 && position < result.positions[i - 1])) {
      sums.kl.push_back(0);
      sums.tokens.push_back(0);
    }
    block = own;
    sums.kl.back() += static_cast<double>(kl[i]);
    sums.tokens.back() += 1;
  }
  return sums;
}

double perplexity_of(const PolicyDivergence& policy) {
  double sum = 0;
  for (const float logprob : policy.logprobs) sum += static_cast<double>(logprob);
  return std::exp(-sum / static_cast<double>(policy.logprobs.size()));
}

DivergenceSummary summary_of(const DivergenceResult& result, size_t policy) {
  const PolicyDivergence& own = result.policies[policy];
  DivergenceSummary summary;
  const BlockSums sums = block_sums(result, policy, 0, INT32_MAX);
  const double tokens = total(sums.tokens);
  summary.kl_mean = total(sums.kl) / tokens;
  summary.kl_interval = bootstrap_ratio(sums.kl, sums.tokens, result.asked.seed);
  const std::vector<float> kl = ascending(own.kl);
  summary.kl_median = quantile(kl, 0.5);
  summary.kl_p90 = quantile(kl, 0.9);
  summary.kl_p99 = quantile(kl, 0.99);
  summary.kl_p999 = quantile(kl, 0.999);
  summary.kl_max = static_cast<double>(kl.back());
  const auto same =
      static_cast<int64_t>(std::count(own.same_top.begin(), own.same_top.end(), uint8_t{1}));
  summary.same_top = static_cast<double>(same) / tokens;
  summary.same_top_interval = wilson(same, static_cast<int64_t>(own.same_top.size()));
  double squares = 0;
  for (const float delta : own.delta_p) {
    squares += static_cast<double>(delta) * static_cast<double>(delta);
  }
  summary.delta_p_rms = std::sqrt(squares / tokens);
  summary.perplexity = perplexity_of(own);
  return summary;
}

bool says_anything(const DivergenceResult& result) {
  bool quantizes = false;
  for (const PolicyDivergence& policy : result.policies) {
    if (policy.quantized_tokens > 0) return true;
    quantizes |= policy.quantizes;
  }
  return !quantizes && !result.positions.empty();
}

bool is_enough(const DivergenceResult& result, size_t policy) {
  const int64_t least = result.incomplete ? least_quantized_tokens : 1;
  return result.policies[policy].quantizes && result.policies[policy].quantized_tokens >= least;
}

bool is_any_enough(const DivergenceResult& result) {
  for (size_t i = 1; i < result.policies.size(); ++i) {
    if (is_enough(result, i)) return true;
  }
  return false;
}

std::vector<DestroyedPolicy> destroyed_policies(const DivergenceResult& result) {
  std::vector<DestroyedPolicy> destroyed;
  for (size_t i = 1; i < result.policies.size(); ++i) {
    if (!is_enough(result, i)) continue;
    const double kl = summary_of(result, i).kl_mean;
    if (kl < destroyed_kl) continue;
    destroyed.push_back({result.policies[i].policy.word, fmt::format("{:.2g}", kl)});
  }
  return destroyed;
}

std::string destroyed_text(const std::vector<DestroyedPolicy>& destroyed) {
  return destroyed_text(destroyed, fmt::format(" (mean divergence of {:g} or more)", destroyed_kl));
}

void set_too_little(const DivergenceResult& result, Report* report) {
  int64_t most = 0;
  for (const PolicyDivergence& policy : result.policies) {
    most = std::max(most, policy.quantized_tokens);
  }
  report->verdict_facts["policy"] = nullptr;
  report->verdict = fmt::format(
      "No verdict: it was ended when {} had read something quantized, and fewer than {} say too "
      "little; give it more time.",
      counted(static_cast<uint64_t>(most), "token"), least_quantized_tokens);
}

size_t smallest_close_policy(const DivergenceResult& result) {
  size_t best = 0;
  double best_kl = 0;
  for (size_t i = 1; i < result.policies.size(); ++i) {
    if (!is_enough(result, i)) continue;
    const double kl = summary_of(result, i).kl_mean;
    if (kl > close_kl) continue;
    const double bytes = result.policies[i].bytes.bytes_per_token;
    const double least = result.policies[best].bytes.bytes_per_token;
    if (best != 0 && (bytes > least || (bytes == least && kl >= best_kl))) continue;
    best = i;
    best_kl = kl;
  }
  return best;
}

Report divergence_report(const DivergenceResult& result) {
  Report report;
  report.command = "eval-divergence";
  report.incomplete = result.incomplete;
  set_inputs(result, report);
  const DivergenceOptions& asked = result.asked;
  report.facts = {
      fmt::format("{}, text: {}", result.model["name"].get<std::string>(), asked.text.name),
      fmt::format("{} in {} of {} tokens, {} scored; {}", "the text",
                  counted(static_cast<uint64_t>(result.windows), "window"),
                  tokens_text(asked.context_tokens),
                  tokens_text(static_cast<int64_t>(result.positions.size())),
                  asked.chunk_tokens == 1
                      ? std::string("token by token, as in decode")
                      : fmt::format("prefill in steps of {}, the same bits as token by token",
                                    asked.chunk_tokens))};
  if (!says_anything(result)) {
    report.verdict = "Nothing was measured: it ended before a token read a quantized block.";
    return report;
  }
  LineChart chart;
  report.tables = {summary_table(result), position_table(result, &chart)};
  report.figures = {{std::move(chart), "positions"}};
  report.notes = policy_notes(result);
  report.notes.push_back(
      "KL: sum of p log(p/q) over the vocabulary, in nats; p full precision's, q the policy's. "
      "Neighbouring tokens are alike: the interval of the mean draws blocks of 64 positions.");
  add_floor_note(&report);
  add_incomplete_note(&report);
  set_verdict(result, report);
  return report;
}

}  // namespace kvart::tools
