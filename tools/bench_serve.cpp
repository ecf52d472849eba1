// `kvart bench-serve`: a client that measures a running server, Kvart's or any other with OpenAI's
// completions: throughput and latencies under a number of requests at a time.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "commands.h"
#include "http_client.h"
#include "options.h"
#include "report.h"
#include "streams.h"

namespace kvart::tools {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct BenchOptions {
  std::string base_url = "http://127.0.0.1:8000";
  std::string model;
  std::string api_key;
  int prompts = 32;
  int input_tokens = 512;
  int shared_tokens = 0;
  int output_tokens = 64;
  int concurrency = 8;
  double request_rate = 0;
  uint64_t seed = 0;
  std::string json_path;
};

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// One request that has been answered.
struct Answered {
  double first_token_s = 0;
  double end_to_end_s = 0;
  std::vector<double> between_s;  // events after the first
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  std::string error;
};

Result<Json> parsed(Result<HttpAnswer> answer, const std::string& what) {
  if (!answer) return answer.error();
  Json json = Json::parse(answer->body, nullptr, false);
  if (answer->status == 200 && !json.is_discarded()) return json;
  return Error{ErrorCode::io,
               fmt::format("{}: status {}: {}", what, answer->status, answer->body.substr(0, 200))};
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options) {}

  Status run() {
    auto target = parse_http_url(options_.base_url);
    if (!target) return target.error();
    target_ = std::move(*target);
    KVART_RETURN_IF_ERROR(find_model());
    KVART_RETURN_IF_ERROR(make_prompts());
    send_all();
    const auto failed = std::find_if(answered_.begin(), answered_.end(),
                                     [](const Answered& one) { return !one.error.empty(); });
    if (failed == answered_.end()) return {};
    return Error{ErrorCode::io, failed->error};
  }

  [[nodiscard]] Json json() const;
  // What json() gave, as a table.
  static Status print(const Json& j);

 private:
  [[nodiscard]] HttpClient client() const { return {target_, options_.api_key}; }

  Status find_model() {
    if (!options_.model.empty()) return {};
    const auto models = parsed(client().get("/v1/models"), "/v1/models");
    if (!models) return models.error();
    const Json& data = models->value("data", Json::array());
    if (data.empty() || !data[0].contains("id")) {
      return Error{ErrorCode::io, "/v1/models names no model; give --model"};
    }
    options_.model = data[0]["id"].get<std::string>();
    return {};
  }

  // Random words, cut to a number of tokens by the server's own tokenizer.
  Status make_prompts() {
    std::mt19937_64 random(options_.seed);
    auto shared = random_tokens(random, options_.shared_tokens);
    if (!shared) return shared.error();
    for (int i = 0; i < options_.prompts; ++i) {
      auto own = random_tokens(random, options_.input_tokens - options_.shared_tokens);
      if (!own) return own.error();
      std::vector<int64_t> prompt = *shared;
      prompt.insert(prompt.end(), own->begin(), own->end());
      prompts_.push_back(std::move(prompt));
    }
    return {};
  }

  Result<std::vector<int64_t>> random_tokens(std::mt19937_64& random, int count) {
    if (count == 0) return std::vector<int64_t>();
    std::string text;
    for (int i = 0; i < count; ++i) {
      const auto length = 2 + random() % 6;
      for (uint64_t letter = 0; letter < length; ++letter) {
        text += static_cast<char>('a' + random() % 26);
      }
      text += ' ';
    }
    const Json body = {{"model", options_.model}, {"prompt", text}, {"add_special_tokens", false}};
    const auto answer = parsed(client().post("/tokenize", body.dump()), "/tokenize");
    if (!answer) return answer.error();
    auto tokens = answer->value("tokens", std::vector<int64_t>());
    if (static_cast<int>(tokens.size()) < count) {
      return Error{ErrorCode::io, "/tokenize gave fewer tokens than words"};
    }
    tokens.resize(static_cast<size_t>(count));
    return tokens;
  }

  void send_all() {
    answered_.resize(prompts_.size());
    due_s_.assign(prompts_.size(), 0);
    if (options_.request_rate > 0) {  // a Poisson process
      std::mt19937_64 random(options_.seed + 1);
      std::exponential_distribution<double> gap(options_.request_rate);
      for (size_t i = 1; i < due_s_.size(); ++i) due_s_[i] = due_s_[i - 1] + gap(random);
    }
    began_ = Clock::now();
    std::vector<std::thread> workers;
    const int count = std::min(options_.concurrency, options_.prompts);
    workers.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) workers.emplace_back([this] { work(); });
    std::thread watcher([this] { watch(); });
    for (std::thread& worker : workers) worker.join();
    duration_s_ = seconds(Clock::now() - began_);
    finished_ = true;
    watcher.join();
    print_progress("");
  }

  void work() {
    while (true) {
      const size_t index = next_++;
      if (index >= prompts_.size()) return;
      std::this_thread::sleep_until(began_ + std::chrono::duration_cast<Clock::duration>(
                                                 std::chrono::duration<double>(due_s_[index])));
      answered_[index] = ask(prompts_[index]);
      done_ += 1;
    }
  }

  [[nodiscard]] Answered ask(const std::vector<int64_t>& prompt) const {
    const Json body = {{"model", options_.model},
                       {"prompt", prompt},
                       {"max_tokens", options_.output_tokens},
                       {"min_tokens", options_.output_tokens},
                       {"temperature", 0},
                       {"ignore_eos", true},
                       {"stream", true},
                       {"stream_options", {{"include_usage", true}}}};
    Answered one;
    const auto start = Clock::now();
    auto last = start;
    const auto answer = client().stream("/v1/completions", body.dump(), [&](std::string_view data) {
      const Json event = Json::parse(data, nullptr, false);
      if (event.is_discarded() || event.contains("error")) {
        one.error = fmt::format("an event says: {}", data.substr(0, 200));
        return;
      }
      if (event.contains("usage") && event["usage"].is_object()) read_usage(event["usage"], &one);
      if (!event.contains("choices") || event["choices"].empty()) return;
      const auto now = Clock::now();
      if (one.first_token_s == 0) {
        one.first_token_s = seconds(now - start);
      } else {
        one.between_s.push_back(seconds(now - last));
      }
      last = now;
    });
    one.end_to_end_s = seconds(last - start);
    if (!answer) {
      one.error = answer.error().message;
    } else if (answer->status != 200) {
      one.error = fmt::format("status {}: {}", answer->status, answer->body.substr(0, 200));
    }
    return one;
  }

  static void read_usage(const Json& usage, Answered* one) {
    one->prompt_tokens = usage.value("prompt_tokens", int64_t{0});
    one->completion_tokens = usage.value("completion_tokens", int64_t{0});
    const Json details = usage.value("prompt_tokens_details", Json::object());
    if (details.is_object()) one->cached_tokens = details.value("cached_tokens", int64_t{0});
  }

  // Reads the server's own gauges meanwhile: how many sequences it really ran at a time.
  void watch() {
    while (!finished_) {
      const auto metrics = client().get("/metrics");
      if (metrics && metrics->status == 200) {
        running_max_ = std::max(running_max_, metric(metrics->body, "vllm:num_requests_running"));
        cache_use_max_ =
            std::max(cache_use_max_, metric(metrics->body, "vllm:kv_cache_usage_perc"));
        preemptions_ = metric(metrics->body, "vllm:num_preemptions_total");
        if (preemptions_before_ < 0) preemptions_before_ = preemptions_;
      }
      print_progress(fmt::format("{} of {} requests", done_.load(), prompts_.size()));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  // The sum over all labels; -1 where there is none.
  static double metric(const std::string& text, std::string_view name) {
    double sum = -1;
    size_t begin = 0;
    while (begin < text.size()) {
      size_t end = text.find('\n', begin);
      if (end == std::string::npos) end = text.size();
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      begin = end + 1;
      if (!line.starts_with(name) || line.size() <= name.size()) continue;
      if (line[name.size()] != '{' && line[name.size()] != ' ') continue;
      const auto value = parse_number(line.substr(line.rfind(' ') + 1), {-1e18, 1e18, false});
      if (value) sum = std::max(sum, 0.0) + *value;
    }
    return sum;
  }

  BenchOptions options_;
  HttpTarget target_;
  std::vector<std::vector<int64_t>> prompts_;
  std::vector<double> due_s_;
  std::vector<Answered> answered_;
  Clock::time_point began_;
  double duration_s_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> done_{0};
  std::atomic<bool> finished_{false};
  // -1: the server has no such gauge.
  double running_max_ = -1;
  double cache_use_max_ = -1;
  double preemptions_ = -1;
  double preemptions_before_ = -1;
};

struct Distribution {
  double mean = 0, median = 0, std = 0, p99 = 0;
};

Distribution distribution(std::vector<double> values_s) {
  if (values_s.empty()) return {};
  std::sort(values_s.begin(), values_s.end());
  Distribution d;
  for (const double value : values_s) d.mean += value / static_cast<double>(values_s.size());
  for (const double value : values_s) {
    d.std += (value - d.mean) * (value - d.mean) / static_cast<double>(values_s.size());
  }
  d.std = std::sqrt(d.std);
  d.median = values_s[values_s.size() / 2];
  d.p99 = values_s[std::min(values_s.size() - 1,
                            static_cast<size_t>(0.99 * static_cast<double>(values_s.size())))];
  for (double* value : {&d.mean, &d.median, &d.std, &d.p99}) *value *= 1e3;
  return d;
}

// The names are those of vLLM's benchmark, whose readers know them.
Json Bench::json() const {
  std::vector<double> first;
  std::vector<double> between;
  std::vector<double> per_token;
  std::vector<double> whole;
  int64_t input = 0;
  int64_t cached = 0;
  int64_t output = 0;
  for (const Answered& one : answered_) {
    first.push_back(one.first_token_s);
    whole.push_back(one.end_to_end_s);
    between.insert(between.end(), one.between_s.begin(), one.between_s.end());
    if (one.completion_tokens > 1) {
      per_token.push_back((one.end_to_end_s - one.first_token_s) /
                          static_cast<double>(one.completion_tokens - 1));
    }
    input += one.prompt_tokens;
    cached += one.cached_tokens;
    output += one.completion_tokens;
  }
  Json json = {{"model_id", options_.model},
               {"num_prompts", options_.prompts},
               {"max_concurrency", options_.concurrency},
               {"request_rate", options_.request_rate},
               {"duration", duration_s_},
               {"completed", answered_.size()},
               {"total_input_tokens", input},
               {"cached_input_tokens", cached},
               {"total_output_tokens", output},
               {"request_throughput", static_cast<double>(answered_.size()) / duration_s_},
               {"output_throughput", static_cast<double>(output) / duration_s_},
               {"total_token_throughput", static_cast<double>(input + output) / duration_s_}};
  const auto add = [&](const char* name, const std::vector<double>& values_s) {
    const Distribution d = distribution(values_s);
    json[fmt::format("mean_{}_ms", name)] = d.mean;
    json[fmt::format("median_{}_ms", name)] = d.median;
    json[fmt::format("std_{}_ms", name)] = d.std;
    json[fmt::format("p99_{}_ms", name)] = d.p99;
  };
  add("ttft", first);
  add("tpot", per_token);
  add("itl", between);
  add("e2el", whole);
  if (running_max_ >= 0) json["max_running_sequences"] = running_max_;
  if (cache_use_max_ >= 0) json["max_kv_cache_usage_perc"] = cache_use_max_;
  if (preemptions_ >= 0) json["preemptions"] = preemptions_ - preemptions_before_;
  return json;
}

Status Bench::print(const Json& j) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<44} {:>12}\n", name, value);
  };
  const auto number = [&](const char* key) { return fmt::format("{:.2f}", j[key].get<double>()); };
  const auto count = [&](const char* key) { return fmt::format("{}", j[key].get<int64_t>()); };
  line("successful requests", count("completed"));
  line("at a time, at most", count("max_concurrency"));
  line("duration (s)", number("duration"));
  line("input tokens", count("total_input_tokens"));
  line("of them from the prefix cache", count("cached_input_tokens"));
  line("output tokens", count("total_output_tokens"));
  line("requests/s", number("request_throughput"));
  line("output tokens/s", number("output_throughput"));
  line("all tokens/s", number("total_token_throughput"));
  const auto times = [&](const char* what, const std::string& name) {
    text += fmt::format("{:<24} mean {:>10.1f}   median {:>10.1f}   99 % {:>10.1f} ms\n", what,
                        j["mean_" + name + "_ms"].get<double>(),
                        j["median_" + name + "_ms"].get<double>(),
                        j["p99_" + name + "_ms"].get<double>());
  };
  times("time to first token", "ttft");
  times("time per output token", "tpot");
  times("between events", "itl");
  times("whole request", "e2el");
  if (j.contains("max_running_sequences")) {
    line("sequences that ran at a time, at most", number("max_running_sequences"));
  }
  if (j.contains("preemptions")) line("preemptions", number("preemptions"));
  return print_out(text);
}

Status run(const BenchOptions& options) {
  const auto outputs = find_outputs({options.json_path, "", ""}, {});
  if (!outputs) return outputs.error();
  if (options.shared_tokens > options.input_tokens) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--random-prefix-len {} is more than --random-input-len {}",
                             options.shared_tokens, options.input_tokens)};
  }
  Bench bench(options);
  KVART_RETURN_IF_ERROR(bench.run());
  const Json figures = bench.json();
  if (outputs->json) KVART_RETURN_IF_ERROR(outputs->json->write(json_text(figures)));
  return Bench::print(figures);
}

}  // namespace

void add_bench_serve_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command =
      app.add_subcommand("bench-serve", "Measure a running server: throughput and latencies");
  add_text_option(*command, "--base-url", &options->base_url, "URL",
                  "The server (default: http://127.0.0.1:8000)");
  add_text_option(*command, "--model", &options->model, "NAME",
                  "The model to ask for; default: the first that the server names");
  add_text_option(*command, "--api-key", &options->api_key, "KEY", "The server's key")
      ->envname("KVART_API_KEY");
  add_integer_option(*command, "--num-prompts", &options->prompts, {1, 1 << 20, ""},
                     "Requests in all; default 32");
  add_integer_option(*command, "--random-input-len", &options->input_tokens, {1, 1 << 24, ""},
                     "Tokens of a prompt; default 512");
  add_integer_option(*command, "--random-prefix-len", &options->shared_tokens, {0, 1 << 24, ""},
                     "Of them at the beginning, the same in all prompts; default 0");
  add_integer_option(*command, "--random-output-len", &options->output_tokens, {1, 1 << 24, ""},
                     "Tokens of an answer; default 64");
  add_integer_option(*command, "--max-concurrency", &options->concurrency, {1, 4096, ""},
                     "Requests at a time; default 8");
  add_number_option(*command, "--request-rate", &options->request_rate, {0, 1e6, false},
                    "Requests that begin each second, at random; default 0: as soon as one may");
  add_seed_option(*command, &options->seed);
  add_text_option(*command, "--json", &options->json_path, "FILE",
                  "Write the figures to FILE as JSON");
  command->footer(
      "Any server with OpenAI's /v1/completions and vLLM's /tokenize can be measured.\n"
      "Example: kvart bench-serve --num-prompts 64 --random-input-len 1024 --max-concurrency 16");
  command->callback([options, exit_code] {
    const Status status = run(*options);
    if (!status.ok()) *exit_code = fail(status.error());
  });
}

}  // namespace kvart::tools
