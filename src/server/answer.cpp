// Bodies and events in OpenAI's shapes, with vLLM's extras.
#include "server/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvart::server {

namespace {

// null while it goes on, and where it is cut off.
Json finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return nullptr;
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::deadline:
    case FinishReason::cancelled:
    case FinishReason::error:
      break;  // those are faults
  }
  return nullptr;
}

std::string event(const std::string& data) {
  return "data: " + data + "\n\n";
}

Json stop_reason_of(const ChoiceOutput& output) {
  if (!output.stop_text.empty()) return output.stop_text;
  if (output.stop_token) return *output.stop_token;
  return nullptr;
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
    for (Choice& choice : part.choices) {
      choice.logprobs = std::make_unique<CompletionLogprobs>(
          model_, request_.echo || request_.options.show_special_tokens);
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

std::string Answer::poll() {
  std::string events;
  for (Part& part : parts_) {
    if (!part.finished && !failed_) take(part, &events);
  }
  if (!request_.stream || done_sent_ || failed_ || !all_finished()) return events;
  done_sent_ = true;
  if (request_.include_usage) {
    Json last = head("chat.completion.chunk");
    last["choices"] = Json::array();
    last["usage"] = usage();
    events += event(json_text(last));
  }
  return events + event("[DONE]");
}

void Answer::take(Part& part, std::string* events) {
  GenerationOutput output = part.generation->take();
  if (!output.prompt_scores.empty()) part.prompt_scores = std::move(output.prompt_scores);
  if (auto fault = fault_of(output)) return fail(std::move(*fault), events);
  if (output.finished && output.choices.empty() && !output.error.ok()) {
    return fail(api_error(output.error.error()), events);
  }
  const bool begins = !part.begun && (!output.choices.empty() || output.finished);
  if (request_.stream && begins) begin(part, events);
  for (ChoiceOutput& choice : output.choices) take_choice(part, choice, events);
  part.finished = output.finished;
}

void Answer::fail(ApiError error, std::string* events) {
  for (Part& part : parts_) {
    if (!part.finished) part.generation->cancel();
    part.finished = true;
  }
  if (request_.stream) *events += event(error_body(error));
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
  part.begun = true;
  const std::string text = echoed(part, static_cast<size_t>(&part - parts_.data()));
  for (Choice& choice : part.choices) {
    if (choice.logprobs && request_.echo) choice.logprobs->add(part.prompt_scores, true);
    Json json;
    json["index"] = index_of(part, choice);
    if (request_.chat) {
      json["delta"] = Json{{"role", "assistant"}, {"content", ""}};
      json["logprobs"] = nullptr;
    } else {
      if (!request_.echo) continue;
      json["text"] = text;
      json["logprobs"] = choice.logprobs ? choice.logprobs->take() : Json();
    }
    json["finish_reason"] = nullptr;
    if (!request_.chat) json["stop_reason"] = nullptr;
    choice.begun = true;
    add_event(std::move(json), &part, events);
  }
}

void Answer::add_event(Json choice, const Part* first_of, std::string* events) {
  Json chunk = head("chat.completion.chunk");
  if (first_of != nullptr && request_.token_ids) {
    Json& place = request_.chat ? chunk : choice;
    place["prompt_token_ids"] = first_of->prompt;
  }
  chunk["choices"] = Json::array({std::move(choice)});
  if (request_.continuous_usage) {
    chunk["usage"] = usage();
  } else if (request_.include_usage) {
    chunk["usage"] = nullptr;
  }
  *events += event(json_text(chunk));
}

void Answer::take_choice(Part& part, ChoiceOutput& output, std::string* events) {
  Choice& choice = part.choices[static_cast<size_t>(output.choice)];
  choice.finish = output.finish;
  if (output.finish == FinishReason::stop) choice.stop_reason = stop_reason_of(output);
  if (!request_.stream) {
    choice.text += output.text;
    choice.tokens.insert(choice.tokens.end(), output.tokens.begin(), output.tokens.end());
    choice.scores.insert(choice.scores.end(), std::make_move_iterator(output.scores.begin()),
                         std::make_move_iterator(output.scores.end()));
    return;
  }
  if (choice.logprobs) choice.logprobs->add(output.scores);
  const bool first = !std::exchange(choice.begun, true);
  add_event(chunk_choice(part, choice, output), first ? &part : nullptr, events);
}

Json Answer::chunk_choice(const Part& part, Choice& choice, ChoiceOutput& output) {
  Json json;
  json["index"] = index_of(part, choice);
  const bool scored = request_.options.logprobs >= 0;
  if (request_.chat) {
    json["delta"] = Json::object();
    if (!output.text.empty() || !output.tokens.empty()) json["delta"]["content"] = output.text;
    json["logprobs"] = scored ? chat_logprobs(model_, output.scores) : Json();
  } else {
    json["text"] = output.text;
    json["logprobs"] = scored ? choice.logprobs->take() : Json();
  }
  json["finish_reason"] = finish_name(output.finish);
  json["stop_reason"] = choice.stop_reason;
  if (request_.token_ids) json["token_ids"] = output.tokens;
  return json;
}

Json Answer::head(const char* chat_object) const {
  Json json;
  json["id"] = head_.id;
  json["object"] = request_.chat ? chat_object : "text_completion";
  json["created"] = head_.created_s;
  json["model"] = request_.model;
  return json;
}

Json Answer::usage() const {
  GenerationUsage sum;
  for (const Part& part : parts_) {
    const GenerationUsage one = part.generation->usage();
    sum.prompt_tokens += one.prompt_tokens;
    sum.cached_tokens += one.cached_tokens;
    sum.completion_tokens += one.completion_tokens;
  }
  Json json;
  json["prompt_tokens"] = sum.prompt_tokens;
  json["total_tokens"] = sum.prompt_tokens + sum.completion_tokens;
  json["completion_tokens"] = sum.completion_tokens;
  json["prompt_tokens_details"] = Json{{"cached_tokens", sum.cached_tokens}};
  return json;
}

Json Answer::body_choice(const Part& part, const std::string& echo, Choice& choice) {
  Json json;
  json["index"] = index_of(part, choice);
  const bool scored = request_.options.logprobs >= 0;
  if (request_.chat) {
    json["message"] = Json{{"role", "assistant"}, {"content", choice.text}};
    json["logprobs"] = scored ? chat_logprobs(model_, choice.scores) : Json();
  } else {
    json["text"] = echo + choice.text;
    if (scored && request_.echo) choice.logprobs->add(part.prompt_scores, true);
    if (scored) choice.logprobs->add(choice.scores);
    json["logprobs"] = scored ? choice.logprobs->take() : Json();
  }
  json["finish_reason"] = finish_name(choice.finish);
  json["stop_reason"] = choice.stop_reason;
  if (request_.token_ids) {
    json["token_ids"] = choice.tokens;
    if (!request_.chat) json["prompt_token_ids"] = part.prompt;
  }
  if (!request_.chat) {
    json["prompt_logprobs"] =
        request_.prompt_logprobs ? prompt_logprobs(model_, part.prompt_scores) : Json();
  }
  return json;
}

std::string Answer::body() {
  Json json = head("chat.completion");
  Json choices = Json::array();
  for (Part& part : parts_) {
    const std::string echo = echoed(part, static_cast<size_t>(&part - parts_.data()));
    for (Choice& choice : part.choices) choices.push_back(body_choice(part, echo, choice));
  }
  json["choices"] = std::move(choices);
  json["usage"] = usage();
  if (request_.chat) {
    const Part& part = parts_.front();
    json["prompt_logprobs"] =
        request_.prompt_logprobs ? prompt_logprobs(model_, part.prompt_scores) : Json();
    if (request_.token_ids) json["prompt_token_ids"] = part.prompt;
  }
  return json_text(json);
}

}  // namespace kvart::server
