// `kvart compare A.json B.json`: two reports side by side, and limits that the second must keep.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "commands.h"
#include "compare/difference.h"
#include "compare/gate.h"
#include "compare/report_file.h"
#include "options.h"
#include "page/figure.h"
#include "report.h"
#include "streams.h"
#include "units.h"

namespace kvart::tools {
namespace {

constexpr size_t shown_names = 8;

struct CompareOptions {
  std::string a, b;
  bool force = false;
  double max_kld = 0, min_needle = 0;
  GateOptions gates;
  OutputFiles files;
};

std::string first_names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), shown_names);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, "; "));
  return shown == names.size() ? text : fmt::format("{}; {} more", text, names.size() - shown);
}

// A value as it is in the file.
Cell value_cell(const nlohmann::ordered_json& value) {
  if (value.is_null()) return missing_cell();
  if (value.is_number_float()) return {fmt::format("{:.6g}", value.get<double>()), value};
  if (value.is_string()) return text_cell(value.get<std::string>());
  return {value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), value};
}

Cell optional_cell(const std::optional<double>& value, std::string_view format) {
  if (!value) return missing_cell();
  return {fmt::format(fmt::runtime(format), *value), *value};
}

Table match_table(const Comparison& comparison) {
  Table table{"tables",
              "",
              {{"table", "table", false},
               {"rows", "rows of\nboth"},
               {"rows_only_a", "only\nin A"},
               {"rows_only_b", "only\nin B"},
               {"values", "values"},
               {"values_that_differ", "of them\ndiffer"}},
              {}};
  for (const TableMatch& match : comparison.tables) {
    table.rows.push_back({text_cell(match.table), integer_cell(match.rows),
                          integer_cell(match.only_a.size()), integer_cell(match.only_b.size()),
                          integer_cell(match.values), integer_cell(match.different)});
  }
  return table;
}

Table difference_table(const Comparison& comparison) {
  Table table{"differences",
              "Values that differ",
              {{"table", "table", false},
               {"row", "row", false},
               {"column", "column", false},
               {"a", "A"},
               {"b", "B"},
               {"difference", "B - A"},
               {"ratio", "B / A"}},
              {},
              3};
  for (const ValueDifference& one : comparison.differences) {
    table.rows.push_back({text_cell(one.table), text_cell(one.row), text_cell(one.column),
                          value_cell(one.a), value_cell(one.b),
                          optional_cell(one.difference(), "{:+.4g}"),
                          optional_cell(one.ratio(), "{:.3f}")});
  }
  return table;
}

Table gate_table(const std::vector<GateRow>& rows) {
  Table table{"gates",
              "Limits that B must keep",
              {{"gate", "limit of", false},
               {"policy", "policy", false},
               {"value", "value"},
               {"limit", "limit"},
               {"passed", "kept", false}},
              {},
              2};
  for (const GateRow& row : rows) {
    table.rows.push_back({text_cell(row.gate),
                          text_cell(row.policy),
                          optional_cell(row.value, "{:.5g}"),
                          value_cell(row.limit),
                          {row.passed ? "yes" : "NO", row.passed}});
  }
  return table;
}

// Bars of A and B for each policy, where both have the table; none: they don't.
std::optional<BarChart> metric_chart(
    const ReportFile& a, const ReportFile& b, const std::string& table, const std::string& title,
    const std::string& unit, std::optional<double> (*value_of)(const nlohmann::ordered_json& row)) {
  BarChart chart{title, "policy", unit, false, {}, {"A", "B"}, {}};
  for (const auto& [left, right] : pairs_of(a, b)) {
    const TableData* ours = left->table(table);
    const TableData* theirs = right->table(table);
    if (ours == nullptr || theirs == nullptr) continue;
    for (const auto& row : ours->rows) {
      for (const auto& other : theirs->rows) {
        if (!row.contains("policy") || !row["policy"].is_string() ||
            row["policy"] != other.value("policy", nlohmann::ordered_json())) {
          continue;
        }
        const auto before = value_of(row);
        const auto after = value_of(other);
        if (!before || !after) continue;
        chart.groups.push_back(row["policy"].get<std::string>());
        chart.bars.push_back({{*before, {}, {}}, {*after, {}, {}}});
        break;
      }
    }
  }
  if (chart.groups.empty()) return {};
  return chart;
}

void add_figures(const ReportFile& a, const ReportFile& b, Report& report) {
  const auto kld = metric_chart(a, b, "divergence", "Divergence from full precision",
                                "mean KL divergence (nats)", mean_kld);
  if (kld) report.figures.push_back({*kld, "differences"});
  const auto needle =
      metric_chart(a, b, "needle", "Facts found", "share of those asked for", found_share);
  if (needle) report.figures.push_back({*needle, "differences"});
}

// Whether each of A's reports was written by the program that wrote B's.
bool is_one_build(const ReportFile& a, const ReportFile& b) {
  const auto pairs = pairs_of(a, b);
  return std::all_of(pairs.begin(), pairs.end(), [](const ReportPair& pair) {
    return !pair.first->build.empty() && pair.first->build == pair.second->build;
  });
}

// "builds 0f3c... and 77ab... of Kvart", for each two that met, once.
void add_build_notes(const ReportFile& a, const ReportFile& b, Report& report) {
  std::set<std::pair<std::string, std::string>> said;
  const auto name = [](const std::string& build) {
    return build.empty() ? std::string("one that isn't known") : build.substr(0, 16);
  };
  for (const auto& [left, right] : pairs_of(a, b)) {
    if (!left->build.empty() && left->build == right->build) continue;
    if (!said.emplace(left->build, right->build).second) continue;
    report.notes.push_back(
        left->build.empty() && right->build.empty()
            ? "Which builds of Kvart measured this isn't known."
            : fmt::format("Measured by different builds of Kvart: A by {}, B by {}.",
                          name(left->build), name(right->build)));
  }
}

void add_notes(const ReportFile& a, const ReportFile& b, const Comparison& comparison,
               const std::vector<std::string>& forced, Report& report) {
  for (const std::string& obstacle : forced)
    report.notes.push_back("Compared all the same: " + obstacle);
  for (const TableMatch& match : comparison.tables) {
    for (const auto& [names, file] : {std::pair(&match.only_a, "A"), {&match.only_b, "B"}}) {
      if (names->empty()) continue;
      report.notes.push_back(
          fmt::format("{}: rows that only {} has: {}", match.table, file, first_names(*names)));
    }
  }
  add_build_notes(a, b, report);
  for (const auto& [left, right] : pairs_of(a, b)) {
    if (left->version != right->version) {
      report.notes.push_back(
          fmt::format("{}: versions {} and {}", left->schema, left->version, right->version));
    }
    // What was free isn't an option, so the hashes don't tell.
    if (left->kv_memory_bytes != right->kv_memory_bytes && left->kv_memory_bytes > 0 &&
        right->kv_memory_bytes > 0) {
      report.notes.push_back(fmt::format(
          "{}: A was measured with {} of cache memory, B with {}: more memory holds more "
          "sequences; give both the same --kv-memory",
          left->schema, gigabytes(left->kv_memory_bytes), gigabytes(right->kv_memory_bytes)));
    }
    if (left->hashes.empty() && right->hashes.empty()) {
      report.notes.push_back(left->schema +
                             ": has no hashes; whether both are about the same "
                             "model isn't known");
    }
  }
  for (const auto& [file, name] : {std::pair(&a, "A"), {&b, "B"}}) {
    for (const ReportData& one : file->reports) {
      if (one.incomplete)
        report.notes.push_back(fmt::format("{}: {} is incomplete", name, one.schema));
    }
  }
}

// True: every limit is kept.
bool set_verdict(const Comparison& comparison, const std::vector<GateRow>& gates, Report& report) {
  size_t values = 0, different = 0, only_a = 0, only_b = 0;
  for (const TableMatch& match : comparison.tables) {
    values += match.values;
    different += match.different;
    only_a += match.only_a.size();
    only_b += match.only_b.size();
  }
  report.verdict = fmt::format("{} of {} values differ", different, values);
  for (const auto& [rows, file] : {std::pair(only_a, "A"), {only_b, "B"}}) {
    if (rows == 0) continue;
    report.verdict +=
        fmt::format("; {} {} in {} alone", counted(rows, "row"), rows == 1 ? "is" : "are", file);
  }
  report.verdict_facts = {{"values", values},
                          {"values_that_differ", different},
                          {"rows_only_a", only_a},
                          {"rows_only_b", only_b}};
  if (gates.empty()) {
    report.verdict += ".";
    return true;
  }
  std::vector<std::string> failed;
  for (const GateRow& row : gates) {
    if (row.passed) continue;
    failed.push_back(row.value ? fmt::format("{} {:.5g} is beyond {} {:g}", row.policy, *row.value,
                                             row.gate, row.limit)
                               : fmt::format("{} has no value for {}", row.policy, row.gate));
  }
  report.verdict_facts["passed"] = failed.empty();
  report.verdict += failed.empty()
                        ? fmt::format("; B keeps every limit ({} checked).", gates.size())
                        : fmt::format("; FAILED: {}.", first_names(failed));
  return failed.empty();
}

// What is printed has names and values of the files in it. In the JSON they stay as they are.
void make_visible(Report& report) {
  for (std::string& fact : report.facts) fact = visible(fact);
  for (std::string& note : report.notes) note = visible(note);
  report.verdict = visible(report.verdict);
  for (Table& table : report.tables) {
    for (auto& row : table.rows) {
      for (Cell& cell : row) cell.text = visible(cell.text);
    }
  }
}

// A gate is about everything that was to be measured.
Status check_complete(const ReportFile& file, bool force) {
  for (const ReportData& report : file.reports) {
    if (!report.incomplete || force) continue;
    return Error{ErrorCode::invalid_data,
                 fmt::format("{}: {} is incomplete, so no limit can be held against it; measure it "
                             "to its end, or add --force",
                             file.path, report.schema)};
  }
  return {};
}

Result<bool> run_compare(const CompareOptions& options) {
  if (!options.gates.policies.empty() && !options.gates.any()) {
    return Error{ErrorCode::invalid_argument, "--policy: needs --max-kld or --min-needle"};
  }
  const auto outputs = find_outputs(options.files, {options.a, options.b});
  if (!outputs.ok()) return outputs.error();
  const auto a = read_reports(options.a);
  if (!a.ok()) return a.error();
  const auto b = read_reports(options.b);
  if (!b.ok()) return b.error();
  const auto reasons = obstacles(*a, *b);
  if (pairs_of(*a, *b).empty()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("nothing to compare: {}", first_names(reasons))};
  }
  if (!reasons.empty() && !options.force) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("not comparable: {}; --force compares all the same", first_names(reasons))};
  }
  if (options.gates.any()) KVART_RETURN_IF_ERROR(check_complete(*b, options.force));
  const auto gates = run_gates(*b, options.gates);
  if (!gates.ok()) return gates.error();
  const Comparison comparison = compare_reports(*a, *b);
  Report report;
  report.command = "compare";
  report.facts = {"A: " + a->path, "B: " + b->path};
  report.inputs = {{"a", a->path}, {"b", b->path}};
  report.tables = {difference_table(comparison), match_table(comparison)};
  if (!gates->empty()) report.tables.push_back(gate_table(*gates));
  add_figures(*a, *b, report);
  add_notes(*a, *b, comparison, reasons, report);
  const bool passed = set_verdict(comparison, *gates, report);
  report.verdict_facts["same_build"] = is_one_build(*a, *b);
  make_visible(report);
  const Status status = publish(report, *outputs);
  if (!status.ok()) return status.error();
  return passed;
}

}  // namespace

void add_compare_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand(
      "compare", "Two reports side by side, and limits that the second must keep");
  add_text_option(*command, "a", &options->a, "A.json", "A report that --json wrote: the base")
      ->required();
  add_text_option(*command, "b", &options->b, "B.json", "Another one of the same kind")->required();
  command->add_flag("--force", options->force,
                    "Compare although hashes or schemas differ, hold limits against what is "
                    "incomplete");
  auto* kld = add_number_option(*command, "--max-kld", &options->max_kld, {0, 1e6, false},
                                "Fail if B's mean KL divergence from full precision is above");
  auto* needle = add_number_option(*command, "--min-needle", &options->min_needle, {0, 1, false},
                                   "Fail if B finds a smaller share of the facts asked for");
  add_list_option(*command, "--policy", &options->gates.policies, "POLICY",
                  "Hold limits against these only (default: all of B's)");
  add_output_options(*command, &options->files);
  add_page_options(*command, &options->files);
  command->callback([options, exit_code, kld, needle] {
    if (kld->count() > 0) options->gates.max_kld = options->max_kld;
    if (needle->count() > 0) options->gates.min_needle = options->min_needle;
    const auto passed = run_compare(*options);
    *exit_code = !passed.ok() ? fail({passed.error().code, visible(passed.error().message)})
                 : *passed    ? exit_fine
                              : exit_no_fit;
  });
}

}  // namespace kvart::tools
