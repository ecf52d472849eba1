// One pass over all layers; every row of a step goes through together.
#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/architecture.h"
#include "model/ops/ops.h"

namespace kvart {

namespace {
RopeConfig rope_config(const LoadedModel& model) {
  const ModelConfig& config = model.config();
  RopeConfig rope;
  rope.pairing = find_architecture(config.architecture)->pairing;
  rope.dims = config.rope_dim;
  rope.theta_base = config.rope_theta;
  rope.frequency_factors = model.weights().rope_factors;
  return rope;
}

const float* data_or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}
}  // namespace

ForwardPass::ForwardPass(const LoadedModel& model, Attention* attention, ThreadPool* pool,
                         int max_rows)
    : model_(model),
      attention_(attention),
      pool_(pool),
      isa_(model.isa()),
      hidden_(model.config().hidden),
      q_size_(model.config().q_heads * model.config().head_dim),
      kv_size_(model.config().kv_heads * model.config().head_dim),
      ffn_(model.config().ffn),
      angles_(rope_config(model)) {
  const auto rows = static_cast<size_t>(max_rows);
  residual_ = AlignedBuffer<float>(rows * hidden_);
  normed_ = AlignedBuffer<float>(rows * hidden_);
  projected_ = AlignedBuffer<float>(rows * hidden_);
  q_ = AlignedBuffer<float>(rows * q_size_);
  k_ = AlignedBuffer<float>(rows * kv_size_);
  v_ = AlignedBuffer<float>(rows * kv_size_);
  attended_ = AlignedBuffer<float>(rows * q_size_);
  gate_ = AlignedBuffer<float>(rows * ffn_);
  up_ = AlignedBuffer<float>(rows * ffn_);
}

std::span<const float> ForwardPass::run(std::span<const int32_t> tokens,
                                        std::span<const int32_t> positions,
                                        std::span<const int> wanted) {
  const int rows = static_cast<int>(tokens.size());
  embed(tokens);
  angles_.assign(positions);
  for (int layer = 0; layer < model_.config().layers; ++layer) {
    attention_block(layer, rows);
    feed_forward_block(layer, rows);
  }
  return logits(wanted);
}

void ForwardPass::embed(std::span<const int32_t> tokens) {
  for (size_t row = 0; row < tokens.size(); ++row) {
    model_.weights().embedding.decode_row(tokens[row], residual_.data() + row * hidden_);
  }
}

// residual += W_o attention(rope(W_q x), rope(W_k x), W_v x), x = norm(residual)
void ForwardPass::attention_block(int layer, int rows) {
  const ModelConfig& config = model_.config();
  const LayerWeights& weights = model_.weights().layers[layer];
  norm(residual_.data(), weights.attention_norm, rows, normed_.data());
  quantized_.assign(*pool_, isa_, normed_.data(), rows, hidden_, hidden_);
  matmul(*pool_, isa_, weights.q, quantized_, data_or_null(weights.q_bias), q_.data(), q_size_);
  matmul(*pool_, isa_, weights.k, quantized_, data_or_null(weights.k_bias), k_.data(), kv_size_);
  matmul(*pool_, isa_, weights.v, quantized_, data_or_null(weights.v_bias), v_.data(), kv_size_);
  rope(isa_, angles_, q_.data(), config.q_heads, config.head_dim, q_size_);
  rope(isa_, angles_, k_.data(), config.kv_heads, config.head_dim, kv_size_);

  attention_->append(layer, k_.data(), v_.data());
  AttentionParams params;
  params.q_heads = config.q_heads;
  params.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  params.window = config.layer_shapes[layer].window;
  attention_->attend(layer, params, q_.data(), attended_.data());

  quantized_.assign(*pool_, isa_, attended_.data(), rows, q_size_, q_size_);
  matmul(*pool_, isa_, weights.attention_output, quantized_, nullptr, projected_.data(), hidden_);
  add(isa_, residual_.data(), projected_.data(), static_cast<int64_t>(rows) * hidden_);
}

// residual += W_down (silu(W_gate x) * W_up x), x = norm(residual)
void ForwardPass::feed_forward_block(int layer, int rows) {
  const LayerWeights& weights = model_.weights().layers[layer];
  norm(residual_.data(), weights.ffn_norm, rows, normed_.data());
  quantized_.assign(*pool_, isa_, normed_.data(), rows, hidden_, hidden_);
  matmul(*pool_, isa_, weights.gate, quantized_, nullptr, gate_.data(), ffn_);
  matmul(*pool_, isa_, weights.up, quantized_, nullptr, up_.data(), ffn_);
  over_rows(rows, [&](int first, int count) {
    const auto offset = static_cast<size_t>(first) * ffn_;
    silu_mul(isa_, gate_.data() + offset, up_.data() + offset, static_cast<int64_t>(count) * ffn_);
  });
  quantized_.assign(*pool_, isa_, gate_.data(), rows, ffn_, ffn_);
  matmul(*pool_, isa_, weights.down, quantized_, nullptr, projected_.data(), hidden_);
  add(isa_, residual_.data(), projected_.data(), static_cast<int64_t>(rows) * hidden_);
}

std::span<const float> ForwardPass::logits(std::span<const int> wanted) {
  if (wanted.empty()) return {};
  const int rows = static_cast<int>(wanted.size());
  for (int i = 0; i < rows; ++i) {
    std::memcpy(projected_.data() + static_cast<size_t>(i) * hidden_,
                residual_.data() + static_cast<size_t>(wanted[i]) * hidden_,
                sizeof(float) * hidden_);
  }
  norm(projected_.data(), model_.weights().output_norm, rows, normed_.data());
  const auto vocab = static_cast<size_t>(model_.config().vocab);
  if (logits_.size() < rows * vocab) logits_.resize(rows * vocab);
  quantized_.assign(*pool_, isa_, normed_.data(), rows, hidden_, hidden_);
  matmul(*pool_, isa_, model_.weights().output_matrix(), quantized_, nullptr, logits_.data(),
         vocab);
  return {logits_.data(), rows * vocab};
}

void ForwardPass::norm(const float* x, const std::vector<float>& weight, int rows, float* out) {
  over_rows(rows, [&](int first, int count) {
    const auto offset = static_cast<size_t>(first) * hidden_;
    rms_norm(isa_, x + offset, weight.data(), model_.config().norm_eps, count, hidden_,
             out + offset);
  });
}

template <class Work>
void ForwardPass::over_rows(int rows, const Work& work) {
  constexpr int slice = 16;  // rows: enough work to be worth a task
  const int slices = (rows + slice - 1) / slice;
  pool_->run(slices, [&](int index, int /*thread*/) {
    work(index * slice, std::min(slice, rows - index * slice));
  });
}

}  // namespace kvart
