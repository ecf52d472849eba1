// `kvart bytes MODEL`: what each policy's cache takes, to the byte, beside what bits alone claim.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "bytes_report.h"
#include "capacity.h"
#include "commands.h"
#include "model_source.h"
#include "options.h"
#include "policies.h"
#include "report.h"
#include "units.h"

namespace kvart::tools {
namespace {

struct Row {
  std::string word;
  MemoryPlan plan;
  double naive_ratio = 0;
  double token_ratio = 0;     // sealed bytes of a token
  double sequence_ratio = 0;  // a whole sequence, against plain 16 bits
};

struct PerToken {
  double codes = 0;
  double parameters = 0;
  double padding = 0;
  [[nodiscard]] double total() const { return codes + parameters + padding; }
};

// Sealed bytes of a token that every layer still sees.
PerToken per_token(const MemoryPlan& plan) {
  PerToken sum;
  for (const GroupPlan& group : plan.groups) {
    sum.codes += static_cast<double>(group.code_bytes) / block_tokens;
    sum.parameters += static_cast<double>(group.parameter_bytes) / block_tokens;
    sum.padding += static_cast<double>(group.padding_bytes) / block_tokens;
  }
  return sum;
}

uint64_t slot_bytes_per_sequence(const MemoryPlan& plan) {
  uint64_t sum = 0;
  for (const GroupPlan& group : plan.groups) {
    sum += static_cast<uint64_t>(group.slots_per_sequence) * group.slot_bytes;
  }
  return sum;
}

Result<std::vector<Row>> compute_rows(const ModelSource& model, int64_t context,
                                      const std::vector<NamedPolicy>& policies) {
  std::vector<Row> rows;
  const auto plain =
      bytes_per_sequence(model.shape, policies.front().policy, Figures::naive, context);
  if (!plain.ok()) return plain.error();
  for (const NamedPolicy& named : policies) {
    MemoryPlanInput input;
    input.shape = model.shape;
    input.policy = named.policy;
    input.context_tokens = context;
    input.max_sequences = 1;
    auto plan = plan_memory(input);
    if (!plan.ok()) {
      return Error{plan.error().code, fmt::format("{}: {}", named.word, plan.error().message)};
    }
    const auto naive = naive_ratio(model.shape, named.policy);
    if (!naive.ok()) return naive.error();
    Row row{named.word, std::move(*plan), *naive};
    row.token_ratio =
        static_cast<double>(row.plan.f16_bytes_per_token) / per_token(row.plan).total();
    row.sequence_ratio = *plain / static_cast<double>(row.plan.bytes_per_sequence);
    rows.push_back(std::move(row));
  }
  return rows;
}

Cell bytes_cell(double bytes) {
  return {bytes == static_cast<double>(static_cast<uint64_t>(bytes))
              ? with_commas(static_cast<uint64_t>(bytes))
              : fmt::format("{:.2f}", bytes),
          bytes};
}

Table bytes_table(const std::vector<Row>& rows, int64_t context) {
  Table table{"policies",
              fmt::format("Bytes per token of all layers, and per sequence of {} tokens (exact)",
                          tokens_text(context)),
              {{"policy", "policy", false},
               {"code_bytes_per_token", "codes\nB/token"},
               {"scale_bytes_per_token", "scales\nB/token"},
               {"padding_bytes_per_token", "padding\nB/token"},
               {"bytes_per_token", "total\nB/token"},
               {"effective_bits", "effective\nbits"},
               {"open_and_sink_bytes_per_sequence", "open + sink\nB/sequence"},
               {"bytes_per_sequence", "total\nB/sequence"},
               {"naive_ratio", "naive\nclaim"},
               {"exact_ratio_per_token", "exact,\ntoken"},
               {"exact_ratio_per_sequence", "exact,\nsequence"}},
              {}};
  for (const Row& row : rows) {
    const PerToken token = per_token(row.plan);
    const auto ratio = [](double value, int decimals) {
      return Cell{fmt::format("{:.{}f}x", value, decimals), value};
    };
    table.rows.push_back({text_cell(row.word),
                          bytes_cell(token.codes),
                          bytes_cell(token.parameters),
                          bytes_cell(token.padding),
                          bytes_cell(token.total()),
                          number_cell(row.plan.effective_bits, 3),
                          integer_cell(slot_bytes_per_sequence(row.plan)),
                          integer_cell(row.plan.bytes_per_sequence),
                          {fmt::format("{:.3g}x", row.naive_ratio), row.naive_ratio},
                          ratio(row.token_ratio, 2),
                          ratio(row.sequence_ratio, 2)});
  }
  return table;
}

// Where layers have windows: what each group of them holds.
Table group_table(const std::vector<Row>& rows) {
  Table table{"groups",
              "Groups of layers that see the same tokens (exact, one sequence)",
              {{"policy", "policy", false},
               {"window_tokens", "window"},
               {"layers", "layers"},
               {"page_bytes", "B per\nsealed block"},
               {"sealed_blocks", "sealed\nblocks"},
               {"slot_bytes", "B per\nopen block"},
               {"open_and_sink_blocks", "open + sink\nblocks"},
               {"bytes_per_sequence", "B"},
               {"step_blocks", "blocks\nfor steps"},
               {"step_bytes", "B\nfor steps"}},
              {}};
  for (const Row& row : rows) {
    for (const GroupPlan& group : row.plan.groups) {
      const auto pages = static_cast<uint64_t>(group.pages_per_sequence);
      const auto slots = static_cast<uint64_t>(group.slots_per_sequence);
      const auto step_pages = static_cast<uint64_t>(group.step_pages);
      const auto step_slots = static_cast<uint64_t>(group.step_slots);
      Cell window = text_cell("all");
      if (group.window != 0) window = integer_cell(static_cast<uint64_t>(group.window));
      table.rows.push_back(
          {text_cell(row.word), window, integer_cell(group.layers.size()),
           integer_cell(group.page_bytes), integer_cell(pages), integer_cell(group.slot_bytes),
           integer_cell(slots), integer_cell(pages * group.page_bytes + slots * group.slot_bytes),
           integer_cell(step_pages + step_slots),
           integer_cell(step_pages * group.page_bytes + step_slots * group.slot_bytes)});
    }
  }
  return table;
}

std::vector<FigureOfTable> bytes_figures(const std::vector<Row>& rows) {
  BarChart bytes{"Bytes of a token", "policy", "bytes of all layers", false, {}, {"bytes"}, {}};
  BarChart ratios{"Smaller than 16 bits: what bits claim, and what is true",
                  "policy",
                  "times",
                  false,
                  {},
                  {"a whole sequence", "its bits alone"},
                  {}};
  for (const Row& row : rows) {
    bytes.groups.push_back(row.word);
    bytes.bars.push_back({{per_token(row.plan).total()}});
    ratios.groups.push_back(row.word);
    ratios.bars.push_back({{row.sequence_ratio}, {row.naive_ratio}});
  }
  return {{bytes, "policies"}, {ratios, "policies"}};
}

// The smallest of `rows`, of the usual ones only where the user named none.
const Row& smallest(const std::vector<Row>& rows, bool usual_only) {
  const auto& usual = usual_policies();
  const Row* best = &rows.front();
  for (const Row& row : rows) {
    if (usual_only && std::find(usual.begin(), usual.end(), row.word) == usual.end()) continue;
    if (row.plan.bytes_per_sequence < best->plan.bytes_per_sequence) best = &row;
  }
  return *best;
}

void set_verdict(const std::vector<Row>& rows, const Row& best, int64_t context, Report& report) {
  const Row& full = rows.front();
  const bool worth = best.sequence_ratio >= 1.1;
  report.flag = policy_flag(worth ? best.word : full.word);
  report.verdict_facts["worth_it"] = worth;
  const std::string at = fmt::format("at {} tokens", tokens_text(context));
  if (worth) {
    report.verdict = fmt::format(
        "Use {}: {:.2f} times smaller than 16 bits {} ({:.2f} times per token, not {:.3g} times "
        "as its bits alone say). Accuracy isn't in this figure.",
        report.flag, best.sequence_ratio, at, best.token_ratio, best.naive_ratio);
    return;
  }
  // The smallest of the others: whether it gains or costs.
  const Row* other = nullptr;
  for (const Row& row : rows) {
    if (&row == &full) continue;
    if (other == nullptr || row.sequence_ratio > other->sequence_ratio) other = &row;
  }
  if (other == nullptr) {
    report.verdict = fmt::format(
        "Nothing was compared with {}: name other policies, or leave --kv-cache-dtype out.",
        full.word);
    return;
  }
  const bool larger = other->sequence_ratio < 1;
  report.verdict = fmt::format(
      "Not worth it here: {} {} takes {:.2f} times {} bytes than 16 bits (open and sink blocks "
      "stay in full precision). Use {}.",
      at, other->word, larger ? 1 / other->sequence_ratio : other->sequence_ratio,
      larger ? "more" : "fewer", report.flag);
}

Result<int64_t> chosen_context(const std::string& text, const ModelSource& model) {
  if (!text.empty()) {
    auto context = parse_tokens(text);
    if (!context.ok()) {
      return Error{context.error().code, "--context " + context.error().message};
    }
    return context;
  }
  return usual_context(model.context_length);
}

Status run_bytes(const BytesOptions& options) {
  const auto outputs = find_outputs(
      options.files, with_policy_files(files_of_model(options.model), options.policies));
  if (!outputs.ok()) return outputs.error();
  const auto report = bytes_report(options);
  if (!report.ok()) return report.error();
  return publish(*report, *outputs);
}

}  // namespace

Result<Report> bytes_report(const BytesOptions& options) {
  const auto model = find_model(options.model);
  if (!model.ok()) return model.error();
  const auto context = chosen_context(options.context, *model);
  if (!context.ok()) return context.error();
  std::vector<std::string> words = options.policies;
  if (words.empty()) {
    for (const Preset& preset : presets()) words.emplace_back(preset.name);
  }
  const auto policies = parse_policies(words);
  if (!policies.ok()) return policies.error();
  const auto rows = compute_rows(*model, *context, *policies);
  if (!rows.ok()) return rows.error();
  Report report;
  report.command = "bytes";
  report.facts = {model->what};
  if (!model->note.empty()) report.notes.push_back(model->note);
  report.inputs["model"] = model->name;
  report.inputs["context_tokens"] = *context;
  report.tables = {bytes_table(*rows, *context)};
  report.figures = bytes_figures(*rows);
  const auto& shape = model->shape.layers;
  if (std::any_of(shape.begin(), shape.end(),
                  [](const auto& layer) { return layer.window != 0; })) {
    report.tables.push_back(group_table(*rows));
    report.tables.back().keys = 2;
    report.notes.push_back(fmt::format(
        "Note: while a step of up to {} tokens runs, what its first query sees is held beside what "
        "the next step will see: the blocks for steps, here of one sequence. More sequences share "
        "them, and need no more than the step's tokens fill.",
        MemoryPlanInput{}.step_tokens));
  }
  if (model->context_length != 0 && *context > model->context_length) {
    report.notes.push_back(
        fmt::format("Note: the model was made for {} tokens.", tokens_text(model->context_length)));
  }
  set_verdict(*rows, smallest(*rows, options.policies.empty()), *context, report);
  return report;
}

void add_bytes_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<BytesOptions>();
  CLI::App* command =
      app.add_subcommand("bytes", "Exact bytes per token and per sequence of each policy");
  add_text_option(*command, "model", &options->model, "MODEL", model_help)->required();
  add_list_option(*command, "--kv-cache-dtype,--policies", &options->policies, "POLICY",
                  policy_help);
  add_text_option(*command, "--context", &options->context, "TOKENS",
                  "Tokens of a sequence; 32k is 32,768 (default: the model's, at most 32k)");
  add_output_options(*command, &options->files);
  add_page_options(*command, &options->files);
  command->callback([options, exit_code] {
    const Status status = run_bytes(*options);
    if (!status.ok()) *exit_code = fail(status.error());
  });
}

}  // namespace kvart::tools
