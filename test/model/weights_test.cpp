// Weights read by name: each tensor is used exactly once or the file is refused, and
// what can't fit in memory is refused before it is read.
#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "model/file/gguf_writer.h"

namespace kvart {
namespace {

using test::ByteWriter;
using test::GgufWriter;
using testing::HasSubstr;

constexpr int hidden = 32;
constexpr int ffn = 64;
constexpr int vocab = 48;

ModelConfig small_config() {
  ModelConfig config;
  config.source = "m.gguf";
  config.tied_embeddings = true;
  config.layers = 1;
  config.hidden = hidden;
  config.ffn = ffn;
  config.q_heads = 2;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.rope_dim = 16;
  config.vocab = vocab;
  return config;
}

struct Shape {
  std::string name;
  std::vector<uint64_t> dims;
  std::optional<float> value;
};

std::vector<Shape> least_tensors() {
  return {
      {"token_embd.weight", {hidden, vocab}, {}},     {"output_norm.weight", {hidden}, {}},
      {"blk.0.attn_norm.weight", {hidden}, {}},       {"blk.0.attn_q.weight", {hidden, 32}, {}},
      {"blk.0.attn_k.weight", {hidden, 16}, {}},      {"blk.0.attn_v.weight", {hidden, 16}, {}},
      {"blk.0.attn_output.weight", {32, hidden}, {}}, {"blk.0.ffn_norm.weight", {hidden}, {}},
      {"blk.0.ffn_gate.weight", {hidden, ffn}, {}},   {"blk.0.ffn_up.weight", {hidden, ffn}, {}},
      {"blk.0.ffn_down.weight", {ffn, hidden}, {}}};
}

// Every value of a tensor is its number in the list plus one.
Result<Weights> read(const std::vector<Shape>& shapes, const ModelConfig& config,
                     std::string_view architecture = "llama", bool norms_plus_one = false) {
  GgufWriter writer;
  float number = 0;
  for (const Shape& shape : shapes) {
    number += 1;
    uint64_t count = 1;
    for (const uint64_t dim : shape.dims) count *= dim;
    ByteWriter data;
    for (uint64_t i = 0; i < count; ++i) data.put(shape.value.value_or(number));
    writer.tensor(shape.name, shape.dims, WeightType::F32, data.bytes());
  }
  const auto bytes = writer.build();
  const auto file = GgufFile::parse(bytes, "m.gguf");
  EXPECT_TRUE(file.ok()) << file.error().message;
  TensorTable table;
  EXPECT_TRUE(table.add_gguf(*file).ok());
  return read_weights(table, config, *find_architecture(architecture), norms_plus_one, nullptr);
}

float first_value(const PackedMatrix& matrix) {
  std::vector<float> row(static_cast<size_t>(matrix.columns()));
  matrix.decode_row(0, row.data());
  return row[0];
}

std::string error_of(const std::vector<Shape>& shapes, const ModelConfig& config,
                     std::string_view architecture = "llama") {
  const auto weights = read(shapes, config, architecture);
  return weights.ok() ? "no error" : weights.error().message;
}

TEST(Weights, EachTensorGoesWhereItsNameSays) {
  const auto weights = read(least_tensors(), small_config());
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const LayerWeights& layer = weights->layers.at(0);
  EXPECT_EQ(first_value(weights->embedding), 1);
  EXPECT_EQ(weights->output_norm.at(0), 2);
  EXPECT_EQ(layer.attention_norm.at(0), 3);
  EXPECT_EQ(first_value(layer.q), 4);
  EXPECT_EQ(first_value(layer.k), 5);
  EXPECT_EQ(first_value(layer.v), 6);
  EXPECT_EQ(first_value(layer.attention_output), 7);
  EXPECT_EQ(layer.ffn_norm.at(0), 8);
  ASSERT_EQ(layer.experts.size(), 1u);
  EXPECT_EQ(first_value(layer.experts[0].gate), 9);
  EXPECT_EQ(first_value(layer.experts[0].up), 10);
  EXPECT_EQ(first_value(layer.experts[0].down), 11);
  EXPECT_TRUE(layer.q_bias.empty());
}

TEST(Weights, NormsStoredLessOneGetItBack) {
  const auto weights = read(least_tensors(), small_config(), "llama", true);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights->output_norm.at(0), 3);
  EXPECT_EQ(weights->layers[0].attention_norm.at(0), 4);
  EXPECT_EQ(first_value(weights->layers[0].q), 4);
}

TEST(Weights, TheOutputMatrixIsTheFilesOwnOrTheEmbedding) {
  auto shapes = least_tensors();
  ModelConfig config = small_config();
  auto tied = read(shapes, config);
  ASSERT_TRUE(tied.ok());
  EXPECT_EQ(first_value(tied->output_matrix()), 1);
  config.tied_embeddings = false;
  EXPECT_THAT(error_of(shapes, config), HasSubstr("tensor output.weight is missing"));
  shapes.push_back({"output.weight", {hidden, vocab}, {}});
  auto untied = read(shapes, config);
  ASSERT_TRUE(untied.ok());
  EXPECT_EQ(first_value(untied->output_matrix()), 12);
  config.tied_embeddings = true;
  EXPECT_THAT(error_of(shapes, config), HasSubstr("output.weight differs from the embedding"));
  shapes.back().value = 1;  // the embedding once more
  EXPECT_EQ(error_of(shapes, config), "no error");
  config.tied_embeddings = false;
  shapes.back().dims = {hidden, vocab + 1};
  EXPECT_THAT(error_of(shapes, config), HasSubstr("tensor output.weight has shape [32, 49, 1, 1]"));
}

TEST(Weights, BiasesAreAllThereOrNoneIs) {
  const std::vector<Shape> biases = {{"blk.0.attn_q.bias", {32}, {}},
                                     {"blk.0.attn_k.bias", {16}, {}},
                                     {"blk.0.attn_v.bias", {16}, {}}};
  ModelConfig config = small_config();
  for (const Shape& bias : biases) {
    auto shapes = least_tensors();
    shapes.push_back(bias);
    EXPECT_THAT(error_of(shapes, config), HasSubstr(bias.name + " has no use"));
  }
  config.qkv_bias = true;
  auto shapes = least_tensors();
  shapes.insert(shapes.end(), biases.begin(), biases.end());
  const auto weights = read(shapes, config);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights->layers[0].q_bias.size(), 32u);
  EXPECT_EQ(weights->layers[0].v_bias.at(0), 14);
  for (const Shape& bias : biases) {
    std::vector<Shape> fewer;
    for (const Shape& shape : shapes) {
      if (shape.name != bias.name) fewer.push_back(shape);
    }
    EXPECT_THAT(error_of(fewer, config), HasSubstr("tensor " + bias.name + " is missing"));
  }
}

TEST(Weights, WhatIsMissingOrWithoutUseIsNamed) {
  for (size_t i = 0; i < least_tensors().size(); ++i) {
    auto shapes = least_tensors();
    const std::string name = shapes[i].name;
    shapes.erase(shapes.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_THAT(error_of(shapes, small_config()), HasSubstr("tensor " + name + " is missing"));
  }
  for (const char* name : {"output.bias", "blk.0.attn_output.bias", "blk.1.attn_q.weight",
                           "blk.0.attn_q_norm.weight", "blk.0.ffn_gate.bias"}) {
    auto shapes = least_tensors();
    shapes.push_back({name, {hidden}, {}});
    EXPECT_THAT(error_of(shapes, small_config()),
                HasSubstr(std::string("tensor ") + name + " has no use"));
  }
}

TEST(Weights, ValuesThatAreNoNumbersAreRefusedByPlace) {
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    for (const size_t index : {size_t{1}, size_t{2}, size_t{7}}) {
      auto shapes = least_tensors();
      shapes[index].value = value;
      EXPECT_THAT(error_of(shapes, small_config()), HasSubstr(shapes[index].name + ": value 0 is"));
    }
  }
}

TEST(Weights, FusedMatricesAreCutByRows) {
  auto shapes = least_tensors();
  shapes.erase(shapes.begin() + 3, shapes.begin() + 6);
  shapes.insert(shapes.begin() + 3, {"blk.0.attn_qkv.weight", {hidden, 64}, {}});
  std::erase_if(shapes, [](const Shape& shape) {
    return shape.name == "blk.0.ffn_gate.weight" || shape.name == "blk.0.ffn_up.weight";
  });
  shapes.push_back({"blk.0.ffn_up.weight", {hidden, 2 * ffn}, {}});
  const auto weights = read(shapes, small_config(), "phi3");
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const LayerWeights& layer = weights->layers[0];
  EXPECT_EQ(layer.q.rows(), 32);
  EXPECT_EQ(layer.k.rows(), 16);
  EXPECT_EQ(layer.v.rows(), 16);
  EXPECT_EQ(layer.experts[0].gate.rows(), ffn);
  EXPECT_EQ(layer.experts[0].up.rows(), ffn);
  EXPECT_THAT(error_of(least_tensors(), small_config(), "phi3"),
              HasSubstr("tensor blk.0.attn_qkv.weight is missing"));
}

TEST(Weights, ExpertsAreOneStackOrTensorsOfTheirOwn) {
  ModelConfig config = small_config();
  config.experts = 2;
  config.expert_ffn = 32;
  auto shapes = least_tensors();
  shapes.erase(shapes.end() - 3, shapes.end());
  shapes.push_back({"blk.0.attn_q_norm.weight", {16}, {}});
  shapes.push_back({"blk.0.attn_k_norm.weight", {16}, {}});
  shapes.push_back({"blk.0.ffn_gate_inp.weight", {hidden, 2}, {}});
  auto stacked = shapes;
  stacked.push_back({"blk.0.ffn_gate_exps.weight", {hidden, 32, 2}, {}});
  stacked.push_back({"blk.0.ffn_up_exps.weight", {hidden, 32, 2}, {}});
  stacked.push_back({"blk.0.ffn_down_exps.weight", {32, hidden, 2}, {}});
  const auto one = read(stacked, config, "qwen3moe");
  ASSERT_TRUE(one.ok()) << one.error().message;
  ASSERT_EQ(one->layers[0].experts.size(), 2u);
  auto own = shapes;
  for (const char* expert : {"0", "1"}) {
    for (const char* side : {"gate", "up", "down"}) {
      own.push_back(
          {std::string("blk.0.ffn_") + side + "_exps." + expert + ".weight", {hidden, 32}, {}});
    }
  }
  const auto separate = read(own, config, "qwen3moe");
  ASSERT_TRUE(separate.ok()) << separate.error().message;
  EXPECT_EQ(first_value(separate->layers[0].experts[1].gate),
            first_value(separate->layers[0].experts[0].gate) + 3);
  own.pop_back();
  EXPECT_THAT(error_of(own, config, "qwen3moe"),
              HasSubstr("blk.0.ffn_down_exps.weight is missing"));
}

TEST(Weights, MoreThanTheMachinesMemoryIsRefusedBeforeItIsRead) {
  GgufWriter writer;
  writer.tensor({"token_embd.weight", {uint64_t{1} << 40}, 0, {}, {}, {}});
  const std::string path = testing::TempDir() + "too_large.gguf";
  const auto bytes = writer.build();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  std::error_code error;
  std::filesystem::resize_file(path, (uint64_t{1} << 42) + 4096, error);
  if (error) GTEST_SKIP() << "this file system has no sparse file of 4 TiB";
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  TensorTable table;
  ASSERT_TRUE(table.add_gguf(*file).ok());
  const auto weights =
      read_weights(table, small_config(), *find_architecture("llama"), false, nullptr);
  std::filesystem::remove(path);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(weights.error().message, HasSubstr("the weights take 4398046511104 bytes and this"));
}

}  // namespace
}  // namespace kvart
