// Bodies and events in OpenAI's shapes, with vLLM's extras.
#include "server/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/http_head.h"

namespace kvart::server {

namespace {

constexpr std::string_view event_begin = "data: ";
constexpr std::string_view event_end = "\n\n";

bool says_something(const ChoiceOutput& output) {
  return !output.text.empty() || !output.tokens.empty();
}

// Why a choice ended that nobody here has ended.
std::optional<ApiError> fault_of(const GenerationOutput& output) {
  for (const ChoiceOutput& choice : output.choices) {
    if (choice.finish == FinishReason::error) {
      if (output.error.ok()) return ApiError{500, "the request failed"};
      ApiError error = api_error(output.error.error());
      if (error.status == 400) error.status = 500;
      return error;
    }
    if (choice.finish == FinishReason::cancelled) {
      return ApiError{503, "the server is shutting down; the request was cancelled"};
    }
    if (choice.finish == FinishReason::deadline) {
      return ApiError{504, "the request's time is over (timeout)"};
    }
  }
  if (output.finished && output.choices.empty() && !output.error.ok()) {
    return api_error(output.error.error());
  }
  return std::nullopt;
}

}  // namespace

Answer::Answer(const Model& model, ApiRequest request, AnswerHead head)
    : model_(model), request_(std::move(request)), head_(std::move(head)) {}

Answer::~Answer() {
  for (Part& part : parts_) {
    if (part.generation && !part.finished) part.generation->cancel();
  }
}

std::optional<ApiError> Answer::submit(Engine& engine, std::vector<std::vector<int32_t>> prompts,
                                       const std::string& salt,
                                       const std::function<void()>& notify) {
  request_.options.sampling.seed = request_.seed.value_or(0);
  for (auto& prompt : prompts) {
    // A seed that was asked for means the same for each prompt, alone or among others.
    if (!request_.seed_given && !parts_.empty()) {
      request_.options.sampling.seed += static_cast<uint64_t>(request_.choices);
    }
    GenerationRequest wanted;
    wanted.prompt = prompt;
    wanted.options = request_.options;
    // More than fits is for the engine to refuse, where it was asked for.
    const int64_t room = engine.plan().context_tokens - static_cast<int64_t>(prompt.size());
    if (!request_.length_given && room < wanted.options.max_tokens) {
      wanted.options.max_tokens = room;
      wanted.options.min_tokens = std::min(wanted.options.min_tokens, room);
    }
    wanted.choices = request_.choices;
    wanted.priority = request_.priority;
    if (request_.timeout) wanted.deadline = head_.asked + *request_.timeout;
    wanted.salt = salt;
    auto generation = engine.submit(std::move(wanted), notify);
    if (!generation.ok()) return api_error(generation.error());
    Part& part = parts_.emplace_back();
    part.generation = std::move(*generation);
    part.prompt = std::move(prompt);
    part.choices.resize(static_cast<size_t>(request_.choices));
    if (request_.chat || request_.options.logprobs < 0) continue;
    const bool special = request_.echo || request_.options.show_special_tokens;
    const auto before = request_.echo ? std::span<const int32_t>() : part.prompt;
    for (Choice& choice : part.choices) {
      choice.logprobs = std::make_unique<CompletionLogprobs>(model_, special, before);
    }
  }
  return std::nullopt;
}

bool Answer::all_finished() const {
  for (const Part& part : parts_) {
    if (!part.finished) return false;
  }
  return true;
}

// Parts take turns, so that each has its share of a stream that is cut into many pieces.
std::string Answer::poll() {
  std::string events;
  has_more_ = false;
  for (size_t turns = 0; turns < parts_.size() && !failed_; ++turns) {
    Part& part = parts_[next_part_];
    if (!part.finished) hand_on(part, &events);
    if (has_more_) break;
    next_part_ = (next_part_ + 1) % parts_.size();
  }
  if (!request_.stream || done_sent_ || failed_ || !all_finished()) return events;
  done_sent_ = true;
  if (request_.include_usage) {
    events += event_begin;
    JsonWriter json(&events);
    json.begin_object();
    write_head("chat.completion.chunk", &json);
    json.name("choices");
    json.begin_array();
    json.end_array();
    json.name("usage");
    write_usage(&json);
    json.end_object();
    events += event_end;
  }
  return events + event_text("[DONE]");
}

bool Answer::is_full(const std::string& events) {
  has_more_ = has_more_ || events.size() >= poll_bytes;
  return has_more_;
}

void Answer::take(Part& part) {
  GenerationOutput& output = part.output.emplace(part.generation->take());
  part.handed_on = 0;
  if (!output.prompt_scores.empty()) part.prompt_scores = std::move(output.prompt_scores);
  part.fault = fault_of(output);
  if (!part.fault) return;
  // What was said before it is no end of its own.
  std::erase_if(output.choices, [](const ChoiceOutput& choice) { return !says_something(choice); });
  for (ChoiceOutput& choice : output.choices) choice.finish = FinishReason::none;
}

void Answer::hand_on(Part& part, std::string* events) {
  if (is_full(*events)) return;
  if (!part.output) take(part);
  GenerationOutput& output = *part.output;
  const bool begins = !output.choices.empty() || (output.finished && !part.fault);
  if (request_.stream && begins) begin(part, events);
  for (; part.handed_on < output.choices.size(); ++part.handed_on) {
    if (is_full(*events)) return;
    take_choice(part, output.choices[part.handed_on], events);
  }
  if (has_more_) return;
  if (part.fault) return fail(std::move(*part.fault), events);
  part.finished = output.finished;
  part.output.reset();
}

void Answer::fail(ApiError error, std::string* events) {
  for (Part& part : parts_) {
    if (!part.finished) part.generation->cancel();
    part.finished = true;
  }
  if (request_.stream) *events += event_text(error_body(error));
  failed_ = std::move(error);
}

int Answer::index_of(const Part& part, const Choice& choice) const {
  const auto before = static_cast<int>(&part - parts_.data()) * request_.choices;
  return before + static_cast<int>(&choice - part.choices.data());
}

// The prompt's text, as it was given.
std::string Answer::echoed(const Part& part, size_t index) const {
  if (!request_.echo) return {};
  const PromptSource& source = request_.prompts[index];
  const bool whole = request_.truncate_prompt_tokens == 0;
  return source.is_text && whole ? source.text : model_.detokenize(part.prompt, true);
}

// What comes before a stream's first token: a chat's role, a completion's echo.
void Answer::begin(Part& part, std::string* events) {
  const size_t all = part.choices.size();
  if (!request_.chat && !request_.echo) part.begun = all;
  if (part.begun == all) return;
  const std::string echo = echoed(part, static_cast<size_t>(&part - parts_.data()));
  for (; part.begun < all; ++part.begun) {
    if (is_full(*events)) return;
    begin_choice(part, part.choices[part.begun], echo, events);
  }
  std::vector<ScoredToken>().swap(part.prompt_scores);
}

void Answer::begin_choice(Part& part, Choice& choice, const std::string& echo,
                          std::string* events) {
  *events += event_begin;
  JsonWriter json(events);
  open_event(&part, &json);
  json.member("index", index_of(part, choice));
  if (request_.chat) {
    json.name("delta");
    json.begin_object();
    json.member("role", "assistant");
    json.member("content", "");
    json.end_object();
    json.member("logprobs", nullptr);
  } else {
    if (choice.logprobs) choice.logprobs->add(part.prompt_scores, true);
    json.member("text", echo);
    json.name("logprobs");
    if (choice.logprobs) {
      choice.logprobs->write(&json);
    } else {
      json.value(nullptr);
    }
  }
  json.member("finish_reason", nullptr);
  if (!request_.chat) json.member("stop_reason", nullptr);
  choice.begun = true;
  close_event(&part, &json);
  *events += event_end;
}

void Answer::open_event(const Part* first_of, JsonWriter* json) const {
  json->begin_object();
  write_head("chat.completion.chunk", json);
  if (first_of != nullptr && request_.token_ids && request_.chat) {
    json->member("prompt_token_ids", first_of->prompt);
  }
  json->name("choices");
  json->begin_array();
  json->begin_object();
}

void Answer::close_event(const Part* first_of, JsonWriter* json) const {
  if (first_of != nullptr && request_.token_ids && !request_.chat) {
    json->member("prompt_token_ids", first_of->prompt);
  }
  json->end_object();
  json->end_array();
  if (request_.continuous_usage) {
    json->name("usage");
    write_usage(json);
  } else if (request_.include_usage) {
    json->member("usage", nullptr);
  }
  json->end_object();
}

void Answer::take_choice(Part& part, ChoiceOutput& output, std::string* events) {
  Choice& choice = part.choices[static_cast<size_t>(output.choice)];
  choice.finish = output.finish;
  choice.stop_text = std::move(output.stop_text);
  choice.stop_token = output.stop_token;
  if (!request_.stream) {
    choice.text += output.text;
    choice.tokens.insert(choice.tokens.end(), output.tokens.begin(), output.tokens.end());
    choice.scores.insert(choice.scores.end(), std::make_move_iterator(output.scores.begin()),
                         std::make_move_iterator(output.scores.end()));
    return;
  }
  if (choice.logprobs) choice.logprobs->add(output.scores);
  const Part* first_of = std::exchange(choice.begun, true) ? nullptr : &part;
  *events += event_begin;
  JsonWriter json(events);
  open_event(first_of, &json);
  write_chunk_choice(part, choice, output, &json);
  close_event(first_of, &json);
  *events += event_end;
}

void Answer::write_chunk_choice(const Part& part, Choice& choice, ChoiceOutput& output,
                                JsonWriter* json) {
  json->member("index", index_of(part, choice));
  if (request_.chat) {
    json->name("delta");
    json->begin_object();
    if (says_something(output)) json->member("content", output.text);
    json->end_object();
  } else {
    json->member("text", output.text);
  }
  json->name("logprobs");
  if (!scored()) {
    json->value(nullptr);
  } else if (request_.chat) {
    write_chat_logprobs(model_, output.scores, json);
  } else {
    choice.logprobs->write(json);
  }
  write_end(output.finish, choice, json);
  if (request_.token_ids) json->member("token_ids", output.tokens);
}

// No reason while it goes on; where it is cut off, a fault says why.
void Answer::write_end(FinishReason reason, const Choice& choice, JsonWriter* json) const {
  json->name("finish_reason");
  if (reason == FinishReason::stop) {
    json->value("stop");
  } else if (reason == FinishReason::length) {
    json->value("length");
  } else {
    json->value(nullptr);
  }
  json->name("stop_reason");
  if (reason == FinishReason::stop && !choice.stop_text.empty()) {
    json->value(choice.stop_text);
  } else {
    json->value(reason == FinishReason::stop ? choice.stop_token : std::nullopt);
  }
}

void Answer::write_head(const char* chat_object, JsonWriter* json) const {
  json->member("id", head_.id);
  json->member("object", request_.chat ? chat_object : "text_completion");
  json->member("created", head_.created_s);
  json->member("model", request_.model);
}

void Answer::write_usage(JsonWriter* json) const {
  GenerationUsage sum;
  for (const Part& part : parts_) {
    const GenerationUsage one = part.generation->usage();
    sum.prompt_tokens += one.prompt_tokens;
    sum.cached_tokens += one.cached_tokens;
    sum.completion_tokens += one.completion_tokens;
  }
  json->begin_object();
  json->member("prompt_tokens", sum.prompt_tokens);
  json->member("total_tokens", sum.prompt_tokens + sum.completion_tokens);
  json->member("completion_tokens", sum.completion_tokens);
  json->name("prompt_tokens_details");
  json->begin_object();
  json->member("cached_tokens", sum.cached_tokens);
  json->end_object();
  json->end_object();
}

void Answer::write_body_choice(const Part& part, const std::string& echo, Choice& choice,
                               JsonWriter* json) {
  json->member("index", index_of(part, choice));
  if (request_.chat) {
    json->name("message");
    json->begin_object();
    json->member("role", "assistant");
    json->member("content", choice.text);
    json->end_object();
  } else {
    json->member("text", echo + choice.text);
  }
  json->name("logprobs");
  if (!scored()) {
    json->value(nullptr);
  } else if (request_.chat) {
    write_chat_logprobs(model_, choice.scores, json);
  } else {
    if (request_.echo) choice.logprobs->add(part.prompt_scores, true);
    choice.logprobs->add(choice.scores);
    choice.logprobs->write(json);
  }
  write_end(choice.finish, choice, json);
  if (request_.token_ids) {
    json->member("token_ids", choice.tokens);
    if (!request_.chat) json->member("prompt_token_ids", part.prompt);
  }
  if (!request_.chat) write_prompt_scores(part, json);
}

void Answer::write_prompt_scores(const Part& part, JsonWriter* json) const {
  json->name("prompt_logprobs");
  if (request_.prompt_logprobs) {
    write_prompt_logprobs(model_, part.prompt_scores, json);
  } else {
    json->value(nullptr);
  }
}

std::string Answer::body() {
  std::string text;
  JsonWriter json(&text);
  json.begin_object();
  write_head("chat.completion", &json);
  json.name("choices");
  json.begin_array();
  for (Part& part : parts_) {
    const std::string echo = echoed(part, static_cast<size_t>(&part - parts_.data()));
    for (Choice& choice : part.choices) {
      json.begin_object();
      write_body_choice(part, echo, choice, &json);
      json.end_object();
    }
  }
  json.end_array();
  json.name("usage");
  write_usage(&json);
  if (request_.chat) {
    const Part& part = parts_.front();
    write_prompt_scores(part, &json);
    if (request_.token_ids) json.member("prompt_token_ids", part.prompt);
  }
  json.end_object();
  return text;
}

}  // namespace kvart::server
