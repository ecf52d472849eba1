// Models without a checkpoint: the same for the same shape, finite, of every family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kvart/session.h"

namespace kvart {
namespace {

ModelConfig config(const std::string& architecture) {
  ModelConfig config;
  config.source = config.name = architecture + " (dummy)";
  config.architecture = architecture;
  config.layers = 3;
  config.hidden = 128;
  config.ffn = 192;
  config.q_heads = 4;
  config.kv_heads = 2;
  config.head_dim = config.rope_dim = 32;
  config.rope_theta = 10000;
  config.layer_ropes.assign(3, LayerRope::global);
  config.norm_eps = 1e-5F;
  config.attention_scale = 1 / std::sqrt(32.0);
  config.vocab = 300;
  config.layer_shapes.assign(3, LayerShape{2, 32, 0});
  return config;
}

std::vector<float> logits_of(const Model& model) {
  SessionOptions options;
  options.policy = parse_policy("int4")->policy;
  options.context_tokens = 256;
  const auto session = Session::create(model, options);
  EXPECT_TRUE(session.ok());
  std::vector<int32_t> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back(i % 300);
  const StepRequest request{*(*session)->start({}, ""), tokens, WantLogits::last};
  const StepResult& result = (*session)->step({&request, 1})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.error().message;
  return {result.logits.begin(), result.logits.end()};
}

TEST(DummyModel, IsTheSameForTheSameShapeWhateverTheThreads) {
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma2", "phi3"}) {
    SCOPED_TRACE(architecture);
    ModelConfig shape = config(architecture);
    shape.qkv_bias = std::string(architecture) == "qwen2";
    const auto one = Model::dummy(shape, 1);
    const auto two = Model::dummy(shape, 3);
    ASSERT_TRUE(one.ok()) << one.error().message;
    ASSERT_TRUE(two.ok());
    const auto logits = logits_of(**one);
    ASSERT_EQ(logits.size(), 300u);
    EXPECT_EQ(logits, logits_of(**two));
    EXPECT_EQ((*one)->fingerprint(), (*two)->fingerprint());
    double squares = 0;
    for (const float x : logits) squares += x * x / 300;
    EXPECT_GT(squares, 0.01);
    EXPECT_LT(squares, 100);
  }
}

TEST(DummyModel, AnotherShapeIsAnotherModel) {
  const uint64_t one = (*Model::dummy(config("llama"), 1))->fingerprint();
  ModelConfig other = config("llama");
  for (LayerShape& layer : other.layer_shapes) layer.kv_heads = 4;
  other.kv_heads = 4;
  EXPECT_NE((*Model::dummy(other, 1))->fingerprint(), one);
  other = config("llama");
  other.rope_theta = 20000;
  EXPECT_NE((*Model::dummy(other, 1))->fingerprint(), one);
  other = config("llama");
  other.tied_embeddings = true;
  EXPECT_NE((*Model::dummy(other, 1))->fingerprint(), one);
}

TEST(DummyModel, WhatCannotBeIsRefused) {
  ModelConfig shape = config("llama");
  shape.run_refusal = "no such thing";
  EXPECT_FALSE(Model::dummy(shape, 1).ok());
  shape = config("llama");
  shape.hidden = 100;  // no whole blocks of weights
  const auto odd = Model::dummy(shape, 1);
  ASSERT_FALSE(odd.ok());
  EXPECT_THAT(odd.error().message, testing::HasSubstr("llama (dummy)"));
  shape = config("llama");
  shape.vocab = 100;  // fewer than there are bytes
  EXPECT_FALSE(Model::dummy(shape, 1).ok());
  EXPECT_FALSE(Model::dummy(config("llama"), 0).ok());
  shape = config("llama");
  shape.ffn = 1 << 30;
  shape.hidden = 1 << 16;
  const auto large = Model::dummy(shape, 1);
  ASSERT_FALSE(large.ok());
  EXPECT_THAT(large.error().message, testing::HasSubstr("bytes of memory"));
}

TEST(DummyModel, TextGoesInAndOutAsBytes) {
  const auto model = Model::dummy(config("llama"), 1);
  ASSERT_TRUE(model.ok());
  const auto tokens = (*model)->tokenize("hi", false);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ((*model)->detokenize(*tokens, false), "hi");
}

}  // namespace
}  // namespace kvart
