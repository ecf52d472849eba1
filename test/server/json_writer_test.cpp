// JsonWriter: what it writes is what nlohmann's parser reads back.
#include "server/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

namespace kvart::server {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonWriter, ContainersAndValues) {
  std::string text = "data: ";
  JsonWriter json(&text);
  json.begin_object();
  json.member("a", 1);
  json.member("b", "x");
  json.name("c");
  json.begin_array();
  json.value(true);
  json.value(nullptr);
  json.begin_object();
  json.end_object();
  json.begin_array();
  json.end_array();
  json.raw("1,2");
  json.end_array();
  json.member("d", std::optional<int>());
  json.member("e", std::vector<int32_t>{3, -4});
  json.member("f", -1.0);
  json.member("g", std::string("y"));
  json.member("h", std::nan(""));
  json.end_object();
  EXPECT_EQ(text, R"(data: {"a":1,"b":"x","c":[true,null,{},[],1,2],"d":null,"e":[3,-4],"f":-1.0,)"
                  R"("g":"y","h":null})");
}

TEST(JsonWriter, TextsAndNumbersComeBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string given;
    for (uint64_t n = random() % 12; n > 0; --n) given += static_cast<char>(random() % 128);
    const auto number =
        std::ldexp(static_cast<double>(random()) - 9e18, static_cast<int>(random() % 200) - 150);
    const auto whole = static_cast<int64_t>(random());
    std::string text;
    JsonWriter json(&text);
    json.begin_array();
    json.value(given);
    json.value(number);
    json.value(whole);
    json.end_array();
    const Json back = Json::parse(text);
    EXPECT_EQ(back[0], given);
    EXPECT_EQ(back[1].get<double>(), number);
    EXPECT_TRUE(back[1].is_number_float());
    EXPECT_EQ(back[2], whole);
  }
}

TEST(JsonWriter, BytesThatAreNoTextAreReplaced) {
  for (const auto& [given, right] : {std::pair<std::string, std::string>{"a\xFFz", "a\uFFFDz"},
                                     {"\xE2\x82", "\uFFFD"},
                                     {"\u20ac\"\\\n\x01\x7F", "\u20ac\"\\\n\x01\x7F"}}) {
    std::string text;
    JsonWriter(&text).value(given);
    EXPECT_EQ(Json::parse(text), right);
  }
}

}  // namespace
}  // namespace kvart::server
