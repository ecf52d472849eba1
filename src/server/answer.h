// Answer: what comes out of the engine for one request, as a body or as events of a stream.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvart/engine.h"
#include "kvart/model.h"
#include "server/api_request.h"
#include "server/json_writer.h"
#include "server/logprobs.h"

namespace kvart::server {

// What an answer is called, and when it was asked for.
struct AnswerHead {
  std::string id;
  int64_t created_s = 0;  // since 1970
  std::chrono::steady_clock::time_point asked = std::chrono::steady_clock::now();
};

// One generation for each prompt; choices count on through all of them. Of one thread at a time.
class Answer {
 public:
  Answer(const Model& model, ApiRequest request, AnswerHead head);
  // Cancels what has not finished.
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  // Takes the prompts in. notify: as Engine::submit's. The fault of the first that the engine
  // refuses; the others are cancelled.
  std::optional<ApiError> submit(Engine& engine, std::vector<std::vector<int32_t>> prompts,
                                 const std::string& salt, const std::function<void()>& notify);

  // Takes what is new. Of a stream: its events, the last of them [DONE] or an error; otherwise
  // empty. Events are no more than about poll_bytes at a time: has_more() says that others are
  // there already. After an exception (the system has no memory) there is nothing to be had.
  std::string poll();
  [[nodiscard]] bool has_more() const { return has_more_; }
  static constexpr size_t poll_bytes = size_t{1} << 20;  // and one event
  [[nodiscard]] bool finished() const { return failed_.has_value() || all_finished(); }
  // Once it has finished: why it failed, or nothing.
  [[nodiscard]] const std::optional<ApiError>& failed() const { return failed_; }
  // Of an answer that is no stream, once it has finished without a fault.
  [[nodiscard]] std::string body();
  // Whether a stream's poll() or a body() may be much more than the text of some choices, and take
  // long: scores, what comes back of the prompt, many prompts.
  [[nodiscard]] bool is_long() const {
    return request_.options.logprobs >= 0 || request_.options.prompt_logprobs >= 0 ||
           request_.echo || request_.token_ids || parts_.size() > 1;
  }

  [[nodiscard]] const ApiRequest& request() const { return request_; }

 private:
  struct Choice {
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<ScoredToken> scores;  // of an answer that is no stream
    std::unique_ptr<CompletionLogprobs> logprobs;
    FinishReason finish = FinishReason::none;
    std::string stop_text;  // what it has ended with, or
    std::optional<int32_t> stop_token;
    bool begun = false;  // an event of it is out
  };
  struct Part {
    std::shared_ptr<Generation> generation;
    std::vector<int32_t> prompt;
    std::vector<ScoredToken> prompt_scores;
    std::vector<Choice> choices;
    // Of a stream: the choices of which all is out that comes before their tokens.
    size_t begun = 0;
    std::optional<GenerationOutput> output;  // taken, and not all of it handed on
    size_t handed_on = 0;                    // of its choices
    std::optional<ApiError> fault;           // that comes behind them
    bool finished = false;
  };

  [[nodiscard]] bool all_finished() const;
  // Whether no more belongs to these events; then there is more.
  bool is_full(const std::string& events);
  static void take(Part& part);
  void hand_on(Part& part, std::string* events);
  void take_choice(Part& part, ChoiceOutput& output, std::string* events);
  void begin(Part& part, std::string* events);
  void begin_choice(Part& part, Choice& choice, const std::string& echo, std::string* events);
  void fail(ApiError error, std::string* events);
  [[nodiscard]] std::string echoed(const Part& part, size_t index) const;
  [[nodiscard]] int index_of(const Part& part, const Choice& choice) const;
  [[nodiscard]] bool scored() const { return request_.options.logprobs >= 0; }
  // Members of the answer, of a choice's part of it, and what is around an event's choice.
  void write_head(const char* chat_object, JsonWriter* json) const;
  void write_usage(JsonWriter* json) const;
  void write_end(FinishReason reason, const Choice& choice, JsonWriter* json) const;
  void write_chunk_choice(const Part& part, Choice& choice, ChoiceOutput& output, JsonWriter* json);
  void write_body_choice(const Part& part, const std::string& echo, Choice& choice,
                         JsonWriter* json);
  void write_prompt_scores(const Part& part, JsonWriter* json) const;
  // Of the first event of a choice: `first_of`, whose prompt's tokens it may have.
  void open_event(const Part* first_of, JsonWriter* json) const;
  void close_event(const Part* first_of, JsonWriter* json) const;

  const Model& model_;
  ApiRequest request_;
  AnswerHead head_;
  std::vector<Part> parts_;
  size_t next_part_ = 0;  // whose turn it is
  bool has_more_ = false;
  std::optional<ApiError> failed_;
  bool done_sent_ = false;
};

}  // namespace kvart::server
