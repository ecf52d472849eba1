// `kvart gain MODEL`: sequences that fit, decode and prefill of each policy, measured.
#include "gain/gain.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cache_options.h"
#include "commands.h"
#include "model_loading.h"
#include "options.h"
#include "report.h"
#include "streams.h"
#include "units.h"

namespace kvart::tools {
namespace {

struct GainCommand {
  std::string model;
  LoadOptions load;
  std::vector<std::string> contexts;
  CacheOptions caches;
  int64_t batch_max = 1024;
  double time_budget_s = 90;
  int threads = 0;
  bool quiet = false;
  OutputFiles files;
};

Result<std::vector<int64_t>> read_contexts(const GainCommand& command) {
  std::vector<int64_t> contexts;
  for (const std::string& list : command.contexts) {
    for (const std::string& text : split_commas(list)) {
      const auto context = parse_tokens(text);
      if (!context.ok()) {
        return Error{context.error().code, "--context " + context.error().message};
      }
      contexts.push_back(*context);
    }
  }
  if (contexts.empty()) return std::vector<int64_t>{1024, 4096, 16384, 32768};
  return contexts;
}

Result<GainOptions> read_options(const GainCommand& command) {
  GainOptions options;
  auto contexts = read_contexts(command);
  if (!contexts.ok()) return contexts.error();
  options.contexts = std::move(*contexts);
  auto caches = read_caches(command.caches);
  if (!caches.ok()) return caches.error();
  options.policies = std::move(caches->policies);
  options.kv_memory_bytes = caches->kv_memory_bytes;
  options.kv_memory_given = caches->kv_memory_given;
  options.available_bytes = caches->available_bytes;
  options.batch_max = command.batch_max;
  options.threads = threads_to_run(command.threads, command.quiet);
  return options;
}

// The caches lie in the GPU's memory; a cache that wasn't given a size takes most of what is free.
void use_gpu_memory(const Model& model, GainOptions* options) {
  constexpr uint64_t unit = uint64_t{1} << 30;  // so that it repeats where little else changes
  options->available_bytes = available_bytes_of(model);
  if (options->kv_memory_given) return;
  const uint64_t share = options->available_bytes / 4 * 3;
  options->kv_memory_bytes = share >= unit ? share / unit * unit : share;
}

Status run_gain(const GainCommand& command) {
  const auto outputs = find_outputs(
      command.files, with_policy_files(files_of_model(command.model), command.caches.policies));
  if (!outputs.ok()) return outputs.error();
  auto options = read_options(command);
  if (!options.ok()) return options.error();
  Watch watch(command.time_budget_s, command.quiet);
  const auto model = load_model(command.model, options->threads, command.load);
  if (!model.ok()) return model.error();
  if ((*model)->device() == Device::cuda) use_gpu_memory(**model, &*options);
  const auto result = measure_gain(**model, *options, watch);
  if (!result.ok()) return result.error();
  Report report = gain_report(*result);
  if (!why_nothing(*result).empty()) {
    std::string reason = report.verdict;
    // The last one says no more than that.
    for (size_t i = 0; i + 1 < result->notes.size(); ++i) reason += " " + result->notes[i];
    return Error{ErrorCode::io, reason};
  }
  report.inputs["model"] = command.model;
  report.inputs["time_budget_s"] = command.time_budget_s;
  report.inputs["batch_max"] = command.batch_max;
  if (!command.quiet) print_progress("");
  return publish(report, *outputs);
}

}  // namespace

void add_gain_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<GainCommand>();
  CLI::App* command = app.add_subcommand(
      "gain", "Measure sequences that fit, decode and prefill of each policy against context");
  CLI::Option* model = add_text_option(*command, "model", &options->model, "MODEL",
                                       "GGUF file, or the folder of a Hugging Face checkpoint");
  add_load_options(*command, &options->load, &options->model, model);
  add_list_option(*command, "--context", &options->contexts, "TOKENS",
                  "Tokens of a sequence, one or more, e.g. 1k,8k (default: 1k,4k,16k,32k, cut to "
                  "what the model was made for)");
  add_cache_options(*command, &options->caches);
  add_integer_option(*command, "--max-batch", &options->batch_max, {1, 1 << 16, ""},
                     "Sequences in a measured step; steps of more are extrapolated")
      ->default_str("1024");
  add_number_option(*command, "--time-budget", &options->time_budget_s, {1, 1e6, false},
                    "Seconds that it may take; what would take longer is extrapolated and marked")
      ->default_str("90");
  add_threads_option(*command, &options->threads);
  command->add_flag("-q,--quiet", options->quiet, "No progress on stderr");
  add_output_options(*command, &options->files);
  add_page_options(*command, &options->files);
  command->footer(
      "Caches are filled with copies of a computed sequence, so that long contexts take no time to "
      "fill.\nCtrl-C ends it with what was measured until then; where that is nothing, with exit "
      "code 1.");
  command->callback([options, exit_code] {
    const Status status = run_gain(*options);
    if (!status.ok()) *exit_code = fail(status.error());
  });
}

}  // namespace kvart::tools
