// Fuzz target of chat templates: any bytes end in a text or an error of one printable line.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "model/text/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

kvart::jinja::Options small_limits() {
  kvart::jinja::Options options;
  options.limits.work = 300'000;
  options.limits.memory_bytes = 4u << 20;
  options.limits.output_bytes = 1u << 20;
  options.limits.time = std::chrono::milliseconds(2000);
  options.now = std::tm{};
  options.now->tm_mday = 1;
  return options;
}

const Json& messages() {
  static const Json value = Json::parse(R"([
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": " \u00e9 <b> "}, {"type": "image"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "a1", "type": "function",
      "function": {"name": "f", "arguments": {"x": 1.5, "y": [true, null]}}}]},
    {"role": "tool", "content": "<think>\nok\n</think>\n\n12"}])");
  return value;
}

const Json& tools() {
  static const Json value = Json::parse(R"([{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}}])");
  return value;
}

bool is_one_visible_line(const std::string& text) {
  return !text.empty() && std::none_of(text.begin(), text.end(),
                                       [](char c) { return (c & 0xe0) == 0 || c == 0x7f; });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto parsed = kvart::ChatTemplate::parse(std::string(data, data + size));
  if (!parsed.ok()) {
    KVART_CHECK(is_one_visible_line(parsed.error().message));
    return 0;
  }
  parsed->set_options(small_limits());
  for (const bool with_tools : {false, true}) {
    const auto text = parsed->render(messages(), with_tools ? tools() : Json(), with_tools, "<s>",
                                     "</s>", Json{{"n", 3}, {"s", "Hello, W\u00f6rld\n"}});
    KVART_CHECK(text.ok() || is_one_visible_line(text.error().message));
  }
  return 0;
}
