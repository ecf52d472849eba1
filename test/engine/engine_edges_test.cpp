// The engine over a model and a session that are looked at, or refuse: what waits takes no memory
// that it doesn't need yet, what is given up holds up nobody, and a fault comes with its cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/generations.h"
#include "engine/model_engine.h"

namespace kvart {
namespace {

using test::answer_of;
using test::engine_options;
using test::make_engine;
using test::Reader;
using test::request_of;
using test::some_prompt;
using test::tiny_model;

// Counts the choices that were made: each has a stream of text.
class CountingModel : public Model {
 public:
  explicit CountingModel(const Model& model) : model_(model) {}
  [[nodiscard]] Device device() const override { return Device::cpu; }
  [[nodiscard]] const ModelConfig& config() const override { return model_.config(); }
  [[nodiscard]] uint64_t packed_weight_bytes() const override {
    return model_.packed_weight_bytes();
  }
  [[nodiscard]] uint64_t fingerprint() const override { return model_.fingerprint(); }
  [[nodiscard]] Result<std::vector<int32_t>> tokenize(std::string_view text,
                                                      bool special) const override {
    return model_.tokenize(text, special);
  }
  [[nodiscard]] std::unique_ptr<TextStream> text_stream(bool show_special) const override {
    streams += 1;
    return model_.text_stream(show_special);
  }
  [[nodiscard]] std::string detokenize(std::span<const int32_t> tokens,
                                       bool show_special) const override {
    return model_.detokenize(tokens, show_special);
  }
  [[nodiscard]] std::string token_bytes(int32_t token) const override {
    return model_.token_bytes(token);
  }
  [[nodiscard]] bool ends_generation(int32_t token) const override {
    return model_.ends_generation(token);
  }
  [[nodiscard]] Result<std::vector<int32_t>> chat_tokens(
      std::span<const ChatMessage> messages, const ChatOptions& options) const override {
    return model_.chat_tokens(messages, options);
  }
  [[nodiscard]] TokenizerInfo tokenizer_info() const override { return model_.tokenizer_info(); }

  mutable std::atomic<int> streams = 0;

 private:
  const Model& model_;
};

// Its vocabulary begins every text with a space that nobody wrote: a stream leaves it out.
class SpacePrefixModel final : public CountingModel {
 public:
  using CountingModel::CountingModel;
  [[nodiscard]] std::unique_ptr<TextStream> text_stream(bool show_special) const override {
    return std::make_unique<Stream>(CountingModel::text_stream(show_special));
  }

 private:
  class Stream final : public TextStream {
   public:
    explicit Stream(std::unique_ptr<TextStream> inner) : inner_(std::move(inner)) {}
    std::string push(int32_t token) override {
      std::string text = inner_->push(token);
      if (text.empty() || !std::exchange(at_start_, false)) return text;
      return text[0] == ' ' ? text.substr(1) : text;
    }
    std::string flush() override { return inner_->flush(); }

   private:
    std::unique_ptr<TextStream> inner_;
    bool at_start_ = true;
  };
};

// A session that starts no prompt of more than `tokens_max` tokens.
class RefusingSession final : public Session {
 public:
  RefusingSession(std::unique_ptr<Session> session, size_t tokens_max)
      : session_(std::move(session)), tokens_max_(tokens_max) {}
  Result<SequenceId> start(std::span<const int32_t> prompt, std::string_view salt) override {
    if (prompt.size() > tokens_max_) return Error{ErrorCode::out_of_memory, "too long"};
    return session_->start(prompt, salt);
  }
  [[nodiscard]] bool can_start(std::span<const int32_t> prompt, std::string_view salt,
                               int64_t length) const override {
    return prompt.size() <= tokens_max_ && session_->can_start(prompt, salt, length);
  }
  [[nodiscard]] int64_t cached_tokens(SequenceId id) const override {
    return session_->cached_tokens(id);
  }
  [[nodiscard]] int64_t length(SequenceId id) const override { return session_->length(id); }
  Result<int64_t> restore(SequenceId id, std::span<const int32_t> tokens) override {
    return session_->restore(id, tokens);
  }
  Status reserve(SequenceId id, std::span<const int32_t> tokens) override {
    return session_->reserve(id, tokens);
  }
  void unreserve(SequenceId id) override { session_->unreserve(id); }
  [[nodiscard]] bool has_room(SequenceId id, int64_t tokens) const override {
    return session_->has_room(id, tokens);
  }
  std::span<const StepResult> step(std::span<const StepRequest> requests) override {
    return session_->step(requests);
  }
  Result<SequenceId> fork(SequenceId id) override { return session_->fork(id); }
  Result<SequenceId> imitate(const Session&, SequenceId like, int64_t length) override {
    return session_->imitate(*session_, like, length);
  }
  Status truncate(SequenceId id, int64_t length) override { return session_->truncate(id, length); }
  void release(SequenceId id) override { session_->release(id); }
  void reset_prefix_cache() override { session_->reset_prefix_cache(); }
  [[nodiscard]] const MemoryPlan& plan() const override { return session_->plan(); }
  [[nodiscard]] uint64_t allocated_cache_bytes() const override {
    return session_->allocated_cache_bytes();
  }
  [[nodiscard]] SessionStats stats() const override { return session_->stats(); }
  [[nodiscard]] std::span<const LayerError> layer_errors() const override {
    return session_->layer_errors();
  }
  [[nodiscard]] std::vector<uint8_t> sealed_block(SequenceId id, int64_t block) const override {
    return session_->sealed_block(id, block);
  }

 private:
  std::unique_ptr<Session> session_;
  size_t tokens_max_;
};

std::unique_ptr<Session> make_session(const Model& model, const EngineOptions& options) {
  SessionOptions session_options = options.session;
  session_options.open_sequences = options.max_running;
  auto session = Session::create(model, session_options);
  EXPECT_TRUE(session.ok()) << session.error().message;
  return std::move(*session);
}

// An answer is no beginning of a text: what is streamed is what its tokens add to the prompt's.
TEST(EngineEdges, AnAnswersFirstSpaceStays) {
  const auto model = tiny_model("llama");
  const SpacePrefixModel with_prefix(*model);
  const EngineOptions options = engine_options("int4", 256);
  ModelEngine engine(with_prefix, options, make_session(*model, options));
  int32_t space = 0;
  while (space < model->config().vocab && model->token_bytes(space) != " ") ++space;
  ASSERT_LT(space, model->config().vocab);
  for (const int length : {1, 70}) {
    GenerationRequest request = request_of(some_prompt(length, 9), 3);
    request.options.sampling.logit_bias = {{space, 100.0f}};
    EXPECT_EQ(answer_of(engine, request).text, "   ") << length;
  }
}

TEST(EngineEdges, AChoiceIsMadeWhenItsPromptIsDone) {
  const auto model = tiny_model("llama");
  const CountingModel counting(*model);
  EngineOptions options = engine_options("int4", 512);
  options.max_running = 1;
  ModelEngine engine(counting, options, make_session(*model, options));
  const auto running = Reader::submit(engine, request_of(some_prompt(100, 1), 400));
  std::vector<std::unique_ptr<Reader>> waiting;
  for (int i = 0; i < 20; ++i) {
    GenerationRequest request = request_of(some_prompt(100, i), 3);
    request.choices = 128;
    waiting.push_back(Reader::submit(engine, std::move(request)));
  }
  while (engine.stats().waiting < 20 &&
         engine.stats().finished[static_cast<size_t>(FinishReason::length)] == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(counting.streams, 1 + 20) << "of 2561";
  for (const auto& reader : waiting) reader->generation().cancel();
  for (const auto& reader : waiting) {
    reader->read_all();
    ASSERT_EQ(reader->answers().size(), 128u);
    for (const auto& answer : reader->answers()) {
      EXPECT_EQ(answer.finish, FinishReason::cancelled);
    }
  }
  running->generation().cancel();
  running->read_all();
  EXPECT_EQ(engine.stats().running + engine.stats().waiting, 0);
}

// Choices that end at different lengths, with more of them than may run.
TEST(EngineEdges, ManyChoicesEqualThoseOfSeparateRequests) {
  const auto model = tiny_model("llama");
  EngineOptions options = engine_options("int4", 256);
  options.max_running = 3;
  const auto engine = make_engine(*model, options);
  GenerationRequest request = request_of(some_prompt(70, 1), 40);
  request.options.sampling.temperature = 1.5f;
  request.options.sampling.frequency_penalty = 0.5f;
  std::vector<int32_t> ends(20);
  std::iota(ends.begin(), ends.end(), 0);
  request.options.stop_token_ids = SharedList<int32_t>(std::move(ends));
  request.options.stop = {"a", "b"};
  request.choices = 20;
  const auto together = Reader::submit(*engine, request);
  together->read_all();
  request.choices = 1;
  for (size_t i = 0; i < 20; ++i) {
    request.options.sampling.seed = i;
    const test::Answer alone = answer_of(*engine, request);
    EXPECT_EQ(together->answers()[i].tokens, alone.tokens) << i;
    EXPECT_EQ(together->answers()[i].text, alone.text) << i;
    EXPECT_EQ(together->answers()[i].finish, alone.finish) << i;
  }
}

// What waits behind requests that are given up runs at once, not when the next one wakes the
// engine.
TEST(EngineEdges, ThoseThatAreGivenUpHoldUpNobody) {
  const auto model = tiny_model("llama");
  const EngineOptions options = engine_options("int4", 512);
  ModelEngine engine(*model, options,
                     std::make_unique<RefusingSession>(make_session(*model, options), 100));
  const auto running = Reader::submit(engine, request_of(some_prompt(50, 1), 60));
  running->wait();
  std::vector<std::unique_ptr<Reader>> hopeless;
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request = request_of(some_prompt(150, i), 10);
    request.choices = 1 + i;
    hopeless.push_back(Reader::submit(engine, std::move(request)));
  }
  const auto behind = Reader::submit(engine, request_of(some_prompt(20, 9), 5));
  running->read_all();
  for (const auto& reader : hopeless) {
    reader->read_all();  // fails after a minute
    EXPECT_EQ(reader->error().ok() ? "none" : reader->error().error().message,
              "the cache has no room for the request");
    for (const auto& answer : reader->answers()) EXPECT_EQ(answer.finish, FinishReason::error);
  }
  behind->read_all();
  EXPECT_EQ(behind->answer().tokens.size(), 5u);
}

// A reader that takes the end of a choice the moment it is told of it finds the cause beside it.
TEST(EngineEdges, TheCauseOfAFaultComesWithIt) {
  std::atomic<Generation*> known = nullptr;
  std::atomic<int> ends = 0;
  std::atomic<int> without_cause = 0;
  std::atomic<bool> finished = false;
  const auto model = tiny_model("llama");
  const EngineOptions options = engine_options("int4", 512);
  ModelEngine engine(*model, options,
                     std::make_unique<RefusingSession>(make_session(*model, options), 100));
  GenerationRequest request = request_of(some_prompt(150, 1), 30);
  request.choices = 3;
  const auto generation = engine.submit(request, [&] {
    while (known == nullptr) std::this_thread::yield();
    const GenerationOutput output = known.load()->take();
    for (const ChoiceOutput& choice : output.choices) {
      EXPECT_EQ(choice.finish, FinishReason::error);
      ends += 1;
      without_cause += output.error.ok() ? 1 : 0;
    }
    if (output.finished) finished = true;
  });
  ASSERT_TRUE(generation.ok());
  known = generation->get();
  while (!finished) std::this_thread::yield();
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(without_cause, 0);
  EXPECT_EQ((*generation)->usage().completion_tokens, 0);
}

TEST(EngineEdges, TheCauseIsThereFromTheFirstEndOn) {
  GenerationState state(2, 5, 10, {}, std::make_shared<Waker>());
  ChoiceOutput end;
  end.choice = 1;
  end.finish = FinishReason::length;
  state.add(std::move(end), 0);
  state.end_rest(FinishReason::error, Error{ErrorCode::invalid_data, "why"});
  for (const bool finished : {false, true}) {
    if (finished) state.finish();
    const GenerationOutput output = state.take();
    EXPECT_EQ(output.finished, finished);
    ASSERT_EQ(output.choices.size(), finished ? 0u : 2u);
    for (const ChoiceOutput& choice : output.choices) {
      EXPECT_EQ(choice.finish, choice.choice == 1 ? FinishReason::length : FinishReason::error);
    }
    ASSERT_FALSE(output.error.ok());
    EXPECT_EQ(output.error.error().message, "why");
  }
}

TEST(EngineEdges, LimitsAtTheEndOfTheirType) {
  const auto model = tiny_model("llama");
  EngineOptions options = engine_options("int4", 256);
  options.max_waiting = std::numeric_limits<int64_t>::max();
  options.output_tokens_max = std::numeric_limits<int64_t>::max();
  const auto engine = make_engine(*model, options);
  EXPECT_EQ(answer_of(*engine, request_of(some_prompt(5, 1), 2)).tokens.size(), 2u);
}

TEST(EngineEdges, ANumberOfChoicesIsCheckedBeforeMemoryIsTaken) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, engine_options("int4", 256));
  GenerationRequest request = request_of(some_prompt(5, 1), 2);
  request.choices = std::numeric_limits<int>::max();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(engine->submit(request, [] {}).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

}  // namespace
}  // namespace kvart
