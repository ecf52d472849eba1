// Reading and describing what a plan is made for.
#include "plan_inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "gpus.h"

namespace kvart::tools {
namespace {

Error in_option(const char* option, const Error& error) {
  return Error{error.code, fmt::format("{} {}", option, error.message)};
}

Status read_weights(const PlanOptions& options, PlanInputs& inputs) {
  inputs.weight_bytes = inputs.model.weight_bytes;
  inputs.weight_basis = inputs.model.weight_basis;
  if (!options.weights.empty()) {
    const auto bytes = parse_bytes(options.weights);
    if (!bytes.ok()) return in_option("--weights", bytes.error());
    inputs.weight_bytes = *bytes;
    inputs.weight_basis = "--weights";
  }
  if (inputs.weight_bytes != 0) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}: the size of its weights isn't known; give --weights, e.g. "
                           "--weights 16GB",
                           inputs.model.name)};
}

// Memory and bandwidth of a node from the GPU's name or from what is given.
Status read_machine(const PlanOptions& options, PlanInputs& inputs) {
  const double count = options.gpus_per_node;
  double memory = 0;
  if (!options.gpu.empty()) {
    const auto gpu = find_gpu(options.gpu);
    if (!gpu.ok()) return gpu.error();
    memory = gpu->memory_bytes;
    inputs.bandwidth_bytes_s = gpu->bandwidth_bytes_s * count;
    inputs.machine = fmt::format("{} x {}", options.gpus_per_node, gpu->name);
  }
  if (!options.gpu_memory.empty()) {
    const auto bytes = parse_bytes(options.gpu_memory);
    if (!bytes.ok()) return in_option("--gpu-memory", bytes.error());
    memory = static_cast<double>(*bytes);
  }
  if (!options.bandwidth.empty()) {
    const auto bandwidth = parse_bandwidth(options.bandwidth);
    if (!bandwidth.ok()) return in_option("--bandwidth", bandwidth.error());
    inputs.bandwidth_bytes_s = *bandwidth * count;
  }
  if (inputs.machine.empty()) inputs.machine = fmt::format("{} GPU(s)", options.gpus_per_node);
  if (!options.kv_memory.empty()) {
    const auto bytes = parse_bytes(options.kv_memory);
    if (!bytes.ok()) return in_option("--kv-memory", bytes.error());
    inputs.budget_bytes = static_cast<double>(*bytes);
    inputs.machine +=
        fmt::format(", {} for the cache (--kv-memory)", gigabytes(inputs.budget_bytes));
    return {};
  }
  if (memory == 0) return {};
  const double usable = memory * count * options.utilization;
  inputs.budget_bytes = usable - static_cast<double>(inputs.weight_bytes);
  if (inputs.budget_bytes < 1) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{}: the weights take {}, the node has {} x {:.2f}; use more GPUs "
                             "(--gpus-per-node) or smaller weights",
                             inputs.model.name, gigabytes(static_cast<double>(inputs.weight_bytes)),
                             gigabytes(memory * count), options.utilization)};
  }
  inputs.machine +=
      fmt::format(", {} x {:.2f} - weights = {} for the cache", gigabytes(memory * count),
                  options.utilization, gigabytes(inputs.budget_bytes));
  return {};
}

Status read_contexts(const PlanOptions& options, PlanInputs& inputs) {
  for (const std::string& text : options.contexts) {
    const auto context = parse_tokens(text);
    if (!context.ok()) return in_option("--context", context.error());
    inputs.contexts.push_back(*context);
  }
  if (inputs.contexts.empty()) {
    const int64_t length = inputs.model.context_length;
    inputs.contexts = {length != 0 ? std::min<int64_t>(length, 32768) : 32768};
  }
  std::sort(inputs.contexts.begin(), inputs.contexts.end());
  inputs.contexts.erase(std::unique(inputs.contexts.begin(), inputs.contexts.end()),
                        inputs.contexts.end());
  return {};
}

Status check_options(const PlanOptions& options, const PlanInputs& inputs) {
  if (inputs.budget_bytes == 0 && options.batch == 0) {
    return Error{ErrorCode::invalid_argument,
                 "nothing says how much memory there is: give --gpu NAME, --kv-memory BYTES or "
                 "--batch N"};
  }
  if (inputs.load_tokens_per_s > 0 && inputs.bandwidth_bytes_s == 0) {
    return Error{ErrorCode::invalid_argument,
                 "--load in tok/s needs a bandwidth: give --gpu NAME or --bandwidth"};
  }
  for (const LayerShape& layer : inputs.model.shape.layers) {
    if (layer.kv_heads % options.gpus_per_node == 0) continue;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--gpus-per-node {}: {} KV heads can't be split evenly; use a divisor",
                             options.gpus_per_node, layer.kv_heads)};
  }
  return {};
}

// "2 x 32 layers x 8 KV heads x 128 channels x 2 B = 131,072 B"
std::string f16_formula(const CacheShape& shape) {
  const LayerShape& first = shape.layers[0];
  uint64_t bytes = 0;
  bool equal = true;
  for (const LayerShape& layer : shape.layers) {
    bytes += uint64_t{4} * layer.kv_heads * layer.head_dim;
    equal = equal && layer.kv_heads == first.kv_heads && layer.head_dim == first.head_dim;
  }
  const std::string sum =
      equal ? fmt::format("2 x {} layers x {} KV heads x {} channels x 2 B = ", shape.layers.size(),
                          first.kv_heads, first.head_dim)
            : "";
  return fmt::format("16 bits: {}{} B per token", sum, with_commas(bytes));
}

}  // namespace

void add_plan_options(CLI::App& command, PlanOptions* options) {
  command
      .add_option("model", options->model,
                  "GGUF file, config.json or its folder, or a built-in shape such as Llama-3-8B")
      ->required()
      ->type_name("MODEL");
  command.add_option("--gpu", options->gpu, "GPU by name, e.g. H100, H200, A100-80GB, L4")
      ->type_name("NAME");
  command
      .add_option("--gpus-per-node", options->gpus_per_node, "GPUs that hold one model together")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--gpu-memory", options->gpu_memory, "Memory of a GPU, e.g. 80GB or 24GiB")
      ->type_name("BYTES");
  command
      .add_option("--utilization,--gpu-memory-utilization", options->utilization,
                  "Share of the memory that may be used")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command
      .add_option("--kv-memory,--kv-cache-memory-bytes", options->kv_memory,
                  "Memory of a node for the cache alone, e.g. 60GB (decimal)")
      ->type_name("BYTES");
  command.add_option("--bandwidth", options->bandwidth, "Memory bandwidth of a GPU, e.g. 3.35TB/s")
      ->type_name("BYTES/S");
  command
      .add_option("--weights", options->weights,
                  "Bytes of the weights, e.g. 16GB, where the model isn't to say")
      ->type_name("BYTES");
  command
      .add_option("--context", options->contexts,
                  "Tokens of a sequence, one or more, e.g. 1k,8k,32k; 32k is 32,768 (default: the "
                  "model's, at most 32k)")
      ->delimiter(',')
      ->type_name("TOKENS");
  command.add_option("--batch", options->batch, "Sequences per step (default: as many as fit)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->type_name("N");
  command.add_option("--policies,--kv-cache-dtype", options->policies, policy_help)
      ->type_name("POLICY");
  command
      .add_option("--load", options->load,
                  "What a service must carry: 200 (sequences at the same time) or 20000tok/s; "
                  "prints the nodes for it")
      ->type_name("LOAD");
  add_output_options(command, &options->files);
  command.footer(
      "A step reads the weights once and the cache of every sequence in the batch: time = bytes / "
      "bandwidth.\nExample: kvart plan Llama-3-8B --gpu H100 --kv-memory 60GB --context 32k");
}

Result<PlanInputs> read_plan_inputs(const PlanOptions& options) {
  PlanInputs inputs;
  auto model = find_model(options.model);
  if (!model.ok()) return model.error();
  inputs.model = std::move(*model);
  inputs.batch = options.batch;
  KVART_RETURN_IF_ERROR(read_weights(options, inputs));
  KVART_RETURN_IF_ERROR(read_contexts(options, inputs));
  if (!options.load.empty()) {
    const auto load = parse_load(options.load);
    if (!load.ok()) return in_option("--load", load.error());
    (load->tokens_per_s ? inputs.load_tokens_per_s : inputs.load_sequences) = load->amount;
  }
  KVART_RETURN_IF_ERROR(read_machine(options, inputs));
  KVART_RETURN_IF_ERROR(check_options(options, inputs));
  auto policies = parse_policies(options.policies.empty() ? usual_policies() : options.policies);
  if (!policies.ok()) return policies.error();
  inputs.policies = std::move(*policies);
  return inputs;
}

std::vector<std::string> plan_facts(const PlanInputs& inputs) {
  std::string machine = "node: " + inputs.machine;
  if (inputs.bandwidth_bytes_s > 0) {
    machine += fmt::format(", {:.2f} TB/s", inputs.bandwidth_bytes_s / 1e12);
  }
  return {inputs.model.what,
          fmt::format("weights: {} ({})", gigabytes(static_cast<double>(inputs.weight_bytes)),
                      inputs.weight_basis),
          machine, f16_formula(inputs.model.shape)};
}

std::vector<std::string> plan_notes(const PlanInputs& inputs) {
  std::vector<std::string> notes;
  const int64_t length = inputs.model.context_length;
  if (length != 0 && inputs.contexts.back() > length) {
    notes.push_back(fmt::format("Note: the model was made for {} tokens.", tokens_text(length)));
  }
  notes.emplace_back(
      "Crossover: from that context on a batch's cache is more bytes than the weights: below it "
      "quantize the weights, above it the cache.");
  return notes;
}

nlohmann::ordered_json plan_inputs_json(const PlanInputs& inputs) {
  nlohmann::ordered_json json;
  json["model"] = inputs.model.name;
  json["layers"] = inputs.model.shape.layers.size();
  json["weight_bytes"] = inputs.weight_bytes;
  json["weight_basis"] = inputs.weight_basis;
  json["node"] = inputs.machine;
  json["kv_budget_bytes"] = inputs.budget_bytes;
  json["bandwidth_bytes_per_s"] = inputs.bandwidth_bytes_s;
  json["contexts"] = inputs.contexts;
  json["batch"] = inputs.batch;
  json["load_sequences"] = inputs.load_sequences;
  json["load_tokens_per_s"] = inputs.load_tokens_per_s;
  return json;
}

}  // namespace kvart::tools
