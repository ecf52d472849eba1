// `kvart formats`: the formats, the presets made of them, and other engines' words for them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <thread>

#include "commands.h"
#include "format_errors.h"
#include "kvart/format.h"
#include "kvart/memory_plan.h"
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
    const auto parsed = parse_policy(preset.name);
    if (!parsed.ok()) return parsed.error();
    const auto layers = parsed->policy.resolve(1);
    if (!layers.ok()) return layers.error();
    const LayerFormats pair = (*layers)[0];
    const double bytes =
        side_bytes_per_token(*pair.k, head_dim) + side_bytes_per_token(*pair.v, head_dim);
    table.rows.push_back({text_cell(std::string(preset.name)),
                          text_cell(std::string(pair.k->name)),
                          text_cell(std::string(pair.v->name)),
                          integer_cell(static_cast<uint64_t>(parsed->policy.sink_blocks)),
                          {fmt::format("{:g}", bytes), bytes},
                          number_cell(full / bytes, 2),
                          text_cell(std::string(preset.description))});
  }
  return table;
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

Status run_formats(int head_dim, const OutputFiles& files) {
  if (!head_dim_is_supported(head_dim)) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--head-dim {}: use a multiple of 16 from 16 to 256", head_dim)};
  }
  auto presets = preset_table(head_dim);
  if (!presets.ok()) return presets.error();
  Report report;
  report.command = "formats";
  report.inputs["head_dim"] = head_dim;
  report.tables = {format_table(head_dim), std::move(*presets), alias_table()};
  report.notes = {
      "--kv-cache-dtype also takes k=F,v=F, ranges of layers 0-1:F,2-:k=F,v=F, and ,sink=N at the "
      "end."};
  report.verdict =
      "Use a preset, " + policy_flag("NAME") + "; `kvart plan MODEL` says which one pays off.";
  return publish(report, files, "");
}

Status run_errors(const FormatErrorOptions& options, const OutputFiles& files) {
  auto tables = format_error_tables(options);
  if (!tables.ok()) return tables.error();
  Report report;
  report.command = "formats";
  report.inputs["model"] = options.model;
  report.inputs["tokens"] = options.tokens;
  report.tables = std::move(tables).value();
  report.verdict = "K is more sensitive than V: the error of K passes through the softmax.";
  return publish(report, files, options.model);
}

}  // namespace

void add_formats_command(CLI::App& app, int* exit_code) {
  struct Options {
    int head_dim = 128;
    FormatErrorOptions errors;
    OutputFiles files;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("formats", "List cache formats, presets and aliases");
  command->add_option("--head-dim", options->head_dim, "Channels of a head")->capture_default_str();
  options->errors.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  command->add_option("model", options->errors.model,
                      "GGUF file: measure what each format loses on its K and V instead");
  command->add_option("--text", options->errors.text,
                      "Text for that (default: the model writes its own)");
  command->add_option("--tokens", options->errors.tokens, "How many tokens of it")
      ->capture_default_str()
      ->check(CLI::Range(64, 1 << 20));
  command->add_flag("--layers", options->errors.layers, "Every layer, not only the worst");
  command->add_option("-t,--threads", options->errors.threads, "Default: all cores")
      ->check(CLI::Range(1, 1024));
  add_output_options(*command, &options->files);
  command->callback([options, exit_code] {
    const Status status = options->errors.model.empty()
                              ? run_formats(options->head_dim, options->files)
                              : run_errors(options->errors, options->files);
    if (!status.ok()) *exit_code = fail(status.error());
  });
}

}  // namespace kvart::tools
