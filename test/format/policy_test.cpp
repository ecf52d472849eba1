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

TEST(LayerBits, YamlAndJsonOfBitsPerLayer) {
  const char* const same[] = {
      "0:\n  nbits_key: 8\n  nbits_value: 4\n1:\n  nbits_key: 4\n  nbits_value: 2  # few\n",
      "# bits\n0: {nbits_key: 8, nbits_value: 4}\n1: {nbits_value: 2, nbits_key: 4}",
      R"({"0": {"nbits_key": 8, "nbits_value": 4}, "1": {"nbits_key": 4, "nbits_value": 2}})",
      "per_layer_config:\n  1: {nbits_key: 4, nbits_value: 2}\n  0: {nbits_key: 8, nbits_value: 4}",
  };
  for (const char* text : same) {
    const auto parsed = parse_layer_bits(text, "p.yaml");
    ASSERT_TRUE(parsed.ok()) << text << parsed.error().message;
    const auto layers = parsed->policy.resolve(2);
    ASSERT_TRUE(layers.ok()) << layers.error().message;
    EXPECT_EQ((*layers)[0].k->name, "int8_c64");
    EXPECT_EQ((*layers)[0].v->name, "int4_c64");
    EXPECT_EQ((*layers)[1].k->name, "int4_c64");
    EXPECT_EQ((*layers)[1].v->name, "int2_c64");
    EXPECT_EQ(parsed->policy.sink_blocks, 1);
  }
  const auto full = parse_layer_bits("0: {nbits_key: 16, nbits_value: 3}", "p.yaml");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ((*full->policy.resolve(1))[0].k->name, "f16");
  EXPECT_EQ((*full->policy.resolve(1))[0].v->name, "int3_c64");
}

TEST(LayerBits, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "p.yaml: no layers"},
      {"# nothing", "no layers"},
      {"1: {nbits_key: 8, nbits_value: 4}", "layer 0 is missing"},
      {"0: {nbits_key: 8}", "layer 0 lacks"},
      {"0: {nbits_key: 8, nbits_value: 7}", "8 and 7 bits"},
      {"0: {nbits_key: 0, nbits_value: 4}", "0 and 4 bits"},
      {"0: {nbits_key: 8, nbits_key: 8, nbits_value: 4}", "nbits_key without a number, or twice"},
      {"0: {nbits_key: x, nbits_value: 4}", "nbits_key without a number"},
      {"0: {nbits_key:", "nbits_key without a number"},
      {"nbits_key: 8", "nbits_key before any layer"},
      {"0: {bits: 8}", "the word 'bits'"},
      {"0: {nbits_key: 8, nbits_value: 4}\n0: {nbits_key: 8, nbits_value: 4}", "twice"},
      {"200000: {nbits_key: 8, nbits_value: 4}", "layer 200000"},
      {"99999999999: {nbits_key: 8}", "the word '99999999999'"},
      {"\x1b[31m: 1", "the word '?[31m'"},
  };
  for (const auto& [text, expected] : cases) {
    const auto parsed = parse_layer_bits(text, "p.yaml");
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr(expected)) << text;
  }
}

}  // namespace
}  // namespace kvart
