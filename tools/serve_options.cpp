// Options of `kvart serve`, the size of its cache, and the lines that say what it is.
#include "serve_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "options.h"
#include "units.h"

namespace kvart::tools {
namespace {

constexpr int64_t unknown_context = 4096;
constexpr double memory_share = 0.6;  // of what is available, for a cache whose size nobody gives
constexpr int64_t shortest_context = 64;
constexpr int error_sample_interval = 16;

// A checked text that is parsed into *value.
template <class T, class Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& name, T* value, Parse parse,
                        const std::string& type, const std::string& help) {
  return command
      .add_option_function<std::string>(
          name, [value, parse](const std::string& text) { *value = static_cast<T>(*parse(text)); },
          help)
      ->check([parse](const std::string& text) { return message_of(parse(text)); })
      ->type_name(type);
}

CLI::Option* add_repeated(CLI::App& command, const std::string& name,
                          std::vector<std::string>* values, const std::string& type,
                          const std::string& help) {
  return add_list_option(command, name, values, type, help)->allow_extra_args(false);
}

void add_cache_options(CLI::App& command, ServeOptions* options) {
  add_text_option(command, "--kv-cache-dtype", &options->cache_dtype, "POLICY",
                  "Format or policy of the cache, see `kvart formats`; a file of bits per layer "
                  "(.yaml, .json); or auto: what the checkpoint declares")
      ->default_str(options->cache_dtype)
      ->envname("KVART_KV_CACHE_DTYPE");
  const auto length = [](const std::string& text) -> Result<int64_t> {
    if (text == "auto") return int64_t{0};
    return parse_tokens(text);
  };
  add_parsed(command, "--max-model-len", &options->max_model_len, length, "TOKENS",
             "Longest prompt with its answer, e.g. 8192 or 8k; auto: the model's, or what fits")
      ->default_str("auto")
      ->envname("KVART_MAX_MODEL_LEN");
  add_parsed(
      command, "--kv-cache-memory-bytes", &options->cache_memory_bytes,
      [](const std::string& text) { return parse_bytes(text); }, "BYTES",
      "Memory of the cache, e.g. 4GiB (default: what --max-num-seqs need, at most 60 % of what "
      "is free)")
      ->envname("KVART_KV_CACHE_MEMORY_BYTES");
  add_parsed(
      command, "--swap-space", &options->swap_bytes,
      [](const std::string& text) -> Result<uint64_t> {
        const auto gib = parse_number(text, {0, 1024 * 1024, false});
        if (!gib.ok()) return gib.error();
        return static_cast<uint64_t>(*gib * 1073741824.0);
      },
      "GIB", "GiB of memory for blocks that are moved out of the cache")
      ->default_str("0")
      ->envname("KVART_SWAP_SPACE");
  command.add_flag("--no-prefix-caching", options->no_prefix_caching,
                   "Blocks of a prompt are never used for another one");
}

void add_engine_options(CLI::App& command, ServeOptions* options) {
  add_integer_option(command, "--max-num-seqs", &options->max_num_seqs, {1, 4096, ""},
                     "Sequences that run at the same time")
      ->default_str("32")
      ->envname("KVART_MAX_NUM_SEQS");
  add_integer_option(command, "--max-num-batched-tokens", &options->max_num_batched_tokens,
                     {1, 65536, ""}, "Tokens of a step, prompts and answers together")
      ->default_str("512")
      ->envname("KVART_MAX_NUM_BATCHED_TOKENS");
  add_threads_option(command, &options->threads)->envname("KVART_THREADS");
}

void add_http_options(CLI::App& command, ServeOptions* options) {
  ServerOptions& server = options->server;
  add_text_option(command, "--host", &server.host, "HOST",
                  "Address to listen at; 0.0.0.0: all of this machine's")
      ->default_str(server.host)
      ->envname("KVART_HOST");
  add_integer_option(command, "--port", &server.port, {0, 65535, "0 (any) to 65535"},
                     "Port to listen at")
      ->default_str("8000")
      ->envname("KVART_PORT");
  add_repeated(command, "--served-model-name", &server.model_names, "NAME",
               "What requests call the model; may be given several times (default: the file's "
               "name)");
  command
      .add_option("--api-key", server.api_keys,
                  "A key that requests must carry; may be given several times. Better in the "
                  "environment, where other users can't see it")
      ->allow_extra_args(false)
      ->type_name("KEY")
      ->envname("KVART_API_KEY");
  command.add_flag("--share-prefixes", server.share_prefixes,
                   "Requests with different keys share cached prefixes");
  command.add_flag("--allow-reset", server.allow_reset,
                   "With several keys, too, /reset_prefix_cache forgets the prefixes of all");
  add_repeated(command, "--cors-origin", &server.cors_origins, "ORIGIN",
               "A web page's origin that may ask; * for all");
  add_integer_option(command, "--max-connections", &server.max_connections, {1, 65536, ""},
                     "Connections at the same time")
      ->default_str(std::to_string(server.max_connections));
  add_number_option(command, "--shutdown-timeout", &options->shutdown_timeout_s, {0, 86400, false},
                    "Seconds that running requests have after a signal to stop")
      ->default_str("30")
      ->envname("KVART_SHUTDOWN_TIMEOUT");
  add_number_option(command, "--request-timeout", &options->request_timeout_s, {0, 86400, false},
                    "Seconds that a request may take, waiting included; 0: any time. A request may "
                    "ask for less (timeout)")
      ->default_str("0")
      ->envname("KVART_REQUEST_TIMEOUT");
  command.add_flag("--metrics-old-names", server.old_metric_names,
                   "Metrics by vLLM's older names too (vllm:gpu_cache_usage_perc)");
  command.add_flag("-q,--quiet", options->quiet, "Nothing but errors on stderr");
}

// The longest context, in whole blocks, of which one sequence fits in the budget; 0: none.
int64_t longest_context(MemoryPlanInput input, int64_t most) {
  int64_t within = 0;
  int64_t beyond = most / block_tokens + 1;
  while (beyond - within > 1) {
    const int64_t middle = within + (beyond - within) / 2;
    input.context_tokens = middle * block_tokens;
    (plan_memory(input).ok() ? within : beyond) = middle;
  }
  return within * block_tokens;
}

// "0-29", "0, 6, 12"
std::string layers_text(const std::vector<int>& layers) {
  const bool run = layers.back() - layers.front() + 1 == static_cast<int>(layers.size());
  if (run && layers.size() > 1) return fmt::format("{}-{}", layers.front(), layers.back());
  return fmt::format("{}", fmt::join(layers, ", "));
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions* options) {
  CLI::Option* model = add_text_option(command, "model", &options->model, "MODEL",
                                       "GGUF file, or the folder of a Hugging Face checkpoint");
  add_load_options(command, &options->load, &options->model, model);
  add_cache_options(command, options);
  add_engine_options(command, options);
  add_http_options(command, options);
}

std::string default_model_name(const std::string& path) {
  std::filesystem::path file(path);
  if (!file.has_filename()) file = file.parent_path();
  const std::string name =
      file.extension() == ".gguf" ? file.stem().string() : file.filename().string();
  return name.empty() || name == "." || name == ".." ? "model" : name;
}

Result<SessionOptions> plan_session(const ServeOptions& options, const ModelConfig& config,
                                    const Policy& policy, uint64_t available_bytes,
                                    std::vector<std::string>* notes) {
  SessionOptions session;
  session.policy = policy;
  session.max_sequences = session.open_sequences = options.max_num_seqs;
  session.max_step_tokens = options.max_num_batched_tokens;
  session.prefix_caching = !options.no_prefix_caching;
  session.budget_bytes = options.cache_memory_bytes;
  session.host_bytes = options.swap_bytes;
  session.error_sample_interval = error_sample_interval;
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--max-num-batched-tokens {}: a step has a token of each of "
                             "--max-num-seqs {}; give at least as many",
                             options.max_num_batched_tokens, options.max_num_seqs)};
  }
  const bool any_length = options.max_model_len == 0;
  const int64_t made_for = config.context_length > 0 ? config.context_length : unknown_context;
  session.context_tokens = any_length ? made_for : options.max_model_len;
  if (session.context_tokens > made_for) {
    notes->push_back(fmt::format("--max-model-len {}: the model was made for {} tokens",
                                 session.context_tokens, made_for));
  }
  const auto needed = plan_memory(plan_input(config, session));
  if (needed.ok() && session.budget_bytes == 0 && available_bytes > 0) {
    const auto share = static_cast<uint64_t>(memory_share * static_cast<double>(available_bytes));
    if (needed->total_bytes > share) session.budget_bytes = share;
  }
  const auto plan = plan_memory(plan_input(config, session));
  if (plan.ok()) return session;
  if (plan.error().code != ErrorCode::out_of_memory) return plan.error();
  const int64_t longest = longest_context(plan_input(config, session), session.context_tokens);
  if (longest < shortest_context) return plan.error();
  if (!any_length) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{}; the longest that fits is --max-model-len {}",
                             plan.error().message, longest)};
  }
  notes->push_back(
      fmt::format("the model was made for {} tokens, memory holds {}: --max-model-len "
                  "{} it is; a smaller --kv-cache-dtype or more "
                  "--kv-cache-memory-bytes give more",
                  tokens_text(made_for), tokens_text(longest), longest));
  session.context_tokens = longest;
  return session;
}

std::vector<std::string> cache_lines(const MemoryPlan& plan, const Policy& policy) {
  std::vector<std::string> lines;
  size_t layers = 0;
  for (const GroupPlan& group : plan.groups) layers += group.layers.size();
  const auto formats = policy.resolve(static_cast<int>(layers));
  if (!formats.ok()) return lines;
  for (const GroupPlan& group : plan.groups) {
    // Layers of the group with the same formats, in one line.
    std::map<std::pair<std::string, std::string>, std::vector<int>> same;
    for (const int layer : group.layers) {
      const LayerFormats& one = (*formats)[static_cast<size_t>(layer)];
      same[{std::string(one.k->name), std::string(one.v->name)}].push_back(layer);
    }
    const std::string window =
        group.window == 0 ? "" : fmt::format(", window of {} tokens", tokens_text(group.window));
    for (const auto& [names, members] : same) {
      lines.push_back(fmt::format("cache   layers {}: K {}, V {}{}", layers_text(members),
                                  names.first, names.second, window));
    }
  }
  const double f16 = static_cast<double>(plan.f16_bytes_per_token);
  lines.push_back(fmt::format(
      "        {} at the start of a sequence ({} tokens each) and its open block stay in {}",
      counted(static_cast<uint64_t>(policy.sink_blocks), "block"), block_tokens,
      open_block_format().name));
  if (plan.sealed_bytes_per_token > 0) {
    lines.push_back(fmt::format(
        "        {:.0f} bytes per token, scales included ({:.2f} bits per "
        "value); 16 bits take {:.0f}, {:.2f} times as many",
        plan.sealed_bytes_per_token, plan.effective_bits, f16, f16 / plan.sealed_bytes_per_token));
  }
  lines.push_back(fmt::format(
      "        pool of {} bytes ({}): {} of {} tokens each, {} tokens",
      with_commas(plan.total_bytes), gigabytes(static_cast<double>(plan.total_bytes)),
      counted(static_cast<uint64_t>(plan.sequences), "sequence"), tokens_text(plan.context_tokens),
      tokens_text(plan.sequences * plan.context_tokens)));
  return lines;
}

uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    uint64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace kvart::tools
