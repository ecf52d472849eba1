// `kvart inspect FILE|FOLDER`: what is in a model's files, whether it runs, and what its cache
// costs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "commands.h"
#include "kvart/model_inspect.h"
#include "model_source.h"
#include "options.h"
#include "policies.h"
#include "report.h"
#include "units.h"

namespace kvart::tools {
namespace {

struct InspectOptions {
  std::string model;
  bool keys = false;
  OutputFiles files;
};

// Name and value, one a line.
class FactTable {
 public:
  void text(const std::string& name, const std::string& value) {
    if (!value.empty()) table_.rows.push_back({text_cell(name), text_cell(value)});
  }
  void integer(const std::string& name, int64_t value) {
    if (value == 0) return;
    table_.rows.push_back({text_cell(name), integer_cell(static_cast<uint64_t>(value))});
  }
  void number(const std::string& name, double value) {
    if (value != 0) table_.rows.push_back({text_cell(name), {fmt::format("{:g}", value), value}});
  }
  Table take() { return std::move(table_); }

 private:
  Table table_{"model", "", {{"name", "what", false}, {"value", "value", false}}, {}};
};

std::string windows_text(const CacheShape& shape) {
  std::map<int, uint64_t> layers;
  for (const LayerShape& layer : shape.layers) ++layers[layer.window];
  if (layers.size() == 1 && layers.begin()->first == 0) return "none: every layer sees all tokens";
  std::string text;
  for (const auto& [window, count] : layers) {
    const std::string seen =
        window == 0 ? "all tokens" : counted(static_cast<uint64_t>(window), "token");
    text += fmt::format("{}{} see{} {}", text.empty() ? "" : ", ", counted(count, "layer"),
                        count == 1 ? "s" : "", seen);
  }
  return text;
}

std::string rope_text(const RopeScaling& scaling) {
  if (scaling.type == "none") return "none";
  std::string text = scaling.type;
  if (scaling.factor != 1) text += fmt::format(", factor {:g}", scaling.factor);
  if (scaling.original_context != 0) {
    text += fmt::format(", trained with {}",
                        counted(static_cast<uint64_t>(scaling.original_context), "token"));
  }
  return text;
}

void add_config(const ModelConfig& config, FactTable& facts) {
  facts.text("name", config.name);
  facts.text("architecture", config.architecture);
  facts.integer("layers", config.layers);
  facts.integer("hidden", config.hidden);
  facts.integer("feed-forward", config.ffn);
  facts.integer("query heads", config.q_heads);
  facts.text("KV heads", heads_text(config.cache_shape()));
  facts.integer("head_dim", config.head_dim);
  facts.text("windows", windows_text(config.cache_shape()));
  facts.number("rope theta", config.rope_theta);
  facts.text("rope scaling", rope_text(config.rope_scaling));
  facts.integer("context", config.context_length);
  facts.integer("vocabulary", config.vocab);
  facts.integer("experts", config.experts);
  facts.integer("experts of a token", config.experts_used);
  facts.number("soft cap of attention", config.attention_soft_cap);
  facts.number("soft cap of logits", config.final_soft_cap);
  facts.text("embeddings", config.tied_embeddings ? "tied" : "not tied");
  facts.integer("weight bytes", static_cast<int64_t>(config.weight_bytes));
  facts.text("KV cache declared",
             config.kv_scheme.empty()
                 ? std::string("nothing")
                 : fmt::format("{} ({})", config.kv_scheme, config.kv_scheme_place));
}

Table model_table(const ModelInspection& found) {
  FactTable facts;
  facts.text("files", found.kind);
  if (found.config) add_config(*found.config, facts);
  facts.text("kvart run", found.run_refusal.empty() ? std::string("runs it")
                                                    : "doesn't run it: " + found.run_refusal);
  return facts.take();
}

Table part_table(const ModelInspection& found) {
  Table table{"parts",
              "Files with tensors",
              {{"path", "file", false}, {"file_bytes", "bytes"}, {"tensors", "tensors"}},
              {}};
  for (const ModelPart& part : found.parts) {
    table.rows.push_back(
        {text_cell(part.path), integer_cell(part.file_bytes), integer_cell(part.tensors)});
  }
  return table;
}

Table type_table(const ModelInspection& found) {
  Table table{"tensor_types",
              "Tensors by type",
              {{"type", "type", false},
               {"tensors", "tensors"},
               {"values", "values"},
               {"bytes", "bytes"},
               {"bits_per_value", "bits per\nvalue"}},
              {}};
  for (const TensorTypeSum& sum : found.types) {
    const double bits =
        sum.values == 0 ? 0
                        : 8.0 * static_cast<double>(sum.bytes) / static_cast<double>(sum.values);
    table.rows.push_back({text_cell(sum.type), integer_cell(sum.tensors), integer_cell(sum.values),
                          integer_cell(sum.bytes), number_cell(bits, 2)});
  }
  return table;
}

Table key_table(const ModelInspection& found) {
  Table table{"keys",
              "Metadata",
              {{"key", "key", false}, {"type", "type", false}, {"value", "value", false}},
              {}};
  for (const MetadataEntry& entry : found.entries) {
    table.rows.push_back({text_cell(entry.key), text_cell(entry.type), text_cell(entry.value)});
  }
  return table;
}

// Exact bytes of each policy, and of a sequence as long as the model takes.
Result<Table> cache_table(const ModelConfig& config) {
  const int64_t context = usual_context(config.context_length);
  Table table{"cache",
              fmt::format("What its cache costs (exact; a sequence of {})",
                          counted(static_cast<uint64_t>(context), "token")),
              {{"policy", "policy", false},
               {"bytes_per_token", "B per\ntoken"},
               {"bytes_per_sequence", "B per\nsequence"},
               {"ratio_to_f16", "smaller\nby"}},
              {}};
  std::vector<std::string> words;
  for (const Preset& preset : presets()) words.emplace_back(preset.name);
  const auto policies = parse_policies(words);
  if (!policies.ok()) return policies.error();
  double full = 0;
  for (const NamedPolicy& named : *policies) {
    MemoryPlanInput input;
    input.shape = config.cache_shape();
    input.policy = named.policy;
    input.context_tokens = context;
    input.max_sequences = 1;
    const auto plan = plan_memory(input);
    if (!plan.ok()) return plan.error();
    double bytes = 0;
    for (const GroupPlan& group : plan->groups) {
      bytes += static_cast<double>(group.page_bytes) / block_tokens;
    }
    if (full == 0) full = bytes;
    table.rows.push_back({text_cell(named.word),
                          {fmt::format("{:g}", bytes), bytes},
                          integer_cell(plan->bytes_per_sequence),
                          number_cell(full / bytes, 2)});
  }
  return table;
}

Status run_inspect(const InspectOptions& options) {
  const auto outputs = find_outputs(options.files, files_of_model(options.model));
  if (!outputs.ok()) return outputs.error();
  const auto found = inspect_model(options.model);
  if (!found.ok()) return found.error();
  Report report;
  report.command = "inspect";
  report.inputs["model"] = options.model;
  report.tables = {model_table(*found)};
  if (!found->parts.empty()) {
    report.tables.push_back(type_table(*found));
    report.tables.push_back(part_table(*found));
  }
  if (found->config) {
    auto cache = cache_table(*found->config);
    if (!cache.ok()) return cache.error();
    report.tables.push_back(std::move(*cache));
    if (!found->config->kv_scheme.empty()) report.flag = policy_flag(found->config->kv_scheme);
  }
  if (options.keys) report.tables.push_back(key_table(*found));
  const bool runs = found->run_refusal.empty();
  report.verdict_facts["runs"] = runs;
  report.verdict_facts["run_refusal"] = found->run_refusal;
  report.verdict_facts["counted"] = found->config.has_value();
  report.verdict = runs            ? "`kvart run` runs it."
                   : found->config ? "Its cache is counted, but `kvart run` doesn't run it: " +
                                         found->run_refusal
                                   : "Neither counted nor run: " + found->run_refusal;
  if (!report.flag.empty()) {
    report.verdict += fmt::format(" It declares its own KV cache: {}.", report.flag);
  }
  return publish(report, *outputs);
}

}  // namespace

void add_inspect_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "What is in a model's files, and whether `kvart run` runs it");
  add_text_option(*command, "model", &options->model, "MODEL",
                  "GGUF file (or a part of a split one), checkpoint's folder, config.json or "
                  "safetensors file")
      ->required();
  command->add_flag("--keys", options->keys, "Every key of the metadata with its value, cut");
  add_output_options(*command, &options->files);
  command->callback([options, exit_code] {
    const Status status = run_inspect(*options);
    if (!status.ok()) *exit_code = fail(status.error());
  });
}

}  // namespace kvart::tools
