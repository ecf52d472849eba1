// A request for text: what the bodies of /v1/completions and /v1/chat/completions ask for, checked.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvart/engine.h"
#include "kvart/model.h"
#include "server/api_error.h"
#include "server/fields.h"

namespace kvart::server {

// What a request may ask for here.
struct ApiLimits {
  int32_t vocab = 0;
  int64_t context_tokens = 0;
  std::vector<std::string> model_names;
  std::vector<std::string> template_names;  // that chat_template_kwargs may set
};

struct PromptSource {
  std::string text;
  std::vector<int32_t> ids;  // where it isn't text
  bool is_text = false;
};

struct ApiRequest {
  bool chat = false;
  std::string model;                  // as the answer names it
  std::vector<PromptSource> prompts;  // of a completion
  std::vector<ChatMessage> messages;  // of a chat
  ChatOptions chat_options;
  GenerationOptions options;  // the seed is `seed`
  bool length_given =
      false;  // else the answer may end earlier than at max_tokens: with the context
  std::optional<uint64_t> seed;
  bool seed_given = false;  // else the choices of different prompts draw with different ones
  int choices = 1;          // of each prompt
  int priority = 0;
  std::optional<std::chrono::milliseconds> timeout;  // as the field and the server's option say
  std::string cache_salt;
  int64_t truncate_prompt_tokens = 0;  // only the last so many are kept; 0: all
  bool add_special_tokens = true;      // begin of sequence before a prompt of text
  bool echo = false;
  bool prompt_logprobs = false;  // in a list of their own; with echo they are in the logprobs
  bool token_ids = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  std::string id;                    // the client's part of the answer's id; may be empty
  std::vector<std::string> unknown;  // names of fields that were ignored
};

// The fault, or nothing and *request is set. body: any JSON.
std::optional<ApiError> parse_completion(const Json& body, const ApiLimits& limits,
                                         ApiRequest* request);
std::optional<ApiError> parse_chat(const Json& body, const ApiLimits& limits, ApiRequest* request);

// Parts of them that other requests have too.
// "model": one of the names, or absent.
void read_model(Fields& fields, const ApiLimits& limits, std::string* model);
// "prompt": a text, a list of texts, ids, or lists of ids.
void read_prompts(Fields& fields, const ApiLimits& limits, std::vector<PromptSource>* prompts);
// "messages", "tools", "chat_template_kwargs" and what else says how a template is filled.
void read_chat(Fields& fields, const ApiLimits& limits, ApiRequest* request);
// Sampling, stopping, logprobs' limits and the rest that both kinds share.
void read_generation(Fields& fields, const ApiLimits& limits, ApiRequest* request);

}  // namespace kvart::server
