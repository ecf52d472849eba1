// `kvart eval sensitivity MODEL`.
#include <memory>

#include "eval.h"
#include "tools/eval/sensitivity.h"
#include "units.h"

namespace kvart::tools {
namespace {

struct SensitivityCommand {
  EvalOptions common;
  std::string text;
  std::vector<std::string> contexts;
  bool no_retrieval = false;
  SensitivityOptions asked;
};

int run_sensitivity(const SensitivityCommand& command) {
  std::vector<std::string> inputs;
  if (!command.text.empty()) inputs.push_back(command.text);
  SensitivityOptions asked = command.asked;
  auto text = read_evaluation_text(command.text);
  if (!text.ok()) return fail(text.error());
  asked.text = std::move(*text);
  asked.seed = command.common.seed;
  asked.retrieval = !command.no_retrieval;
  for (const std::string& part : command.contexts) {
    const auto tokens = parse_tokens(part);
    if (!tokens.ok()) return fail({tokens.error().code, "--contexts: " + tokens.error().message});
    asked.needle.contexts.push_back(*tokens);
  }
  // Who says how facts are to be asked for wants them asked for.
  const NeedleOptions usual;
  asked.must_retrieve = !asked.needle.contexts.empty() || asked.needle.raw ||
                        asked.needle.needles != usual.needles || asked.needle.texts != usual.texts;
  const auto measure = [&](const Model& model, int threads, Watch& watch) -> Result<Report> {
    asked.threads = threads;
    if (asked.needle.contexts.empty()) {
      asked.needle.contexts = {usual_contexts(model.config()).front()};
    }
    const auto result = measure_sensitivity(model, asked, watch);
    if (!result.ok()) return result.error();
    return sensitivity_report(*result);
  };
  return run_evaluation(command.common, inputs, measure);
}

}  // namespace

void add_sensitivity_command(CLI::App& eval, int* exit_code) {
  auto options = std::make_shared<SensitivityCommand>();
  SensitivityOptions& asked = options->asked;
  CLI::App* command = eval.add_subcommand(
      "sensitivity", "What K alone, V alone and each layer lose when they are quantized");
  add_eval_options(*command, &options->common);
  add_list_option(*command, "--formats", &asked.formats, "FORMAT",
                  "Formats, see `kvart formats` (default: the smallest ones of 4 bits)")
      ->delimiter(',');
  add_text_option(*command, "--text", &options->text, "FILE",
                  "Text for the divergence, - for stdin (default: one that is included)");
  add_tokens_option(*command, "--context", &asked.context_tokens,
                    "Tokens of a window of the text (default: 2k, or what the model was made for)");
  add_tokens_option(*command, "--tokens", &asked.text_tokens,
                    "Tokens of the text at most (default: one window)");
  add_number_list_option(*command, "--contexts", &options->contexts, "TOKENS",
                         "Where facts are asked for: tokens of prompt and reply (default: 1k)");
  add_integer_option(*command, "--keys", &asked.needle.needles, {1, 64, ""}, "Facts in a text")
      ->default_str("8");
  add_integer_option(*command, "--texts", &asked.needle.texts, {1, 1000, ""},
                     "Texts with keys of their own for each context")
      ->default_str("1");
  command->add_flag("--raw", asked.needle.raw, "Questions without the model's chat template");
  command->add_flag("--no-retrieval", options->no_retrieval, "By divergence only");
  command->add_flag("--layers", asked.layers, "One layer's K or V at a time as well");
  add_tokens_option(*command, "--layer-tokens", &asked.layer_tokens,
                    "Tokens of the text for each layer (default: 512)");
  command->callback([options, exit_code] { *exit_code = run_sensitivity(*options); });
}

}  // namespace kvart::tools
