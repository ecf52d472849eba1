// Options of `kvart run`, and reading of its prompt.
#include "run_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "files.h"
#include "options.h"
#include "policies.h"
#include "streams.h"
#include "units.h"

namespace kvart::tools {
namespace {

constexpr int64_t most_ids = int64_t{1} << 31;

void add_prompt_options(CLI::App& command, RunOptions* options) {
  CLI::Option* model = add_text_option(command, "model", &options->model, "MODEL",
                                       "GGUF file, or the folder of a Hugging Face checkpoint");
  add_load_options(command, &options->load, &options->model, model);
  auto* prompt =
      command.add_option("-p,--prompt", options->prompt, "The user's message")->type_name("TEXT");
  auto* file = add_text_option(command, "-f,--file", &options->prompt_file, "FILE",
                               "File with the message, - for stdin")
                   ->excludes(prompt);
  auto* ids = add_text_option(command, "--token-ids", &options->token_ids_file, "FILE",
                              "File of prompt token ids instead of text")
                  ->excludes(prompt)
                  ->excludes(file);
  add_integer_option(command, "--forced", &options->forced, {0, most_ids - 1, "0 or more"},
                     "The last N of --token-ids are fed one by one as the answer, to measure")
      ->needs(ids);
  command
      .add_option_function<std::string>(
          "--depth", [options](const std::string& text) { options->depth = *parse_tokens(text); },
          "Fill the cache to so many tokens with copies of the prompt's blocks before the forced "
          "ones, to measure where a prompt would take too long")
      ->check([](const std::string& text) { return message_of(parse_tokens(text)); })
      ->type_name("TOKENS")
      ->needs(ids);
  auto* system = add_text_option(command, "--system", &options->system, "TEXT", "System message")
                     ->excludes(ids);
  command.add_flag("--raw", options->raw, "Complete the text as it is, without the chat template")
      ->excludes(ids)
      ->excludes(system);
}

void add_sampling_options(CLI::App& command, SamplingOptions* sampling) {
  add_number_option(command, "--temp,--temperature", &sampling->temperature, {0, 100, false},
                    "0: always the most likely token; higher: more surprises")
      ->default_str("0");
  add_integer_option(command, "--top-k", &sampling->top_k,
                     {0, (int64_t{1} << 31) - 1, "0 (all) to 2^31 - 1"},
                     "Only the N most likely tokens")
      ->default_str("0");
  add_number_option(command, "--top-p", &sampling->top_p, {0, 1, true},
                    "The smallest set of tokens with this probability")
      ->default_str("1");
  add_number_option(command, "--min-p", &sampling->min_p, {0, 1, false},
                    "Drop tokens below this share of the most likely one")
      ->default_str("0");
  add_number_option(command, "--repetition-penalty", &sampling->repetition_penalty, {0, 100, true},
                    "Above 1: fewer repetitions")
      ->default_str("1");
  add_seed_option(command, &sampling->seed);
}

Status check_token_ids(const RunOptions& options, const std::vector<int32_t>& ids) {
  if (ids.empty()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: holds no token ids; give some, separated by white space",
                             options.token_ids_file)};
  }
  const auto prompt = static_cast<int64_t>(ids.size()) - options.forced;
  if (prompt > 0 && options.depth > 0 && (options.forced == 0 || options.depth < prompt)) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--depth {}: it needs --forced, and at least the prompt's {} tokens",
                             options.depth, prompt)};
  }
  if (prompt > 0) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("--forced {}: {} has {} token ids, and at least one must be left for "
                           "the prompt; force at most {}",
                           options.forced, options.token_ids_file, ids.size(), ids.size() - 1)};
}

}  // namespace

void add_run_options(CLI::App& command, RunOptions* options) {
  add_prompt_options(command, options);
  add_text_option(command, "--kv-cache-dtype", &options->cache_dtype, "POLICY",
                  "Format or policy of the cache, see `kvart formats`; a file of bits per layer "
                  "(.yaml, .json); or auto: what the checkpoint declares")
      ->default_str(options->cache_dtype);
  add_integer_option(command, "-n,--max-tokens", &options->max_tokens, {1, 1 << 24, ""},
                     "Longest answer in tokens")
      ->default_str("256");
  command
      .add_option_function<std::string>(
          "--context",
          [options](const std::string& text) { options->context = *parse_tokens(text); },
          "Tokens that the cache holds, e.g. 4096 or 8k (1,024 each), 1 to 2^31 (default: prompt "
          "and answer, at most what the model was made for)")
      ->check([](const std::string& text) { return message_of(parse_tokens(text)); })
      ->type_name("TOKENS");
  add_integer_option(command, "--chunk", &options->chunk, {1, 65536, ""}, "Prompt tokens per step")
      ->default_str("512");
  add_threads_option(command, &options->threads);
  command.add_flag("--ignore-eos", options->ignore_eos, "Go on to --max-tokens, to measure");
  command.add_flag("-q,--quiet", options->quiet, "Nothing but errors on stderr");
  add_text_option(command, "--json", &options->json_path, "FILE",
                  "Write text, tokens and figures to FILE as JSON");
  add_sampling_options(command, &options->sampling);
}

std::vector<std::string> files_read(const RunOptions& options) {
  std::vector<std::string> files = files_of_model(options.model);
  for (const std::string& file : {options.prompt_file, options.token_ids_file}) {
    if (!file.empty()) files.push_back(file);
  }
  return with_policy_files(std::move(files), {options.cache_dtype});
}

Result<std::vector<int32_t>> parse_token_ids(const std::string& text, const std::string& name) {
  constexpr std::string_view space = " \t\r\n\v\f";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(space); at != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(space, at), text.size());
    const auto id =
        parse_integer(std::string_view(text).substr(at, end - at), {0, most_ids - 1, ""});
    if (!id.ok()) {
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("{}: word {}, '{}', isn't a token id: ids are whole numbers from 0", name,
                      ids.size() + 1, text.substr(at, std::min<size_t>(end - at, 40)))};
    }
    ids.push_back(static_cast<int32_t>(*id));
    at = text.find_first_not_of(space, end);
  }
  return ids;
}

Result<RunInput> read_input(const RunOptions& options) {
  RunInput input;
  if (!options.token_ids_file.empty()) {
    const auto text = read_text(options.token_ids_file, "a file of token ids");
    if (!text.ok()) return text.error();
    auto ids = parse_token_ids(*text, options.token_ids_file);
    if (!ids.ok()) return ids.error();
    KVART_RETURN_IF_ERROR(check_token_ids(options, *ids));
    input.token_ids = std::move(*ids);
    return input;
  }
  input.prompt = options.prompt;
  if (!options.prompt_file.empty()) {
    auto text = read_text(options.prompt_file, "a text file, or - for stdin");
    if (!text.ok()) return text.error();
    input.prompt = std::move(*text);
  }
  if (!input.prompt.empty() || !options.system.empty()) return input;
  return Error{ErrorCode::invalid_argument,
               options.prompt_file.empty()
                   ? std::string("there is no prompt; give text with -p, or a file with -f")
                   : options.prompt_file + ": is empty; give a file with the prompt"};
}

}  // namespace kvart::tools
