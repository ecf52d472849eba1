// Blocks of random codes under one scale, matrix by matrix.
#include "model/dummy_weights.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "base/half.h"
#include "model/file/weight_blocks.h"

namespace kvart {

namespace {

constexpr WeightType dummy_type = WeightType::Q4_0;
constexpr size_t block_bytes = 18;    // an f16 scale and 32 codes
constexpr double code_spread = 4.61;  // standard deviation of 0 to 15

class DummyMaker {
 public:
  explicit DummyMaker(ThreadPool* pool) : pool_(pool) {}

  Status matrix(int64_t rows, int64_t columns, PackedMatrix* out) {
    std::vector<uint8_t> bytes(weight_bytes(dummy_type, static_cast<size_t>(columns)) *
                               static_cast<size_t>(rows));
    const auto blocks = static_cast<int64_t>(bytes.size() / block_bytes);
    const uint16_t scale =
        f32_to_f16(static_cast<float>(1 / (code_spread * std::sqrt(static_cast<double>(columns)))));
    const uint64_t seed = ++matrices_;
    constexpr int64_t slice = 1 << 14;
    pool_->run(static_cast<int>((blocks + slice - 1) / slice), [&](int index, int /*thread*/) {
      std::mt19937_64 random(seed << 32 | static_cast<uint64_t>(index));
      const int64_t end = std::min(blocks, (index + 1) * slice);
      for (int64_t block = index * slice; block < end; ++block) {
        uint8_t* to = bytes.data() + static_cast<size_t>(block) * block_bytes;
        std::memcpy(to, &scale, sizeof scale);
        for (size_t at = sizeof scale; at < block_bytes; at += sizeof(uint64_t)) {
          const uint64_t codes = random();
          std::memcpy(to + at, &codes, sizeof codes);
        }
      }
    });
    auto packed = PackedMatrix::pack(dummy_type, rows, columns, bytes, pool_);
    if (!packed) return packed.error();
    *out = std::move(packed).value();
    return {};
  }

 private:
  ThreadPool* pool_;
  uint64_t matrices_ = 0;
};

std::vector<float> ones(int count) {
  return std::vector<float>(static_cast<size_t>(count), 1.0F);
}

Status make_layer(const ModelConfig& config, const Architecture& architecture, DummyMaker& maker,
                  LayerWeights* layer) {
  const int64_t hidden = config.hidden;
  const int q_size = config.q_heads * config.head_dim;
  const int kv_size = config.kv_heads * config.head_dim;
  layer->attention_norm = layer->ffn_norm = ones(config.hidden);
  KVART_RETURN_IF_ERROR(maker.matrix(q_size, hidden, &layer->q));
  KVART_RETURN_IF_ERROR(maker.matrix(kv_size, hidden, &layer->k));
  KVART_RETURN_IF_ERROR(maker.matrix(kv_size, hidden, &layer->v));
  KVART_RETURN_IF_ERROR(maker.matrix(hidden, q_size, &layer->attention_output));
  if (config.qkv_bias) {
    layer->q_bias.assign(static_cast<size_t>(q_size), 0.0F);
    layer->k_bias.assign(static_cast<size_t>(kv_size), 0.0F);
    layer->v_bias.assign(static_cast<size_t>(kv_size), 0.0F);
  }
  if (architecture.head_norms) layer->q_norm = layer->k_norm = ones(config.head_dim);
  if (architecture.post_norms) {
    layer->post_attention_norm = layer->post_ffn_norm = ones(config.hidden);
  }
  const int64_t ffn = architecture.mixture ? config.expert_ffn : config.ffn;
  if (architecture.mixture) {
    KVART_RETURN_IF_ERROR(maker.matrix(config.experts, hidden, &layer->router));
  }
  layer->experts.resize(architecture.mixture ? static_cast<size_t>(config.experts) : 1);
  for (FeedForward& expert : layer->experts) {
    KVART_RETURN_IF_ERROR(maker.matrix(ffn, hidden, &expert.gate));
    KVART_RETURN_IF_ERROR(maker.matrix(ffn, hidden, &expert.up));
    KVART_RETURN_IF_ERROR(maker.matrix(hidden, ffn, &expert.down));
  }
  return {};
}

}  // namespace

Status check_dummy_memory(const ModelConfig& config) {
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t weights = config.parameters() / 32 * block_bytes;
  if (weights <= memory) return {};
  return Error{ErrorCode::out_of_memory,
               fmt::format("{}: weights of 4 bits take {} bytes and this machine has {} bytes of "
                           "memory; use a smaller shape",
                           config.source, weights, memory)};
}

Result<Weights> dummy_weights(const ModelConfig& config, const Architecture& architecture,
                              ThreadPool* pool) try {
  DummyMaker maker(pool);
  Weights weights;
  weights.tied = config.tied_embeddings;
  weights.output_norm = ones(config.hidden);
  KVART_RETURN_IF_ERROR(maker.matrix(config.vocab, config.hidden, &weights.embedding));
  if (!weights.tied) {
    KVART_RETURN_IF_ERROR(maker.matrix(config.vocab, config.hidden, &weights.output));
  }
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (LayerWeights& layer : weights.layers) {
    KVART_RETURN_IF_ERROR(make_layer(config, architecture, maker, &layer));
  }
  return weights;
} catch (const std::bad_alloc&) {
  return Error{ErrorCode::out_of_memory,
               config.source + ": no memory for so many weights; use a smaller shape"};
}

}  // namespace kvart
