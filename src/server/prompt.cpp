// Tokenizing prompts and chats, and the requests that ask for just that.
#include "server/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/file/json_text.h"
#include "server/json_writer.h"
#include "server/logprobs.h"

namespace kvart::server {

namespace {

// Answers of /tokenize and /detokenize are many times as long as bodies.
constexpr int64_t max_listed_tokens = int64_t{1} << 18;

// In an answer they take about a hundred bytes each.
constexpr int64_t max_prompt_scores = int64_t{1} << 20;

// Of prompts that come back more than once; once is bounded by the body that brought them.
constexpr int64_t max_repeated_tokens = int64_t{1} << 20;

// No less than what a prompt may have.
int64_t listed_tokens(const ApiLimits& limits) {
  return std::max(max_listed_tokens, limits.context_tokens);
}

ApiError error_at(const Error& error, const char* param) {
  ApiError out = api_error(error);
  if (out.status == 400) out.param = param;
  return out;
}

// The last tokens, and no more than the context has room for.
std::optional<ApiError> fit(int64_t context, const ApiRequest& request, const char* param,
                            std::vector<int32_t>* prompt) {
  const auto size = static_cast<int64_t>(prompt->size());
  if (request.truncate_prompt_tokens > 0 && size > request.truncate_prompt_tokens) {
    *prompt = std::vector<int32_t>(prompt->end() - request.truncate_prompt_tokens, prompt->end());
  }
  if (prompt->empty()) return ApiError{400, fmt::format("{}: it gives no tokens", param), param};
  // A prompt that is only scored may fill the context.
  const int64_t room = request.options.max_tokens > 0 ? context - 1 : context;
  if (static_cast<int64_t>(prompt->size()) <= room) return std::nullopt;
  return ApiError{400,
                  fmt::format("This model's maximum context length is {} tokens. However, your "
                              "prompt has {} tokens, and the answer needs at least one more. "
                              "Please shorten it.",
                              context, prompt->size()),
                  param};
}

}  // namespace

Result<std::vector<int32_t>> tokenize_prompt(const Model& model, const std::string& text,
                                             bool add_special) {
  auto tokens = model.tokenize(text, true);
  if (!tokens.ok() || add_special || tokens->empty()) return tokens;
  // What the model puts in front of any text, unless the text itself begins with it.
  auto front = model.tokenize("", true);
  if (!front.ok()) return front;
  const bool added = front->size() == 1 && tokens->front() == front->front() &&
                     !text.starts_with(model.token_bytes(front->front()));
  if (added) tokens->erase(tokens->begin());
  return tokens;
}

std::optional<ApiError> make_prompts(const Model& model, int64_t context_tokens,
                                     const ApiRequest& request,
                                     std::vector<std::vector<int32_t>>* prompts) {
  const char* param = request.chat ? "messages" : "prompt";
  if (request.chat) {
    auto tokens = model.chat_tokens(request.messages, request.chat_options);
    if (!tokens.ok()) return error_at(tokens.error(), param);
    prompts->push_back(std::move(*tokens));
  }
  for (const PromptSource& source : request.prompts) {
    if (!source.is_text) {
      prompts->push_back(source.ids);
      continue;
    }
    auto tokens = tokenize_prompt(model, source.text, request.add_special_tokens);
    if (!tokens.ok()) return error_at(tokens.error(), param);
    prompts->push_back(std::move(*tokens));
  }
  for (auto& prompt : *prompts) {
    if (auto fault = fit(context_tokens, request, param, &prompt)) return fault;
  }
  return std::nullopt;
}

std::optional<ApiError> check_repeated(const ApiRequest& request,
                                       const std::vector<std::vector<int32_t>>& prompts) {
  int64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += static_cast<int64_t>(prompt.size());
  const int64_t times = request.chat ? 1 : request.choices;
  if ((request.echo || request.token_ids) && times > 1 && tokens > max_repeated_tokens / times) {
    return ApiError{400,
                    fmt::format("{} tokens of prompts for each of {} choices are more than {} "
                                "tokens: ask for fewer choices, or for shorter prompts",
                                tokens, times, max_repeated_tokens),
                    request.echo ? "echo" : "return_token_ids"};
  }
  if (request.options.prompt_logprobs < 0) return std::nullopt;
  const int64_t each = times * (int64_t{request.options.prompt_logprobs} + 1);
  if (tokens <= max_prompt_scores / each) return std::nullopt;
  return ApiError{400,
                  fmt::format("{} tokens of prompts with {} scores each are more than {} scores: "
                              "ask for fewer logprobs or choices, or for shorter prompts",
                              tokens, each, max_prompt_scores),
                  request.prompt_logprobs ? "prompt_logprobs" : "logprobs"};
}

void forget_prompts(ApiRequest* request) {
  // A string that is assigned an empty one keeps its memory, so others take their places.
  request->messages = std::vector<ChatMessage>();
  ChatOptions no_options;
  std::swap(request->chat_options, no_options);
  const bool echoed = request->echo && request->truncate_prompt_tokens == 0;
  std::vector<PromptSource> kept(request->prompts.size());
  for (size_t i = 0; echoed && i < kept.size(); ++i) {
    kept[i].text = std::move(request->prompts[i].text);
    kept[i].is_text = request->prompts[i].is_text;
  }
  request->prompts = std::move(kept);
}

std::optional<ApiError> parse_body(std::string_view body, Json* json) {
  auto parsed = parse_ordered_json(body);
  if (!parsed.ok()) return ApiError{400, "the body can't be read: " + parsed.error().message};
  *json = std::move(*parsed);
  return std::nullopt;
}

std::optional<ApiError> tokenize_answer(const Model& model, const ApiLimits& limits,
                                        const Json& body, std::string* answer) {
  if (!body.is_object()) return ApiError{400, "the body must be a JSON object"};
  Fields fields(body);
  ApiRequest request;
  read_model(fields, limits, &request.model);
  const bool chat = fields.find("messages") != nullptr;
  const std::string* text = nullptr;
  if (chat) {
    read_chat(fields, limits, &request);
  } else {
    text = fields.text("prompt", SIZE_MAX);
    if (text == nullptr) fields.fail("prompt", "must be a text, or give messages");
  }
  const bool add_special = fields.boolean("add_special_tokens").value_or(true);
  const bool strings = fields.boolean("return_token_strs").value_or(false);
  if (fields.error()) {
    auto fault = *fields.error();
    if (fault.param == "model") fault.status = 404;
    return fault;
  }
  auto tokens = chat ? model.chat_tokens(request.messages, request.chat_options)
                     : tokenize_prompt(model, *text, add_special);
  const char* param = chat ? "messages" : "prompt";
  if (!tokens.ok()) return error_at(tokens.error(), param);
  if (static_cast<int64_t>(tokens->size()) > listed_tokens(limits)) {
    return ApiError{400,
                    fmt::format("{}: it has {} tokens; {} at most can be listed at once", param,
                                tokens->size(), listed_tokens(limits)),
                    param};
  }
  answer->clear();
  JsonWriter json(answer);
  json.begin_object();
  json.member("count", tokens->size());
  json.member("max_model_len", limits.context_tokens);
  json.member("tokens", *tokens);
  json.name("token_strs");
  if (strings) {
    json.begin_array();
    for (const int32_t token : *tokens) json.value(token_text(model, token));
    json.end_array();
  } else {
    json.value(nullptr);
  }
  json.end_object();
  return std::nullopt;
}

std::optional<ApiError> detokenize_answer(const Model& model, const ApiLimits& limits,
                                          const Json& body, std::string* answer) {
  if (!body.is_object()) return ApiError{400, "the body must be a JSON object"};
  Fields fields(body);
  std::string name;
  read_model(fields, limits, &name);
  if (!fields.error() && fields.find("tokens") == nullptr) {
    fields.fail("tokens", "must be a list of token ids");
  }
  const auto tokens =
      fields.token_ids("tokens", static_cast<size_t>(listed_tokens(limits)), limits.vocab);
  if (fields.error()) {
    auto fault = *fields.error();
    if (fault.param == "model") fault.status = 404;
    return fault;
  }
  answer->clear();
  JsonWriter json(answer);
  json.begin_object();
  json.member("prompt", model.detokenize(tokens, true));
  json.end_object();
  return std::nullopt;
}

}  // namespace kvart::server
