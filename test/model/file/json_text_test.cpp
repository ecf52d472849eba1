// JSON of unknown origin: order of keys, and what is refused.
#include "model/file/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "failing_new.h"

namespace kvart {
namespace {

using testing::HasSubstr;

TEST(OrderedJson, KeepsWhatWasWritten) {
  for (const char* text : {R"({"b":1,"a":{"d":[1,-2,3.5,"x",null,true],"c":{}}})", "[]", "5",
                           "\"a\"", "null", R"({"":{"":[[],{}]}})"}) {
    const auto json = parse_ordered_json(text);
    ASSERT_TRUE(json.ok()) << text << ": " << json.error().message;
    EXPECT_EQ(json->dump(), text);
  }
  EXPECT_EQ(parse_json(R"({"b":1,"a":2})", "f")->dump(), R"({"a":2,"b":1})");
}

TEST(OrderedJson, RefusesWithTheCause) {
  const std::string depth_64 = std::string(64, '[') + std::string(64, ']');
  EXPECT_TRUE(parse_ordered_json(depth_64).ok());
  const std::pair<std::string, const char*> wrong[] = {
      {"[" + depth_64 + "]", "nested more than 64 deep"},
      {R"({"a":1,"b":2,"a":3})", "'a' is there twice"},
      {"\xEF\xBB\xBF{}", "byte order mark"},
      {"{\"a\":\"\xFF\"}", "byte 7"},
      {"{} x", "no JSON"},
      {"{", "no JSON"},
      {"", "no JSON"},
      {"1e999", "no JSON"},
  };
  for (const auto& [text, cause] : wrong) {
    const auto json = parse_ordered_json(text);
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(json.error().message, HasSubstr(cause));
  }
}

// Neither the number of keys nor their length makes it slow.
TEST(OrderedJson, ManyKeys) {
  std::string text = "{\"k\":0";
  for (int i = 0; i < 200'000; ++i) text += ",\"key" + std::to_string(i) + "\":[]";
  const auto json = parse_ordered_json(text + "}");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->size(), 200'001u);
}

// What stands behind a large value doesn't make it be copied.
TEST(OrderedJson, MembersBehindALargeOne) {
  const auto allocations_of = [](int siblings) {
    std::string text = "[";
    for (int i = 0; i < 1000; ++i) text += "\"a text that needs memory of its own\",";
    text += "0]";
    for (int level = 0; level < 60; ++level) {
      text = "{\"a\":" + text;
      for (int i = 0; i < siblings; ++i) text += ",\"b" + std::to_string(i) + "\":0";
      text += "}";
    }
    const int64_t before = allocations;
    const auto json = parse_ordered_json(text);
    const int64_t taken = allocations - before;
    EXPECT_TRUE(json.ok() && json->dump() == text);
    return taken;
  };
  EXPECT_LT(allocations_of(8), allocations_of(0) + int64_t{60} * 8 * 10);
}

}  // namespace
}  // namespace kvart
