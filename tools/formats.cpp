// `kvart formats`: the formats, the presets made of them, and other engines' words for them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "commands.h"
#include "format_errors.h"
#include "kvart/format.h"
#include "kvart/memory_plan.h"
#include "options.h"
#include "policies.h"
#include "report.h"

namespace kvart::tools {
namespace {

double side_bytes_per_token(const FormatInfo& format, int head_dim) {
  return static_cast<double>(format.side_bytes(head_dim)) / block_tokens;
}

Table format_table(int head_dim) {
  Table table{
      "formats",
      fmt::format("Formats (one side, K or V, of one KV head; {} channels; exact)", head_dim),
      {{"name", "name", false},
       {"code_bits", "code\nbits"},
       {"bytes_per_token", "B per\ntoken"},
       {"effective_bits", "effective\nbits"},
       {"ratio_to_f16", "smaller\nby"},
       {"description", "description", false}},
      {}};
  const double full = side_bytes_per_token(open_block_format(), head_dim);
  for (const FormatInfo* format : formats()) {
    const double bytes = side_bytes_per_token(*format, head_dim);
    table.rows.push_back({text_cell(std::string(format->name)),
                          integer_cell(static_cast<uint64_t>(format->code_bits)),
                          {fmt::format("{:g}", bytes), bytes},
                          number_cell(format->effective_bits(head_dim), 3),
                          number_cell(full / bytes, 2),
                          text_cell(std::string(format->description))});
  }
  return table;
}

Result<Table> preset_table(int head_dim) {
  Table table{"presets",
              "Presets (K and V of one KV head; exact)",
              {{"name", "name", false},
               {"k", "K", false},
               {"v", "V", false},
               {"sink_blocks", "sink\nblocks"},
               {"bytes_per_token", "B per\ntoken"},
               {"ratio_to_f16", "smaller\nby"},
               {"description", "description", false}},
              {}};
  const double full = 2 * side_bytes_per_token(open_block_format(), head_dim);
  for (const Preset& preset : presets()) {
    const auto formats = preset_formats(preset);
    if (!formats.ok()) return formats.error();
    const LayerFormats pair = formats->pair;
    const double bytes =
        side_bytes_per_token(*pair.k, head_dim) + side_bytes_per_token(*pair.v, head_dim);
    table.rows.push_back({text_cell(std::string(preset.name)),
                          text_cell(std::string(pair.k->name)),
                          text_cell(std::string(pair.v->name)),
                          integer_cell(static_cast<uint64_t>(formats->sink_blocks)),
                          {fmt::format("{:g}", bytes), bytes},
                          number_cell(full / bytes, 2),
                          text_cell(std::string(preset.description))});
  }
  return table;
}

BarChart preset_bytes_chart(const Table& presets) {
  BarChart chart{
      "Bytes of each preset", "preset", "bytes of a token's K and V", false, {}, {"bytes"}, {}};
  const auto place = std::find_if(presets.columns.begin(), presets.columns.end(),
                                  [](const Column& one) { return one.key == "bytes_per_token"; });
  const auto column = static_cast<size_t>(place - presets.columns.begin());
  for (const auto& row : presets.rows) {
    chart.groups.push_back(row.front().text);
    chart.bars.push_back({{row[column].value.get<double>()}});
  }
  return chart;
}

Table alias_table() {
  Table table{
      "aliases",
      "Other engines' words",
      {{"word", "word", false}, {"runs", "runs", false}, {"difference", "what differs", false}},
      {}};
  for (const Alias& alias : aliases()) {
    const std::string difference(alias.difference.empty() ? "nothing" : alias.difference);
    table.rows.push_back({text_cell(std::string(alias.word)), text_cell(std::string(alias.target)),
                          text_cell(difference)});
  }
  return table;
}

struct FormatsOptions {
  int head_dim = 128;
  FormatErrorOptions errors;
  OutputFiles files;
};

Status run_list(const FormatsOptions& options, const Outputs& outputs) {
  auto presets = preset_table(options.head_dim);
  if (!presets.ok()) return presets.error();
  Report report;
  report.command = "formats";
  report.inputs["head_dim"] = options.head_dim;
  report.figures = {{preset_bytes_chart(*presets), presets->key}};
  report.tables = {format_table(options.head_dim), std::move(*presets), alias_table()};
  report.notes = {
      "--kv-cache-dtype also takes k=F,v=F, ranges of layers 0-1:F,2-:k=F,v=F, and ,sink=N at the "
      "end."};
  report.verdict =
      "Use a preset, " + policy_flag("NAME") + "; `kvart plan MODEL` says which one pays off.";
  return publish(report, outputs);
}

Table preset_error_table(const std::vector<PresetError>& presets) {
  Table table{
      "presets",
      "Presets: K's error and a quarter of V's, root of the squares' sum",
      {{"name", "name", false}, {"bytes_per_token", "B per\ntoken"}, {"error_percent", "error %"}},
      {}};
  for (const PresetError& preset : presets) {
    table.rows.push_back({text_cell(preset.word),
                          {fmt::format("{:g}", preset.bytes_per_token), preset.bytes_per_token},
                          number_cell(100 * preset.error, 2)});
  }
  return table;
}

BarChart preset_error_chart(const std::vector<PresetError>& presets) {
  BarChart chart{"Error of each preset", "preset", "error (%)", true, {}, {"error"}, {}};
  for (const PresetError& preset : presets) {
    chart.groups.push_back(preset.word);
    chart.bars.push_back({{100 * preset.error}});
  }
  return chart;
}

// The fewest bytes with a small error; of equal bytes the smaller error.
void set_error_verdict(const std::vector<PresetError>& presets, Report& report) {
  const PresetError* best = nullptr;
  for (const PresetError& preset : presets) {
    if (preset.error > small_error) continue;
    if (best == nullptr || preset.bytes_per_token < best->bytes_per_token ||
        (preset.bytes_per_token == best->bytes_per_token && preset.error < best->error)) {
      best = &preset;
    }
  }
  const std::string full(open_block_format().name);
  report.flag = policy_flag(best != nullptr ? best->word : full);
  report.verdict_facts["error_limit_percent"] = 100 * small_error;
  if (best == nullptr) {
    report.verdict =
        fmt::format("No preset stays within {:g} % here. Use {}.", 100 * small_error, report.flag);
    return;
  }
  report.verdict_facts["error_percent"] = 100 * best->error;
  report.verdict = fmt::format(
      "Use {}: the fewest bytes ({:g} per token and KV head) with an error of at most {:g} %: "
      "{:.2f} %. K counts most, for it passes through the softmax.",
      report.flag, best->bytes_per_token, 100 * small_error, 100 * best->error);
}

Status run_errors(const FormatsOptions& options, const Outputs& outputs) {
  FormatErrorOptions errors = options.errors;
  errors.threads = threads_to_run(errors.threads, false);
  auto measured = measure_errors(errors);
  if (!measured.ok()) return measured.error();
  const auto presets = preset_errors(*measured);
  if (!presets.ok()) return presets.error();
  Report report;
  report.command = "formats";
  report.inputs["model"] = errors.model;
  report.inputs["text"] =
      errors.text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(errors.text);
  report.inputs["text_tokens_at_most"] = errors.tokens;
  report.inputs["tokens"] = measured->tokens;
  report.tables = std::move(measured->tables);
  report.tables.push_back(preset_error_table(*presets));
  report.figures = {{preset_error_chart(*presets), report.tables.back().key}};
  set_error_verdict(*presets, report);
  return publish(report, outputs);
}

Status run_formats(const FormatsOptions& options) {
  const FormatErrorOptions& errors = options.errors;
  std::vector<std::string> inputs;
  if (!errors.model.empty()) inputs = files_of_model(errors.model);
  if (!errors.text.empty()) inputs.push_back(errors.text);
  const auto outputs = find_outputs(options.files, inputs);
  if (!outputs.ok()) return outputs.error();
  return errors.model.empty() ? run_list(options, *outputs) : run_errors(options, *outputs);
}

std::string head_dim_message(const std::string& text) {
  const auto head_dim = parse_integer(text, {16, 256, "a multiple of 16 from 16 to 256"});
  if (!head_dim.ok()) return head_dim.error().message;
  if (head_dim_is_supported(static_cast<int>(*head_dim))) return "";
  return fmt::format("{}: use a multiple of 16 from 16 to 256", *head_dim);
}

}  // namespace

void add_formats_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<FormatsOptions>();
  CLI::App* command = app.add_subcommand(
      "formats", "List cache formats, presets and aliases; or measure what each loses on a model");
  auto* model = add_text_option(
      *command, "model", &options->errors.model, "MODEL",
      "GGUF file or a checkpoint's folder: measure what each format loses on its K and V instead");
  add_integer_option(*command, "--head-dim", &options->head_dim,
                     {16, 256, "a multiple of 16 from 16 to 256"},
                     "Channels of a head, for the list")
      ->check(head_dim_message)
      ->default_str("128")
      ->excludes(model);
  add_text_option(*command, "--text", &options->errors.text, "FILE",
                  "Text to measure on, - for stdin (default: the model writes its own)")
      ->needs(model);
  add_integer_option(*command, "--tokens", &options->errors.tokens, {block_tokens, 1 << 20, ""},
                     "How many tokens of it at most")
      ->default_str("1024")
      ->needs(model);
  command->add_flag("--layers", options->errors.layers, "Every layer, not only the worst")
      ->needs(model);
  options->errors.threads = 0;
  add_threads_option(*command, &options->errors.threads)->needs(model);
  add_output_options(*command, &options->files);
  add_page_options(*command, &options->files);
  command->callback([options, exit_code] {
    const Status status = run_formats(*options);
    if (!status.ok()) *exit_code = fail(status.error());
  });
}

}  // namespace kvart::tools
