// K against V, and layer against layer: tables, pictures, a verdict.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/eval/policy_report.h"
#include "tools/eval/sensitivity.h"
#include "tools/hash.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

Cell found_cell(const NeedleResult& needle, size_t policy) {
  const NeedleSummary s = needle_summary(needle, policy);
  return {fmt::format("{} of {}", s.kept, s.reference_found), s.kept};
}

// One row for each format and side.
Table side_table(const SensitivityResult& result) {
  Table table{"sides",
              "K alone, V alone and both quantized, the rest in full precision (measured)",
              {{"format", "format", false},
               {"side", "side", false},
               {"bytes_per_token", "B per\ntoken"},
               {"kl_mean", "KL\nmean"},
               {"kl_mean_interval", "95 %\ninterval"},
               {"kl_p99", "\n99 %"},
               {"same_top_percent", "same\ntop %"},
               {"kept", "facts kept of\nwhat f16 finds"},
               {"logprob_change", "change of\nlog p"}},
              {}};
  for (const FormatSensitivity& format : result.formats) {
    for (const auto& [side, policy] :
         {std::pair("K", format.k_only), {"V", format.v_only}, {"both", format.both}}) {
      const DivergenceSummary s = summary_of(result.divergence, policy);
      const double bytes = result.divergence.policies[policy].bytes.bytes_per_token;
      std::vector<Cell> row = {text_cell(format.format),
                               text_cell(side),
                               {with_commas(static_cast<uint64_t>(bytes)), bytes},
                               small_number(s.kl_mean),
                               interval_cell(s.kl_interval),
                               small_number(s.kl_p99),
                               number_cell(100 * s.same_top, 1)};
      if (result.needle && needle_summary(*result.needle, policy).asked > 0) {
        row.push_back(found_cell(*result.needle, policy));
        row.push_back(number_cell(needle_summary(*result.needle, policy).logprob_change, 3));
      } else {
        row.resize(table.columns.size(), missing_cell());
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Table ratio_table(const SensitivityResult& result) {
  Table table{"ratios",
              "Damage of K over damage of V, by mean KL",
              {{"format", "format", false},
               {"k_to_v", "K : V"},
               {"k_to_v_interval", "95 %\ninterval"},
               {"both_to_sum", "both :\nK plus V"}},
              {}};
  if (result.needle) {
    table.title += ", and by what the right answers lose in log p";
    add_value_columns(&table, "answers_k_to_v", "answers\nK : V");
  }
  for (const FormatSensitivity& format : result.formats) {
    const DamageRatio damage = damage_ratio(result, format);
    const double k = summary_of(result.divergence, format.k_only).kl_mean;
    const double v = summary_of(result.divergence, format.v_only).kl_mean;
    const double both = summary_of(result.divergence, format.both).kl_mean;
    std::vector<Cell> row = {text_cell(format.format), small_number(damage.ratio),
                             interval_cell(damage.interval),
                             k + v > 0 ? number_cell(both / (k + v), 2) : missing_cell()};
    if (const auto answers = answer_damage_ratio(result, format)) {
      add_value_cells(&row, small_number(answers->ratio), answers->interval);
    }
    row.resize(table.columns.size(), missing_cell());
    table.rows.push_back(std::move(row));
  }
  return table;
}

Bar bar_of(double value, const std::optional<Interval>& interval) {
  Bar bar;
  bar.value = value;
  if (interval) {
    bar.low = interval->low;
    bar.high = interval->high;
  }
  return bar;
}

BarChart side_chart(const SensitivityResult& result) {
  BarChart chart{.title = "Divergence with K alone, V alone and both quantized",
                 .x_label = "format",
                 .y_label = "mean KL divergence, nats",
                 .y_log = true,
                 .groups = {},
                 .names = {"K", "V", "both"},
                 .bars = {}};
  for (const FormatSensitivity& format : result.formats) {
    chart.groups.push_back(format.format);
    std::vector<Bar> bars;
    for (const size_t policy : {format.k_only, format.v_only, format.both}) {
      const DivergenceSummary s = summary_of(result.divergence, policy);
      bars.push_back(bar_of(s.kl_mean, s.kl_interval));
    }
    chart.bars.push_back(std::move(bars));
  }
  return chart;
}

std::string layers_key(const std::string& format) {
  return "layers_" + format;
}

Table layer_table(const SensitivityResult& result, const std::string& format, BarChart* chart) {
  Table table{layers_key(format),
              fmt::format("Mean KL with one layer's K or V in {}", format),
              {{"layer", "layer"}},
              {}};
  add_value_columns(&table, "kl_k", "K");
  add_value_columns(&table, "kl_v", "V");
  *chart = {.title = fmt::format("Divergence with one layer's K or V in {}", format),
            .x_label = "layer",
            .y_label = "mean KL divergence, nats",
            .y_log = true,
            .groups = {},
            .names = {"K", "V"},
            .bars = {}};
  for (const LayerSensitivity& row : result.layers) {
    if (row.format != format) continue;
    std::vector<Cell> cells = {integer_cell(static_cast<uint64_t>(row.layer))};
    add_value_cells(&cells, small_number(row.kl_k), row.k_interval);
    add_value_cells(&cells, small_number(row.kl_v), row.v_interval);
    table.rows.push_back(std::move(cells));
    chart->groups.push_back(std::to_string(row.layer));
    chart->bars.push_back({bar_of(row.kl_k, row.k_interval), bar_of(row.kl_v, row.v_interval)});
  }
  return table;
}

// "7, 0 and 3" by descending divergence of K.
std::string worst_layers(const SensitivityResult& result, const std::string& format) {
  constexpr size_t shown = 3;
  std::vector<LayerSensitivity> rows;
  for (const LayerSensitivity& row : result.layers) {
    if (row.format == format) rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.kl_k > b.kl_k; });
  std::string text;
  for (size_t i = 0; i < std::min(shown, rows.size()); ++i) {
    text += fmt::format("{}{} ({:.2g})", i == 0 ? "" : ", ", rows[i].layer, rows[i].kl_k);
  }
  return text;
}

std::string ratio_text(const DamageRatio& damage) {
  if (std::isnan(damage.ratio)) return "K against V is not known: neither alone changes anything";
  if (std::isinf(damage.ratio)) return "V alone changes nothing, K does";
  std::string text = fmt::format("K costs {:.3g} times what V costs", damage.ratio);
  if (damage.interval) {
    text += fmt::format(" ({:.3g} to {:.3g})", damage.interval->low, damage.interval->high);
  }
  return text;
}

void set_verdict(const SensitivityResult& result, Report& report) {
  std::string text;
  for (const FormatSensitivity& format : result.formats) {
    const DamageRatio damage = damage_ratio(result, format);
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", format.format, ratio_text(damage));
    nlohmann::ordered_json& facts = report.verdict_facts["k_to_v"][format.format];
    facts = std::isfinite(damage.ratio) ? nlohmann::ordered_json(damage.ratio) : nullptr;
  }
  if (!is_any_enough(result.divergence)) {
    set_too_little(result.divergence, &report);
    report.verdict = text + ". " + report.verdict;
    return;
  }
  const std::vector<DestroyedPolicy> destroyed = destroyed_policies(result.divergence);
  const size_t best = smallest_close_policy(result.divergence);
  const PolicyDivergence& chosen = result.divergence.policies[best];
  begin_verdict(chosen.policy.word, chosen.bytes, destroyed, &report);
  report.verdict =
      best == 0 ? fmt::format("{}. None of these stays within a mean divergence of {:g}. Use {}.",
                              text, close_kl, report.flag)
                : fmt::format(
                      "{}. Of these use {}: the fewest bytes with a mean divergence of at "
                      "most {:g}.",
                      text, report.flag, close_kl);
  report.verdict += destroyed_text(destroyed);
}

void set_inputs(const SensitivityResult& result, Report& report) {
  const DivergenceOptions& asked = result.divergence.asked;
  report.inputs["model"] = result.divergence.model;
  nlohmann::ordered_json options;
  options["formats"] = result.asked.formats;
  options["context_tokens"] = asked.context_tokens;
  options["text_tokens"] = asked.text_tokens;
  options["layers"] = result.asked.layers;
  options["layer_tokens"] = result.asked.layer_tokens;
  options["seed"] = result.asked.seed;
  if (result.needle) {
    options["contexts"] = result.needle->asked.contexts;
    options["depths_percent"] = result.needle->asked.depths_percent;
    options["texts"] = result.needle->asked.texts;
  }
  report.hashes["model"] = result.divergence.model["fingerprint"];
  Hash prompts;
  prompts.add(hash_text(result.divergence.tokens_hash));
  if (result.needle) prompts.add(hash_text(result.needle->prompts_hash));
  report.hashes["prompts"] = hash_text(prompts.value());
  report.hashes["options"] = hash_of(options);
  for (const auto& [key, value] : options.items()) report.inputs[key] = value;
  report.inputs["text"] = asked.text.name;
  report.inputs["tokens_scored"] = result.divergence.positions.size();
}

}  // namespace

Report sensitivity_report(const SensitivityResult& result) {
  Report report;
  report.command = "eval-sensitivity";
  report.incomplete = result.incomplete;
  set_inputs(result, report);
  if (!says_anything(result.divergence)) {
    report.verdict = "Nothing was measured: it ended before a token read a quantized block.";
    return report;
  }
  report.facts = {fmt::format("{}, text: {}, {} tokens scored in windows of {}",
                              result.divergence.model["name"].get<std::string>(),
                              result.divergence.asked.text.name,
                              tokens_text(static_cast<int64_t>(result.divergence.positions.size())),
                              tokens_text(result.divergence.asked.context_tokens))};
  report.tables = {side_table(result), ratio_table(result)};
  report.figures = {{side_chart(result), "sides"}};
  for (const std::string& format : result.asked.formats) {
    const bool measured =
        std::any_of(result.layers.begin(), result.layers.end(),
                    [&](const LayerSensitivity& row) { return row.format == format; });
    if (!measured) continue;
    BarChart chart;
    report.tables.push_back(layer_table(result, format, &chart));
    report.figures.push_back({std::move(chart), layers_key(format)});
    report.notes.push_back(
        fmt::format("{}: the layers whose K costs most: {}", format, worst_layers(result, format)));
  }
  report.notes.push_back(
      "Each policy keeps the first block and the open one in full precision, so that only the "
      "side and its format differ.");
  add_floor_note(&report);
  if (!result.no_retrieval.empty()) {
    report.notes.push_back("No facts were asked for: " + result.no_retrieval);
  }
  add_incomplete_note(&report);
  set_verdict(result, report);
  return report;
}

}  // namespace kvart::tools
