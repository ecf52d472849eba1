// Layers whose keys a format holds badly are named, with what holds them better; others aren't.
#include "tools/key_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/half.h"
#include "format/kernels.h"

namespace kvart::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int head_dim = 128;
constexpr int layers = 4;
constexpr int large_layer = 2;  // of which four channels lie around 600

ModelConfig config() {
  ModelConfig config;
  config.name = "m";
  config.layers = layers;
  config.layer_shapes.assign(layers, LayerShape{2, head_dim, 0});
  return config;
}

// All formats on keys of a normal distribution. varies: the offset's sign, from token to token.
std::vector<FormatError> measured(float offset, bool varies = false) {
  std::vector<FormatError> errors;
  for (const FormatInfo* format : formats()) {
    errors.push_back({format, std::vector<ErrorSum>(layers), std::vector<ErrorSum>(layers)});
    std::vector<uint8_t> codes(block_tokens * format->row_bytes(head_dim));
    std::vector<uint16_t> parameters(format->parameter_bytes(head_dim) / 2);
    const FormatKernels& kernels = format_kernels(format, Isa::scalar);
    for (int layer = 0; layer < layers; ++layer) {
      std::mt19937 random(layer + 1);
      std::normal_distribution<float> normal;
      std::vector<float> x(block_tokens * head_dim), y(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        const bool large = layer == large_layer && i % 32 == 5;
        const float sign = varies && i / head_dim % 2 == 1 ? -1.0F : 1.0F;
        x[i] = f16_to_f32(f32_to_f16(normal(random) + (large ? sign * offset : 0.0F)));
      }
      kernels.encode(x.data(), head_dim, codes.data(), parameters.data());
      kernels.decode(codes.data(), parameters.data(), head_dim, 0, block_tokens, y.data());
      errors.back().k[layer].add(x.data(), y.data(), head_dim);
    }
  }
  return errors;
}

std::vector<NamedPolicy> policies(const std::vector<std::string>& words) {
  return parse_policies(words).value();
}

TEST(KeyErrors, ALayerWithLargeChannelsIsNamedForAScaleOfTokens) {
  const auto errors = key_errors(measured(600), config(), policies({"int8", "k8v8", "int4"}));
  ASSERT_TRUE(errors.ok());
  ASSERT_EQ(errors->size(), 3u);
  const KeyErrors& int8 = errors->front();
  EXPECT_EQ(int8.format->name, "int8");
  EXPECT_THAT(int8.flagged, ElementsAre(large_layer));
  EXPECT_EQ(int8.worst, large_layer);
  ASSERT_NE(int8.better, nullptr);
  EXPECT_LE(int8.better->side_bytes(head_dim), int8.format->side_bytes(head_dim));
  EXPECT_LT(int8.better_error, 0.05);
  // Ranges of channels hold them.
  EXPECT_THAT((*errors)[1].flagged, IsEmpty());
  EXPECT_THAT((*errors)[2].flagged, IsEmpty());
  const Report report = key_errors_report(config(), *errors, 256);
  EXPECT_THAT(report.verdict, HasSubstr("int8 holds the keys of layer 2 badly"));
  EXPECT_THAT(report.verdict, HasSubstr(std::string(int8.better->name) + " with "));
  EXPECT_THAT(report.verdict, Not(HasSubstr("_c64 holds")));
  EXPECT_EQ(report.verdict_facts["flagged"].size(), 1u);
  EXPECT_EQ(report.verdict_facts["flagged"][0]["layers"], nlohmann::ordered_json({large_layer}));
}

// Large channels that vary have nearly all of the deviation: that the others are gone is a small
// part of the error, and is seen all the same.
TEST(KeyErrors, ChannelsThatAreLostBesideLargeOnesThatVaryAreSeen) {
  const auto errors = key_errors(measured(600, true), config(), policies({"int8", "k6v4"}));
  ASSERT_TRUE(errors.ok());
  const KeyErrors& int8 = errors->front();
  EXPECT_LT(int8.layers[large_layer].relative(), 0.05);
  EXPECT_GT(int8.layers[large_layer].lost_share(), 0.9);
  EXPECT_THAT(int8.flagged, ElementsAre(large_layer));
  EXPECT_LT(int8.better_error, 0.05);
  EXPECT_THAT((*errors)[1].flagged, IsEmpty());
}

TEST(KeyErrors, OrdinaryKeysAreNotNamed) {
  const auto errors = key_errors(measured(0), config(), policies({"int8", "fp8", "int4"}));
  ASSERT_TRUE(errors.ok());
  for (const KeyErrors& row : *errors) EXPECT_THAT(row.flagged, IsEmpty()) << row.format->name;
  const Report report = key_errors_report(config(), *errors, 256);
  EXPECT_THAT(report.verdict, HasSubstr("No layer's keys"));
  EXPECT_THAT(report.verdict_facts["flagged"], IsEmpty());
}

TEST(KeyErrors, OnlyLayersThatHaveTheFormatAreJudged) {
  const auto elsewhere =
      key_errors(measured(600), config(), policies({"0-1:int8,2:f16,3:int8", "fp8"}));
  ASSERT_TRUE(elsewhere.ok());
  ASSERT_EQ(elsewhere->size(), 2u);
  EXPECT_THAT(elsewhere->front().flagged, IsEmpty());
  EXPECT_NE(elsewhere->front().worst, large_layer);
  EXPECT_THAT((*elsewhere)[1].flagged, ElementsAre(large_layer));
  // In one policy or another.
  const auto both = key_errors(measured(600), config(), policies({"2-:f16,0-1:int8", "int8"}));
  ASSERT_TRUE(both.ok());
  EXPECT_THAT(both->front().flagged, ElementsAre(large_layer));
  EXPECT_FALSE(key_errors(measured(0), config(), policies({"0-1:int8"})).ok());
  const auto none = key_errors(measured(0), config(), policies({"f16", "k=f16,v=int8"}));
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(*none, IsEmpty());
}

}  // namespace
}  // namespace kvart::tools
