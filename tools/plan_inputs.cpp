// Reading and describing what a plan is made for.
#include "plan_inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "gpus.h"
#include "options.h"

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
  const auto gpus = static_cast<uint64_t>(options.gpus_per_node);
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
  if (inputs.machine.empty()) inputs.machine = counted(gpus, "GPU");
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
  for (const std::string& list : options.contexts) {
    for (const std::string& text : split_commas(list)) {
      const auto context = parse_tokens(text);
      if (!context.ok()) return in_option("--context", context.error());
      inputs.contexts.push_back(*context);
    }
  }
  if (inputs.contexts.empty()) inputs.contexts = {usual_context(inputs.model.context_length)};
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
                 fmt::format("--gpus-per-node {}: {} can't be split evenly; use a divisor",
                             options.gpus_per_node,
                             counted(static_cast<uint64_t>(layer.kv_heads), "KV head"))};
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
      equal
          ? fmt::format("2 x {} x {} x {} channels x 2 B = ", counted(shape.layers.size(), "layer"),
                        counted(static_cast<uint64_t>(first.kv_heads), "KV head"), first.head_dim)
          : "";
  return fmt::format("16 bits: {}{} B per token", sum, with_commas(bytes));
}

}  // namespace

void add_plan_options(CLI::App& command, PlanOptions* options) {
  add_text_option(command, "model", &options->model, "MODEL", model_help)->required();
  add_text_option(command, "--gpu", &options->gpu, "NAME",
                  "GPU by name, e.g. H100, H200, A100-80GB, L4");
  add_integer_option(command, "--gpus-per-node", &options->gpus_per_node, {1, 1024, ""},
                     "GPUs that hold one model together")
      ->default_str("1");
  auto* memory = add_text_option(command, "--gpu-memory", &options->gpu_memory, "BYTES",
                                 "Memory of a GPU, e.g. 80GB or 24GiB");
  auto* share =
      add_number_option(command, "--utilization,--gpu-memory-utilization", &options->utilization,
                        {0.01, 1, false}, "Share of the memory that may be used")
          ->default_str("0.9");
  add_text_option(command, "--kv-memory,--kv-cache-memory-bytes", &options->kv_memory, "BYTES",
                  "Memory of a node for the cache alone, e.g. 60GB (decimal)")
      ->excludes(memory)
      ->excludes(share);
  add_text_option(command, "--bandwidth", &options->bandwidth, "BYTES/S",
                  "Memory bandwidth of a GPU, e.g. 3.35TB/s");
  add_text_option(command, "--weights", &options->weights, "BYTES",
                  "Bytes of the weights, e.g. 16GB, where the model isn't to say");
  add_list_option(command, "--context", &options->contexts, "TOKENS",
                  "Tokens of a sequence, one or more, e.g. 1k,8k,32k; 32k is 32,768 (default: the "
                  "model's, at most 32k)");
  add_integer_option(command, "--batch", &options->batch, {1, int64_t{1} << 30, "1 to 2^30"},
                     "Sequences per step; default: as many as fit");
  add_integer_option(command, "--max-num-seqs", &options->max_num_seqs,
                     {1, int64_t{1} << 30, "1 to 2^30"},
                     "Sequences that may run at the same time if they are short: their open and "
                     "sink blocks are counted too; default: those that fit in full length");
  add_list_option(command, "--policies,--kv-cache-dtype", &options->policies, "POLICY",
                  policy_help);
  add_text_option(command, "--load", &options->load, "LOAD",
                  "What a service must carry: 200 (sequences at the same time) or 20000tok/s; "
                  "prints the nodes for it");
  add_output_options(command, &options->files);
  add_page_options(command, &options->files);
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
  inputs.open_sequences = options.max_num_seqs;
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
  if (!inputs.model.note.empty()) notes.push_back(inputs.model.note);
  const int64_t length = inputs.model.context_length;
  if (length != 0 && inputs.contexts.back() > length) {
    notes.push_back(fmt::format("Note: the model was made for {} tokens.", tokens_text(length)));
  }
  if (inputs.open_sequences > 0) {
    notes.push_back(fmt::format(
        "Up to {} may run at the same time (--max-num-seqs) while they are short enough to share "
        "the pages of those that fit in full length: \"GB for more slots\" is what their open and "
        "sink blocks take of the cache.",
        counted(static_cast<uint64_t>(inputs.open_sequences), "sequence")));
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
  json["max_num_seqs"] = inputs.open_sequences;
  json["load_sequences"] = inputs.load_sequences;
  json["load_tokens_per_s"] = inputs.load_tokens_per_s;
  return json;
}

}  // namespace kvart::tools
