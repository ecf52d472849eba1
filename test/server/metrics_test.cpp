// The text of /metrics: a form that Prometheus reads, the names that others look for, and figures
// that agree with each other.
#include "server/metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "server/fake_engine.h"

namespace kvart::server {
namespace {

using testing::HasSubstr;

class MetricsTest : public testing::Test {
 protected:
  std::string text(bool old_names = false, const std::string& model = "fake") {
    stats_ = engine_.stats();
    for (const double value : {0.0001, 0.003, 0.7, 1000.0}) stats_.end_to_end_s.add(value);
    stats_.finished[static_cast<size_t>(FinishReason::length)] = 3;
    MetricsInput input;
    input.stats = &stats_;
    input.plan = &engine_.plan();
    input.options = &engine_.options();
    input.model_name = model;
    input.cache_words = "int4";
    input.old_names = old_names;
    input.requests[{"/v1/completions", 200}] = 5;
    return metrics_text(input);
  }
  FakeEngine engine_;
  EngineStats stats_;
};

// Samples by their whole name with labels.
std::map<std::string, double> samples(const std::string& text) {
  std::map<std::string, double> found;
  std::istringstream lines(text);
  std::string line;
  std::set<std::string> families;
  while (std::getline(lines, line)) {
    if (line.starts_with("# TYPE ")) {
      const std::string name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(name).second) << name << " is there twice";
    }
    if (line.starts_with('#')) continue;
    const size_t space = line.rfind(' ');
    std::string family = line.substr(0, line.find('{'));
    for (const char* end : {"_bucket", "_sum", "_count"}) {
      if (!families.contains(family) && family.ends_with(end)) {
        family.resize(family.size() - std::string(end).size());
      }
    }
    EXPECT_TRUE(families.contains(family)) << line;
    EXPECT_TRUE(found.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << line;
  }
  return found;
}

TEST_F(MetricsTest, NamesThatOthersLookFor) {
  const std::string all = text();
  for (const char* name : {"vllm:num_requests_running",
                           "vllm:num_requests_waiting",
                           "vllm:kv_cache_usage_perc",
                           "vllm:num_preemptions_total",
                           "vllm:prompt_tokens_total",
                           "vllm:generation_tokens_total",
                           "vllm:prefix_cache_queries_total",
                           "vllm:prefix_cache_hits_total",
                           "vllm:request_success_total",
                           "vllm:time_to_first_token_seconds",
                           "vllm:inter_token_latency_seconds",
                           "vllm:request_time_per_output_token_seconds",
                           "vllm:e2e_request_latency_seconds",
                           "vllm:request_queue_time_seconds",
                           "vllm:request_prefill_time_seconds",
                           "vllm:request_decode_time_seconds",
                           "vllm:iteration_tokens_total",
                           "vllm:request_prompt_tokens",
                           "vllm:cache_config_info",
                           "kvart:kv_bytes_per_token",
                           "kvart:kv_effective_bits",
                           "kvart:kv_blocks",
                           "kvart:kv_bytes_saved",
                           "kvart:kv_quantization_error"}) {
    EXPECT_THAT(all, HasSubstr(std::string("# TYPE ") + name + " ")) << name;
  }
  EXPECT_EQ(all.find("vllm:gpu_cache_usage_perc"), std::string::npos);
  EXPECT_THAT(text(true), HasSubstr("vllm:gpu_cache_usage_perc"));
}

TEST_F(MetricsTest, FiguresAgree) {
  const auto all = samples(text());
  const std::string labels = "{engine=\"0\",model_name=\"fake\"";
  EXPECT_NEAR(all.at("vllm:kv_cache_usage_perc" + labels + "}"), 0.25, 1e-9);
  EXPECT_THAT(text(),
              HasSubstr(fmt::format("num_gpu_blocks=\"{}\"", engine_.plan().groups[0].pages)));
  EXPECT_EQ(all.at("kvart:kv_blocks" + labels + ",state=\"cached\",kind=\"sealed\"}"), 30);
  // 2 layers, 2 heads of 64, K and V: 144 of 512 bytes per 128 channels.
  EXPECT_EQ(all.at("kvart:kv_f16_bytes_per_token" + labels + "}"), 1024);
  EXPECT_EQ(all.at("kvart:kv_bytes_per_token" + labels + "}"), 288);
  EXPECT_EQ(all.at("kvart:kv_bytes_saved" + labels + "}"), 40 * 64 * (1024 - 288));
  EXPECT_EQ(all.at("vllm:request_success_total" + labels + ",finished_reason=\"length\"}"), 3);
  EXPECT_NEAR(all.at("kvart:kv_quantization_error" + labels + ",layer=\"0\",side=\"k\"}"), 0.1,
              1e-9);
  EXPECT_NEAR(all.at("kvart:kv_quantization_error" + labels + ",layer=\"0\",side=\"v\"}"), 0.2,
              1e-9);
  EXPECT_EQ(all.count("kvart:kv_quantization_error" + labels + ",layer=\"1\",side=\"v\"}"), 0u);
  const std::string name = "vllm:e2e_request_latency_seconds";
  EXPECT_EQ(all.at(name + "_count" + labels + "}"), 4);
  EXPECT_EQ(all.at(name + "_bucket" + labels + ",le=\"+Inf\"}"), 4);
  EXPECT_EQ(all.at(name + "_bucket" + labels + ",le=\"0.3\"}"), 2);
  EXPECT_EQ(
      all.at("kvart:http_requests_total" + labels + ",route=\"/v1/completions\",status=\"200\"}"),
      5);
}

// Pages that hold blocks in full precision save nothing.
TEST_F(MetricsTest, ParkedBlocksSaveNothing) {
  EngineStats stats = engine_.stats();
  const double all = bytes_saved(stats, engine_.plan());
  stats.session.parked_pages = 8;
  EXPECT_DOUBLE_EQ(bytes_saved(stats, engine_.plan()), all * (40 - 8) / 40);
}

TEST_F(MetricsTest, ANameCanNotBreakTheFormat) {
  const auto all = samples(text(false, "a\"b\\c\nd"));
  EXPECT_EQ(all.count("kvart:http_connections{engine=\"0\",model_name=\"a\\\"b\\\\c d\"}"), 1u);
}

}  // namespace
}  // namespace kvart::server
