// `kvart eval`: what quantization of the cache does to a model's answers.
#include "eval.h"

#include <fmt/format.h>

#include "commands.h"
#include "kvart/memory_plan.h"
#include "units.h"

namespace kvart::tools {
namespace {

constexpr double longest_budget_s = 1e6;

Status evaluate(const EvalOptions& options, std::vector<std::string> inputs,
                const Evaluation& evaluation) {
  const std::vector<std::string> model_files = files_of_model(options.model);
  inputs.insert(inputs.end(), model_files.begin(), model_files.end());
  const auto outputs = find_outputs(options.files, inputs);
  if (!outputs.ok()) return outputs.error();
  const auto loaded = load_with_policy(options.model, std::string(open_block_format().name),
                                       options.threads, options.load, options.quiet);
  if (!loaded.ok()) return loaded.error();
  auto report = [&]() -> Result<Report> {
    Watch watch(options.budget_s, options.quiet);
    return evaluation(*loaded->model, loaded->threads, watch);
  }();
  if (!report.ok()) return report.error();
  if (report->tables.empty()) return Error{ErrorCode::io, report->verdict};
  return publish(*report, *outputs);
}

}  // namespace

void add_eval_options(CLI::App& command, EvalOptions* options) {
  CLI::Option* model = add_text_option(command, "model", &options->model, "MODEL",
                                       "GGUF file, or the folder of a Hugging Face checkpoint");
  add_load_options(command, &options->load, &options->model, model);
  add_threads_option(command, &options->threads);
  add_seed_option(command, &options->seed);
  add_number_option(command, "--time-budget", &options->budget_s, {0, longest_budget_s, true},
                    "Seconds after which it ends with what it has (default: no limit)");
  command.add_flag("-q,--quiet", options->quiet, "Nothing but errors on stderr");
  add_output_options(command, &options->files);
  add_page_options(command, &options->files);
}

void add_policies_option(CLI::App& command, std::vector<std::string>* words) {
  add_list_option(command, "--policies,--kv-cache-dtype", words, "POLICY", policy_help);
}

CLI::Option* add_tokens_option(CLI::App& command, const std::string& name, int64_t* tokens,
                               const std::string& help) {
  return command
      .add_option_function<std::string>(
          name, [tokens](const std::string& text) { *tokens = *parse_tokens(text); },
          help + "; 4096, or 4k (1,024 each)")
      ->check([](const std::string& text) { return message_of(parse_tokens(text)); })
      ->type_name("TOKENS");
}

void add_number_list_option(CLI::App& command, const std::string& name,
                            std::vector<std::string>* parts, const std::string& type,
                            const std::string& help) {
  add_list_option(command, name, parts, type, help)->delimiter(',');
}

int run_evaluation(const EvalOptions& options, std::vector<std::string> inputs,
                   const Evaluation& evaluation) {
  const Status status = evaluate(options, std::move(inputs), evaluation);
  return status.ok() ? exit_fine : fail(status.error());
}

void add_eval_command(CLI::App& app, int* exit_code) {
  CLI::App* eval = app.add_subcommand(
      "eval", "Measure what quantization does to answers: divergence, needle, sensitivity");
  eval->require_subcommand(1);
  add_needle_command(*eval, exit_code);
  add_sensitivity_command(*eval, exit_code);
  add_divergence_command(*eval, exit_code);
}

}  // namespace kvart::tools
