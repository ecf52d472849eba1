// Requests and their whole answers, for tests of the engine.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvart/engine.h"

namespace kvart::test {

inline std::unique_ptr<Model> tiny_model(const std::string& name) {
  auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + name, 2);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(*model);
}

// Tokens below 250, so that none of them ends a tiny model's answer.
inline std::vector<int32_t> some_prompt(int count, int seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 31 + i * i % 17 + seed * 7) % 250);
  return tokens;
}

// Answered with exactly max_tokens tokens.
inline GenerationRequest request_of(std::vector<int32_t> prompt, int64_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.options.max_tokens = max_tokens;
  request.options.ignore_eos = true;
  return request;
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<ScoredToken> scores;
  FinishReason finish = FinishReason::none;
  std::string stop_text;
};

// Collects what one request gives.
class Reader {
 public:
  // What take() gave until it was finished. Fails the test after a minute.
  void read_all() {
    take();  // what a wait() was told of and nobody took isn't told again
    while (!finished_) {
      wait();
      take();
    }
  }
  void take() { add(generation_->take()); }
  // Until notify was called since the last time.
  void wait() {
    std::unique_lock lock(signal_->mutex);
    ASSERT_TRUE(
        signal_->called.wait_for(lock, std::chrono::minutes(1), [&] { return signal_->notified; }));
    signal_->notified = false;
  }
  [[nodiscard]] const std::vector<Answer>& answers() const { return answers_; }
  [[nodiscard]] const Answer& answer() const { return answers_.at(0); }
  [[nodiscard]] const std::vector<ScoredToken>& prompt_scores() const { return prompt_scores_; }
  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] const Status& error() const { return error_; }
  Generation& generation() { return *generation_; }
  void drop() { generation_.reset(); }

  static std::unique_ptr<Reader> submit(Engine& engine, GenerationRequest request) {
    auto reader = std::make_unique<Reader>();
    reader->answers_.resize(static_cast<size_t>(request.choices));
    auto generation = engine.submit(std::move(request), [signal = reader->signal_] {
      const std::lock_guard lock(signal->mutex);
      signal->notified = true;
      signal->called.notify_one();
    });
    EXPECT_TRUE(generation.ok()) << generation.error().message;
    if (!generation.ok()) return nullptr;
    reader->generation_ = std::move(*generation);
    return reader;
  }

 private:
  void add(GenerationOutput output) {
    ASSERT_FALSE(finished_ && !output.choices.empty()) << "output after the end";
    if (!output.prompt_scores.empty()) {
      EXPECT_TRUE(prompt_scores_.empty());
      prompt_scores_ = std::move(output.prompt_scores);
    }
    for (ChoiceOutput& choice : output.choices) {
      Answer& answer = answers_.at(static_cast<size_t>(choice.choice));
      EXPECT_EQ(answer.finish, FinishReason::none) << "output of a choice that has ended";
      answer.text += choice.text;
      answer.tokens.insert(answer.tokens.end(), choice.tokens.begin(), choice.tokens.end());
      answer.scores.insert(answer.scores.end(), choice.scores.begin(), choice.scores.end());
      answer.finish = choice.finish;
      answer.stop_text = choice.stop_text;
    }
    finished_ = output.finished;
    error_ = output.error;
  }

  struct Signal {  // may be called after the reader has gone
    std::mutex mutex;
    std::condition_variable called;
    bool notified = false;
  };
  std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  std::shared_ptr<Generation> generation_;
  std::vector<Answer> answers_;
  std::vector<ScoredToken> prompt_scores_;
  bool finished_ = false;
  Status error_;
};

inline Answer answer_of(Engine& engine, const GenerationRequest& request) {
  const auto reader = Reader::submit(engine, request);
  if (reader == nullptr) return {};
  reader->read_all();
  EXPECT_TRUE(reader->error().ok()) << reader->error().error().message;
  return reader->answer();
}

inline EngineOptions engine_options(const std::string& policy, int64_t context) {
  EngineOptions options;
  options.session.policy = parse_policy(policy)->policy;
  options.session.context_tokens = context;
  options.session.max_step_tokens = 96;
  options.session.threads = 1;
  options.max_running = 8;
  return options;
}

inline std::unique_ptr<Engine> make_engine(const Model& model, const EngineOptions& options) {
  auto engine = Engine::create(model, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return std::move(*engine);
}

}  // namespace kvart::test
