// Names, salts and the bodies of what can be asked without tokens.
#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/logprobs.h"
#include "server/metrics.h"

namespace kvart::server {

namespace {

constexpr size_t max_noted = 100;

int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::mt19937_64 seeded_generator() {
  std::random_device device;
  std::seed_seq seed{device(), device(), device(), device()};
  return std::mt19937_64(seed);
}

}  // namespace

Service::Service(const Model& model, Engine& engine, ServerOptions options)
    : model_(model),
      engine_(engine),
      options_(std::move(options)),
      random_(seeded_generator()),
      created_s_(now_s()),
      start_(std::chrono::steady_clock::now()) {
  limits_.vocab = model.config().vocab;
  limits_.context_tokens = engine.plan().context_tokens;
  limits_.model_names = options_.model_names;
  limits_.template_names = options_.template_names;
}

void Service::log(std::string_view line) const {
  if (options_.log) options_.log(line);
}

void Service::note_lost(std::string_view what, const std::exception& error) const noexcept {
  try {
    log(fmt::format("{} was lost: {}", what, error.what()));
  } catch (const std::exception&) {
    return;
  }
}

AnswerHead Service::new_head(const ApiRequest& request,
                             std::chrono::steady_clock::time_point asked) {
  const std::string part =
      request.id.empty() ? fmt::format("{:016x}{:016x}", random_(), random_()) : request.id;
  return {(request.chat ? "chatcmpl-" : "cmpl-") + part, now_s(), asked};
}

std::optional<std::chrono::milliseconds> Service::timeout(const ApiRequest& request) const {
  const auto most = options_.request_timeout;
  if (most.count() == 0) return request.timeout;
  return std::min(request.timeout.value_or(most), most);
}

std::string Service::salt(size_t key, const std::string& cache_salt) const {
  const bool apart = !options_.share_prefixes && !options_.api_keys.empty();
  if (!apart && cache_salt.empty()) return {};
  return fmt::format("{}:{}", apart ? std::to_string(key) : "", cache_salt);
}

void Service::note_unknown(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (noted_.size() >= max_noted || !noted_.insert(name).second) continue;
    log(fmt::format("a request has the field {}, which is ignored (said once)", name));
  }
}

void Service::count(std::string_view route, int status) {
  ++counts_[{std::string(route), status}];
}

std::string Service::version_body() const {
  std::string text;
  JsonWriter json(&text);
  json.begin_object();
  json.member("version", options_.version);
  json.end_object();
  return text;
}

void Service::write_model(const std::string& name, JsonWriter* json) const {
  json->begin_object();
  json->member("id", name);
  json->member("object", "model");
  json->member("created", created_s_);
  json->member("owned_by", "kvart");
  json->member("root", options_.model_names.front());
  json->member("parent", nullptr);
  json->member("max_model_len", limits_.context_tokens);
  json->name("permission");
  json->begin_array();
  json->end_array();
  json->end_object();
}

std::string Service::models_body() const {
  std::string text;
  JsonWriter json(&text);
  json.begin_object();
  json.member("object", "list");
  json.name("data");
  json.begin_array();
  for (const std::string& name : options_.model_names) write_model(name, &json);
  json.end_array();
  json.end_object();
  return text;
}

std::string Service::model_body(const std::string& name) const {
  std::string text;
  JsonWriter json(&text);
  const auto& names = options_.model_names;
  if (std::find(names.begin(), names.end(), name) != names.end()) write_model(name, &json);
  return text;
}

// What vLLM answers of its tokenizer_config.json, as far as it means the same here.
std::string Service::tokenizer_info_body() const {
  const TokenizerInfo info = model_.tokenizer_info();
  std::string text;
  JsonWriter json(&text);
  const auto name_of = [&](const char* member, std::optional<int32_t> token) {
    json.name(member);
    if (token) {
      json.value(token_text(model_, *token));
    } else {
      json.value(nullptr);
    }
  };
  json.begin_object();
  json.member("tokenizer_class", "kvart");
  name_of("bos_token", info.bos);
  name_of("eos_token", info.eos);
  json.member("add_bos_token", info.adds_bos);
  json.member("chat_template", info.chat_template);
  json.member("model_max_length", limits_.context_tokens);
  json.end_object();
  return text;
}

std::string Service::metrics_body() const {
  const EngineStats stats = engine_.stats();
  MetricsInput input;
  input.stats = &stats;
  input.plan = &engine_.plan();
  input.options = &engine_.options();
  input.model_name = options_.model_names.front();
  input.cache_words = options_.cache_words;
  input.old_names = options_.old_metric_names;
  input.connections = connections;
  input.requests = counts_;
  return metrics_text(input);
}

std::string Service::status_body() const {
  std::string text;
  JsonWriter json(&text);
  json.begin_object();
  write_status(engine_.stats(), engine_.plan(), engine_.options(), &json);
  json.member("model", options_.model_names.front());
  json.member("version", options_.version);
  json.member("kv_cache_dtype", options_.cache_words);
  json.member("uptime_s",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  json.member("connections", connections);
  json.member("stopping", stopping);
  json.end_object();
  return text;
}

}  // namespace kvart::server
