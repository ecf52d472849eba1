// Gauges, counters and histograms as text.
#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvart::server {

namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

class Writer {
 public:
  explicit Writer(const std::string& model_name)
      : labels_(fmt::format("engine=\"0\",model_name={}", quoted(model_name))) {}

  void family(std::string_view name, std::string_view kind, std::string_view help) {
    fmt::format_to(std::back_inserter(text_), "# HELP {0} {2}\n# TYPE {0} {1}\n", name, kind, help);
  }
  void sample(std::string_view name, double value, std::string_view more = "") {
    fmt::format_to(std::back_inserter(text_), "{}{{{}{}{}}} {}\n", name, labels_,
                   more.empty() ? "" : ",", more, value);
  }
  void gauge(std::string_view name, std::string_view help, double value) {
    family(name, "gauge", help);
    sample(name, value);
  }
  void counter(std::string_view name, std::string_view help, uint64_t value) {
    family(name, "counter", help);
    sample(name, static_cast<double>(value));
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& values) {
    family(name, "histogram", help);
    uint64_t below = 0;
    for (size_t i = 0; i < values.counts.size(); ++i) {
      below += values.counts[i];
      const std::string bound =
          i < values.bounds.size() ? fmt::format("{}", values.bounds[i]) : "+Inf";
      sample(fmt::format("{}_bucket", name), static_cast<double>(below),
             fmt::format("le=\"{}\"", bound));
    }
    sample(fmt::format("{}_sum", name), values.sum);
    sample(fmt::format("{}_count", name), static_cast<double>(below));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string labels_;
  std::string text_;
};

void add_requests(const EngineStats& stats, Writer& out) {
  out.gauge("vllm:num_requests_running", "Sequences in the running batch.",
            static_cast<double>(stats.running));
  out.gauge("vllm:num_requests_waiting", "Sequences that wait for a place.",
            static_cast<double>(stats.waiting));
  out.gauge("kvart:num_requests_paused", "Running sequences whose output nobody takes.",
            static_cast<double>(stats.paused));
  out.counter("vllm:num_preemptions_total", "Times that a sequence gave its place up.",
              stats.preemptions);
  out.counter("vllm:prompt_tokens_total", "Tokens of prompts that are computed.",
              stats.prompt_tokens);
  out.counter("vllm:generation_tokens_total", "Tokens generated.", stats.generation_tokens);
  out.family("vllm:request_success_total", "counter", "Requests that have ended, by reason.");
  const auto finished = [&](const char* name, FinishReason reason) {
    out.sample("vllm:request_success_total",
               static_cast<double>(stats.finished[static_cast<size_t>(reason)]),
               fmt::format("finished_reason=\"{}\"", name));
  };
  finished("stop", FinishReason::stop);
  finished("length", FinishReason::length);
  finished("abort", FinishReason::cancelled);
  finished("deadline", FinishReason::deadline);
  finished("error", FinishReason::error);
  out.counter("kvart:requests_refused_total", "Requests that the engine did not take.",
              stats.refused);
}

void add_cache(const MetricsInput& input, Writer& out) {
  const SessionStats& session = input.stats->session;
  const auto queries = static_cast<uint64_t>(session.prefix_queries_tokens);
  const auto hits = static_cast<uint64_t>(session.prefix_hits_tokens);
  const double usage = session.fullest_share;
  out.gauge("vllm:kv_cache_usage_perc", "Share of the cache's pages that requests hold; 1: full.",
            usage);
  out.counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.", queries);
  out.counter("vllm:prefix_cache_hits_total", "Of those, tokens found.", hits);
  if (!input.old_names) return;
  out.gauge("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc by its older name.", usage);
  out.counter("vllm:gpu_prefix_cache_queries_total", "By its older name.", queries);
  out.counter("vllm:gpu_prefix_cache_hits_total", "By its older name.", hits);
}

void add_histograms(const EngineStats& stats, Writer& out) {
  out.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.",
                stats.time_to_first_token_s);
  out.histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer.",
                stats.inter_token_s);
  out.histogram("vllm:request_time_per_output_token_seconds", "Mean of a request's tokens.",
                stats.time_per_output_token_s);
  out.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", stats.end_to_end_s);
  out.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.",
                stats.queue_s);
  out.histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.",
                stats.prefill_s);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the last.",
                stats.decode_s);
  out.histogram("vllm:iteration_tokens_total", "Tokens of a step.", stats.step_tokens);
  out.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", stats.prompt_lengths);
  out.histogram("vllm:request_generation_tokens", "Tokens of an answer.", stats.completion_lengths);
}

void add_config(const MetricsInput& input, Writer& out) {
  const MemoryPlan& plan = *input.plan;
  int64_t blocks = 0;
  for (const GroupPlan& group : plan.groups) blocks += group.pages;
  out.family("vllm:cache_config_info", "gauge", "What the cache was made as.");
  out.sample("vllm:cache_config_info", 1,
             fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\",cache_dtype={},"
                         "kv_cache_size_tokens=\"{}\",kv_cache_max_concurrency=\"{}\","
                         "enable_prefix_caching=\"{}\"",
                         block_tokens, blocks, quoted(input.cache_words),
                         plan.sequences * plan.context_tokens, plan.sequences,
                         input.options->session.prefix_caching ? "True" : "False"));
}

void add_quantization(const MetricsInput& input, Writer& out) {
  const MemoryPlan& plan = *input.plan;
  const SessionStats& session = input.stats->session;
  out.gauge("kvart:kv_bytes_per_token", "Bytes that one more token of a sequence takes.",
            plan.sealed_bytes_per_token);
  out.gauge("kvart:kv_f16_bytes_per_token", "Bytes of a token in 16 bits.",
            static_cast<double>(plan.f16_bytes_per_token));
  out.gauge("kvart:kv_effective_bits", "Bits of a stored value, scales included.",
            plan.effective_bits);
  out.gauge("kvart:kv_pool_bytes", "Bytes of the whole cache.",
            static_cast<double>(plan.total_bytes));
  out.gauge("kvart:kv_bytes_saved", "Bytes that 16 bits would take more for what is stored now.",
            bytes_saved(*input.stats, plan));
  out.family("kvart:kv_blocks", "gauge", "Blocks of 64 tokens, by state and kind.");
  const auto blocks = [&](const char* state, const char* kind, int64_t count) {
    out.sample("kvart:kv_blocks", static_cast<double>(count),
               fmt::format("state=\"{}\",kind=\"{}\"", state, kind));
  };
  blocks("free", "sealed", session.pages_free);
  blocks("cached", "sealed", session.pages_cached);
  blocks("referenced", "sealed", session.pages_referenced);
  blocks("free", "open", session.slots_free);
  blocks("cached", "open", session.slots_cached);
  blocks("referenced", "open", session.slots_referenced);
}

// What quantization loses, which no other engine measures while it serves.
void add_errors(const EngineStats& stats, Writer& out) {
  const char* name = "kvart:kv_quantization_error";
  out.family(name, "gauge", "Error of sampled blocks as a share of the norm, by layer and side.");
  for (size_t layer = 0; layer < stats.layer_errors.size(); ++layer) {
    const LayerError& error = stats.layer_errors[layer];
    const auto side = [&](const char* which, double value) {
      out.sample(name, value, fmt::format("layer=\"{}\",side=\"{}\"", layer, which));
    };
    if (error.blocks == 0) continue;
    side("k", relative_error(error.k_error_squares, error.k_squares));
    side("v", relative_error(error.v_error_squares, error.v_squares));
  }
}

void add_host(const SessionStats& session, Writer& out) {
  out.counter("kvart:evicted_blocks_total", "Cached blocks that gave way to others.",
              static_cast<uint64_t>(session.evictions));
  out.counter("kvart:swapped_out_blocks_total", "Blocks that went to the swap space.",
              static_cast<uint64_t>(session.swapped_out_blocks));
  out.counter("kvart:swapped_in_blocks_total", "Blocks that came back from there.",
              static_cast<uint64_t>(session.swapped_in_blocks));
  out.gauge("kvart:swap_used_bytes", "Bytes of the swap space in use.",
            static_cast<double>(session.host_bytes_used));
}

void add_http(const MetricsInput& input, Writer& out) {
  out.gauge("kvart:http_connections", "Open connections.", static_cast<double>(input.connections));
  out.family("kvart:http_requests_total", "counter", "Answered requests, by route and status.");
  for (const auto& [what, count] : input.requests) {
    out.sample("kvart:http_requests_total", static_cast<double>(count),
               fmt::format("route={},status=\"{}\"", quoted(what.first), what.second));
  }
}

}  // namespace

double relative_error(double error_squares, double squares) {
  return squares > 0 ? std::sqrt(error_squares / squares) : 0;
}

double bytes_saved(const EngineStats& stats, const MemoryPlan& plan) {
  double pages = 0;
  double page_bytes = 0;  // of all pages
  double full_bytes = 0;  // of as many blocks in 16 bits
  for (const GroupPlan& group : plan.groups) {
    const auto count = static_cast<double>(group.pages);
    pages += count;
    page_bytes += count * static_cast<double>(group.page_bytes);
    full_bytes += count * static_cast<double>(group.slot_bytes);
  }
  const SessionStats& session = stats.session;
  const auto stored =
      static_cast<double>(session.pages_referenced + session.pages_cached - session.parked_pages);
  return pages > 0 ? stored * (full_bytes - page_bytes) / pages : 0;
}

std::string metrics_text(const MetricsInput& input) {
  Writer out(input.model_name);
  add_requests(*input.stats, out);
  add_cache(input, out);
  add_histograms(*input.stats, out);
  add_config(input, out);
  add_quantization(input, out);
  add_errors(*input.stats, out);
  add_host(input.stats->session, out);
  add_http(input, out);
  return out.take();
}

}  // namespace kvart::server
