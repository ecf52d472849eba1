// `kvart run MODEL -p TEXT`: one answer from a quantized cache, streamed, then what it took.
#include "run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "commands.h"
#include "files.h"
#include "kvart/sampler.h"
#include "kvart/session.h"
#include "report.h"

namespace kvart::tools {

namespace {

struct RunOptions {
  std::string model;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  std::string token_ids_file;
  std::string cache_dtype = "int4";
  std::string json_path;
  bool raw = false;
  int forced = 0;
  bool ignore_eos = false;
  bool quiet = false;
  int max_tokens = 256;
  int64_t context = 0;
  int threads = 0;
  int chunk = 512;
  SamplingOptions sampling;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<std::string> read_prompt(const RunOptions& options) {
  if (options.prompt_file.empty()) return options.prompt;
  if (options.prompt_file == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream file(options.prompt_file, std::ios::binary);
  if (!file)
    return Error{ErrorCode::not_found,
                 options.prompt_file + ": can't be read; give a text file or - for stdin"};
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Ids separated by white space: for benchmarks, which need the same tokens in every engine.
Result<std::vector<int32_t>> read_token_ids(const Model& model, const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{ErrorCode::not_found, path + ": can't be read"};
  std::vector<int32_t> tokens;
  for (int64_t id = 0; file >> id;) {
    if (id < 0 || id >= model.config().vocab) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: token {} is not in the vocabulary of {} tokens", path, id,
                               model.config().vocab)};
    }
    tokens.push_back(static_cast<int32_t>(id));
  }
  if (!file.eof())
    return Error{ErrorCode::invalid_argument, path + ": holds something else than token ids"};
  return tokens;
}

Result<std::vector<int32_t>> prompt_tokens(const Model& model, const RunOptions& options,
                                           const std::string& prompt) {
  if (options.raw) return model.tokenize(prompt, false);
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", prompt});
  return model.chat_tokens(messages);
}

// One run: its objects, and what was measured.
class Run {
 public:
  explicit Run(const RunOptions& options) : options_(options), sampler_(options.sampling) {}

  Status load() {
    auto parsed = parse_policy(options_.cache_dtype);
    if (!parsed) return parsed.error();
    if (!parsed->note.empty()) fmt::print(stderr, "{}\n", parsed->note);
    policy_ = std::move(parsed->policy);
    progress(fmt::format("loading {}", options_.model));
    const auto start = std::chrono::steady_clock::now();
    auto model = Model::load(options_.model, options_.threads);
    if (!model) return model.error();
    model_ = std::move(model).value();
    progress(fmt::format("loaded in {:.1f} s", seconds_since(start)));
    return {};
  }

  Status generate() {
    KVART_RETURN_IF_ERROR(prepare());
    KVART_RETURN_IF_ERROR(prefill());
    return decode();
  }

  void report() const {
    const double prompt_s = prefill_s_ > 0 ? static_cast<double>(prompt_.size()) / prefill_s_ : 0;
    fmt::print(stderr, "prompt  {:6} tokens  {:8.1f} tokens/s\n", prompt_.size(), prompt_s);
    fmt::print(stderr, "answer  {:6} tokens  {:8.1f} tokens/s\n", answer_.size(), decode_rate());
    fmt::print(stderr,
               "cache   {:6} tokens  {} uses {:.2f} MB ({:.2f} sealed + {:.2f} open), f16 would "
               "use {:.2f} MB: {:.2f} times\n",
               tokens(), policy_.name, megabytes(used_bytes()), megabytes(sealed_bytes()),
               megabytes(used_bytes() - sealed_bytes()), megabytes(f16_bytes()),
               static_cast<double>(f16_bytes()) / static_cast<double>(used_bytes()));
    if (sealed_bytes() == 0) {
      fmt::print(
          stderr,
          "        nothing is quantized yet: blocks of {} tokens are sealed when they are full; "
          "the gain begins with longer contexts\n",
          block_tokens);
    }
  }

  [[nodiscard]] nlohmann::ordered_json json() const {
    nlohmann::ordered_json j;
    j["model"] = options_.model;
    j["kv_cache_dtype"] = policy_.name;
    j["text"] = text_;
    j["finish_reason"] = finish_reason_;
    j["prompt_tokens"] = prompt_.size();
    j["completion_tokens"] = answer_.size();
    j["prompt_ids"] = prompt_;
    j["completion_ids"] = answer_;
    j["prefill_s"] = prefill_s_;
    j["decode_s"] = decode_s_;
    j["decode_tokens_per_s"] = decode_rate();
    j["kv_used_bytes"] = used_bytes();
    j["kv_sealed_bytes"] = sealed_bytes();
    j["kv_f16_bytes"] = f16_bytes();
    j["kv_allocated_bytes"] = session_->allocated_cache_bytes();
    return j;
  }

 private:
  static double megabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

  void progress(const std::string& text) const {
    if (!options_.quiet) fmt::print(stderr, "{}\n", text);
  }

  Status prepare() {
    KVART_RETURN_IF_ERROR(read_tokens());
    if (prompt_.empty())
      return Error{ErrorCode::invalid_argument, "the prompt is empty; give text with -p or -f"};
    const int64_t limit = model_->config().context_length;
    const auto answer = forced_.empty() ? static_cast<int64_t>(options_.max_tokens)
                                        : static_cast<int64_t>(forced_.size());
    const int64_t wanted = static_cast<int64_t>(prompt_.size()) + answer;
    SessionOptions session;
    session.policy = policy_;
    session.context_tokens = options_.context > 0 ? options_.context
                             : limit > 0          ? std::min(limit, wanted)
                                                  : wanted;
    session.max_step_tokens = options_.chunk;
    session.threads = options_.threads;
    if (static_cast<int64_t>(prompt_.size()) >= session.context_tokens) {
      return Error{
          ErrorCode::out_of_memory,
          fmt::format("the prompt has {} tokens, the context {}: shorten it{}", prompt_.size(),
                      session.context_tokens, options_.context > 0 ? " or raise --context" : "")};
    }
    context_ = session.context_tokens;
    auto created = Session::create(*model_, session);
    if (!created) return created.error();
    session_ = std::move(created).value();
    return {};
  }

  Status read_tokens() {
    if (!options_.token_ids_file.empty()) {
      auto tokens = read_token_ids(*model_, options_.token_ids_file);
      if (!tokens) return tokens.error();
      prompt_ = std::move(tokens).value();
      const size_t forced = std::min(static_cast<size_t>(options_.forced), prompt_.size());
      forced_.assign(prompt_.end() - static_cast<ptrdiff_t>(forced), prompt_.end());
      prompt_.resize(prompt_.size() - forced);
      return {};
    }
    auto prompt = read_prompt(options_);
    if (!prompt) return prompt.error();
    auto tokens = prompt_tokens(*model_, options_, *prompt);
    if (!tokens) return tokens.error();
    prompt_ = std::move(tokens).value();
    return {};
  }

  Status prefill() {
    auto sequence = session_->start(prompt_, "");
    if (!sequence) return sequence.error();
    sequence_ = *sequence;
    const auto start = std::chrono::steady_clock::now();
    const std::span<const int32_t> tokens = prompt_;
    for (size_t done = 0; done < tokens.size();) {
      const size_t count = std::min(tokens.size() - done, static_cast<size_t>(options_.chunk));
      const bool last = done + count == tokens.size();
      KVART_RETURN_IF_ERROR(
          step(tokens.subspan(done, count), last ? WantLogits::last : WantLogits::none));
      done += count;
      if (!options_.quiet && tokens.size() > 2048 && isatty(STDERR_FILENO) != 0) {
        fmt::print(stderr, "\rprompt {:3.0f} %",
                   100.0 * static_cast<double>(done) / static_cast<double>(tokens.size()));
        if (last) fmt::print(stderr, "\r            \r");
      }
    }
    prefill_s_ = seconds_since(start);
    return {};
  }

  Status step(std::span<const int32_t> tokens, WantLogits want) {
    const StepRequest request = {sequence_, tokens, want};
    const StepResult& result = session_->step({&request, 1})[0];
    KVART_RETURN_IF_ERROR(result.status);
    logits_ = result.logits;
    return {};
  }

  // The given tokens one by one, as if they had been sampled.
  Status decode_forced() {
    const auto start = std::chrono::steady_clock::now();
    for (const int32_t& token : forced_) {
      KVART_RETURN_IF_ERROR(step({&token, 1}, WantLogits::last));
      answer_.push_back(token);
    }
    decode_s_ = seconds_since(start);
    finish_reason_ = "forced";
    return {};
  }

  Status decode() {
    if (!forced_.empty()) return decode_forced();
    const auto stream = model_->text_stream();
    std::vector<int32_t> seen = prompt_;
    const auto start = std::chrono::steady_clock::now();
    finish_reason_ = "length";
    while (static_cast<int>(answer_.size()) < options_.max_tokens && tokens() < context_) {
      const int32_t token = sampler_.sample(logits_, seen);
      if (model_->ends_generation(token) && !options_.ignore_eos) {
        finish_reason_ = "stop";
        break;
      }
      answer_.push_back(token);
      seen.push_back(token);
      emit(stream->push(token));
      if (static_cast<int>(answer_.size()) == options_.max_tokens)
        break;  // its logits would not be used
      KVART_RETURN_IF_ERROR(step({&token, 1}, WantLogits::last));
    }
    emit(stream->flush());
    std::fputc('\n', stdout);
    std::fflush(stdout);
    decode_s_ = seconds_since(start);
    return {};
  }

  void emit(const std::string& piece) {
    text_ += piece;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  }

  [[nodiscard]] int64_t tokens() const { return session_->length(sequence_); }
  [[nodiscard]] double decode_rate() const {
    return decode_s_ > 0 && answer_.size() > 1 ? static_cast<double>(answer_.size() - 1) / decode_s_
                                               : 0;
  }
  [[nodiscard]] uint64_t sealed_bytes() const {
    return static_cast<uint64_t>(session_->stats().pages_referenced) *
           session_->plan().groups[0].page_bytes;
  }
  [[nodiscard]] uint64_t used_bytes() const {
    return sealed_bytes() + static_cast<uint64_t>(session_->stats().slots_referenced) *
                                session_->plan().groups[0].slot_bytes;
  }
  [[nodiscard]] uint64_t f16_bytes() const {
    return static_cast<uint64_t>(tokens()) * session_->plan().f16_bytes_per_token;
  }

  const RunOptions& options_;
  Sampler sampler_;
  Policy policy_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
  SequenceId sequence_ = 0;
  int64_t context_ = 0;
  std::span<const float> logits_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> answer_;
  std::vector<int32_t> forced_;
  std::string text_;
  std::string finish_reason_;
  double prefill_s_ = 0;
  double decode_s_ = 0;
};

Status run(const RunOptions& options) {
  KVART_RETURN_IF_ERROR(options.sampling.check());
  Run one(options);
  KVART_RETURN_IF_ERROR(one.load());
  KVART_RETURN_IF_ERROR(one.generate());
  one.report();
  if (!options.json_path.empty()) return write_file(options.json_path, one.json().dump(2) + "\n");
  return {};
}

void add_sampling_options(CLI::App& command, SamplingOptions* sampling) {
  command
      .add_option("--temp,--temperature", sampling->temperature, "0: always the most likely token")
      ->capture_default_str();
  command.add_option("--top-k", sampling->top_k, "only the K most likely tokens; 0: all")
      ->capture_default_str();
  command
      .add_option("--top-p", sampling->top_p, "the smallest set of tokens with this probability")
      ->capture_default_str();
  command
      .add_option("--min-p", sampling->min_p, "drop tokens below this share of the most likely one")
      ->capture_default_str();
  command
      .add_option("--repetition-penalty", sampling->repetition_penalty,
                  "above 1: fewer repetitions")
      ->capture_default_str();
  command.add_option("--seed", sampling->seed, "of the random draws")->capture_default_str();
}

}  // namespace

void add_run_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Answer a prompt from a quantized KV cache");
  command->add_option("model", options->model, "GGUF file")->required();
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "the user's message");
  command->add_option("-f,--file", options->prompt_file, "file with the message, - for stdin")
      ->excludes(prompt);
  command
      ->add_option("--token-ids", options->token_ids_file,
                   "file of prompt token ids instead of text")
      ->excludes(prompt);
  command
      ->add_option("--forced", options->forced,
                   "the last N of --token-ids are fed one by one as the answer (to measure)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--system", options->system, "system message");
  command->add_flag("--raw", options->raw, "complete the text as it is, without the chat template");
  command
      ->add_option("--kv-cache-dtype", options->cache_dtype,
                   "format or policy of the cache; see `kvart formats`")
      ->capture_default_str();
  command->add_option("-n,--max-tokens", options->max_tokens, "longest answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--context", options->context,
                   "tokens that the cache holds; default: prompt and answer")
      ->check(CLI::PositiveNumber);
  command->add_option("--chunk", options->chunk, "prompt tokens per step")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  options->threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  command->add_option("-t,--threads", options->threads, "default: all cores")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--ignore-eos", options->ignore_eos, "go on to --max-tokens (to measure)");
  command->add_flag("-q,--quiet", options->quiet, "no progress on stderr");
  command->add_option("--json", options->json_path, "write text, tokens and figures to this file");
  add_sampling_options(*command, &options->sampling);
  command->callback([options, exit_code] {
    const Status status = run(*options);
    if (status.ok()) return;
    *exit_code = fail(status.error());
  });
}

}  // namespace kvart::tools
