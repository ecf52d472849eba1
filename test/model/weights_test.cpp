// Weights read by name: each tensor is used exactly once or the file is refused (case C34), and what
// can't fit in memory is refused before it is read.
#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

ModelConfig config() {
  ModelConfig config;
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
};

std::vector<Shape> least_tensors() {
  return {{"token_embd.weight", {hidden, vocab}},
          {"output_norm.weight", {hidden}},
          {"blk.0.attn_norm.weight", {hidden}},
          {"blk.0.attn_q.weight", {hidden, 32}},
          {"blk.0.attn_k.weight", {hidden, 16}},
          {"blk.0.attn_v.weight", {hidden, 16}},
          {"blk.0.attn_output.weight", {32, hidden}},
          {"blk.0.ffn_norm.weight", {hidden}},
          {"blk.0.ffn_gate.weight", {hidden, ffn}},
          {"blk.0.ffn_up.weight", {hidden, ffn}},
          {"blk.0.ffn_down.weight", {ffn, hidden}}};
}

// Every value of a tensor is its number in the list plus one.
Result<Weights> read(const std::vector<Shape>& shapes) {
  GgufWriter writer;
  float number = 0;
  for (const Shape& shape : shapes) {
    number += 1;
    uint64_t count = 1;
    for (const uint64_t dim : shape.dims) count *= dim;
    ByteWriter data;
    for (uint64_t i = 0; i < count; ++i) data.put(number);
    writer.tensor(shape.name, shape.dims, WeightType::F32, data.bytes());
  }
  const auto bytes = writer.build();
  const auto file = GgufFile::parse(bytes, GgufExtent::whole, "m.gguf");
  EXPECT_TRUE(file.ok());
  return read_weights(*file, config(), nullptr);
}

float first_value(const PackedMatrix& matrix) {
  std::vector<float> row(static_cast<size_t>(matrix.columns()));
  matrix.decode_row(0, row.data());
  return row[0];
}

std::string error_of(const std::vector<Shape>& shapes) {
  const auto weights = read(shapes);
  return weights.ok() ? "" : weights.error().message;
}

TEST(Weights, EachTensorGoesWhereItsNameSays) {
  const auto weights = read(least_tensors());
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
  EXPECT_EQ(first_value(layer.gate), 9);
  EXPECT_EQ(first_value(layer.up), 10);
  EXPECT_EQ(first_value(layer.down), 11);
  EXPECT_TRUE(layer.q_bias.empty());
}

TEST(Weights, TheOutputMatrixIsTheFilesOwnOrTheEmbedding) {
  auto shapes = least_tensors();
  auto tied = read(shapes);
  ASSERT_TRUE(tied.ok());
  EXPECT_EQ(first_value(tied->output_matrix()), 1);
  shapes.push_back({"output.weight", {hidden, vocab}});
  auto untied = read(shapes);
  ASSERT_TRUE(untied.ok());
  EXPECT_EQ(first_value(untied->output_matrix()), 12);
  shapes.back().dims = {hidden, vocab + 1};
  EXPECT_THAT(error_of(shapes), HasSubstr("tensor output.weight has shape [32, 49, 1, 1]"));
}

TEST(Weights, EachBiasIsUsedOnItsOwn) {
  for (const char* name : {"q", "k", "v"}) {
    auto shapes = least_tensors();
    const uint64_t size = name[0] == 'q' ? 32 : 16;
    shapes.push_back({std::string("blk.0.attn_") + name + ".bias", {size}});
    const auto weights = read(shapes);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    const LayerWeights& layer = weights->layers[0];
    EXPECT_EQ(layer.q_bias.size(), name[0] == 'q' ? 32u : 0u);
    EXPECT_EQ(layer.k_bias.size(), name[0] == 'k' ? 16u : 0u);
    EXPECT_EQ(layer.v_bias.size(), name[0] == 'v' ? 16u : 0u);
  }
}

TEST(Weights, WhatIsMissingOrWithoutUseIsNamed) {
  for (size_t i = 0; i < least_tensors().size(); ++i) {
    auto shapes = least_tensors();
    const std::string name = shapes[i].name;
    shapes.erase(shapes.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_THAT(error_of(shapes), HasSubstr("tensor " + name + " is missing"));
  }
  for (const char* name : {"output.bias", "blk.0.attn_output.bias", "blk.1.attn_q.weight",
                           "blk.0.attn_q_norm.weight", "blk.0.ffn_gate.bias"}) {
    auto shapes = least_tensors();
    shapes.push_back({name, {hidden}});
    EXPECT_THAT(error_of(shapes), HasSubstr(std::string("tensor ") + name + " has no use"));
  }
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
  const auto weights = read_weights(*file, config(), nullptr);
  std::filesystem::remove(path);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(weights.error().message, HasSubstr("the weights take 4398046511104 bytes and this"));
}

}  // namespace
}  // namespace kvart
