// `kvart eval needle MODEL`.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "eval.h"
#include "streams.h"
#include "tools/eval/needle.h"
#include "units.h"

namespace kvart::tools {
namespace {

struct NeedleCommand {
  EvalOptions common;
  std::vector<std::string> policies;
  std::vector<std::string> contexts;
  std::vector<std::string> depths;
  std::string mode = "multikey";
  std::string haystack;
  NeedleOptions asked;
};

constexpr int most_needles = 64;
const NumberRange depth_range{0, 100, false};

Result<NeedleOptions> options_of(const NeedleCommand& command) {
  NeedleOptions asked = command.asked;
  auto policies = parse_policies(command.policies.empty() ? usual_policies() : command.policies);
  if (!policies.ok()) return policies.error();
  asked.policies = std::move(*policies);
  asked.task = *task_of(command.mode);
  for (const std::string& part : command.contexts) {
    const auto tokens = parse_tokens(part);
    if (!tokens.ok()) return Error{tokens.error().code, "--contexts: " + tokens.error().message};
    asked.contexts.push_back(*tokens);
  }
  for (const std::string& part : command.depths) {
    const auto depth = parse_number(part, depth_range);
    if (!depth.ok()) return Error{depth.error().code, "--depths: " + depth.error().message};
    asked.depths_percent.push_back(*depth);
  }
  if (!asked.depths_percent.empty() && asked.needles > 0) {
    return Error{ErrorCode::invalid_argument, "--depths and --keys: give only one of them"};
  }
  if (asked.depths_percent.size() > most_needles) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--depths: {} of them; give at most {}", asked.depths_percent.size(),
                             most_needles)};
  }
  asked.seed = command.common.seed;
  if (command.haystack.empty()) return asked;
  auto text = read_text(command.haystack, "a text file, or - for stdin");
  if (!text.ok()) return text.error();
  if (text->empty()) {
    return Error{ErrorCode::invalid_argument,
                 command.haystack + ": is empty; give a file with the text"};
  }
  asked.haystack = std::move(*text);
  asked.haystack_name = command.haystack == "-" ? "stdin" : command.haystack;
  return asked;
}

int run_needle(const NeedleCommand& command) {
  auto asked = options_of(command);
  if (!asked.ok()) return fail(asked.error());
  std::vector<std::string> inputs;
  if (!command.haystack.empty()) inputs.push_back(command.haystack);
  const auto measure = [&](const Model& model, int threads, Watch& watch) -> Result<Report> {
    asked->threads = threads;
    const auto result = measure_needle(model, *asked, watch);
    if (!result.ok()) return result.error();
    return needle_report(*result);
  };
  return run_evaluation(command.common, with_policy_files(inputs, command.policies), measure);
}

void add_text_options(CLI::App& command, NeedleCommand* options) {
  add_number_list_option(command, "--contexts", &options->contexts, "TOKENS",
                         "Tokens of prompt and reply, e.g. 1k,4k (default: 1k,2k,4k, as far as "
                         "the model was made for them)");
  add_number_list_option(command, "--depths", &options->depths, "PERCENT",
                         "Where the facts stand in the text, 0 to 100 (default: evenly)");
  add_integer_option(command, "--keys", &options->asked.needles, {1, most_needles, ""},
                     "Facts: keys of a text, depths in single mode, values, or variables "
                     "(default: 8 keys, 5 depths, 4 values, 5 variables)");
  add_integer_option(command, "--texts", &options->asked.texts, {1, 1000, ""},
                     "Texts with keys of their own for each context")
      ->default_str("1");
  add_text_option(command, "--haystack", &options->haystack, "FILE",
                  "Text to hide the facts in, - for stdin (default: generated)");
  command.add_flag("--raw", options->asked.raw, "Without the model's chat template");
  add_integer_option(command, "--reply-tokens", &options->asked.reply_tokens, {1, 4096, ""},
                     "Longest reply")
      ->default_str("24");
}

}  // namespace

void add_needle_command(CLI::App& eval, int* exit_code) {
  auto options = std::make_shared<NeedleCommand>();
  CLI::App* command = eval.add_subcommand(
      "needle", "Whether facts in a long text are still found, policy by policy");
  add_eval_options(*command, &options->common);
  add_policies_option(*command, &options->policies);
  add_text_option(
      *command, "--mode", &options->mode, "MODE",
      "single (one fact in a text), multikey (many alike, asked one by one), multivalue "
      "(many values of a key) or vt (a chain of variables)")
      ->check([](const std::string& word) {
        return task_of(word) ? std::string()
                             : fmt::format(
                                   "'{}' isn't a mode; use single, multikey, multivalue or "
                                   "vt",
                                   word);
      })
      ->default_str("multikey");
  add_text_options(*command, options.get());
  command->callback([options, exit_code] { *exit_code = run_needle(*options); });
}

}  // namespace kvart::tools
