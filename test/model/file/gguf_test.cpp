// GGUF files as they should be: what is written is what is read, by type, by name, with and without
// tensor data.
#include "model/file/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "gguf_tensor.h"
#include "gguf_writer.h"
#include "model/file/weight_blocks.h"

namespace kvart {
namespace {

using test::ByteWriter;
using test::GgufWriter;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<uint8_t> f32_bytes(const std::vector<float>& values) {
  ByteWriter out;
  for (const float value : values) out.put(value);
  return out.bytes();
}

GgufWriter small_model() {
  GgufWriter writer;
  writer.string("general.architecture", "llama")
      .u32("llama.block_count", 30)
      .f32("llama.rope.freq_base", 10000.0f)
      .boolean("tokenizer.ggml.add_bos_token", true)
      .strings("tokenizer.ggml.tokens", {"a", "", "\xC3\xA9", std::string("x\0y", 3)})
      .array<int32_t>("tokenizer.ggml.token_type", GgufValueType::i32, {1, -2, 3})
      .array<float>("tokenizer.ggml.scores", GgufValueType::f32, {0.5f, -1e9f})
      .array<uint8_t>("flags", GgufValueType::boolean, {1, 0, 1});
  writer.tensor("token_embd.weight", {2, 3}, WeightType::F32, f32_bytes({1, 2, 3, 4, 5, 6}));
  writer.tensor("norm", {4}, WeightType::F16, std::vector<uint8_t>(8, 0x3C));
  writer.tensor("q", {32, 2}, WeightType::Q8_0, std::vector<uint8_t>(68, 1));
  return writer;
}

std::string write_file(const std::string& name, const std::vector<uint8_t>& bytes) {
  const std::string path = testing::TempDir() + name;
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  return path;
}

TEST(Gguf, GivesBackWhatWasWritten) {
  const auto bytes = small_model().build();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->alignment_bytes(), 32u);
  EXPECT_EQ(file->entries().size(), 8u);
  EXPECT_EQ(file->get_string("general.architecture").value(), "llama");
  EXPECT_EQ(file->get_u32("llama.block_count").value(), 30u);
  EXPECT_EQ(file->get_u64("llama.block_count").value(), 30u);
  EXPECT_EQ(file->get_f32("llama.rope.freq_base").value(), 10000.0f);
  EXPECT_TRUE(file->get_bool("tokenizer.ggml.add_bos_token").value());
  EXPECT_THAT(file->get_strings("tokenizer.ggml.tokens").value(),
              ElementsAre("a", "", "\xC3\xA9", std::string_view("x\0y", 3)));
  EXPECT_THAT(file->get_i32s("tokenizer.ggml.token_type").value(), ElementsAre(1, -2, 3));
  EXPECT_THAT(file->get_f32s("tokenizer.ggml.scores").value(), ElementsAre(0.5f, -1e9f));
  EXPECT_TRUE(file->has("flags"));
  EXPECT_FALSE(file->has("flag"));
  EXPECT_TRUE(file->is_array("flags"));
  EXPECT_FALSE(file->is_array("general.architecture"));
  EXPECT_FALSE(file->is_array("absent"));
}

TEST(Gguf, TensorsHaveTheirBytes) {
  const auto bytes = small_model().build();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors()[0].name, "token_embd.weight");  // the file's order
  const GgufTensor* embedding = test::find_tensor(*file, "token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->dim_count, 2);
  EXPECT_EQ(embedding->columns(), 2);
  EXPECT_EQ(embedding->rows(), 3);
  ASSERT_EQ(embedding->data.size(), 24u);
  std::vector<float> values(6);
  decode_weights(embedding->type, embedding->data.data(), 6, values.data());
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
  const GgufTensor* quantized = test::find_tensor(*file, "q");
  ASSERT_NE(quantized, nullptr);
  EXPECT_EQ(quantized->type, WeightType::Q8_0);
  EXPECT_EQ(quantized->size_bytes, 68u);
  EXPECT_EQ(quantized->data[0], 1);
  EXPECT_EQ(quantized->file_offset % 32, 0u);
  EXPECT_EQ(test::find_tensor(*file, "Q"), nullptr);
  EXPECT_EQ(test::find_tensor(*file, ""), nullptr);
}

TEST(Gguf, Version2AndOtherAlignments) {
  for (const uint32_t alignment : {8u, 16u, 64u, 4096u}) {
    GgufWriter writer = small_model();
    writer.version = 2;
    writer.alignment_bytes = alignment;
    writer.u32("general.alignment", alignment);
    const auto bytes = writer.build();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->version(), 2u);
    EXPECT_EQ(file->alignment_bytes(), alignment);
    EXPECT_EQ(test::find_tensor(*file, "q")->data[67], 1);
  }
}

TEST(Gguf, NoKeysAndNoTensorsIsAFile) {
  const auto bytes = GgufWriter().build();
  EXPECT_EQ(bytes.size(), 24u);
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->tensors().empty());
}

TEST(Gguf, IntegersOfAnyTypeThatHoldsThem) {
  GgufWriter writer;
  writer.scalar<uint8_t>("u8", GgufValueType::u8, 200)
      .scalar<int8_t>("i8", GgufValueType::i8, 100)
      .scalar<uint16_t>("u16", GgufValueType::u16, 60000)
      .scalar<int16_t>("i16", GgufValueType::i16, 30000)
      .scalar<int32_t>("i32", GgufValueType::i32, 2147483647)
      .scalar<uint64_t>("u64", GgufValueType::u64, 4294967295u)
      .scalar<int64_t>("i64", GgufValueType::i64, 4294967295)
      .scalar<int32_t>("minus", GgufValueType::i32, -1)
      .scalar<uint64_t>("large", GgufValueType::u64, 4294967296u)
      .scalar<uint64_t>("largest", GgufValueType::u64, ~uint64_t{0});
  const auto bytes = writer.build();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->get_u32("u8").value(), 200u);
  EXPECT_EQ(file->get_u32("i8").value(), 100u);
  EXPECT_EQ(file->get_u32("u16").value(), 60000u);
  EXPECT_EQ(file->get_u32("i16").value(), 30000u);
  EXPECT_EQ(file->get_u32("i32").value(), 2147483647u);
  EXPECT_EQ(file->get_u32("u64").value(), 4294967295u);
  EXPECT_EQ(file->get_u32("i64").value(), 4294967295u);
  EXPECT_EQ(file->get_u64("largest").value(), ~uint64_t{0});
  const auto minus = file->get_u64("minus");
  ASSERT_FALSE(minus.ok());
  EXPECT_THAT(minus.error().message, HasSubstr("key 'minus' is -1, expected 0 to 1844674407"));
  const auto large = file->get_u32("large");
  ASSERT_FALSE(large.ok());
  EXPECT_THAT(large.error().message,
              HasSubstr("key 'large' is 4294967296, expected 0 to 4294967295"));
}

TEST(Gguf, FloatsAreFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  GgufWriter writer;
  writer.f32("nan", std::nanf("")).f32("inf", infinity).f32("minus_inf", -infinity);
  writer.scalar<double>("f64", GgufValueType::f64, 1e6);
  writer.scalar<double>("too_large", GgufValueType::f64, 1e300);
  const auto bytes = writer.build();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->get_f32("f64").value(), 1e6f);
  for (const char* key : {"nan", "inf", "minus_inf", "too_large"}) {
    const auto value = file->get_f32(key);
    ASSERT_FALSE(value.ok()) << key;
    EXPECT_THAT(value.error().message, HasSubstr(key));
    EXPECT_THAT(value.error().message, HasSubstr("expected a finite f32"));
  }
}

TEST(Gguf, WrongTypesNameKeyExpectedAndFound) {
  GgufWriter writer = small_model();
  writer.array<uint8_t>("u8s", GgufValueType::u8, {1, 2, 3, 4, 5});
  writer.array<uint32_t>("u32s", GgufValueType::u32, {7, 0x80000000u});
  writer.array<uint32_t>("small_u32s", GgufValueType::u32, {7, 8});
  const auto bytes = writer.build();
  const auto file = GgufFile::parse(bytes, "m.gguf");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto scores = file->get_f32s("u8s");
  ASSERT_FALSE(scores.ok());
  EXPECT_EQ(scores.error().code, ErrorCode::invalid_file);
  EXPECT_THAT(scores.error().message,
              HasSubstr("m.gguf: key 'u8s' is of type array of u8 of 5 elements, expected array of "
                        "f32"));
  const auto absent = file->get_u32("llama.context_length");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ErrorCode::not_found);
  EXPECT_THAT(absent.error().message, HasSubstr("key 'llama.context_length' (u32) is missing"));
  EXPECT_FALSE(file->get_u32("general.architecture").ok());
  EXPECT_FALSE(file->get_u32("llama.rope.freq_base").ok());
  EXPECT_FALSE(file->get_u32("tokenizer.ggml.add_bos_token").ok());
  EXPECT_FALSE(file->get_bool("llama.block_count").ok());
  EXPECT_FALSE(file->get_f32("llama.block_count").ok());
  EXPECT_FALSE(file->get_string("tokenizer.ggml.tokens").ok());
  EXPECT_FALSE(file->get_strings("general.architecture").ok());
  EXPECT_FALSE(file->get_strings("u8s").ok());
  EXPECT_FALSE(file->get_i32s("u8s").ok());
  EXPECT_FALSE(file->get_i32s("llama.block_count").ok());
  EXPECT_THAT(file->get_i32s("small_u32s").value(), ElementsAre(7, 8));
  const auto over = file->get_i32s("u32s");
  ASSERT_FALSE(over.ok());
  EXPECT_THAT(over.error().message, HasSubstr("element 1 of key 'u32s' is 2147483648"));
}

TEST(Gguf, OpenReadsAFileAndSurvivesMoves) {
  const std::string path = write_file("open.gguf", small_model().build());
  auto opened = GgufFile::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const uint8_t* data = test::find_tensor(*opened, "q")->data.data();
  const GgufFile moved = std::move(*opened);
  EXPECT_EQ(test::find_tensor(moved, "q")->data.data(), data);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 32, 0u);
  EXPECT_EQ(data[0], 1);
  EXPECT_THAT(moved.get_strings("tokenizer.ggml.tokens").value(), testing::SizeIs(4));
  EXPECT_EQ(moved.name(), path);
}

TEST(Gguf, AFileThatLacksItsLastByteIsRefused) {
  auto bytes = small_model().build();
  bytes.pop_back();
  EXPECT_FALSE(GgufFile::open(write_file("short.gguf", bytes)).ok());
}

TEST(Gguf, AFileLargerThanMemory) {
  GgufWriter writer;
  writer.u32("a", 1).tensor({"big", {uint64_t{1} << 40}, 0, {}, {}, {}});
  const std::string path = write_file("sparse.gguf", writer.build());
  std::error_code error;
  std::filesystem::resize_file(path, (uint64_t{1} << 42) + 4096, error);
  if (error) GTEST_SKIP() << "this file system has no sparse file of 4 TiB";
  const auto whole = GgufFile::open(path);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_EQ(test::find_tensor(*whole, "big")->data.size(), uint64_t{1} << 42);
  EXPECT_EQ(test::find_tensor(*whole, "big")->data.back(), 0);
  EXPECT_TRUE(whole->check_unchanged().ok());
  std::filesystem::remove(path);
}

TEST(Gguf, AFileThatShrinksAfterItWasOpenedIsAnError) {
  const auto bytes = small_model().build();
  const std::string path = write_file("shrinks.gguf", bytes);
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->check_unchanged().ok());
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(test::find_tensor(*file, "q")->data[0], 0);
  EXPECT_FALSE(file->check_unchanged().ok());
  EXPECT_EQ(file->get_u32("llama.block_count").value(), 30u);
}

TEST(Gguf, WhatIsNotAFileIsRefused) {
  const auto absent = GgufFile::open("/no/such/model.gguf");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ErrorCode::not_found);
  EXPECT_THAT(absent.error().message, HasSubstr("/no/such/model.gguf: can't open the file"));
  const auto folder = GgufFile::open(testing::TempDir());
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().message, HasSubstr("not a regular file"));
  EXPECT_FALSE(GgufFile::open("/dev/zero").ok());
  EXPECT_FALSE(GgufFile::open(write_file("empty.gguf", {})).ok());
}

std::string cached_model(const std::string& name) {
  const char* own = std::getenv("KVART_CACHE_DIR");
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string cache = own   ? own
                            : xdg ? std::string(xdg) + "/kvart"
                                  : std::string(home ? home : "") + "/.cache/kvart";
  return cache + "/models/" + name;
}

TEST(GgufModels, SmolLm) {
  const std::string path = cached_model("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the model isn't in the cache: " << path;
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 272u);
  EXPECT_EQ(file->get_u32("llama.block_count").value(), 30u);
  EXPECT_EQ(file->get_strings("tokenizer.ggml.tokens").value().size(), 49152u);
  EXPECT_EQ(file->get_i32s("tokenizer.ggml.token_type").value().size(), 49152u);
  const GgufTensor* embedding = test::find_tensor(*file, "token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->columns(), 576);
  EXPECT_EQ(embedding->rows(), 49152);
  EXPECT_EQ(embedding->type, WeightType::Q8_0);
}

TEST(GgufModels, QwenCoder) {
  const std::string path = cached_model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the model isn't in the cache: " << path;
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 291u);
  EXPECT_EQ(file->get_u32("qwen2.block_count").value(), 24u);
  EXPECT_EQ(file->get_strings("tokenizer.ggml.tokens").value().size(), 151936u);
  EXPECT_NE(test::find_tensor(*file, "output.weight"), nullptr);
}

}  // namespace
}  // namespace kvart
