// A model's chat template: which names it gets, and which it does not.
#include "model/text/chat_template.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace kvart {

namespace {

constexpr int json_depth_max = 100;

constexpr const char* chatml =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Names that a request can't give: the server's own, and those that would change how it works.
constexpr std::array<std::string_view, 13> reserved_names = {
    "messages",  "tools",           "add_generation_prompt",
    "bos_token", "eos_token",       "chat_template",
    "tokenize",  "namespace",       "range",
    "dict",      "raise_exception", "strftime_now",
    "loop"};

Error invalid(const std::string& what) {
  return Error{ErrorCode::invalid_argument, what};
}

Status add(jinja::Context& context, const std::string& name, const nlohmann::ordered_json& json) {
  jinja::Value value = jinja::from_json(json, json_depth_max);
  if (value.is_undefined()) {
    return invalid("'" + name + "' nests deeper than the limit of " +
                   std::to_string(json_depth_max) + ", or holds what is no JSON");
  }
  context.insert_or_assign(name, std::move(value));
  return {};
}

Status add_extra(jinja::Context& context, const nlohmann::ordered_json& extra) {
  if (extra.is_null()) {
    return {};
  }
  if (!extra.is_object()) {
    return invalid("the extra names of a chat template must be an object");
  }
  for (const auto& [key, value] : extra.items()) {
    if (std::find(reserved_names.begin(), reserved_names.end(), key) != reserved_names.end() ||
        key.starts_with("__")) {
      return invalid("'" + key + "' can't be given to the chat template: the name is reserved");
    }
    KVART_RETURN_IF_ERROR(add(context, key, value));
  }
  return {};
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  Result<jinja::Template> parsed = jinja::Template::parse(source);
  if (!parsed) {
    return parsed.error();
  }
  return ChatTemplate(std::move(source), std::move(*parsed));
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& messages,
                                         const nlohmann::ordered_json& tools_or_null,
                                         bool add_generation_prompt, const std::string& bos,
                                         const std::string& eos,
                                         const nlohmann::ordered_json& extra) const {
  if (!messages.is_array() ||
      !std::all_of(messages.begin(), messages.end(), [](const auto& m) { return m.is_object(); })) {
    return invalid("'messages' must be a list of objects");
  }
  if (!tools_or_null.is_null() && !tools_or_null.is_array()) {
    return invalid("'tools' must be a list or null");
  }
  jinja::Context context;
  context.emplace("documents", jinja::Value::none());
  KVART_RETURN_IF_ERROR(add_extra(context, extra));
  KVART_RETURN_IF_ERROR(add(context, "messages", messages));
  KVART_RETURN_IF_ERROR(add(context, "tools", tools_or_null));
  context.emplace("add_generation_prompt", jinja::Value::boolean(add_generation_prompt));
  context.emplace("bos_token", jinja::Value::string(bos));
  context.emplace("eos_token", jinja::Value::string(eos));
  return template_.render(context, options_);
}

const ChatTemplate& default_chat_template() {
  static const ChatTemplate parsed = [] {
    Result<ChatTemplate> result = ChatTemplate::parse(chatml);
    KVART_CHECK(result.ok(), "%s", result.error().message.c_str());
    return std::move(*result);
  }();
  return parsed;
}

}  // namespace kvart
