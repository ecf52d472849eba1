// Chat templates against what jinja2 renders (test/oracle/chat_template.py), and what a request may
// give them.
#include "model/text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/file/gguf.h"
#include "model/real_models.h"

namespace kvart {
namespace {

using Json = nlohmann::ordered_json;

const Json& expectations() {
  static const Json data = [] {
    std::ifstream file(std::string(KVART_TEST_DATA) + "/model/text/data/chat_template.json");
    return Json::parse(file, nullptr, false);
  }();
  return data;
}

// 2024-07-09 13:05:42, a Tuesday: the oracle's clock.
jinja::Options fixed_clock() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 9;
  now.tm_hour = 13;
  now.tm_min = 5;
  now.tm_sec = 42;
  now.tm_wday = 2;
  now.tm_yday = 190;
  jinja::Options options;
  options.now = now;
  return options;
}

Result<std::string> render_case(const Json& c) {
  const Json& data = expectations();
  std::string source = c["template"];
  if (source.starts_with("@")) {
    source = data["templates"][source.substr(1)];
  }
  Result<ChatTemplate> parsed = ChatTemplate::parse(source);
  if (!parsed) {
    return parsed.error();
  }
  parsed->set_options(fixed_clock());
  if (!c.contains("messages")) {
    return parsed->render(Json::array(), nullptr, false, "<s>", "</s>", data["fuzz_names"]);
  }
  const std::string conversation = c["messages"];
  const Json& said = data["conversations"][conversation];
  return parsed->render(said["messages"], said["tools"], c["add_generation_prompt"], "<s>", "</s>",
                        c["extra"]);
}

TEST(ChatTemplate, RendersWhatTheOracleRenders) {
  ASSERT_TRUE(expectations().is_object());
  std::size_t rendered = 0;
  std::size_t refused = 0;
  for (const Json& c : expectations()["cases"]) {
    const Result<std::string> text = render_case(c);
    const std::string where =
        c["name"].get<std::string>() + ": " + c["template"].get<std::string>();
    if (c["expected"].is_null()) {
      EXPECT_FALSE(text.ok()) << where << "\nrendered: " << *text;
      ++refused;
    } else if (text.ok()) {
      EXPECT_EQ(*text, c["expected"].get<std::string>()) << where;
      ++rendered;
    } else {
      ADD_FAILURE() << where << "\nerror: " << text.error().message;
    }
  }
  EXPECT_GE(rendered, 800u);
  EXPECT_GE(refused, 80u);
}

std::string fnv1a(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325ull;
  for (const char c : text) {
    value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  }
  char buffer[17];
  std::snprintf(buffer, sizeof buffer, "%016llx", static_cast<unsigned long long>(value));
  return buffer;
}

void expect_model_renders(const std::string& file) {
  KVART_REAL_MODEL(path, file);
  Result<GgufFile> model = GgufFile::open(path);
  ASSERT_TRUE(model.ok()) << model.error().message;
  Result<std::string> source = model->get_string("tokenizer.chat_template");
  ASSERT_TRUE(source.ok()) << source.error().message;
  Result<ChatTemplate> parsed = ChatTemplate::parse(*source);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  int checked = 0;
  for (const Json& c : expectations()["models"]) {
    if (c["file"] != file) {
      continue;
    }
    const std::string conversation = c["conversation"];
    SCOPED_TRACE(conversation);
    const Json& said = expectations()["conversations"][conversation];
    const Result<std::string> text =
        parsed->render(said["messages"], said["tools"], c["add_generation_prompt"], "<s>", "</s>");
    EXPECT_EQ(text.ok(), !c["bytes"].is_null()) << (text.ok() ? *text : text.error().message);
    if (text.ok() && !c["bytes"].is_null()) {
      EXPECT_EQ(text->size(), c["bytes"].get<std::size_t>()) << *text;
      EXPECT_EQ(fnv1a(*text), c["fnv1a"].get<std::string>()) << *text;
    }
    ++checked;
  }
  EXPECT_EQ(checked, 12);
}

TEST(ChatTemplate, RendersSmolLm2sTemplate) {
  expect_model_renders(test::smollm2_file);
}
TEST(ChatTemplate, RendersQwens) {
  expect_model_renders(test::qwen2_file);
}

TEST(ChatTemplate, DefaultIsChatMl) {
  const Json messages =
      Json::parse(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                                        {"role": "assistant", "content": null}])");
  const Result<std::string> text = default_chat_template().render(messages, nullptr, true, "", "");
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text,
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, ContentIsNeverRunAsATemplate) {
  const Json messages =
      Json::parse(R"([{"role": "user", "content": "{{ 1 + 1 }}{% if %}<|im_start|>"}])");
  const Result<std::string> text = default_chat_template().render(messages, nullptr, false, "", "");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "<|im_start|>user\n{{ 1 + 1 }}{% if %}<|im_start|><|im_end|>\n");
}

TEST(ChatTemplate, ExtraNamesReachTheTemplateButNeverReplaceItsOwn) {
  Result<ChatTemplate> parsed =
      ChatTemplate::parse("{{ mode }}{{ messages | length }}{{ bos_token }}");
  ASSERT_TRUE(parsed.ok());
  const Json messages = Json::array({{{"role", "user"}, {"content", "x"}}});
  Result<std::string> text =
      parsed->render(messages, nullptr, false, "B", "E", Json{{"mode", "fast"}});
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, "fast1B");
  for (const char* name : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token",
                           "tokenize", "chat_template", "raise_exception", "strftime_now", "range",
                           "namespace", "dict", "loop", "__class__"}) {
    Json extra;
    extra[name] = "taken over";
    text = parsed->render(messages, nullptr, false, "B", "E", extra);
    ASSERT_FALSE(text.ok()) << name;
    EXPECT_EQ(text.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(text.error().message.find("'" + std::string(name) + "'"), std::string::npos)
        << text.error().message;
  }
}

TEST(ChatTemplate, RefusesInputOfOtherShapes) {
  const ChatTemplate& chatml = default_chat_template();
  const Json messages = Json::array({{{"role", "user"}, {"content", "x"}}});
  EXPECT_FALSE(chatml.render(Json::object(), nullptr, false, "", "").ok());
  EXPECT_FALSE(chatml.render(Json::array({1}), nullptr, false, "", "").ok());
  EXPECT_FALSE(chatml.render(messages, Json::object(), false, "", "").ok());
  EXPECT_FALSE(chatml.render(messages, nullptr, false, "", "", Json::array()).ok());
  Json deep = 1;
  for (int i = 0; i < 300; ++i) {
    deep = Json::array({std::move(deep)});
  }
  const Result<std::string> text = chatml.render(messages, Json::array({deep}), false, "", "");
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.error().message.find("'tools' nests deeper than the limit of 100"),
            std::string::npos)
      << text.error().message;
}

}  // namespace
}  // namespace kvart
