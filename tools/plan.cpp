// `kvart plan MODEL`: sequences that fit, time of a decode step, crossover and nodes, per policy.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "commands.h"
#include "plan_inputs.h"
#include "plan_verdict.h"
#include "report.h"

namespace kvart::tools {
namespace {

Result<std::vector<PlanRow>> compute_rows(const PlanInputs& inputs) {
  std::vector<PlanRow> rows;
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
      one.open_sequences = inputs.open_sequences;
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

std::vector<Cell> table_row(const PlanInputs& inputs, const PlanRow& row, Figures figures) {
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
  if (inputs.open_sequences > 0) {
    cells.push_back(exact ? gigabyte_cell(capacity.open_bytes) : missing_cell());
  }
  if (inputs.has_load()) {
    cells.push_back(
        count_cell(nodes_for(capacity, inputs.load_sequences, inputs.load_tokens_per_s)));
  }
  return cells;
}

Table plan_table(const PlanInputs& inputs, const std::vector<PlanRow>& rows) {
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
  if (inputs.open_sequences > 0) {
    table.columns.push_back({"more_slots_bytes", "GB for\nmore slots"});
  }
  if (inputs.has_load()) table.columns.push_back({"nodes_for_load", "nodes\nfor load"});
  for (const PlanRow& row : rows) {
    table.rows.push_back(table_row(inputs, row, Figures::naive));
    table.rows.push_back(table_row(inputs, row, Figures::exact));
  }
  return table;
}

// Speed-up and sequences of each policy: against the context where several are asked for.
std::vector<FigureOfTable> plan_figures(const PlanInputs& inputs,
                                        const std::vector<PlanRow>& rows) {
  BarChart bars{"Decode against full precision, estimated",
                "policy",
                "times f16",
                false,
                {},
                {"exact", "naive"},
                {}};
  LineChart gain{"Decode against full precision, estimated",
                 "context (tokens)",
                 "times f16",
                 true,
                 false,
                 true,
                 {}};
  LineChart fit{
      "Sequences that fit, exact", "context (tokens)", "sequences", true, true, false, {}};
  for (const NamedPolicy& named : inputs.policies) {
    Line gains{named.word, {}};
    Line fits{named.word, {}};
    for (const PlanRow& row : rows) {
      if (row.word != named.word) continue;
      const auto context = static_cast<double>(row.context);
      if (row.exact_gain > 0) gains.points.push_back({context, row.exact_gain});
      if (row.exact.sequences >= 0) {
        fits.points.push_back({context, static_cast<double>(row.exact.sequences)});
      }
      bars.groups.push_back(row.word);
      bars.bars.push_back({{row.exact_gain}, {row.naive_gain}});
    }
    gain.lines.push_back(std::move(gains));
    fit.lines.push_back(std::move(fits));
  }
  if (inputs.contexts.size() == 1) return {{bars, "plan"}};
  std::vector<FigureOfTable> figures = {{gain, "plan"}};
  if (inputs.budget_bytes > 0) figures.push_back({fit, "plan"});
  return figures;
}

Result<bool> run_plan(const PlanOptions& options) {
  const auto outputs = find_outputs(
      options.files, with_policy_files(files_of_model(options.model), options.policies));
  if (!outputs.ok()) return outputs.error();
  const auto plan = plan_report(options);
  if (!plan.ok()) return plan.error();
  const Status status = publish(plan->report, *outputs);
  if (!status.ok()) return status.error();
  return plan->fits;
}

}  // namespace

Result<PlanReport> plan_report(const PlanOptions& options) {
  const auto inputs = read_plan_inputs(options);
  if (!inputs.ok()) return inputs.error();
  const auto rows = compute_rows(*inputs);
  if (!rows.ok()) return rows.error();
  PlanReport plan;
  Report& report = plan.report;
  report.command = "plan";
  report.facts = plan_facts(*inputs);
  report.inputs = plan_inputs_json(*inputs);
  report.tables = {plan_table(*inputs, *rows)};
  report.tables[0].keys = 3;
  report.figures = plan_figures(*inputs, *rows);
  report.notes = plan_notes(*inputs);
  plan.fits = set_plan_verdict(*inputs, *rows, report);
  return plan;
}

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
