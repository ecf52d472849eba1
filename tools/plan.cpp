// `kvart plan MODEL`: sequences that fit, time of a decode step, crossover and nodes, per policy.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "commands.h"
#include "plan_inputs.h"
#include "policies.h"
#include "report.h"

namespace kvart::tools {
namespace {

struct Row {
  std::string word;
  int64_t context = 0;
  Capacity naive;
  Capacity exact;
  double naive_gain = 0;  // over full precision at the same context; 0: that doesn't fit
  double exact_gain = 0;
};

Result<std::vector<Row>> compute_rows(const PlanInputs& inputs) {
  std::vector<Row> rows;
  for (const int64_t context : inputs.contexts) {
    const size_t full = rows.size();  // the first policy of each context
    for (const NamedPolicy& named : inputs.policies) {
      CapacityInput one;
      one.shape = inputs.model.shape;
      one.policy = named.policy;
      one.context_tokens = context;
      one.batch = inputs.batch;
      one.weight_bytes = static_cast<double>(inputs.weight_bytes);
      one.budget_bytes = inputs.budget_bytes;
      one.bandwidth_bytes_s = inputs.bandwidth_bytes_s;
      const auto exact = plan_capacity(one);
      if (!exact.ok()) {
        return Error{exact.error().code, fmt::format("{}: {}", named.word, exact.error().message)};
      }
      one.figures = Figures::naive;
      const auto naive = plan_capacity(one);
      if (!naive.ok()) return naive.error();
      rows.push_back({named.word, context, *naive, *exact});
      rows.back().naive_gain = speed_up(*naive, rows[full].naive);
      rows.back().exact_gain = speed_up(*exact, rows[full].exact);
    }
  }
  return rows;
}

Cell count_cell(int64_t count) {
  return count > 0 ? integer_cell(static_cast<uint64_t>(count)) : missing_cell();
}

Cell positive_cell(double value, int decimals) {
  return value > 0 ? number_cell(value, decimals) : missing_cell();
}

std::vector<Cell> table_row(const PlanInputs& inputs, const Row& row, Figures figures) {
  const bool exact = figures == Figures::exact;
  const Capacity& capacity = exact ? row.exact : row.naive;
  const double gain = exact ? row.exact_gain : row.naive_gain;
  Cell sequences = missing_cell();
  if (capacity.sequences >= 0) sequences = integer_cell(static_cast<uint64_t>(capacity.sequences));
  Cell fits{capacity.fits ? "yes" : "no", capacity.fits};
  std::vector<Cell> cells{integer_cell(static_cast<uint64_t>(row.context)),
                          text_cell(row.word),
                          text_cell(exact ? "exact" : "naive"),
                          gigabyte_cell(capacity.bytes_per_sequence),
                          sequences,
                          count_cell(capacity.batch),
                          fits,
                          gigabyte_cell(capacity.kv_bytes),
                          gigabyte_cell(capacity.step_bytes),
                          positive_cell(capacity.step_s * 1e3, 1),
                          positive_cell(capacity.tokens_per_s, 0),
                          positive_cell(gain, 2),
                          count_cell(capacity.crossover_context),
                          count_cell(capacity.longest_context)};
  if (inputs.has_load()) {
    cells.push_back(
        count_cell(nodes_for(capacity, inputs.load_sequences, inputs.load_tokens_per_s)));
  }
  return cells;
}

Table plan_table(const PlanInputs& inputs, const std::vector<Row>& rows) {
  Table table{
      "plan",
      "naive: codes alone. exact: scales, padding, open and sink blocks included. Times are "
      "estimated: bytes / bandwidth.",
      {{"context_tokens", "context\ntokens"},
       {"policy", "policy", false},
       {"figures", "figures", false},
       {"bytes_per_sequence", "GB per\nsequence"},
       {"sequences_that_fit", "sequences\nthat fit"},
       {"batch", "batch"},
       {"batch_fits", "fits"},
       {"kv_bytes_per_step", "KV GB\nper step"},
       {"step_bytes", "GB with\nweights"},
       {"step_ms_estimated", "step ms\n(est.)"},
       {"tokens_per_s_estimated", "tokens/s\n(est.)"},
       {"speed_up_estimated", "times f16\n(est.)"},
       {"crossover_context_tokens", "crossover\ncontext"},
       {"longest_context_tokens", "longest\ncontext"}},
      {}};
  if (inputs.has_load()) table.columns.push_back({"nodes_for_load", "nodes\nfor load"});
  for (const Row& row : rows) {
    table.rows.push_back(table_row(inputs, row, Figures::naive));
    table.rows.push_back(table_row(inputs, row, Figures::exact));
  }
  return table;
}

// The fastest policy that fits at the last context; null if none does.
const Row* best_row(const std::vector<Row>& rows, int64_t context) {
  const Row* best = nullptr;
  for (const Row& row : rows) {
    if (row.context != context || !row.exact.fits) continue;
    if (best == nullptr || row.exact.rate() > best->exact.rate()) best = &row;
  }
  return best;
}

void set_no_fit_verdict(const PlanInputs& inputs, const std::vector<Row>& rows, int64_t context,
                        Report& report) {
  const auto longest = std::max_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.exact.longest_context < b.exact.longest_context;
  });
  report.verdict_facts["fits"] = false;
  report.verdict = fmt::format("Does not fit: {} sequence{} of {} tokens in {} with any of these.",
                               std::max<int64_t>(inputs.batch, 1), inputs.batch > 1 ? "s" : "",
                               tokens_text(context), gigabytes(inputs.budget_bytes));
  if (longest->exact.longest_context > 0) {
    report.flag =
        policy_flag(longest->word) + fmt::format(" --context {}", longest->exact.longest_context);
    report.verdict += " The longest that fits: " + report.flag + ".";
  } else {
    report.verdict += " More memory is needed.";
  }
}

std::string nodes_text(const PlanInputs& inputs, const Row& full, const Row& best) {
  if (!inputs.has_load()) return "";
  const auto nodes = [&](const Row& row) {
    const int64_t count = nodes_for(row.exact, inputs.load_sequences, inputs.load_tokens_per_s);
    return count > 0 ? tokens_text(count) : std::string("no number of");
  };
  return fmt::format(" The load needs {} nodes with {}, {} with {}.", nodes(full), full.word,
                     nodes(best), best.word);
}

bool saves_nodes(const PlanInputs& inputs, const Row& full, const Row& best) {
  return inputs.has_load() &&
         nodes_for(best.exact, inputs.load_sequences, inputs.load_tokens_per_s) <
             nodes_for(full.exact, inputs.load_sequences, inputs.load_tokens_per_s);
}

// Ends the report; false: nothing fits.
bool set_verdict(const PlanInputs& inputs, const std::vector<Row>& rows, Report& report) {
  const int64_t context = inputs.contexts.back();
  const Row* best = best_row(rows, context);
  if (best == nullptr) {
    set_no_fit_verdict(inputs, rows, context, report);
    return false;
  }
  const Row& full = *std::find_if(rows.begin(), rows.end(),
                                  [&](const Row& row) { return row.context == context; });
  const bool worth =
      !full.exact.fits || best->exact_gain >= 1.1 || saves_nodes(inputs, full, *best);
  const Row& chosen = worth ? *best : full;
  report.flag = policy_flag(chosen.word);
  report.verdict_facts["fits"] = true;
  report.verdict_facts["worth_it"] = worth;
  report.verdict_facts["context_tokens"] = context;
  const std::string at = fmt::format("At {} tokens", tokens_text(context));
  if (!worth) {
    const double share = 100 * static_cast<double>(inputs.weight_bytes) / full.exact.step_bytes;
    report.verdict = fmt::format(
        "{} it is not worth it here: at most {:.2f} times the speed (estimated); weights are "
        "{:.0f} % of the bytes of a step, so quantize those first. Use {}.",
        at, best->exact_gain, share, report.flag);
  } else if (!full.exact.fits) {
    report.verdict = fmt::format("{} {} doesn't fit ({} per sequence, {} in all). Use {}.", at,
                                 full.word, gigabytes(full.exact.bytes_per_sequence),
                                 gigabytes(inputs.budget_bytes), report.flag);
  } else {
    report.verdict = fmt::format(
        "{} use {}: {:.2f} times the tokens per second of {} (estimated), batch {} instead of {}.",
        at, report.flag, best->exact_gain, full.word, best->exact.batch, full.exact.batch);
  }
  report.verdict += nodes_text(inputs, full, *best);
  if (worth) report.verdict += " Accuracy isn't in this figure: measure it on your model.";
  return true;
}

Result<bool> run_plan(const PlanOptions& options) {
  const auto inputs = read_plan_inputs(options);
  if (!inputs.ok()) return inputs.error();
  const auto rows = compute_rows(*inputs);
  if (!rows.ok()) return rows.error();
  Report report;
  report.command = "plan";
  report.facts = plan_facts(*inputs);
  report.inputs = plan_inputs_json(*inputs);
  report.tables = {plan_table(*inputs, *rows)};
  report.notes = plan_notes(*inputs);
  const bool fits = set_verdict(*inputs, *rows, report);
  const Status status = publish(report, options.files, inputs->model.path);
  if (!status.ok()) return status.error();
  return fits;
}

}  // namespace

void add_plan_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Sequences that fit, step time, crossover context and nodes for each policy");
  add_plan_options(*command, options.get());
  command->callback([options, exit_code] {
    const auto fits = run_plan(*options);
    *exit_code = !fits.ok() ? fail(fits.error()) : *fits ? exit_fine : exit_no_fit;
  });
}

}  // namespace kvart::tools
