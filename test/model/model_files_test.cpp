// A model's files: split GGUF, shards with an index, folders that lack something, e4m3 weights.
#include "model/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvart/model.h"
#include "model/file/gguf_tensor.h"
#include "model/file/gguf_writer.h"
#include "model/fp8_weights.h"
#include "model/gguf_parts.h"

namespace kvart {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::GgufWriter;
using testing::AllOf;
using testing::HasSubstr;

std::string temporary(const std::string& name) {
  return testing::TempDir() + "kvart_model_files_" + name;
}

void write(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

struct Part {
  int number = 0;  // from 0
  int count = 3;
  int tensors_in_all = 3;
  std::string tensor;
};

void write_part(const std::string& path, const Part& part) {
  GgufWriter writer;
  writer.scalar<uint16_t>("split.no", GgufValueType::u16, static_cast<uint16_t>(part.number));
  writer.scalar<uint16_t>("split.count", GgufValueType::u16, static_cast<uint16_t>(part.count));
  writer.scalar<int32_t>("split.tensors.count", GgufValueType::i32, part.tensors_in_all);
  writer.tensor(part.tensor, {4}, WeightType::F32, std::vector<uint8_t>(16));
  write(path, writer.build());
}

std::string part_name(const std::string& stem, int number, int count = 3) {
  char suffix[32];
  std::snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", number, count);
  return temporary(stem) + suffix;
}

void write_three(const std::string& stem) {
  for (int i = 0; i < 3; ++i) {
    write_part(part_name(stem, i + 1), {i, 3, 3, "t" + std::to_string(i)});
  }
}

std::string error_of_parts(const std::string& path) {
  const auto parts = open_gguf_parts(path);
  return parts.ok() ? "no error" : parts.error().message;
}

TEST(GgufParts, AreFoundFromAnyOfThem) {
  write_three("split");
  for (int i = 1; i <= 3; ++i) {
    const auto parts = open_gguf_parts(part_name("split", i));
    ASSERT_TRUE(parts.ok()) << parts.error().message;
    ASSERT_EQ(parts->size(), 3u);
    for (int j = 0; j < 3; ++j) {
      EXPECT_NE(test::find_tensor((*parts)[j], "t" + std::to_string(j)), nullptr);
    }
  }
}

TEST(GgufParts, WhatIsMissingOrForeignIsNamed) {
  write_three("broken");
  const std::string first = part_name("broken", 1);
  fs::remove(part_name("broken", 2));
  EXPECT_THAT(error_of_parts(first), HasSubstr("broken-00002-of-00003.gguf: can't open the file"));
  write_part(part_name("broken", 2), {0, 3, 3, "t1"});
  EXPECT_THAT(error_of_parts(first), AllOf(HasSubstr("it says that it is part 1 of 3"),
                                           HasSubstr("expected part 2 of 3")));
  write_part(part_name("broken", 2), {1, 3, 7, "t1"});
  EXPECT_THAT(error_of_parts(first), HasSubstr("with 7 tensors in all"));
  write_part(part_name("broken", 2), {1, 2, 3, "t1"});
  EXPECT_THAT(error_of_parts(first), HasSubstr("part 2 of 2"));
  write_part(part_name("broken", 2), {5, 3, 3, "t1"});
  EXPECT_THAT(error_of_parts(first), HasSubstr("'split.no' is 5"));
  write_part(part_name("broken", 2), {1, 3, 3, "t1"});
  EXPECT_EQ(error_of_parts(first), "no error");
  for (int i = 0; i < 3; ++i) {
    write_part(part_name("broken", i + 1), {i, 3, 9, "t" + std::to_string(i)});
  }
  EXPECT_THAT(error_of_parts(first), HasSubstr("the 3 parts have 3 tensors, expected 9"));
  write_part(temporary("renamed.gguf"), {1, 3, 3, "t1"});
  EXPECT_THAT(error_of_parts(temporary("renamed.gguf")),
              HasSubstr("its name must end in -00002-of-00003.gguf"));
  write_part(part_name("many", 1, 65535), {0, 65535, 3, "t1"});
  EXPECT_THAT(error_of_parts(part_name("many", 1, 65535)), HasSubstr("at most 9999 parts"));
}

TEST(GgufParts, ATensorInTwoPartsIsRefused) {
  for (int i = 0; i < 3; ++i) write_part(part_name("twice", i + 1), {i, 3, 3, "same"});
  const auto parts = open_gguf_parts(part_name("twice", 1));
  ASSERT_TRUE(parts.ok());
  TensorTable table;
  ASSERT_TRUE(table.add_gguf((*parts)[0]).ok());
  const Status again = table.add_gguf((*parts)[1]);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message, HasSubstr("tensor same is there twice"));
}

// A copy of a tiny model's folder, to be damaged.
std::string folder_copy(const std::string& name) {
  const std::string to = temporary(name);
  fs::remove_all(to);
  fs::copy(std::string(KVART_TINY_MODELS) + "/llama", to);
  return to;
}

std::string error_of(const std::string& path) {
  const auto files = open_model_files(path);
  return files.ok() ? "no error" : files.error().message;
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(ModelFolder, EachMissingFileIsNamed) {
  EXPECT_EQ(error_of(std::string(KVART_TINY_MODELS) + "/llama"), "no error");
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    const std::string folder = folder_copy("missing");
    fs::remove(folder + "/" + name);
    EXPECT_THAT(error_of(folder), HasSubstr(name));
  }
  for (const char* name : {"tokenizer_config.json", "generation_config.json"}) {
    const std::string folder = folder_copy("optional");
    fs::remove(folder + "/" + name);
    EXPECT_EQ(error_of(folder), "no error");
  }
  EXPECT_THAT(error_of(std::string(KVART_TINY_MODELS) + "/llama/config.json"),
              HasSubstr("give the folder that it is in"));
}

TEST(ModelFolder, DamagedTextsAreNamed) {
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    const std::string folder = folder_copy("damaged");
    for (const std::string& text : {std::string("{"), std::string("[]"), std::string("\xff"),
                                    "{\"eos_token_id\":" + std::string(100000, '[')}) {
      std::ofstream(folder + "/" + name, std::ios::binary) << text;
      EXPECT_THAT(error_of(folder), HasSubstr(name)) << text.substr(0, 20);
    }
  }
  const std::string folder = folder_copy("ends");
  for (const char* ends : {"-1", "288", "1e9", "\"x\"", "[257,-1]", "[[1]]"}) {
    std::ofstream(folder + "/generation_config.json") << "{\"eos_token_id\":" << ends << "}";
    EXPECT_THAT(error_of(folder), HasSubstr("eos_token_id")) << ends;
  }
  std::ofstream(folder + "/generation_config.json") << "{\"eos_token_id\":[257,258]}";
  const auto files = open_model_files(folder);
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_THAT(files->tokenizer.ends, testing::IsSupersetOf({257, 258}));
}

TEST(ModelFolder, TemplatesFromTheirThreePlaces) {
  const std::string folder = folder_copy("templates");
  Json settings = Json::parse(text_of(folder + "/tokenizer_config.json"));
  const auto template_of = [&] {
    std::ofstream(folder + "/tokenizer_config.json") << settings;
    const auto files = open_model_files(folder);
    return files.ok() ? files->chat_template : files.error().message;
  };
  settings["chat_template"] = "one";
  EXPECT_EQ(template_of(), "one");
  settings["chat_template"] = Json::array(
      {{{"name", "tool_use"}, {"template", "two"}}, {{"name", "default"}, {"template", "three"}}});
  EXPECT_EQ(template_of(), "three");
  settings["chat_template"] = Json::array({{{"name", "tool_use"}, {"template", "two"}}});
  EXPECT_THAT(template_of(), HasSubstr("chat_template is neither"));
  settings["chat_template"] = nullptr;
  EXPECT_EQ(template_of(), "");
  settings["chat_template"] = 5;
  EXPECT_THAT(template_of(), HasSubstr("tokenizer_config.json: chat_template"));
  settings["chat_template"] = "one";
  std::ofstream(folder + "/chat_template.jinja") << "four";
  EXPECT_EQ(template_of(), "four");
}

// The folder's tensors in two files, and an index of them.
Json split_in_two(const std::string& folder) {
  const auto whole = SafetensorsFile::open(folder + "/model.safetensors");
  EXPECT_TRUE(whole.ok());
  Json index = {{"weight_map", Json::object()}};
  for (const int part : {0, 1}) {
    const std::string name = "model-" + std::to_string(part) + ".safetensors";
    Json header = Json::object();
    std::vector<uint8_t> data;
    for (size_t i = part; i < whole->tensors().size(); i += 2) {
      const SafetensorsTensor& tensor = whole->tensors()[i];
      header[tensor.name] = {{"dtype", tensor.type_name},
                             {"shape", tensor.shape},
                             {"data_offsets", {data.size(), data.size() + tensor.size_bytes}}};
      data.insert(data.end(), tensor.data.begin(), tensor.data.end());
      index["weight_map"][tensor.name] = name;
    }
    const std::string text = header.dump();
    std::vector<uint8_t> bytes(8);
    const uint64_t length = text.size();
    std::memcpy(bytes.data(), &length, 8);
    bytes.insert(bytes.end(), text.begin(), text.end());
    bytes.insert(bytes.end(), data.begin(), data.end());
    write(folder + "/" + name, bytes);
  }
  fs::remove(folder + "/model.safetensors");
  return index;
}

TEST(ModelFolder, ShardsAreWhatTheIndexSays) {
  const std::string folder = folder_copy("shards");
  const uint64_t tensors = open_model_files(folder)->tensors.all().size();
  const Json index = split_in_two(folder);
  const auto with_index = [&](const Json& json) {
    std::ofstream(folder + "/model.safetensors.index.json") << json;
    return error_of(folder);
  };
  EXPECT_EQ(with_index(index), "no error");
  EXPECT_EQ(open_model_files(folder)->tensors.all().size(), tensors);
  EXPECT_TRUE(Model::load(folder, 1).ok());
  const std::string embedding = "model.embed_tokens.weight";
  for (const char* outside : {"../x.safetensors", "/etc/passwd", "a/b", "", ".", ".."}) {
    Json changed = index;
    changed["weight_map"][embedding] = outside;
    EXPECT_THAT(with_index(changed), HasSubstr("in the same folder")) << outside;
  }
  Json changed = index;
  changed["weight_map"][embedding] = 5;
  EXPECT_THAT(with_index(changed), HasSubstr("weight_map names ''"));
  changed = index;
  changed["weight_map"][embedding] = "model-7.safetensors";
  EXPECT_THAT(with_index(changed), HasSubstr("not a part of this model"));
  changed = index;
  changed["weight_map"]["extra"] = "model-0.safetensors";
  EXPECT_THAT(with_index(changed), HasSubstr("tensor 'extra' isn't in model-0.safetensors"));
  changed = index;
  changed["weight_map"].erase(embedding);
  EXPECT_THAT(with_index(changed), HasSubstr("weight_map doesn't name"));
  EXPECT_THAT(with_index(Json::object()), HasSubstr("weight_map is missing"));
  EXPECT_EQ(with_index(index), "no error");
  fs::remove(folder + "/model-1.safetensors");
  EXPECT_THAT(error_of(folder), HasSubstr("model-1.safetensors: can't open the file"));
}

// The tiny model's folder with an F32 tensor more.
void add_tensor(const std::string& folder, const std::string& name,
                const std::vector<float>& data) {
  const std::string path = folder + "/model.safetensors";
  std::string file = text_of(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  Json header = Json::parse(file.substr(8, length));
  std::string tensors = file.substr(8 + length);
  header[name] = {{"dtype", "F32"},
                  {"shape", data.size() == 1 ? Json::array() : Json::array({data.size()})},
                  {"data_offsets", {tensors.size(), tensors.size() + 4 * data.size()}}};
  tensors.append(reinterpret_cast<const char*>(data.data()), 4 * data.size());
  const std::string text = header.dump();
  length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << text << tensors;
}

TEST(KvScheme, ScalesOfTheCheckpointAreCountedByLayer) {
  const std::string folder = folder_copy("scales");
  add_tensor(folder, "model.layers.0.self_attn.k_proj.k_scale", {0.5f});
  add_tensor(folder, "model.layers.0.self_attn.v_proj.v_scale", {0.5f});
  add_tensor(folder, "model.layers.2.self_attn.k_scale", {0.25f});
  add_tensor(folder, "model.layers.3.self_attn.kv_scale", {0.25f});
  const auto files = open_model_files(folder);
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(files->config.k_scale_layers, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(files->config.v_scale_layers, (std::vector<int>{0, 3}));
  EXPECT_TRUE(Model::load(folder, 1).ok());
}

// Both scales, none, only that of K, only that of V: each is said as it is, and none is made up.
TEST(KvScheme, CheckpointsWithOneScaleOfTwoAreSaidAsTheyAre) {
  for (const bool k : {false, true}) {
    for (const bool v : {false, true}) {
      const std::string folder = folder_copy("one_scale");
      if (k) add_tensor(folder, "model.layers.1.self_attn.k_proj.k_scale", {0.5f});
      if (v) add_tensor(folder, "model.layers.1.self_attn.v_proj.v_scale", {2.0f});
      const auto files = open_model_files(folder);
      ASSERT_TRUE(files.ok()) << files.error().message;
      EXPECT_EQ(files->config.k_scale_layers, k ? std::vector<int>{1} : std::vector<int>());
      EXPECT_EQ(files->config.v_scale_layers, v ? std::vector<int>{1} : std::vector<int>());
      EXPECT_TRUE(Model::load(folder, 1).ok());
    }
  }
}

TEST(KvScheme, ScalesThatAreNoNumbersAreRefused) {
  const std::pair<float, const char*> bad[] = {{NAN, "nan"},        {INFINITY, "inf"},
                                               {-INFINITY, "-inf"}, {-1.0f, "-1"},
                                               {0.0f, "0"},         {-0.0f, "-0"}};
  const std::string scales[] = {"model.layers.1.self_attn.k_proj.k_scale",
                                "model.layers.1.self_attn.v_proj.v_scale"};
  for (const auto& [value, shown] : bad) {
    for (const int side : {0, 1}) {
      const std::string folder = folder_copy("bad_scale");
      add_tensor(folder, scales[side], {value});
      add_tensor(folder, scales[1 - side], {1.0f});
      EXPECT_THAT(error_of(folder), HasSubstr("tensor " + scales[side] + " is " + shown +
                                              "; a scale is finite and above 0"));
    }
  }
  for (const float far : {3e38f, 1e-45f}) {  // nothing is computed with it that could overflow
    const std::string folder = folder_copy("far_scale");
    for (const std::string& name : scales) add_tensor(folder, name, {far});
    EXPECT_EQ(error_of(folder), "no error") << far;
    EXPECT_EQ(open_model_files(folder)->config.k_scale_layers, std::vector<int>{1});
  }
  const std::string folder = folder_copy("bad_scale");
  add_tensor(folder, "model.layers.1.self_attn.k_proj.k_scale", {1, 2, 3});
  EXPECT_THAT(error_of(folder), HasSubstr("a scale of K or V is one number"));
}

// A type that isn't read is refused by its name, never read as its neighbour of the same size.
TEST(ModelFolder, TypesOfWeightsThatAreNotReadAreNamed) {
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  for (const auto& [type, bytes] : {std::pair<const char*, size_t>{"F8_E5M2", 1},
                                    {"F8_E8M0", 1},
                                    {"I8", 1},
                                    {"U8", 1},
                                    {"BOOL", 1},
                                    {"I16", 2},
                                    {"I32", 4},
                                    {"F64", 8}}) {
    const std::string folder = folder_copy("types");
    const std::string path = folder + "/model.safetensors";
    const std::string file = text_of(path);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    const Json header = Json::parse(file.substr(8, length));
    Json changed = Json::object();
    std::string data;
    for (const auto& [key, tensor] : header.items()) {
      changed[key] = tensor;
      if (key == "__metadata__") continue;
      const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      size_t size = end - begin;
      if (key == name) {
        size = bytes;
        for (const size_t dim : tensor["shape"]) size *= dim;
        changed[key]["dtype"] = type;
      }
      changed[key]["data_offsets"] = Json::array({data.size(), data.size() + size});
      data += file.substr(8 + length + begin, std::min(size, end - begin));
      data.resize(changed[key]["data_offsets"][1].get<size_t>());
    }
    const std::string text = changed.dump();
    length = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << text << data;
    out.close();
    EXPECT_THAT(error_of(folder), HasSubstr("tensor " + name + ": it has type " + type)) << type;
  }
}

TEST(KvScheme, WhatIsDeclaredIsAWordForAPolicy) {
  const auto scheme = [](const char* file, const Json& content) {
    const std::string folder = folder_copy("scheme");
    Json config = Json::parse(text_of(folder + "/config.json"));
    if (std::string(file) == "config.json") {
      config.merge_patch(content);
      std::ofstream(folder + "/config.json") << config;
    } else {
      std::ofstream(folder + "/" + file) << content;
    }
    const auto read = read_model_config(folder);
    return read.ok() ? read->kv_scheme : read.error().message;
  };
  const auto compressed = [&](const Json& inner) {
    return scheme("config.json", {{"quantization_config", {{"kv_cache_scheme", inner}}}});
  };
  EXPECT_EQ(scheme("config.json", Json::object()), "");
  EXPECT_EQ(compressed(nullptr), "");
  EXPECT_EQ(compressed({{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}}), "fp8");
  EXPECT_EQ(compressed({{"num_bits", 8}, {"type", "int"}}), "int8");
  EXPECT_THAT(compressed({{"type", "float"}}), HasSubstr("kv_cache_scheme.num_bits is null"));
  EXPECT_THAT(compressed({{"num_bits", 8}, {"type", 5}}), HasSubstr("kv_cache_scheme.type is 5"));
  EXPECT_THAT(compressed(3), HasSubstr("quantization_config.kv_cache_scheme is 3"));
  const auto model_opt = [&](const Json& word) {
    return scheme("hf_quant_config.json", {{"quantization", {{"kv_cache_quant_algo", word}}}});
  };
  EXPECT_EQ(model_opt("FP8"), "fp8");
  EXPECT_EQ(model_opt("NVFP4"), "nvfp4");
  EXPECT_EQ(model_opt(nullptr), "");
  EXPECT_THAT(model_opt(Json::array()), HasSubstr("kv_cache_quant_algo is an object or a list"));
  EXPECT_EQ(scheme("config.json", {{"quantization_config", {{"kv_cache_quant_algo", "INT8"}}}}),
            "int8");
}

StoredTensor tensor(std::array<int64_t, 4> dims, std::span<const uint8_t> data, bool is_fp8) {
  StoredTensor out;
  out.place = "m.safetensors: tensor w";
  out.dims = dims;
  out.is_fp8 = is_fp8;
  out.data = data;
  out.size_bytes = data.size();
  return out;
}

std::span<const uint8_t> bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

TEST(Fp8Weights, ScalesOfAMatrixARowOrABlock) {
  constexpr int64_t rows = 130;
  constexpr int64_t columns = 160;
  const std::vector<uint8_t> codes(rows * columns, 0x38);  // 1.0
  const StoredTensor w = tensor({columns, rows, 1, 1}, codes, true);
  const auto value = [&](const Result<std::vector<uint8_t>>& decoded, int64_t row, int64_t column) {
    EXPECT_TRUE(decoded.ok()) << decoded.error().message;
    uint16_t half = 0;
    std::memcpy(&half, decoded->data() + 2 * (row * columns + column), 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float out = 0;
    std::memcpy(&out, &bits, 4);
    return out;
  };
  const std::vector<float> one = {0.5f};
  auto decoded = decode_fp8_rows(w, tensor({1, 1, 1, 1}, bytes_of(one), false), 0, rows, columns);
  EXPECT_EQ(value(decoded, 129, 159), 0.5f);
  std::vector<float> by_row(rows, 2.0f);
  by_row[100] = 4.0f;
  for (const auto dims : {std::array<int64_t, 4>{1, rows, 1, 1}, {rows, 1, 1, 1}}) {
    decoded = decode_fp8_rows(w, tensor(dims, bytes_of(by_row), false), 90, 20, columns);
    EXPECT_EQ(value(decoded, 9, 5), 2.0f);
    EXPECT_EQ(value(decoded, 10, 5), 4.0f);
  }
  const std::vector<float> blocks = {1, 2, 3, 4};
  decoded = decode_fp8_rows(w, tensor({2, 2, 1, 1}, bytes_of(blocks), false), 0, rows, columns);
  EXPECT_EQ(value(decoded, 127, 127), 1.0f);
  EXPECT_EQ(value(decoded, 127, 128), 2.0f);
  EXPECT_EQ(value(decoded, 128, 127), 3.0f);
  EXPECT_EQ(value(decoded, 129, 159), 4.0f);
  const auto shape =
      decode_fp8_rows(w, tensor({3, 1, 1, 1}, bytes_of(blocks), false), 0, 1, columns);
  ASSERT_FALSE(shape.ok());
  EXPECT_THAT(shape.error().message, HasSubstr("has shape [3, 1, 1, 1]"));
}

TEST(Fp8Weights, EveryCodeIsItsValueAndNanIsRefused) {
  std::vector<uint8_t> codes(256);
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i & 127) == 127 ? 0 : i;
  const std::vector<float> one = {1.0f};
  const StoredTensor scale = tensor({1, 1, 1, 1}, bytes_of(one), false);
  const auto decoded = decode_fp8_rows(tensor({256, 1, 1, 1}, codes, true), scale, 0, 1, 256);
  ASSERT_TRUE(decoded.ok());
  for (int i = 0; i < 256; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, decoded->data() + 2 * i, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value = 0;
    std::memcpy(&value, &bits, 4);
    const int code = codes[i];
    const double magnitude = (code >> 3 & 15) == 0
                                 ? (code & 7) / 512.0
                                 : std::ldexp(1 + (code & 7) / 8.0, (code >> 3 & 15) - 7);
    EXPECT_EQ(value, (code & 128) != 0 ? -magnitude : magnitude) << i;
  }
  for (const uint8_t nan : {0x7F, 0xFF}) {
    codes[9] = nan;
    const auto refused = decode_fp8_rows(tensor({256, 1, 1, 1}, codes, true), scale, 0, 1, 256);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("row 0, column 9"));
  }
}

TEST(Fp8Weights, ScalesThatAreNoNumbersAreRefused) {
  const std::vector<uint8_t> codes(16, 0x38);
  for (const float bad : {NAN, INFINITY, -INFINITY, -1.0f, 0.0f, -0.0f, 3e38f}) {
    const std::vector<float> values = {bad};
    std::vector<uint8_t> large(16, 0x7E);  // 448
    const auto refused = decode_fp8_rows(tensor({16, 1, 1, 1}, large, true),
                                         tensor({1, 1, 1, 1}, bytes_of(values), false), 0, 1, 16);
    EXPECT_FALSE(refused.ok()) << bad;
  }
}

}  // namespace
}  // namespace kvart
