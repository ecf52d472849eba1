// `kvart eval divergence MODEL`.
#include <memory>

#include "eval.h"
#include "tools/eval/divergence.h"

namespace kvart::tools {
namespace {

struct DivergenceCommand {
  EvalOptions common;
  std::vector<std::string> policies;
  std::string text;
  DivergenceOptions asked;
};

int run_divergence(const DivergenceCommand& command) {
  std::vector<std::string> inputs;
  if (!command.text.empty()) inputs.push_back(command.text);
  auto policies = parse_policies(command.policies.empty() ? usual_policies() : command.policies);
  if (!policies.ok()) return fail(policies.error());
  auto text = read_evaluation_text(command.text);
  if (!text.ok()) return fail(text.error());
  DivergenceOptions asked = command.asked;
  asked.policies = std::move(*policies);
  asked.text = std::move(*text);
  asked.seed = command.common.seed;
  const auto measure = [&](const Model& model, int threads, Watch& watch) -> Result<Report> {
    asked.threads = threads;
    const auto result = measure_divergence(model, asked, watch);
    if (!result.ok()) return result.error();
    return divergence_report(*result);
  };
  return run_evaluation(command.common, with_policy_files(inputs, command.policies), measure);
}

}  // namespace

void add_divergence_command(CLI::App& eval, int* exit_code) {
  auto options = std::make_shared<DivergenceCommand>();
  CLI::App* command = eval.add_subcommand(
      "divergence", "How far each policy's next tokens are from full precision, over a text");
  add_eval_options(*command, &options->common);
  add_policies_option(*command, &options->policies);
  add_text_option(*command, "--text", &options->text, "FILE",
                  "Text to measure on, - for stdin (default: one that is included)");
  add_tokens_option(*command, "--context", &options->asked.context_tokens,
                    "Tokens of a window of the text (default: 2k, or what the model was made for)");
  add_tokens_option(*command, "--tokens", &options->asked.text_tokens,
                    "Tokens of the text at most (default: one window)");
  add_integer_option(*command, "--chunk", &options->asked.chunk_tokens, {1, 4096, ""},
                     "Tokens given in one step; 1: token by token, as in decode, with the same "
                     "result")
      ->default_str("64");
  command->callback([options, exit_code] { *exit_code = run_divergence(*options); });
}

}  // namespace kvart::tools
