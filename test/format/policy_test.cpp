// Policies: presets, aliases, ranges, refusals, canonical names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvart/format.h"

namespace kvart {
namespace {

using testing::HasSubstr;

TEST(Policy, EveryPresetParsesToItsOwnName) {
  for (const Preset& preset : presets()) {
    const auto parsed = parse_policy(preset.name);
    ASSERT_TRUE(parsed.ok()) << preset.name;
    EXPECT_EQ(parsed->policy.name, preset.name);
    EXPECT_EQ(parsed->note, "");
    EXPECT_TRUE(parsed->policy.resolve(3).ok());
  }
}

TEST(Policy, EveryFormatParses) {
  for (const FormatInfo* format : formats()) {
    const auto parsed = parse_policy(format->name);
    ASSERT_TRUE(parsed.ok()) << format->name;
    const auto layers = parsed->policy.resolve(2);
    ASSERT_TRUE(layers.ok());
    EXPECT_EQ((*layers)[1].k, format);
    EXPECT_EQ((*layers)[1].v, format);
    EXPECT_EQ(parse_policy(parsed->policy.name)->policy.name, parsed->policy.name);
  }
}

TEST(Policy, SinksDefaultToOneBelowEightBits) {
  EXPECT_EQ(parse_policy("int4")->policy.sink_blocks, 1);
  EXPECT_EQ(parse_policy("k8v4")->policy.sink_blocks, 1);
  EXPECT_EQ(parse_policy("int8")->policy.sink_blocks, 0);
  EXPECT_EQ(parse_policy("fp8")->policy.sink_blocks, 0);
  EXPECT_EQ(parse_policy("k8v8")->policy.sink_blocks, 0);
  EXPECT_EQ(parse_policy("int4,sink=3")->policy.sink_blocks, 3);
  EXPECT_EQ(parse_policy("int4,sink=3")->policy.name, "int4,sink=3");
  EXPECT_EQ(parse_policy("int4,sink=1")->policy.name, "int4");
}

TEST(Policy, RangesGiveEachLayerItsFormats) {
  const auto parsed = parse_policy("0-1:f16,2-:k=int8,v=int4_g32");
  ASSERT_TRUE(parsed.ok());
  const auto layers = parsed->policy.resolve(4);
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ((*layers)[0].k->name, "f16");
  EXPECT_EQ((*layers)[1].v->name, "f16");
  EXPECT_EQ((*layers)[2].k->name, "int8");
  EXPECT_EQ((*layers)[3].v->name, "int4_g32");
  EXPECT_EQ(parsed->policy.name, "0-1:f16,2-:int8v4");
}

TEST(Policy, FirstLastAndMiddleDiffer) {
  const auto layers = parse_policy("0-1:int8,2-3:int4,4-5:fp8")->policy.resolve(6);
  ASSERT_TRUE(layers.ok());
  const std::vector<std::string_view> expected = {"int8",     "int8",     "int4_c64",
                                                  "int4_c64", "fp8_e4m3", "fp8_e4m3"};
  for (int i = 0; i < 6; ++i) EXPECT_EQ((*layers)[i].k->name, expected[i]);
}

TEST(Policy, RangesMustCoverTheModelOnce) {
  EXPECT_THAT(parse_policy("0-3:f16,2-:int8").error().message, HasSubstr("two ranges"));
  EXPECT_THAT(parse_policy("1-:f16")->policy.resolve(4).error().message,
              HasSubstr("no format for layer 0"));
  EXPECT_THAT(parse_policy("0-9:f16")->policy.resolve(4).error().message,
              HasSubstr("layers 0 to 3"));
}

TEST(Policy, SynonymsAreSilentAndOthersSayWhatRuns) {
  EXPECT_EQ(parse_policy("fp8_e4m3")->policy.name, "fp8");
  EXPECT_EQ(parse_policy("fp8_e4m3")->note, "");
  EXPECT_EQ(parse_policy("q8_0")->policy.name, "int8");
  EXPECT_THAT(parse_policy("q8_0")->note, HasSubstr("int8"));
  EXPECT_THAT(parse_policy("turboquant_k3v4_nc")->note, HasSubstr("k3v4"));
}

TEST(Policy, WrongWordsAreRefusedWithTheRightOnes) {
  for (const char* text :
       {"", ",", "int5", "k9v4", "k4v1", "k=int8", "v=int8", "k=int8,v=int4,k=f16", "int4,int8",
        "3-1:f16", "x:f16", "0-:f16,", "int4,sink=", "int4,sink=-1", "int4,sink=65", "k=k4v3,v=f16",
        "0-99999999999:f16", "int4 ", "INT4"}) {
    EXPECT_FALSE(parse_policy(text).ok()) << text;
  }
  EXPECT_THAT(parse_policy("int5").error().message, HasSubstr("k6v4"));
  EXPECT_THAT(parse_policy("nvfp4").error().message, HasSubstr("int4"));
  EXPECT_EQ(parse_policy("fp8_e5m2").error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace kvart
