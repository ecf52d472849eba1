// One pass over all layers; every row of a step goes through together.
#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "model/rope.h"

namespace kvart {

namespace {

RopeAngles angles_of(const LoadedModel& model, LayerRope rope, int64_t context_tokens) {
  return RopeAngles(rope_config(model.config(), rope, model.rope_pairing(), context_tokens));
}

const float* data_or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

ForwardPass::ForwardPass(Key /*key*/, const LoadedModel& model, Attention* attention,
                         ThreadPool* pool, int64_t context_tokens)
    : model_(model),
      attention_(attention),
      pool_(pool),
      isa_(model.isa()),
      hidden_(model.config().hidden),
      q_size_(model.config().q_heads * model.config().head_dim),
      kv_size_(model.config().kv_heads * model.config().head_dim),
      ffn_(model.config().experts == 0 ? model.config().ffn : model.config().expert_ffn),
      global_angles_(angles_of(model, LayerRope::global, context_tokens)) {
  const std::vector<LayerRope>& ropes = model.config().layer_ropes;
  if (std::find(ropes.begin(), ropes.end(), LayerRope::local) != ropes.end()) {
    local_angles_ = angles_of(model, LayerRope::local, context_tokens);
  }
}

bool ForwardPass::take_buffers(int max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  const std::initializer_list<std::pair<AlignedBuffer<float>*, int>> buffers = {
      {&residual_, hidden_}, {&normed_, hidden_}, {&projected_, hidden_},
      {&q_, q_size_},        {&k_, kv_size_},     {&v_, kv_size_},
      {&attended_, q_size_}, {&gate_, ffn_},      {&up_, ffn_}};
  for (const auto& [buffer, width] : buffers) {
    if (!buffer->allocate(rows * static_cast<size_t>(width))) return false;
  }
  if (!global_angles_.reserve(max_rows) || (local_angles_ && !local_angles_->reserve(max_rows)) ||
      !quantized_.reserve(max_rows, std::max({hidden_, q_size_, ffn_}))) {
    return false;
  }
  const auto experts = static_cast<size_t>(model_.config().experts);
  if (experts == 0) return true;
  routes_.resize(rows * static_cast<size_t>(model_.config().experts_used));
  candidates_.resize(experts);
  rows_of_expert_.reserve(rows);
  weights_of_rows_.reserve(rows);
  return router_logits_.allocate(rows * experts) && gathered_.allocate(rows * hidden_) &&
         expert_out_.allocate(rows * hidden_);
}

Result<std::unique_ptr<ForwardPass>> ForwardPass::create(const LoadedModel& model,
                                                         Attention* attention, ThreadPool* pool,
                                                         int max_rows, int64_t context_tokens) {
  auto pass = std::make_unique<ForwardPass>(Key{}, model, attention, pool, context_tokens);
  if (pass->take_buffers(max_rows)) return pass;
  return Error{ErrorCode::out_of_memory, "no memory for the activations of steps of " +
                                             std::to_string(max_rows) +
                                             " tokens; make steps smaller"};
}

bool ForwardPass::reserve_logits(int64_t rows) {
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(model_.config().vocab);
  if (count <= logits_.size()) return true;
  AlignedBuffer<float> larger;
  if (!larger.allocate(count)) return false;
  logits_ = std::move(larger);
  return true;
}

std::span<const float> ForwardPass::run(std::span<const int32_t> tokens,
                                        std::span<const int32_t> positions,
                                        std::span<const int> wanted) {
  const int rows = static_cast<int>(tokens.size());
  embed(tokens);
  global_angles_.assign(positions);
  if (local_angles_) local_angles_->assign(positions);
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
  if (!model_.architecture().scaled_embedding) return;
  scale(isa_, std::sqrt(static_cast<float>(hidden_)), residual_.data(),
        static_cast<int64_t>(tokens.size()) * hidden_);
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
  if (model_.architecture().head_norms) {
    norm_heads(q_.data(), weights.q_norm, rows, config.q_heads);
    norm_heads(k_.data(), weights.k_norm, rows, config.kv_heads);
  }
  turn(config.layer_ropes[layer], rows);

  attention_->append(layer, k_.data(), v_.data());
  AttentionParams params;
  params.q_heads = config.q_heads;
  params.scale = static_cast<float>(config.attention_scale);
  params.soft_cap = static_cast<float>(config.attention_soft_cap);
  params.window = config.layer_shapes[layer].window;
  attention_->attend(layer, params, q_.data(), attended_.data());

  quantized_.assign(*pool_, isa_, attended_.data(), rows, q_size_, q_size_);
  matmul(*pool_, isa_, weights.attention_output, quantized_, nullptr, projected_.data(), hidden_);
  add_to_residual(weights.post_attention_norm, rows);
}

void ForwardPass::turn(LayerRope kind, int rows) {
  if (kind == LayerRope::none) return;
  const ModelConfig& config = model_.config();
  const RopeAngles& angles = kind == LayerRope::local ? *local_angles_ : global_angles_;
  KVART_CHECK(angles.rows() == rows, "%d rows", rows);
  rope(isa_, angles, q_.data(), config.q_heads, config.head_dim, q_size_);
  rope(isa_, angles, k_.data(), config.kv_heads, config.head_dim, kv_size_);
}

// residual += feed_forward(norm(residual))
void ForwardPass::feed_forward_block(int layer, int rows) {
  const LayerWeights& weights = model_.weights().layers[layer];
  norm(residual_.data(), weights.ffn_norm, rows, normed_.data());
  if (model_.architecture().mixture) {
    mixture(weights, rows);
  } else {
    feed_forward(weights.experts[0], normed_.data(), rows, projected_.data());
  }
  add_to_residual(weights.post_ffn_norm, rows);
}

void ForwardPass::feed_forward(const FeedForward& weights, const float* x, int rows, float* out) {
  quantized_.assign(*pool_, isa_, x, rows, hidden_, hidden_);
  matmul(*pool_, isa_, weights.gate, quantized_, nullptr, gate_.data(), ffn_);
  matmul(*pool_, isa_, weights.up, quantized_, nullptr, up_.data(), ffn_);
  over_rows(rows, [&](int first, int count) {
    const auto offset = static_cast<size_t>(first) * ffn_;
    activate_mul(isa_, model_.architecture().activation, gate_.data() + offset, up_.data() + offset,
                 static_cast<int64_t>(count) * ffn_);
  });
  quantized_.assign(*pool_, isa_, gate_.data(), rows, ffn_, ffn_);
  matmul(*pool_, isa_, weights.down, quantized_, nullptr, out, hidden_);
}

// projected = Σ weight · expert(x) over each row's experts, added up in the experts' order, so that
// a row's result doesn't depend on the others.
void ForwardPass::mixture(const LayerWeights& weights, int rows) {
  const int used = model_.config().experts_used;
  route(weights, rows);
  std::fill_n(projected_.data(), static_cast<size_t>(rows) * hidden_, 0.0f);
  for (int expert = 0; expert < model_.config().experts; ++expert) {
    rows_of_expert_.clear();
    weights_of_rows_.clear();
    for (int i = 0; i < rows * used; ++i) {
      if (routes_[i].expert != expert) continue;
      std::memcpy(gathered_.data() + rows_of_expert_.size() * hidden_,
                  normed_.data() + static_cast<size_t>(i / used) * hidden_,
                  sizeof(float) * hidden_);
      rows_of_expert_.push_back(i / used);
      weights_of_rows_.push_back(routes_[i].weight);
    }
    if (rows_of_expert_.empty()) continue;
    const int count = static_cast<int>(rows_of_expert_.size());
    feed_forward(weights.experts[expert], gathered_.data(), count, expert_out_.data());
    for (int i = 0; i < count; ++i) {
      float* out = expert_out_.data() + static_cast<size_t>(i) * hidden_;
      scale(isa_, weights_of_rows_[i], out, hidden_);
      add(isa_, projected_.data() + static_cast<size_t>(rows_of_expert_[i]) * hidden_, out,
          hidden_);
    }
  }
}

// The softmax over all experts, of which the largest are kept; equal ones by their number.
void ForwardPass::route(const LayerWeights& weights, int rows) {
  const ModelConfig& config = model_.config();
  quantized_.assign(*pool_, isa_, normed_.data(), rows, hidden_, hidden_);
  matmul(*pool_, isa_, weights.router, quantized_, nullptr, router_logits_.data(), config.experts);
  std::vector<Route>& all = candidates_;
  for (int row = 0; row < rows; ++row) {
    const float* logits = router_logits_.data() + static_cast<size_t>(row) * config.experts;
    const float largest = *std::max_element(logits, logits + config.experts);
    float sum = 0;
    for (int expert = 0; expert < config.experts; ++expert) {
      all[expert] = {expert, std::exp(logits[expert] - largest)};
      sum += all[expert].weight;
    }
    // A row with a NaN stays one, whichever experts it goes to; it just can't be sorted.
    if (!std::isfinite(sum)) {
      for (Route& one : all) one.weight = sum;
    }
    const auto used_end = all.begin() + config.experts_used;
    std::partial_sort(all.begin(), used_end, all.end(), [](const Route& a, const Route& b) {
      return a.weight > b.weight || (a.weight == b.weight && a.expert < b.expert);
    });
    if (config.expert_weights_sum_to_one) {
      sum = 0;
      for (auto it = all.begin(); it != used_end; ++it) sum += it->weight;
    }
    Route* out = routes_.data() + static_cast<size_t>(row) * config.experts_used;
    for (auto it = all.begin(); it != used_end; ++it) *out++ = {it->expert, it->weight / sum};
  }
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
  KVART_CHECK(logits_.size() >= rows * vocab, "%d rows", rows);
  quantized_.assign(*pool_, isa_, normed_.data(), rows, hidden_, hidden_);
  matmul(*pool_, isa_, model_.weights().output_matrix(), quantized_, nullptr, logits_.data(),
         vocab);
  if (model_.config().final_soft_cap != 0) {
    soft_cap(isa_, static_cast<float>(model_.config().final_soft_cap), logits_.data(),
             static_cast<int64_t>(rows * vocab));
  }
  return {logits_.data(), rows * vocab};
}

void ForwardPass::add_to_residual(const std::vector<float>& post_norm, int rows) {
  if (!post_norm.empty()) norm(projected_.data(), post_norm, rows, projected_.data());
  add(isa_, residual_.data(), projected_.data(), static_cast<int64_t>(rows) * hidden_);
}

void ForwardPass::norm_heads(float* x, const std::vector<float>& weight, int rows, int heads) {
  const int head_dim = model_.config().head_dim;
  over_rows(rows, [&](int first, int count) {
    float* head = x + static_cast<size_t>(first) * heads * head_dim;
    rms_norm(isa_, head, weight.data(), model_.config().norm_eps,
             static_cast<int64_t>(count) * heads, head_dim, head);
  });
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
