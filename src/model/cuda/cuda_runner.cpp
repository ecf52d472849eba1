// The forward pass of a decoder on the device, layer by layer as in forward.cpp.
#include "model/cuda/cuda_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "model/rope.h"

namespace kvart::cuda {

namespace {

// Of a status that only a lost device makes an error.
void require(const Status& status) {
  KVART_CHECK(status.ok(), "%s", status.error().message.c_str());
}

}  // namespace

Status DeviceAngles::fill(const RopeConfig& config, int64_t context_tokens) {
  constexpr int64_t at_a_time = 4096;
  RopeAngles angles(config);
  pairing = angles.pairing();
  dims = angles.dims();
  const auto width = static_cast<size_t>(angles.table_width());
  const auto count = static_cast<size_t>(context_tokens) * width;
  KVART_RETURN_IF_ERROR(cos.allocate(count, "the angles of positions"));
  KVART_RETURN_IF_ERROR(sin.allocate(count, "the angles of positions"));
  std::vector<int32_t> positions;
  for (int64_t first = 0; first < context_tokens; first += at_a_time) {
    positions.resize(static_cast<size_t>(std::min(at_a_time, context_tokens - first)));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    angles.assign(positions);
    const size_t at = static_cast<size_t>(first) * width;
    const size_t bytes = positions.size() * width * sizeof(float);
    check(cudaMemcpy(cos.data() + at, angles.cos(0), bytes, cudaMemcpyHostToDevice), "angles");
    check(cudaMemcpy(sin.data() + at, angles.sin(0), bytes, cudaMemcpyHostToDevice), "angles");
  }
  return {};
}

CudaRunner::CudaRunner(const LoadedModel& model, const SessionOptions& options, KvCache* cache,
                       cudaStream_t stream)
    : model_(model),
      config_(model.config()),
      options_(options),
      cache_(cache),
      stream_(stream),
      max_rows_(options.max_step_tokens),
      qkv_width_((config_.q_heads + 2 * config_.kv_heads) * config_.head_dim),
      q_width_(config_.q_heads * config_.head_dim),
      kv_width_(config_.kv_heads * config_.head_dim) {}

CudaRunner::~CudaRunner() {
  cudaStreamSynchronize(stream_);
  for (const auto& [rows, graph] : graphs_) cudaGraphExecDestroy(graph);
}

Status CudaRunner::init() {
  if (options_.error_sample_interval > 0) {
    return Error{ErrorCode::unsupported,
                 "the error of sealed blocks isn't measured on the GPU; leave it out"};
  }
  weights_ = dynamic_cast<const DeviceWeights*>(model_.device_copy());
  KVART_CHECK(weights_ != nullptr, "weights of another device");
  KVART_RETURN_IF_ERROR(products_.init());
  KVART_RETURN_IF_ERROR(take_attention());
  KVART_RETURN_IF_ERROR(take_buffers());
  const auto angles = [&](LayerRope kind, DeviceAngles* to) {
    const auto& ropes = config_.layer_ropes;
    if (std::find(ropes.begin(), ropes.end(), kind) == ropes.end()) return Status{};
    return to->fill(rope_config(config_, kind, model_.rope_pairing(), options_.context_tokens),
                    options_.context_tokens);
  };
  KVART_RETURN_IF_ERROR(angles(LayerRope::global, &global_angles_));
  return angles(LayerRope::local, &local_angles_);
}

Status CudaRunner::take_attention() {
  const Result<CudaDevice> device = cuda_device();
  if (!device) return device.error();
  CudaLimits limits;
  limits.max_rows = max_rows_;
  limits.max_steps = max_rows_;
  const int64_t blocks = (options_.context_tokens + block_tokens - 1) / block_tokens;
  // Of a step's sequences, as many as there may be; each slot belongs to one at least.
  int64_t sequences = max_rows_;
  for (int group = 0; group < cache_->page_layout().groups(); ++group) {
    sequences = std::min(sequences, cache_->counts(group).slots_total);
  }
  limits.max_blocks = std::max<int64_t>(1, sequences) * blocks;
  limits.max_q_heads = config_.q_heads;
  const uint64_t bytes = CudaAttention::workspace_bytes(cache_->page_layout(), limits, *device);
  KVART_RETURN_IF_ERROR(attention_workspace_.allocate(bytes, "attention's plans and staging"));
  auto attention = CudaAttention::create(cache_, limits, attention_workspace_.data());
  if (!attention) return attention.error();
  attention_ = std::move(attention).value();
  return {};
}

Status CudaRunner::take_buffers() {
  const auto rows = static_cast<size_t>(max_rows_);
  const char* const what = "the activations of a step; make steps smaller";
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto ffn = static_cast<size_t>(config_.ffn);
  KVART_RETURN_IF_ERROR(inputs_.allocate(4 * rows, what));
  KVART_RETURN_IF_ERROR(host_inputs_.allocate(4 * rows, what));
  KVART_RETURN_IF_ERROR(residual_.allocate(rows * hidden, what));
  KVART_RETURN_IF_ERROR(projected_.allocate(rows * hidden, what));
  KVART_RETURN_IF_ERROR(normed_.allocate(rows * hidden, what));
  KVART_RETURN_IF_ERROR(qkv_.allocate(rows * static_cast<size_t>(qkv_width_), what));
  KVART_RETURN_IF_ERROR(q_.allocate(rows * static_cast<size_t>(q_width_), what));
  KVART_RETURN_IF_ERROR(k_.allocate(rows * static_cast<size_t>(kv_width_), what));
  KVART_RETURN_IF_ERROR(v_.allocate(rows * static_cast<size_t>(kv_width_), what));
  KVART_RETURN_IF_ERROR(attended_.allocate(rows * static_cast<size_t>(q_width_), what));
  KVART_RETURN_IF_ERROR(gate_up_.allocate(rows * 2 * ffn, what));
  return activated_.allocate(rows * ffn, what);
}

bool CudaRunner::reserve_logits(int64_t rows) {
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(config_.vocab);
  if (count <= logits_.size() && count <= host_logits_.size()) return true;
  DeviceBuffer<float> larger;
  PinnedBuffer<float> host;
  if (!larger.allocate(count, "logits").ok() || !host.allocate(count, "logits").ok()) return false;
  // Graphs have the old one's address.
  for (const auto& [size, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
  logits_ = std::move(larger);
  host_logits_ = std::move(host);
  return true;
}

CudaRunner::Inputs CudaRunner::inputs(int* base) const {
  return {base, base + max_rows_, base + 2 * max_rows_, base + 3 * max_rows_};
}

void CudaRunner::send_inputs(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                             std::span<const int> wanted) {
  const Inputs host = inputs(host_inputs_.data());
  const Inputs device = inputs(inputs_.data());
  const auto send = [&](std::span<const int> from, int* in_host, int* in_device) {
    std::copy(from.begin(), from.end(), in_host);
    check(cudaMemcpyAsync(in_device, in_host, from.size_bytes(), cudaMemcpyHostToDevice, stream_),
          "inputs");
  };
  send(tokens, host.tokens, device.tokens);
  send(positions, host.positions, device.positions);
  if (wanted.empty()) return;
  send(wanted, host.wanted, device.wanted);
  std::fill_n(host.finite, wanted.size(), 1);
  send({host.finite, wanted.size()}, host.finite, device.finite);
}

// Of a step whose last block takes the slot of its first one over, the first part ends where that
// block does.
void CudaRunner::cut(std::span<const SequenceStep> steps, std::span<const int32_t> tokens,
                     std::span<const int32_t> positions, std::span<const int> wanted) {
  for (Part& part : parts_) part = {};
  size_t row = 0;
  size_t next_wanted = 0;
  const auto add = [&](Part& part, const SequenceStep& step, size_t index) {
    part.steps.push_back(step);
    part.step_indices.push_back(index);
    for (int i = 0; i < step.count; ++i, ++row) {
      if (next_wanted < wanted.size() && wanted[next_wanted] == static_cast<int>(row)) {
        part.wanted.push_back(static_cast<int>(part.tokens.size()));
        part.outputs.push_back(next_wanted++);
      }
      part.tokens.push_back(tokens[row]);
      part.positions.push_back(positions[row]);
    }
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const SequenceStep& step = steps[i];
    if (!attention_->takes_over(step)) {
      add(parts_[0], step, i);
      continue;
    }
    const int count = block_tokens - static_cast<int>(step.first % block_tokens);
    add(parts_[0], {step.sequence, step.first, count}, i);
    add(parts_[1], {step.sequence, step.first + count, step.count - count}, i);
  }
}

std::span<const float> CudaRunner::run(std::span<const SequenceStep> steps,
                                       std::span<const int32_t> tokens,
                                       std::span<const int32_t> positions,
                                       std::span<const int> wanted) {
  cut(steps, tokens, positions, wanted);
  failed_.assign(steps.size(), 0);
  finite_.assign(wanted.size(), 1);
  run_part(parts_[0], false);
  if (!parts_[1].steps.empty()) run_part(parts_[1], true);
  return {host_logits_.data(), wanted.size() * static_cast<size_t>(config_.vocab)};
}

void CudaRunner::run_part(const Part& part, bool continued) {
  const auto rows = static_cast<int>(part.tokens.size());
  const auto rows_wanted = static_cast<int>(part.wanted.size());
  require(attention_->plan(part.steps, stream_, continued));
  send_inputs(part.tokens, part.positions, part.wanted);
  const bool single_tokens = part.tokens.size() == part.steps.size() && rows_wanted == rows;
  if (single_tokens) {
    launch_graph(rows);
  } else {
    launch(rows, rows_wanted);
  }
  read_logits(part);
  failed_of_part_.resize(part.steps.size());
  require(attention_->failed(failed_of_part_, stream_));  // waits for the device
  for (size_t i = 0; i < part.steps.size(); ++i)
    failed_[part.step_indices[i]] |= failed_of_part_[i];
  const int* finite = inputs(host_inputs_.data()).finite;
  for (size_t i = 0; i < part.outputs.size(); ++i) finite_[part.outputs[i]] = finite[i] != 0;
}

void CudaRunner::read_logits(const Part& part) {
  const auto vocab = static_cast<size_t>(config_.vocab);
  if (!part.outputs.empty()) {
    check(cudaMemcpyAsync(inputs(host_inputs_.data()).finite, inputs(inputs_.data()).finite,
                          part.outputs.size() * sizeof(int), cudaMemcpyDeviceToHost, stream_),
          "logits");
  }
  for (size_t i = 0; i < part.outputs.size();) {
    size_t end = i + 1;
    while (end < part.outputs.size() && part.outputs[end] == part.outputs[end - 1] + 1) ++end;
    check(cudaMemcpyAsync(host_logits_.data() + part.outputs[i] * vocab, logits_.data() + i * vocab,
                          (end - i) * vocab * sizeof(float), cudaMemcpyDeviceToHost, stream_),
          "logits");
    i = end;
  }
}

void CudaRunner::launch_graph(int rows) {
  const auto found = graphs_.find(rows);
  if (found != graphs_.end()) {
    check(cudaGraphLaunch(found->second, stream_), "a step");
    return;
  }
  // The first time as it is: cuBLASLt chooses, and nothing of that may be recorded.
  launch(rows, rows);
  check(cudaStreamSynchronize(stream_), "a step");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a step");
  launch(rows, rows);
  check(cudaStreamEndCapture(stream_, &graph), "recording a step");
  check(cudaGraphInstantiate(&exec, graph, 0), "recording a step");
  check(cudaGraphDestroy(graph), "recording a step");
  graphs_.emplace(rows, exec);
}

void CudaRunner::launch(int rows, int wanted) {
  const Inputs in = inputs(inputs_.data());
  const float factor =
      model_.architecture().scaled_embedding ? std::sqrt(static_cast<float>(config_.hidden)) : 1.0F;
  launch_embed(weights_->embedding.data, in.tokens, rows, config_.hidden, factor, residual_.data(),
               stream_);
  for (int layer = 0; layer < config_.layers; ++layer) {
    attention_block(layer, rows);
    feed_forward_block(layer, rows);
  }
  if (wanted > 0) logits(wanted);
  check(cudaGetLastError(), "a step's kernels");
}

NormJob CudaRunner::norm_of(const float* x, const float* weight) const {
  return {x, nullptr, weight, config_.norm_eps, config_.hidden};
}

void CudaRunner::attention_block(int layer, int rows) {
  const DeviceLayer& weights = weights_->layers[static_cast<size_t>(layer)];
  const LayerShape& shape = config_.layer_shapes[static_cast<size_t>(layer)];
  launch_norm(norm_of(residual_.data(), weights.attention_norm), rows, normed_.data(), stream_);
  products_.multiply(weights.qkv, normed_.data(), rows, false, qkv_.data(), stream_);
  HeadsJob heads{};
  heads.qkv = qkv_.data();
  heads.bias = weights.qkv_bias;
  heads.q_norm = weights.q_norm;
  heads.k_norm = weights.k_norm;
  heads.eps = config_.norm_eps;
  heads.q_heads = config_.q_heads;
  heads.kv_heads = shape.kv_heads;
  heads.head_dim = shape.head_dim;
  const LayerRope rope = config_.layer_ropes[static_cast<size_t>(layer)];
  if (rope != LayerRope::none) {
    const DeviceAngles& angles = rope == LayerRope::local ? local_angles_ : global_angles_;
    heads.cos = angles.cos.data();
    heads.sin = angles.sin.data();
    heads.rope_dims = angles.dims;
    heads.pairing = angles.pairing;
  }
  heads.positions = inputs(inputs_.data()).positions;
  heads.q = q_.data();
  heads.k = k_.data();
  heads.v = v_.data();
  launch_heads(heads, rows, stream_);
  require(attention_->append(layer, Element::f16, k_.data(), v_.data(), stream_));
  AttentionParams params;
  params.q_heads = config_.q_heads;
  params.scale = static_cast<float>(config_.attention_scale);
  params.soft_cap = static_cast<float>(config_.attention_soft_cap);
  params.window = shape.window;
  require(attention_->attend(layer, params, Element::bf16, q_.data(), attended_.data(), stream_));
  add_to_residual(weights.attention_output, attended_.data(), weights.post_attention_norm, rows);
}

void CudaRunner::feed_forward_block(int layer, int rows) {
  const DeviceLayer& weights = weights_->layers[static_cast<size_t>(layer)];
  launch_norm(norm_of(residual_.data(), weights.ffn_norm), rows, normed_.data(), stream_);
  products_.multiply(weights.gate_up, normed_.data(), rows, gate_up_.data(), stream_);
  launch_activate(model_.architecture().activation, gate_up_.data(), rows, config_.ffn,
                  activated_.data(), stream_);
  add_to_residual(weights.down, activated_.data(), weights.post_ffn_norm, rows);
}

void CudaRunner::add_to_residual(const DeviceMatrix& weights, const __nv_bfloat16* x,
                                 const float* post_norm, int rows) {
  if (post_norm == nullptr) {
    products_.multiply(weights, x, rows, true, residual_.data(), stream_);
    return;
  }
  products_.multiply(weights, x, rows, false, projected_.data(), stream_);
  launch_add_norm(norm_of(projected_.data(), post_norm), rows, residual_.data(), stream_);
}

void CudaRunner::logits(int wanted) {
  NormJob job = norm_of(residual_.data(), weights_->output_norm);
  job.rows = inputs(inputs_.data()).wanted;
  launch_norm(job, wanted, normed_.data(), stream_);
  products_.multiply(weights_->output, normed_.data(), wanted, false, logits_.data(), stream_);
  if (config_.final_soft_cap != 0) {
    launch_soft_cap(static_cast<float>(config_.final_soft_cap), logits_.data(),
                    static_cast<size_t>(wanted) * static_cast<size_t>(config_.vocab), stream_);
  }
  launch_check_finite(logits_.data(), wanted, config_.vocab, inputs(inputs_.data()).finite,
                      stream_);
}

}  // namespace kvart::cuda
