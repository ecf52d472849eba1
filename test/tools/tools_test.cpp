// Units, tables, built-in shapes, GPUs and the arithmetic of plans.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tools/capacity.h"
#include "tools/files.h"
#include "tools/gpus.h"
#include "tools/http_client.h"
#include "tools/model_shapes.h"
#include "tools/options.h"
#include "tools/policies.h"
#include "tools/run_options.h"
#include "tools/table.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Units, BytesAreDecimalOrBinaryAsTheUnitSays) {
  EXPECT_EQ(*parse_bytes("60GB"), 60000000000u);
  EXPECT_EQ(*parse_bytes("60 GB"), 60000000000u);
  EXPECT_EQ(*parse_bytes("1GiB"), 1073741824u);
  EXPECT_EQ(*parse_bytes("1.5kB"), 1500u);
  EXPECT_EQ(*parse_bytes("4096"), 4096u);
  EXPECT_EQ(*parse_bytes("1e9"), 1000000000u);
  EXPECT_EQ(*parse_bytes("80gb"), 80000000000u);
  EXPECT_EQ(*parse_bytes("2gib"), 2147483648u);
}

TEST(Units, WhatIsNoSizeIsRefused) {
  for (const char* text : {"", "GB", "-1GB", "+1GB", "nan", "inf", "0", "1e30", "60XB", "60GBs",
                           "0x10", "1..2GB", " 1GB", "60GB 1"}) {
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  }
}

TEST(Units, Tokens) {
  EXPECT_EQ(*parse_tokens("32768"), 32768);
  EXPECT_EQ(*parse_tokens("32k"), 32768);
  EXPECT_EQ(*parse_tokens("0.5k"), 512);
  EXPECT_EQ(*parse_tokens("1M"), 1048576);
  for (const char* text : {"", "0", "-1", "1.5", "3G", "32kk", "1e12", "2147483649"}) {
    EXPECT_FALSE(parse_tokens(text).ok()) << text;
  }
}

TEST(Units, BandwidthAndLoad) {
  EXPECT_DOUBLE_EQ(*parse_bandwidth("3.35TB/s"), 3.35e12);
  EXPECT_DOUBLE_EQ(*parse_bandwidth("900GB/s"), 9e11);
  EXPECT_FALSE(parse_bandwidth("0").ok());
  EXPECT_FALSE(parse_bandwidth("3.35").ok());
  EXPECT_DOUBLE_EQ(parse_load("200")->amount, 200);
  EXPECT_FALSE(parse_load("200")->tokens_per_s);
  EXPECT_TRUE(parse_load("2e4tok/s")->tokens_per_s);
  EXPECT_FALSE(parse_load("0").ok());
  EXPECT_FALSE(parse_load("5 apples").ok());
}

TEST(Units, Commas) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(131072), "131,072");
  EXPECT_EQ(with_commas(1000000), "1,000,000");
}

Table sample_table() {
  return {"rows",
          "",
          {{"name", "name", false}, {"bytes_per_token", "bytes\nper token"}},
          {{text_cell("a,\"b\""), integer_cell(131072)}, {text_cell("c"), missing_cell()}}};
}

TEST(Table, Text) {
  EXPECT_EQ(text_table(sample_table(), true),
            "           bytes\n"
            "name   per token\n"
            "-----  ---------\n"
            "a,\"b\"    131,072\n"
            "c              -\n");
  EXPECT_EQ(text_table(sample_table(), false),
            "name | bytes per token\na,\"b\" | 131,072\nc | -\n");
}

TEST(Table, CsvQuotesAndJsonKeepsNumbers) {
  EXPECT_EQ(csv_table(sample_table()), "name,bytes_per_token\n\"a,\"\"b\"\"\",131072\nc,\n");
  const auto rows = json_rows(sample_table());
  EXPECT_EQ(rows[0]["bytes_per_token"], 131072);
  EXPECT_TRUE(rows[1]["bytes_per_token"].is_null());
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / "kvart_files";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  [[nodiscard]] std::string made(const std::string& name) const {
    std::ofstream(path(name)) << name;
    return path(name);
  }
  [[nodiscard]] std::string text(const std::string& name) const {
    std::ifstream stream(path(name));
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  [[nodiscard]] auto count() const {
    const std::filesystem::directory_iterator files(folder_);
    return std::distance(begin(files), end(files));
  }
  // Names alone.
  static std::set<std::string> names(const std::vector<std::string>& paths) {
    std::set<std::string> found;
    for (const std::string& one : paths) {
      found.insert(std::filesystem::path(one).filename().string());
    }
    return found;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(Files, ReplacedAsAWholeAndNothingLeftBehind) {
  const auto out = OutputFile::find(path("out.json"));
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(count(), 0);
  ASSERT_TRUE(out->write("first, longer than the second").ok());
  ASSERT_TRUE(out->write("second").ok());
  EXPECT_EQ(text("out.json"), "second");
  EXPECT_EQ(count(), 1);
  const auto none = OutputFile::find(path("none/out.json"));
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("none"));
  EXPECT_FALSE(OutputFile::find("").ok());
  EXPECT_FALSE(OutputFile::find(path("")).ok());
}

TEST_F(Files, OneThatAKilledProgramLeftIsPassedOver) {
  const std::string left = made(fmt::format(".kvart.{}.0.tmp", ::getpid()));
  ASSERT_TRUE(OutputFile::find(path("out.json"))->write("x").ok());
  EXPECT_EQ(text("out.json"), "x");
  EXPECT_TRUE(std::filesystem::exists(left));
  EXPECT_EQ(count(), 2);
}

TEST_F(Files, AllPartsOfASplitModelAreItsFiles) {
  const std::string part = made("a-00002-of-00003.gguf");
  for (const char* name : {"a-00001-of-00003.gguf", "a-00003-of-00003.gguf", "b.gguf",
                           "ab-00001-of-00003.gguf", "config.json"}) {
    ASSERT_FALSE(made(name).empty());
  }
  EXPECT_EQ(names(files_of_model(part)),
            (std::set<std::string>{"a-00001-of-00003.gguf", "a-00002-of-00003.gguf",
                                   "a-00003-of-00003.gguf"}));
  EXPECT_EQ(names(files_of_model(path("b.gguf"))), std::set<std::string>{"b.gguf"});
  const auto first = OutputFile::find(path("a-00001-of-00003.gguf"));
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(check_outputs({*first}, files_of_model(part)).ok());
}

TEST_F(Files, ACheckpointIsItsFolder) {
  for (const char* name : {"config.json", "tokenizer.json", "model-00001-of-00002.safetensors",
                           "model.safetensors.index.json", "result.json", "README.md"}) {
    ASSERT_FALSE(made(name).empty());
  }
  const auto found = names(files_of_model(path("")));
  EXPECT_TRUE(found.contains("config.json"));
  EXPECT_TRUE(found.contains("tokenizer.json"));
  EXPECT_TRUE(found.contains("model-00001-of-00002.safetensors"));
  EXPECT_TRUE(found.contains("model.safetensors.index.json"));
  EXPECT_FALSE(found.contains("result.json"));
  EXPECT_EQ(names(files_of_model(path("config.json"))).size(), 4u);
}

TEST(Options, WholeNumbersAreStrict) {
  const IntegerRange range{-5, 100, ""};
  EXPECT_EQ(*parse_integer("010", range), 10);
  EXPECT_EQ(*parse_integer("-5", range), -5);
  for (const char* text :
       {"", " 1", "1 ", "+1", "0x1", "1.0", "1e1", "101", "-6", "nan", "99999999999999999999"}) {
    const auto value = parse_integer(text, range);
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_THAT(value.error().message, HasSubstr("-5 to 100"));
  }
  EXPECT_EQ(*parse_unsigned("18446744073709551615"), UINT64_MAX);
  EXPECT_FALSE(parse_unsigned("-1").ok());
  EXPECT_FALSE(parse_unsigned("18446744073709551616").ok());
}

TEST(Options, NumbersAreFiniteAndInRange) {
  EXPECT_DOUBLE_EQ(*parse_number("0.5", {0, 1, true}), 0.5);
  EXPECT_DOUBLE_EQ(*parse_number("0", {0, 1, false}), 0);
  for (const char* text : {"0", "nan", "inf", "-inf", "1.1", "1e999", "", "0.5x", "0x1p-1"}) {
    EXPECT_FALSE(parse_number(text, {0, 1, true}).ok()) << text;
  }
}

TEST(Options, TheClosestWord) {
  EXPECT_EQ(closest_word("byte", {"run", "plan", "bytes"}), "bytes");
  EXPECT_EQ(closest_word("PLAN", {"run", "plan", "bytes"}), "plan");
  EXPECT_EQ(closest_word("zzz", {"run", "plan", "bytes"}), "");
}

TEST(Options, TokenIds) {
  EXPECT_EQ(*parse_token_ids(" 1\n22\t3 ", "ids"), (std::vector<int32_t>{1, 22, 3}));
  EXPECT_TRUE(parse_token_ids("", "ids")->empty());
  const auto wrong = parse_token_ids("1 2147483648", "ids");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, HasSubstr("ids: word 2, '2147483648'"));
}

TEST(Urls, HostsAndPorts) {
  const std::tuple<const char*, const char*, const char*, const char*, const char*> right[] = {
      {"http://127.0.0.1:8000", "127.0.0.1", "8000", "", "127.0.0.1:8000"},
      {"http://box/", "box", "80", "", "box:80"},
      {"http://box:1/a/b/", "box", "1", "/a/b", "box:1"},
      {"http://[::1]:8000/v", "::1", "8000", "/v", "[::1]:8000"},
      {"http://[fe80::2]", "fe80::2", "80", "", "[fe80::2]:80"},
  };
  for (const auto& [url, host, port, prefix, whole] : right) {
    const auto target = parse_http_url(url);
    ASSERT_TRUE(target.ok()) << url;
    EXPECT_EQ(target->host, host);
    EXPECT_EQ(target->port, port);
    EXPECT_EQ(target->prefix, prefix);
    EXPECT_EQ(authority(*target), whole);
  }
  for (const char* wrong : {"", "box:1", "https://box", "http://", "http://:80", "http://box:",
                            "http://box:x", "http://box:123456", "http://::1:80", "http://[::1",
                            "http://[]:80", "http://[::1]80", "http://[::1]:", "http://a:b:80"}) {
    EXPECT_FALSE(parse_http_url(wrong).ok()) << wrong;
  }
}

TEST(Shapes, EachHasThePublishedNumberOfParameters) {
  std::set<std::string> names;
  for (const ModelShape& shape : model_shapes()) {
    EXPECT_NEAR(shape.computed_parameters() / 1e9 / shape.parameters_billion, 1, 0.02)
        << shape.name;
    EXPECT_EQ(shape.q_heads % shape.kv_heads, 0) << shape.name;
    EXPECT_TRUE(head_dim_is_supported(shape.head_dim)) << shape.name;
    EXPECT_EQ(find_model_shape(shape.name)->name, shape.name);
    EXPECT_TRUE(names.insert(std::string(shape.name)).second) << shape.name;
  }
}

TEST(Shapes, Names) {
  EXPECT_EQ(find_model_shape("meta-llama/Meta-Llama-3-8B-Instruct")->name, "Llama-3-8B");
  EXPECT_EQ(find_model_shape("llama_3.1_8b")->name, "Llama-3.1-8B");
  EXPECT_EQ(find_model_shape("google/gemma-3-4b-it")->name, "Gemma-3-4B");
  const auto missing = find_model_shape("Llama-9-8B");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr("Llama-3-8B"));
}

TEST(Shapes, Windows) {
  const auto gemma2 = find_model_shape("gemma-2-2b")->cache_shape().layers;
  EXPECT_EQ(gemma2[0].window, 4096);
  EXPECT_EQ(gemma2[1].window, 0);
  const auto gemma3 = find_model_shape("gemma-3-270m")->cache_shape().layers;
  int full = 0;
  for (const LayerShape& layer : gemma3) full += layer.window == 0 ? 1 : 0;
  EXPECT_EQ(full, 3);
  EXPECT_EQ(gemma3[5].window, 0);
  for (const LayerShape& layer : find_model_shape("mistral-7b-v0.1")->cache_shape().layers) {
    EXPECT_EQ(layer.window, 4096);
  }
}

TEST(Gpus, Names) {
  EXPECT_EQ(find_gpu("h100")->name, "H100-80GB-SXM");
  EXPECT_EQ(find_gpu("RTX 4090")->name, "RTX-4090-24GB");
  EXPECT_DOUBLE_EQ(find_gpu("H200")->bandwidth_bytes_s, 4.8e12);
  const auto several = find_gpu("a100");
  ASSERT_FALSE(several.ok());
  EXPECT_THAT(several.error().message, HasSubstr("A100-40GB or A100-80GB"));
  EXPECT_THAT(several.error().message, Not(HasSubstr("H100")));
  EXPECT_FALSE(find_gpu("").ok());
  EXPECT_FALSE(find_gpu("H1000").ok());
}

CapacityInput llama3(const char* policy, Figures figures) {
  CapacityInput input;
  input.shape = find_model_shape("Llama-3-8B")->cache_shape();
  input.policy = parse_policy(policy)->policy;
  input.figures = figures;
  input.context_tokens = 32768;
  input.weight_bytes = 16e9;
  input.budget_bytes = 60e9;
  input.bandwidth_bytes_s = 3.35e12;
  return input;
}

Capacity planned(const CapacityInput& input) {
  const auto capacity = plan_capacity(input);
  EXPECT_TRUE(capacity.ok()) << capacity.error().message;
  return *capacity;
}

TEST(Capacity, Llama3OnOneH100Naive) {
  const Capacity f16 = planned(llama3("f16", Figures::naive));
  EXPECT_EQ(f16.bytes_per_sequence, 131072.0 * 32768);
  EXPECT_EQ(f16.sequences, 13);
  EXPECT_NEAR(f16.kv_bytes, 55.8e9, 0.05e9);
  EXPECT_NEAR(f16.step_bytes, 71.8e9, 0.05e9);
  EXPECT_NEAR(f16.step_s, 21.4e-3, 0.05e-3);
  const Capacity fp8 = planned(llama3("fp8", Figures::naive));
  EXPECT_NEAR(fp8.bytes_per_sequence, 2.15e9, 0.005e9);
  EXPECT_EQ(fp8.sequences, 27);
  EXPECT_NEAR(fp8.kv_bytes, 58.0e9, 0.05e9);
  EXPECT_NEAR(fp8.step_s, 22.1e-3, 0.05e-3);
  EXPECT_NEAR(speed_up(fp8, f16), 2.01, 0.01);
  const Capacity int4 = planned(llama3("int4", Figures::naive));
  EXPECT_NEAR(int4.bytes_per_sequence, 1.07e9, 0.005e9);
  EXPECT_EQ(int4.sequences, 55);
}

TEST(Capacity, ExactFiguresHoldScalesOpenAndSinkBlocks) {
  // 512 blocks; f16: all sealed and one open. fp8: 130 of 128 bytes. int4: 72 of 64, one block is a
  // sink: 511 sealed blocks and two of full precision.
  const double block = 131072.0 * 64;
  const Capacity f16 = planned(llama3("f16", Figures::exact));
  EXPECT_EQ(f16.bytes_per_sequence, 513 * block);
  EXPECT_EQ(f16.sequences, 13);
  const Capacity fp8 = planned(llama3("fp8", Figures::exact));
  EXPECT_EQ(fp8.bytes_per_sequence, 512 * block * 130 / 256 + block);
  EXPECT_EQ(fp8.sequences, 27);
  const Capacity int4 = planned(llama3("int4", Figures::exact));
  EXPECT_EQ(int4.bytes_per_sequence, 511 * block * 72 / 256 + 2 * block);
  EXPECT_EQ(int4.sequences, 49);
  EXPECT_GT(speed_up(int4, f16), 3.3);
}

TEST(Capacity, SpeedUpOfABatchGrowsWithTheContext) {
  const auto gain = [](int64_t context) {
    CapacityInput f16 = llama3("f16", Figures::naive);
    f16.batch = 32;
    f16.context_tokens = context;
    CapacityInput fp8 = f16;
    fp8.policy = parse_policy("fp8")->policy;
    return speed_up(planned(fp8), planned(f16));
  };
  EXPECT_NEAR(gain(1024), 1.12, 0.005);
  EXPECT_NEAR(gain(8192), 1.52, 0.005);
  // (16 + 137.44) / (16 + 68.72) = 1.811
  EXPECT_NEAR(gain(32768), 1.811, 0.001);
}

TEST(Capacity, CrossoverIsWhereTheCacheWeighsAsMuchAsTheWeights) {
  CapacityInput input = llama3("f16", Figures::naive);
  input.batch = 13;
  EXPECT_EQ(planned(input).crossover_context, static_cast<int64_t>(16e9 / 13 / 131072));
  // Layers of 4,096 tokens only: a small batch never gets there.
  input.shape = find_model_shape("mistral-7b-v0.1")->cache_shape();
  input.batch = 1;
  EXPECT_EQ(planned(input).crossover_context, 0);
}

TEST(Capacity, WhatDoesNotFitSaysSo) {
  CapacityInput input = llama3("f16", Figures::exact);
  input.budget_bytes = 1e9;
  const Capacity none = planned(input);
  EXPECT_EQ(none.sequences, 0);
  EXPECT_FALSE(none.fits);
  EXPECT_EQ(nodes_for(none, 100, 0), 0);
  ASSERT_GT(none.longest_context, 0);
  input.context_tokens = none.longest_context;
  EXPECT_TRUE(planned(input).fits);
  input.context_tokens = none.longest_context + 1;
  EXPECT_FALSE(planned(input).fits);
}

// What is printed is what an allocator of that plan takes, steps included.
TEST(Capacity, WindowedSequencesFitWithTheirSteps) {
  for (const char* name : {"gemma-3-270m", "gemma-2-2b", "mistral-7b-v0.1"}) {
    for (const Preset& preset : presets()) {
      CapacityInput input;
      input.shape = find_model_shape(name)->cache_shape();
      input.policy = parse_policy(preset.name)->policy;
      input.context_tokens = 8192;
      input.budget_bytes = 20e9;
      const Capacity capacity = planned(input);
      ASSERT_GT(capacity.sequences, 0) << name << " " << preset.name;
      MemoryPlanInput exact;
      exact.shape = input.shape;
      exact.policy = input.policy;
      exact.context_tokens = 8192;
      exact.max_sequences = capacity.sequences;
      const auto plan = plan_memory(exact);
      ASSERT_TRUE(plan.ok());
      EXPECT_LE(static_cast<double>(plan->total_bytes), input.budget_bytes);
      EXPECT_EQ(capacity.bytes_per_sequence, static_cast<double>(plan->bytes_per_sequence));
      EXPECT_EQ(
          plan->total_bytes,
          plan->bytes_per_sequence * static_cast<uint64_t>(capacity.sequences) + plan->step_bytes);
      EXPECT_GT(plan->step_bytes, 0u);
      ++exact.max_sequences;
      EXPECT_GT(static_cast<double>(plan_memory(exact)->total_bytes), input.budget_bytes);
      // The longest context of that batch is just the longest.
      input.batch = capacity.sequences;
      const int64_t longest = planned(input).longest_context;
      EXPECT_GE(longest, 8192);
      if (longest >= int64_t{1} << 31) continue;
      for (const int64_t more : {0, 1}) {
        input.context_tokens = longest + more;
        EXPECT_EQ(planned(input).fits, more == 0) << name << " " << preset.name;
      }
    }
  }
}

TEST(Capacity, Nodes) {
  const Capacity f16 = planned(llama3("f16", Figures::exact));
  EXPECT_EQ(nodes_for(f16, 13, 0), 1);
  EXPECT_EQ(nodes_for(f16, 14, 0), 2);
  EXPECT_EQ(nodes_for(f16, 0, f16.tokens_per_s * 2.5), 3);
}

TEST(Policies, NaiveClaimCountsCodeBitsAlone) {
  const CacheShape shape = find_model_shape("Llama-3-8B")->cache_shape();
  EXPECT_DOUBLE_EQ(*naive_ratio(shape, parse_policy("int4")->policy), 4);
  EXPECT_DOUBLE_EQ(*naive_ratio(shape, parse_policy("fp8")->policy), 2);
  EXPECT_DOUBLE_EQ(*naive_ratio(shape, parse_policy("k6v4")->policy), 3.2);
}

TEST(Policies, TheClosestPresetQuantizes) {
  EXPECT_EQ(closest_preset(), "k8v8");
}

TEST(Policies, FullPrecisionComesFirstAndOnce) {
  const auto policies = parse_policies({"int4", "f16"});
  ASSERT_TRUE(policies.ok());
  ASSERT_EQ(policies->size(), 2u);
  EXPECT_EQ((*policies)[0].word, "f16");
  EXPECT_EQ(parse_policies({"int4", "int4", "f16"})->size(), 2u);
  const auto wrong = parse_policies({"int5"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, HasSubstr("k6v4"));
}

TEST(Policies, AutoIsWhatTheCheckpointDeclares) {
  ModelConfig config;
  config.source = "config.json";
  config.layers = 3;
  testing::internal::CaptureStderr();
  EXPECT_EQ(declared_policy(config, false), "f16");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("declares no format"));
  config.kv_scheme = "fp8";
  config.kv_scheme_place = "config.json: quantization_config.kv_cache_scheme";
  config.k_scale_layers = {0, 2};
  testing::internal::CaptureStderr();
  EXPECT_EQ(declared_policy(config, false), "fp8");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(HasSubstr("kv_cache_scheme declares"),
                             HasSubstr("K in 2 of 3 layers (not in 1), V in 0 of 3 layers")));
  config.kv_scheme = "nvfp4";
  testing::internal::CaptureStderr();
  EXPECT_EQ(declared_policy(config, false), "f16");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the nearest is int4"));
  testing::internal::CaptureStderr();
  declared_policy(config, true);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Policies, AFileOfBitsPerLayer) {
  const std::string path = testing::TempDir() + "kvart_bits.yaml";
  std::ofstream(path) << "0: {nbits_key: 8, nbits_value: 4}\n1: {nbits_key: 6, nbits_value: 4}\n";
  const auto parsed = parse_policy_word(path, true);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->policy.name, "0:k8v4,1:k6v4");
  EXPECT_EQ(with_policy_files({"model"}, {"int4", path}),
            (std::vector<std::string>{"model", path}));
  std::ofstream(path) << "";
  EXPECT_FALSE(parse_policy_word(path, true).ok());
  const auto absent = parse_policy_word("/no/such/file.json", true);
  ASSERT_FALSE(absent.ok());
  EXPECT_THAT(absent.error().message, HasSubstr("/no/such/file.json: can't be read"));
}

}  // namespace
}  // namespace kvart::tools
