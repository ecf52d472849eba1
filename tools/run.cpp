// `kvart run MODEL -p TEXT`: one answer from a quantized cache, streamed, then what it took.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "kvart/session.h"
#include "model_loading.h"
#include "options.h"
#include "report.h"
#include "run_options.h"
#include "streams.h"

namespace kvart::tools {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double megabytes(uint64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

// One run: its objects, and what was measured.
class Run {
 public:
  Run(const RunOptions& options, RunInput input)
      : options_(options), input_(std::move(input)), sampler_(options.sampling) {}

  Status load() {
    auto loaded = load_with_policy(options_.model, options_.cache_dtype, options_.threads,
                                   options_.load, options_.quiet);
    if (!loaded) return loaded.error();
    model_ = std::move(loaded->model);
    policy_ = std::move(loaded->policy);
    threads_ = loaded->threads;
    return {};
  }

  Status generate() {
    KVART_RETURN_IF_ERROR(prepare());
    KVART_RETURN_IF_ERROR(prefill());
    if (options_.depth > tokens()) KVART_RETURN_IF_ERROR(fill_to_depth());
    return forced_.empty() ? decode() : decode_forced();
  }

  void report() const {
    const auto line = [](const char* what, size_t count, const std::string& rest) {
      return fmt::format("{:<7} {:6} token{} {}", what, count, count == 1 ? " " : "s", rest);
    };
    const auto rate = [](double per_s) {
      return per_s > 0 ? fmt::format(" {:8.1f} tokens/s", per_s) : std::string();
    };
    say(line("prompt", prompt_.size(),
             rate(prefill_s_ > 0 ? static_cast<double>(prompt_.size()) / prefill_s_ : 0)));
    say(line("answer", answer_.size(), rate(decode_rate())));
    say(line("cache", static_cast<size_t>(tokens()), cache_text()));
    if (tokens() >= context_ && finish_reason_ == "length") {
      const int64_t limit = model_->config().context_length;
      say(fmt::format(
          "        the answer ends where the context of {} tokens does: {}", context_,
          limit > 0 && context_ >= limit ? "the model was made for no more" : "raise --context"));
    }
    if (sealed_bytes() == 0) {
      say(
          fmt::format("        nothing is quantized yet: blocks of {} tokens are sealed when they "
                      "are full; the gain begins with longer contexts",
                      block_tokens));
    }
  }

  [[nodiscard]] nlohmann::ordered_json json() const {
    nlohmann::ordered_json j;
    j["model"] = options_.model;
    j["kv_cache_dtype"] = policy_.name;
    j["text"] = text_;
    j["finish_reason"] = finish_reason_;
    j["prompt_tokens"] = prompt_.size();
    j["filled_tokens"] = filled_tokens_;
    j["completion_tokens"] = answer_.size();
    j["prompt_ids"] = prompt_;
    j["completion_ids"] = answer_;
    j["threads"] = threads_;
    j["prefill_s"] = prefill_s_;
    j["decode_s"] = decode_s_;
    j["decode_tokens_per_s"] = decode_rate();
    j["kv_used_bytes"] = used_bytes();
    j["kv_sealed_bytes"] = sealed_bytes();
    j["kv_f16_bytes"] = f16_bytes();
    j["kv_allocated_bytes"] = session_->allocated_cache_bytes();
    return j;
  }

  // Of stdout.
  [[nodiscard]] const Status& printed() const { return printed_; }

 private:
  void say(const std::string& text) const {
    if (!options_.quiet) print_line(text);
  }

  Status prepare() {
    KVART_RETURN_IF_ERROR(set_tokens());
    if (prompt_.empty()) {
      return Error{ErrorCode::invalid_argument,
                   "the prompt gives no tokens; give text with -p or -f"};
    }
    const int64_t limit = model_->config().context_length;
    const auto answer = forced_.empty() ? static_cast<int64_t>(options_.max_tokens)
                                        : static_cast<int64_t>(forced_.size());
    const int64_t before = std::max(options_.depth, static_cast<int64_t>(prompt_.size()));
    const int64_t wanted = before + answer;
    SessionOptions session;
    session.policy = policy_;
    session.context_tokens = options_.context > 0 ? options_.context
                             : limit > 0          ? std::min(limit, wanted)
                                                  : wanted;
    session.max_step_tokens = options_.chunk;
    session.threads = threads_;
    if (options_.depth > 0) session.max_sequences = 2;  // the prompt's, and the one of its copies
    if (before >= session.context_tokens) return too_long(before, session.context_tokens);
    if (limit > 0 && options_.context > limit) {
      say(fmt::format("--context {}: the model was made for {} tokens", options_.context, limit));
    }
    context_ = session.context_tokens;
    auto created = Session::create(*model_, session);
    if (!created) return created.error();
    session_ = std::move(created).value();
    return {};
  }

  // Of the prompt or, where that is asked for, the depth that copies of it are to fill.
  [[nodiscard]] Error too_long(int64_t tokens, int64_t context) const {
    const bool deep = tokens > static_cast<int64_t>(prompt_.size());
    const std::string what =
        deep ? fmt::format("--depth {}: the context has {} tokens: give less", tokens, context)
             : fmt::format(
                   "the prompt has {} tokens, the context {}: "
                   "shorten it",
                   tokens, context);
    return {ErrorCode::out_of_memory, what + (options_.context > 0 ? " or raise --context" : "")};
  }

  Status set_tokens() {
    if (!input_.token_ids.empty()) return split_token_ids();
    if (options_.raw) {
      auto tokens = model_->tokenize(input_.prompt, false);
      if (!tokens) return tokens.error();
      prompt_ = std::move(tokens).value();
      return {};
    }
    std::vector<ChatMessage> messages;
    if (!options_.system.empty()) messages.push_back({"system", options_.system});
    if (!input_.prompt.empty()) messages.push_back({"user", input_.prompt});
    auto tokens = model_->chat_tokens(messages);
    if (!tokens) {
      const std::string& what = tokens.error().message;
      const bool template_fault = what.starts_with("chat template");
      return Error{tokens.error().code,
                   fmt::format("{}: {}{}", options_.model, what,
                               template_fault ? "; --raw does without it" : "")};
    }
    prompt_ = std::move(tokens).value();
    return {};
  }

  // The prompt, and the last of the ids as the answer.
  Status split_token_ids() {
    const int vocab = model_->config().vocab;
    for (const int32_t id : input_.token_ids) {
      if (id < vocab) continue;
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: token {} is not in the vocabulary of {} tokens",
                               options_.token_ids_file, id, vocab)};
    }
    const auto first_forced = input_.token_ids.end() - static_cast<ptrdiff_t>(options_.forced);
    prompt_.assign(input_.token_ids.begin(), first_forced);
    forced_.assign(first_forced, input_.token_ids.end());
    return {};
  }

  Status prefill() {
    auto sequence = session_->start(prompt_, "");
    if (!sequence) return sequence.error();
    sequence_ = *sequence;
    const auto start = std::chrono::steady_clock::now();
    const std::span<const int32_t> tokens = prompt_;
    const bool show = !options_.quiet && tokens.size() > 2048;
    for (size_t done = 0; done < tokens.size();) {
      const size_t count = std::min(tokens.size() - done, static_cast<size_t>(options_.chunk));
      const bool last = done + count == tokens.size();
      KVART_RETURN_IF_ERROR(
          step(tokens.subspan(done, count), last ? WantLogits::last : WantLogits::none));
      done += count;
      if (!show) continue;
      print_progress(last
                         ? ""
                         : fmt::format("prompt {:3.0f} %", 100.0 * static_cast<double>(done) /
                                                               static_cast<double>(tokens.size())));
    }
    prefill_s_ = seconds_since(start);
    return {};
  }

  // A sequence as long as asked for, of copies of the prompt's blocks, takes the prompt's place.
  Status fill_to_depth() {
    auto filled = session_->imitate(*session_, sequence_, options_.depth);
    if (!filled.ok()) {
      return Error{filled.error().code,
                   fmt::format("--depth {}: {}", options_.depth, filled.error().message)};
    }
    filled_tokens_ = options_.depth - tokens();
    session_->release(sequence_);
    sequence_ = *filled;
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
    const auto stream = model_->text_stream();
    std::vector<int32_t> seen = prompt_;
    const auto start = std::chrono::steady_clock::now();
    finish_reason_ = "length";
    while (static_cast<int>(answer_.size()) < options_.max_tokens && tokens() < context_) {
      const int32_t token = sampler_.sample(logits_, {seen, prompt_.size(), {}});
      if (model_->ends_generation(token) && !options_.ignore_eos) {
        finish_reason_ = "stop";
        break;
      }
      answer_.push_back(token);
      seen.push_back(token);
      emit(stream->push(token));
      if (static_cast<int>(answer_.size()) == options_.max_tokens) break;  // no logits are needed
      if (!printed_.ok() && options_.json_path.empty()) break;             // nobody reads
      KVART_RETURN_IF_ERROR(step({&token, 1}, WantLogits::last));
    }
    emit(stream->flush());
    decode_s_ = seconds_since(start);
    if (printed_.ok()) printed_ = print_out("\n");
    return {};
  }

  void emit(const std::string& piece) {
    text_ += piece;
    if (printed_.ok()) printed_ = print_out(piece);
  }

  [[nodiscard]] std::string cache_text() const {
    const double ratio = static_cast<double>(f16_bytes()) / static_cast<double>(used_bytes());
    return fmt::format(
        " {} uses {:.2f} MB ({:.2f} sealed + {:.2f} open), f16 would use {:.2f} MB: "
        "{:.2f} times {}",
        policy_.name, megabytes(used_bytes()), megabytes(sealed_bytes()),
        megabytes(used_bytes() - sealed_bytes()), megabytes(f16_bytes()),
        ratio >= 1 ? ratio : 1 / ratio, ratio >= 1 ? "smaller" : "larger");
  }
  [[nodiscard]] int64_t tokens() const { return session_->length(sequence_); }
  [[nodiscard]] double decode_rate() const {
    return decode_s_ > 0 && answer_.size() > 1 ? static_cast<double>(answer_.size() - 1) / decode_s_
                                               : 0;
  }
  // Bytes of one kind of block that the sequence holds. Where groups of layers have blocks of
  // different sizes, they are what a sequence of its length needs.
  [[nodiscard]] uint64_t held_bytes(int64_t GroupPlan::*blocks, uint64_t GroupPlan::*size,
                                    int64_t referenced) const {
    const auto& groups = session_->plan().groups;
    if (groups.size() == 1) return static_cast<uint64_t>(referenced) * (groups[0].*size);
    MemoryPlanInput input;
    input.shape = model_->config().cache_shape();
    input.policy = policy_;
    input.context_tokens = tokens();
    input.max_sequences = 1;
    const auto plan = plan_memory(input);
    uint64_t bytes = 0;
    if (!plan.ok()) return bytes;
    for (const GroupPlan& group : plan->groups) {
      bytes += static_cast<uint64_t>(group.*blocks) * (group.*size);
    }
    return bytes;
  }
  [[nodiscard]] uint64_t sealed_bytes() const {
    return held_bytes(&GroupPlan::pages_per_sequence, &GroupPlan::page_bytes,
                      session_->stats().pages_referenced);
  }
  [[nodiscard]] uint64_t used_bytes() const {
    return sealed_bytes() + held_bytes(&GroupPlan::slots_per_sequence, &GroupPlan::slot_bytes,
                                       session_->stats().slots_referenced);
  }
  // 16 bits for each value of the tokens that a layer still sees.
  [[nodiscard]] uint64_t f16_bytes() const {
    uint64_t bytes = 0;
    for (const LayerShape& layer : model_->config().layer_shapes) {
      const int64_t seen = layer.window == 0 ? tokens() : std::min<int64_t>(layer.window, tokens());
      bytes += static_cast<uint64_t>(seen) * 4 * static_cast<uint64_t>(layer.kv_heads) *
               static_cast<uint64_t>(layer.head_dim);
    }
    return bytes;
  }

  const RunOptions& options_;
  RunInput input_;
  Sampler sampler_;
  Policy policy_;
  int threads_ = 1;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
  SequenceId sequence_ = 0;
  int64_t context_ = 0;
  int64_t filled_tokens_ = 0;
  std::span<const float> logits_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> answer_;
  std::vector<int32_t> forced_;
  Status printed_;
  std::string text_;
  std::string finish_reason_;
  double prefill_s_ = 0;
  double decode_s_ = 0;
};

Status run(const RunOptions& options) {
  KVART_RETURN_IF_ERROR(options.sampling.check());
  const auto outputs = find_outputs({options.json_path, "", ""}, files_read(options));
  if (!outputs.ok()) return outputs.error();
  auto input = read_input(options);
  if (!input.ok()) return input.error();
  Run one(options, std::move(*input));
  KVART_RETURN_IF_ERROR(one.load());
  KVART_RETURN_IF_ERROR(one.generate());
  one.report();
  if (outputs->json) KVART_RETURN_IF_ERROR(outputs->json->write(json_text(one.json())));
  return one.printed();
}

}  // namespace

void add_run_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Answer a prompt from a quantized KV cache");
  add_run_options(*command, options.get());
  command->callback([options, exit_code] {
    const Status status = run(*options);
    if (!status.ok()) *exit_code = fail(status.error());
  });
}

}  // namespace kvart::tools
