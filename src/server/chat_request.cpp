// The fields of a chat: messages, tools, and what its template gets besides.
#include <fmt/format.h>

#include <algorithm>

#include "model/file/json_text.h"
#include "model/file/printable.h"
#include "server/api_request.h"

namespace kvart::server {

namespace {

constexpr size_t max_messages = 16384;
constexpr size_t max_tools = 1024;
constexpr size_t max_role_bytes = 64;
// Members of a message that a template may want besides role and content.
constexpr std::string_view message_members[] = {
    "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "refusal"};

// "content": a text, null, or a list of parts of text.
std::optional<std::string> read_content(const Json& content, std::string* text) {
  if (content.is_null()) return std::nullopt;
  if (content.is_string()) {
    *text = content.get<std::string>();
    return std::nullopt;
  }
  const std::string allowed =
      "content must be a text, or a list of {\"type\": \"text\", \"text\": ...}";
  if (!content.is_array()) return allowed;
  for (const Json& part : content) {
    if (!part.is_object()) return allowed;
    const auto type = part.find("type");
    if (type != part.end() && type->is_string() && *type != "text") {
      return fmt::format("content of type {} isn't supported; only text is",
                         printable(type->get_ref<const std::string&>(), 32));
    }
    const auto inner = part.find("text");
    if (type == part.end() || inner == part.end() || !inner->is_string()) return allowed;
    if (&part != &content.front()) *text += '\n';
    *text += inner->get_ref<const std::string&>();
  }
  return std::nullopt;
}

// What is wrong with it, or nothing.
std::optional<std::string> read_message(const Json& json, ChatMessage* message) {
  if (!json.is_object()) return "isn't an object";
  const auto role = json.find("role");
  if (role == json.end() || !role->is_string() || role->get_ref<const std::string&>().empty() ||
      role->get_ref<const std::string&>().size() > max_role_bytes) {
    return fmt::format("role must be a text of 1 to {} bytes", max_role_bytes);
  }
  message->role = role->get<std::string>();
  const auto content = json.find("content");
  const bool has_content = content != json.end() && !content->is_null();
  if (has_content) {
    if (auto wrong = read_content(*content, &message->content)) return wrong;
  }
  EmptiedJson<Json> tree(Json::object());
  Json& more = tree.value;
  for (const std::string_view name : message_members) {
    const auto member = json.find(std::string(name));
    if (member != json.end() && !member->is_null()) more[std::string(name)] = *member;
  }
  if (!has_content && !more.contains("tool_calls")) return "content is missing";
  if (!more.empty()) message->more = json_text(more);
  return std::nullopt;
}

void read_messages(Fields& fields, std::vector<ChatMessage>* messages) {
  const Json* list = fields.list("messages", max_messages);
  if (fields.error()) return;
  if (list == nullptr || list->empty()) {
    return fields.fail("messages", "must be a list of at least one {\"role\", \"content\"}");
  }
  for (const Json& entry : *list) {
    if (const auto wrong = read_message(entry, &messages->emplace_back())) {
      return fields.fail("messages", fmt::format("[{}]: {}", messages->size() - 1, *wrong));
    }
  }
}

void read_tools(Fields& fields, ChatOptions* options) {
  const Json* tools = fields.list("tools", max_tools);
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && *choice != "auto" && *choice != "none") {
    return fields.fail("tool_choice", "only auto and none are supported");
  }
  if (tools == nullptr || tools->empty() || (choice != nullptr && *choice == "none")) return;
  for (const Json& tool : *tools) {
    const bool function = tool.is_object() && tool.contains("type") && tool["type"] == "function" &&
                          tool.contains("function") && tool["function"].is_object();
    const bool named =
        function && tool["function"].contains("name") && tool["function"]["name"].is_string();
    if (!named) {
      return fields.fail("tools",
                         "each must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
  }
  options->tools = json_text(*tools);
}

void read_names(Fields& fields, const std::vector<std::string>& allowed, ChatOptions* options) {
  const Json* names = fields.object("chat_template_kwargs");
  EmptiedJson<Json> tree(Json::object());
  Json& out = tree.value;
  if (names != nullptr) {
    for (const auto& item : names->items()) {
      if (std::find(allowed.begin(), allowed.end(), item.key()) == allowed.end()) {
        return fields.fail("chat_template_kwargs",
                           fmt::format("{} can't be set; these can: {}", printable(item.key(), 64),
                                       fmt::join(allowed, ", ")));
      }
      out[item.key()] = item.value();
    }
  }
  // OpenAI has a field of its own for this one.
  const std::string* effort = fields.text("reasoning_effort", 32);
  const bool may = std::find(allowed.begin(), allowed.end(), "reasoning_effort") != allowed.end();
  if (effort != nullptr && may && !out.contains("reasoning_effort")) {
    out["reasoning_effort"] = *effort;
  }
  if (!out.empty()) options->names = json_text(out);
}

}  // namespace

void read_chat(Fields& fields, const ApiLimits& limits, ApiRequest* request) {
  read_messages(fields, &request->messages);
  read_tools(fields, &request->chat_options);
  read_names(fields, limits.template_names, &request->chat_options);
  request->chat_options.add_generation_prompt =
      fields.boolean("add_generation_prompt").value_or(true);
  for (const char* name : {"chat_template", "continue_final_message", "documents", "functions",
                           "function_call", "audio", "mm_processor_kwargs"}) {
    fields.refuse(name, "isn't supported; leave it out");
  }
  const Json* modalities = fields.find("modalities");
  if (modalities != nullptr && *modalities != Json::array({"text"})) {
    fields.fail("modalities", "only text is supported");
  }
  fields.ignore({"parallel_tool_calls", "add_special_tokens", "include_reasoning", "verbosity"});
}

}  // namespace kvart::server
