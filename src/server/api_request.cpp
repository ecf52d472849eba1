// The fields that completions and chats share, and those of completions.
#include "server/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "model/file/printable.h"

namespace kvart::server {

namespace {

constexpr int64_t int32_max = (int64_t{1} << 31) - 1;
constexpr int64_t max_choices = 128;
constexpr int64_t max_logprobs = 20;
constexpr size_t max_prompts = 1024;
constexpr size_t max_stop_texts = 64;
constexpr size_t max_stop_bytes = 1024;
constexpr size_t max_stop_ids = 1024;
constexpr size_t max_biases = 1024;
constexpr size_t max_salt_bytes = 256;
constexpr size_t max_id_bytes = 64;
constexpr double max_timeout_s = 86400;

void read_sampling(Fields& fields, SamplingOptions* sampling) {
  const auto set = [&fields](const char* name, float* value, double min, double max,
                             bool above_min = false) {
    if (const auto number = fields.number(name, min, max, above_min)) {
      *value = static_cast<float>(*number);
    }
  };
  sampling->temperature = 1;
  set("temperature", &sampling->temperature, 0, 100);
  set("top_p", &sampling->top_p, 0, 1, true);
  set("min_p", &sampling->min_p, 0, 1);
  set("repetition_penalty", &sampling->repetition_penalty, 0, 100, true);
  set("presence_penalty", &sampling->presence_penalty, -2, 2);
  set("frequency_penalty", &sampling->frequency_penalty, -2, 2);
  // Numbers above 0 may round to 0 as a float.
  sampling->top_p = std::max(sampling->top_p, 1e-30f);
  sampling->repetition_penalty = std::max(sampling->repetition_penalty, 1e-30f);
  // vLLM takes -1 for all.
  if (const auto top_k = fields.integer("top_k", -1, int32_max)) {
    sampling->top_k = static_cast<int>(std::max<int64_t>(*top_k, 0));
  }
}

void read_bias(Fields& fields, int32_t vocab, SamplingOptions* sampling) {
  const Json* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  if (biases->size() > max_biases) {
    return fields.fail("logit_bias", fmt::format("must have at most {} entries", max_biases));
  }
  std::vector<std::pair<int32_t, float>> list;
  std::set<int32_t> seen;  // "5" and "05" are one token
  for (const auto& item : biases->items()) {
    int32_t token = 0;
    const std::string& key = item.key();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool right = error == std::errc() && end == key.data() + key.size();
    if (!right || token < 0 || token >= vocab) {
      return fields.fail("logit_bias",
                         fmt::format("its keys are token ids from 0 to {}", vocab - 1));
    }
    if (!seen.insert(token).second) {
      return fields.fail("logit_bias", fmt::format("token {} is there twice", token));
    }
    const Json& value = item.value();
    const double bias = value.is_number() ? value.get<double>() : 1000;
    if (!(bias >= -100 && bias <= 100)) {
      return fields.fail("logit_bias", "its values are numbers from -100 to 100");
    }
    list.emplace_back(token, static_cast<float>(bias));
  }
  sampling->logit_bias = SharedList<std::pair<int32_t, float>>(std::move(list));
}

void read_stop(Fields& fields, int32_t vocab, GenerationOptions* options) {
  options->stop_token_ids =
      SharedList<int32_t>(fields.token_ids("stop_token_ids", max_stop_ids, vocab));
  options->include_stop_text = fields.boolean("include_stop_str_in_output").value_or(false);
  options->ignore_eos = fields.boolean("ignore_eos").value_or(false);
  const Json* stop = fields.find("stop");
  if (stop == nullptr) return;
  std::vector<std::string> texts;
  const std::string allowed = fmt::format("must be a text of 1 to {} bytes, or a list of up to {}",
                                          max_stop_bytes, max_stop_texts);
  const auto add = [&](const Json& entry) {
    if (!entry.is_string()) return fields.fail("stop", allowed);
    const auto& text = entry.get_ref<const std::string&>();
    if (text.empty() || text.size() > max_stop_bytes) return fields.fail("stop", allowed);
    texts.push_back(text);
  };
  if (!stop->is_array()) {
    add(*stop);
  } else if (stop->size() > max_stop_texts) {
    fields.fail("stop", allowed);
  } else {
    for (const Json& entry : *stop) add(entry);
  }
  options->stop = SharedList<std::string>(std::move(texts));
}

void read_stream(Fields& fields, ApiRequest* request) {
  request->stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  Fields inner(*options, "stream_options.");
  request->include_usage = inner.boolean("include_usage").value_or(false);
  request->continuous_usage = inner.boolean("continuous_usage_stats").value_or(false);
  if (inner.error()) return fields.fail_as(inner);
  if (!request->stream) return fields.fail("stream_options", "is for streams; set stream to true");
}

// A part of a name that comes back in answers and in the cache's keys: visible ASCII.
void read_word(Fields& fields, const char* name, size_t max_bytes, std::string* word) {
  const std::string* text = fields.text(name, max_bytes);
  if (text == nullptr) return;
  const bool visible =
      std::all_of(text->begin(), text->end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (text->empty() || !visible) {
    return fields.fail(name, fmt::format("must be 1 to {} visible ASCII characters", max_bytes));
  }
  *word = *text;
}

// What other servers do with these would change the answer.
void refuse_what_is_not_done(Fields& fields) {
  for (const char* name :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
        "grammar", "json_schema", "logits_processors", "use_beam_search", "suffix", "prompt_embeds",
        "bad_words", "allowed_token_ids", "kv_transfer_params"}) {
    fields.refuse(name, "isn't supported; leave it out");
  }
  const Json* format = fields.object("response_format");
  if (format == nullptr) return;
  const auto type = format->find("type");
  if (type == format->end() || *type != "text") {
    fields.fail("response_format", "only {\"type\": \"text\"} is supported");
  }
}

void read_ids_prompt(Fields& fields, const ApiLimits& limits, const Json& list,
                     std::vector<PromptSource>* prompts) {
  PromptSource prompt;
  if (const auto wrong = read_ids(list, limits.vocab, &prompt.ids)) {
    return fields.fail("prompt", *wrong);
  }
  prompts->push_back(std::move(prompt));
}

}  // namespace

void read_model(Fields& fields, const ApiLimits& limits, std::string* model) {
  *model = limits.model_names.front();
  const std::string* name = fields.text("model", 1024);
  if (name == nullptr) return;
  const auto& names = limits.model_names;
  if (std::find(names.begin(), names.end(), *name) != names.end()) {
    *model = *name;
    return;
  }
  fields.fail("model", fmt::format("`{}` does not exist; there is `{}`", printable(*name, 128),
                                   fmt::join(names, "`, `")));
}

void read_prompts(Fields& fields, const ApiLimits& limits, std::vector<PromptSource>* prompts) {
  const Json* prompt = fields.find("prompt");
  if (fields.error()) return;
  const std::string allowed = fmt::format(
      "must be a text, a list of token ids, or a list of up to {} of either", max_prompts);
  if (prompt == nullptr) return fields.fail("prompt", "is missing; " + allowed);
  const auto add_text = [&](const Json& text) {
    prompts->push_back({text.get<std::string>(), {}, true});
  };
  if (prompt->is_string()) return add_text(*prompt);
  if (!prompt->is_array() || prompt->empty()) return fields.fail("prompt", allowed);
  const Json& first = prompt->front();
  if (first.is_number()) return read_ids_prompt(fields, limits, *prompt, prompts);
  if (prompt->size() > max_prompts) return fields.fail("prompt", allowed);
  for (const Json& entry : *prompt) {
    if (entry.type() != first.type()) return fields.fail("prompt", allowed);
    if (entry.is_string()) {
      add_text(entry);
    } else if (entry.is_array()) {
      read_ids_prompt(fields, limits, entry, prompts);
    } else {
      return fields.fail("prompt", allowed);
    }
  }
}

void read_generation(Fields& fields, const ApiLimits& limits, ApiRequest* request) {
  GenerationOptions& options = request->options;
  read_sampling(fields, &options.sampling);
  read_bias(fields, limits.vocab, &options.sampling);
  read_stop(fields, limits.vocab, &options);
  read_stream(fields, request);
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    request->seed = static_cast<uint64_t>(*seed);
    request->seed_given = true;
  }
  request->choices = static_cast<int>(fields.integer("n", 1, max_choices).value_or(1));
  if (const auto best_of = fields.integer("best_of", 0, max_choices)) {
    if (*best_of > 1 && *best_of != request->choices) {
      fields.fail("best_of", "isn't supported; leave it out, or give the value of n");
    }
  }
  options.min_tokens = fields.integer("min_tokens", 0, int32_max).value_or(0);
  options.show_special_tokens = !fields.boolean("skip_special_tokens").value_or(true);
  if (const auto count = fields.integer("prompt_logprobs", 0, max_logprobs)) {
    options.prompt_logprobs = static_cast<int>(*count);
    request->prompt_logprobs = true;
  }
  request->priority =
      static_cast<int>(fields.integer("priority", -int32_max - 1, int32_max).value_or(0));
  if (const auto time_s = fields.number("timeout", 0, max_timeout_s, true)) {
    request->timeout = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(*time_s * 1000)));
  }
  request->token_ids = fields.boolean("return_token_ids").value_or(false);
  if (const auto count = fields.integer("truncate_prompt_tokens", -1, int32_max)) {
    request->truncate_prompt_tokens = *count < 0 ? limits.context_tokens - 1 : *count;
    if (*count == 0) fields.fail("truncate_prompt_tokens", "must be -1, or 1 or more");
  }
  read_word(fields, "cache_salt", max_salt_bytes, &request->cache_salt);
  read_word(fields, "request_id", max_id_bytes, &request->id);
  refuse_what_is_not_done(fields);
  fields.ignore({"user", "metadata", "store", "service_tier", "safety_identifier",
                 "prompt_cache_key", "spaces_between_special_tokens"});
  if (request->prompt_logprobs && request->stream) {
    fields.fail("prompt_logprobs", "isn't there in streams; set stream to false");
  }
}

namespace {

// max_tokens, once everything else is known.
void check_max_tokens(Fields& fields, const char* name, const ApiRequest& request) {
  const GenerationOptions& options = request.options;
  if (options.max_tokens == 0 && options.prompt_logprobs < 0 && !request.echo) {
    fields.fail(name, "0 makes sense with echo or prompt_logprobs only; give 1 or more");
  }
  if (options.min_tokens > options.max_tokens) {
    fields.fail("min_tokens",
                fmt::format("must be at most {}, which is {}", name, options.max_tokens));
  }
}

std::optional<ApiError> finish(const Fields& fields, ApiRequest* request) {
  request->unknown = fields.unknown();
  auto error = fields.error();
  if (error && error->param == "model") error->status = 404;
  return error;
}

ApiError no_object() {
  return {400, "the body must be a JSON object"};
}

}  // namespace

std::optional<ApiError> parse_completion(const Json& body, const ApiLimits& limits,
                                         ApiRequest* request) {
  if (!body.is_object()) return no_object();
  Fields fields(body);
  read_model(fields, limits, &request->model);
  read_prompts(fields, limits, &request->prompts);
  request->echo = fields.boolean("echo").value_or(false);
  request->add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  read_generation(fields, limits, request);
  GenerationOptions& options = request->options;
  if (const auto count = fields.integer("logprobs", 0, max_logprobs)) {
    options.logprobs = static_cast<int>(*count);
    if (request->echo)
      options.prompt_logprobs = std::max(options.prompt_logprobs, options.logprobs);
  }
  const auto length = fields.integer("max_tokens", 0, int32_max);
  request->length_given = length.has_value();
  options.max_tokens = length.value_or(16);
  check_max_tokens(fields, "max_tokens", *request);
  return finish(fields, request);
}

std::optional<ApiError> parse_chat(const Json& body, const ApiLimits& limits, ApiRequest* request) {
  if (!body.is_object()) return no_object();
  request->chat = true;
  Fields fields(body);
  read_model(fields, limits, &request->model);
  read_chat(fields, limits, request);
  read_generation(fields, limits, request);
  GenerationOptions& options = request->options;
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, max_logprobs);
  if (logprobs) options.logprobs = static_cast<int>(top.value_or(0));
  if (!logprobs && top.value_or(0) > 0) fields.fail("top_logprobs", "needs logprobs: true");
  // The older name gives way.
  const auto newer = fields.integer("max_completion_tokens", 0, int32_max);
  const auto older = fields.integer("max_tokens", 0, int32_max);
  request->length_given = newer.has_value() || older.has_value();
  options.max_tokens = newer ? *newer : older.value_or(int32_max);
  check_max_tokens(fields, newer ? "max_completion_tokens" : "max_tokens", *request);
  return finish(fields, request);
}

}  // namespace kvart::server
