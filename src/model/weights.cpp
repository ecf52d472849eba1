// Reads tensors by name, checks their shapes, and keeps count of what was read.
#include "model/weights.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <set>

#include "model/file/weight_blocks.h"
#include "model/fp8_weights.h"

namespace kvart {

namespace {

// Refuses what can't work before minutes are spent on it.
Status check_memory(const TensorTable& tensors, const ModelConfig& config) {
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t weights = 0;
  for (const auto& [name, tensor] : tensors.all()) weights += tensor.size_bytes;
  if (weights <= memory) return {};
  return Error{ErrorCode::out_of_memory,
               fmt::format("{}: the weights take {} bytes and this machine has {} bytes of memory; "
                           "use a smaller model",
                           config.source, weights, memory)};
}

// Reads tensors by name and keeps count of what was read.
class TensorReader {
 public:
  TensorReader(const TensorTable& tensors, const ModelConfig& config, bool norms_plus_one,
               ThreadPool* pool)
      : tensors_(tensors), config_(config), norms_plus_one_(norms_plus_one), pool_(pool) {}

  [[nodiscard]] bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }
  void mark_read(const std::string& name) { read_.insert(name); }

  Status matrix(const std::string& name, int64_t rows, int64_t columns, PackedMatrix* out) {
    return matrix_of_rows(name, rows, columns, 0, rows, out);
  }

  // Rows [first, first + count) of a matrix of `rows` rows.
  Status matrix_of_rows(const std::string& name, int64_t rows, int64_t columns, int64_t first,
                        int64_t count, PackedMatrix* out) {
    auto tensor = find(name, {columns, rows, 1, 1});
    if (!tensor) return tensor.error();
    return pack(name, **tensor, first, count, columns, out);
  }

  // Matrix `index` of `count` that are one tensor.
  Status matrix_of_stack(const std::string& name, int64_t count, int64_t index, int64_t rows,
                         int64_t columns, PackedMatrix* out) {
    auto tensor = find(name, {columns, rows, count, 1});
    if (!tensor) return tensor.error();
    return pack(name, **tensor, index * rows, rows, columns, out);
  }

  Status vector(const std::string& name, int64_t count, std::vector<float>* out) {
    auto tensor = find(name, {count, 1, 1, 1});
    if (!tensor) return tensor.error();
    if ((*tensor)->is_fp8) return wrong((*tensor)->place + ": a vector of 8-bit codes");
    out->resize(static_cast<size_t>(count));
    decode_weights((*tensor)->type, (*tensor)->data.data(), static_cast<size_t>(count),
                   out->data());
    for (size_t i = 0; i < out->size(); ++i) {
      if (std::isfinite((*out)[i])) continue;
      return wrong(fmt::format("{}: value {} is {}: the file is damaged; fetch it again",
                               (*tensor)->place, i, (*out)[i]));
    }
    return {};
  }

  Status norm(const std::string& name, int64_t count, std::vector<float>* out) {
    KVART_RETURN_IF_ERROR(vector(name, count, out));
    for (float& weight : *out) weight += norms_plus_one_ ? 1.0f : 0.0f;
    return {};
  }

  // Error: a tensor that was not read.
  [[nodiscard]] Status check_all_read() const {
    for (const auto& [name, tensor] : tensors_.all()) {
      if (!read_.contains(name)) {
        return Error{ErrorCode::unsupported,
                     tensor.place +
                         " has no use in this architecture as Kvart knows it; running "
                         "without it would give wrong answers"};
      }
    }
    return {};
  }

 private:
  static Error wrong(std::string message) {
    return Error{ErrorCode::invalid_file, std::move(message)};
  }

  Result<const StoredTensor*> find(const std::string& name, std::array<int64_t, 4> dims) {
    const StoredTensor* tensor = tensors_.find(name);
    if (tensor == nullptr) return wrong(config_.source + ": tensor " + name + " is missing");
    if (tensor->dims != dims) {
      return wrong(fmt::format("{} has shape [{}], its header asks for [{}]", tensor->place,
                               fmt::join(tensor->dims, ", "), fmt::join(dims, ", ")));
    }
    read_.insert(name);
    return tensor;
  }

  Status pack(const std::string& name, const StoredTensor& tensor, int64_t first, int64_t count,
              int64_t columns, PackedMatrix* out) {
    WeightType type = tensor.type;
    std::span<const uint8_t> data;
    std::vector<uint8_t> decoded;
    if (tensor.is_fp8) {
      type = WeightType::BF16;
      auto values = decode_fp8(name, tensor, first, count, columns);
      if (!values) return values.error();
      decoded = std::move(values).value();
      data = decoded;
    } else {
      const size_t row_bytes = weight_bytes(type, static_cast<size_t>(columns));
      data = tensor.data.subspan(static_cast<size_t>(first) * row_bytes,
                                 static_cast<size_t>(count) * row_bytes);
    }
    auto packed = PackedMatrix::pack(type, count, columns, data, pool_);
    if (!packed) {
      return Error{packed.error().code, tensor.place + ": " + packed.error().message};
    }
    *out = std::move(packed).value();
    return {};
  }

  // The scale lies beside the codes as NAME_scale (whole matrix or per row) or NAME_scale_inv
  // (blocks of 128 by 128); scales of activations have no use, since those aren't quantized so.
  Result<std::vector<uint8_t>> decode_fp8(const std::string& name, const StoredTensor& tensor,
                                          int64_t first, int64_t count, int64_t columns) {
    for (const char* unused : {"input_scale", "input_global_scale"}) {
      read_.insert(name.substr(0, name.rfind('.') + 1) + unused);
    }
    for (const char* suffix : {"_scale", "_scale_inv"}) {
      const StoredTensor* scale = tensors_.find(name + suffix);
      if (scale == nullptr) continue;
      read_.insert(name + suffix);
      return decode_fp8_rows(tensor, *scale, first, count, columns);
    }
    return wrong(tensor.place + ": 8-bit codes without a tensor of their scale");
  }

  const TensorTable& tensors_;
  const ModelConfig& config_;
  bool norms_plus_one_;
  ThreadPool* pool_;
  std::set<std::string> read_;
};

Status read_projections(TensorReader& reader, const ModelConfig& config, bool fused,
                        const std::string& prefix, LayerWeights* layer) {
  const int64_t hidden = config.hidden;
  const int64_t q_size = static_cast<int64_t>(config.q_heads) * config.head_dim;
  const int64_t kv_size = static_cast<int64_t>(config.kv_heads) * config.head_dim;
  if (fused) {
    const std::string name = prefix + "attn_qkv.weight";
    const int64_t rows = q_size + 2 * kv_size;
    KVART_RETURN_IF_ERROR(reader.matrix_of_rows(name, rows, hidden, 0, q_size, &layer->q));
    KVART_RETURN_IF_ERROR(reader.matrix_of_rows(name, rows, hidden, q_size, kv_size, &layer->k));
    return reader.matrix_of_rows(name, rows, hidden, q_size + kv_size, kv_size, &layer->v);
  }
  KVART_RETURN_IF_ERROR(reader.matrix(prefix + "attn_q.weight", q_size, hidden, &layer->q));
  KVART_RETURN_IF_ERROR(reader.matrix(prefix + "attn_k.weight", kv_size, hidden, &layer->k));
  KVART_RETURN_IF_ERROR(reader.matrix(prefix + "attn_v.weight", kv_size, hidden, &layer->v));
  if (!config.qkv_bias) return {};
  KVART_RETURN_IF_ERROR(reader.vector(prefix + "attn_q.bias", q_size, &layer->q_bias));
  KVART_RETURN_IF_ERROR(reader.vector(prefix + "attn_k.bias", kv_size, &layer->k_bias));
  return reader.vector(prefix + "attn_v.bias", kv_size, &layer->v_bias);
}

// Experts are stacked in one tensor of each kind, or are tensors of their own.
Status read_experts(TensorReader& reader, const ModelConfig& config, const std::string& prefix,
                    LayerWeights* layer) {
  const int64_t hidden = config.hidden;
  const int64_t ffn = config.expert_ffn;
  KVART_RETURN_IF_ERROR(
      reader.matrix(prefix + "ffn_gate_inp.weight", config.experts, hidden, &layer->router));
  layer->experts.resize(static_cast<size_t>(config.experts));
  for (int expert = 0; expert < config.experts; ++expert) {
    const auto read = [&](const char* side, int64_t rows, int64_t columns, PackedMatrix* out) {
      const std::string stem = prefix + "ffn_" + side + "_exps.";
      const std::string own = stem + std::to_string(expert) + ".weight";
      if (reader.has(own)) return reader.matrix(own, rows, columns, out);
      return reader.matrix_of_stack(stem + "weight", config.experts, expert, rows, columns, out);
    };
    FeedForward& out = layer->experts[static_cast<size_t>(expert)];
    KVART_RETURN_IF_ERROR(read("gate", ffn, hidden, &out.gate));
    KVART_RETURN_IF_ERROR(read("up", ffn, hidden, &out.up));
    KVART_RETURN_IF_ERROR(read("down", hidden, ffn, &out.down));
  }
  return {};
}

Status read_feed_forward(TensorReader& reader, const ModelConfig& config, bool fused,
                         const std::string& prefix, LayerWeights* layer) {
  const int64_t hidden = config.hidden;
  const int64_t ffn = config.ffn;
  FeedForward& out = layer->experts.emplace_back();
  const std::string up = prefix + "ffn_up.weight";
  if (fused) {
    KVART_RETURN_IF_ERROR(reader.matrix_of_rows(up, 2 * ffn, hidden, 0, ffn, &out.gate));
    KVART_RETURN_IF_ERROR(reader.matrix_of_rows(up, 2 * ffn, hidden, ffn, ffn, &out.up));
  } else {
    KVART_RETURN_IF_ERROR(reader.matrix(prefix + "ffn_gate.weight", ffn, hidden, &out.gate));
    KVART_RETURN_IF_ERROR(reader.matrix(up, ffn, hidden, &out.up));
  }
  return reader.matrix(prefix + "ffn_down.weight", hidden, ffn, &out.down);
}

Status read_layer(TensorReader& reader, const ModelConfig& config, const Architecture& architecture,
                  int index, LayerWeights* layer) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t hidden = config.hidden;
  const bool fused = architecture.fused_projections;
  KVART_RETURN_IF_ERROR(reader.norm(prefix + "attn_norm.weight", hidden, &layer->attention_norm));
  KVART_RETURN_IF_ERROR(read_projections(reader, config, fused, prefix, layer));
  if (architecture.head_norms) {
    const int64_t size = config.head_dim;
    KVART_RETURN_IF_ERROR(reader.norm(prefix + "attn_q_norm.weight", size, &layer->q_norm));
    KVART_RETURN_IF_ERROR(reader.norm(prefix + "attn_k_norm.weight", size, &layer->k_norm));
  }
  const int64_t q_size = static_cast<int64_t>(config.q_heads) * config.head_dim;
  KVART_RETURN_IF_ERROR(
      reader.matrix(prefix + "attn_output.weight", hidden, q_size, &layer->attention_output));
  KVART_RETURN_IF_ERROR(reader.norm(prefix + "ffn_norm.weight", hidden, &layer->ffn_norm));
  if (architecture.post_norms) {
    KVART_RETURN_IF_ERROR(
        reader.norm(prefix + "post_attention_norm.weight", hidden, &layer->post_attention_norm));
    KVART_RETURN_IF_ERROR(
        reader.norm(prefix + "post_ffw_norm.weight", hidden, &layer->post_ffn_norm));
  }
  if (architecture.mixture) return read_experts(reader, config, prefix, layer);
  return read_feed_forward(reader, config, fused, prefix, layer);
}

// A tied model may hold its embedding a second time; another matrix there would be ignored.
Status read_output(TensorReader& reader, const TensorTable& tensors, const ModelConfig& config,
                   Weights* weights) {
  const std::string name = "output.weight";
  weights->tied = config.tied_embeddings;
  if (!weights->tied) return reader.matrix(name, config.vocab, config.hidden, &weights->output);
  const StoredTensor* output = tensors.find(name);
  if (output == nullptr) return {};
  const StoredTensor* embedding = tensors.find("token_embd.weight");
  const bool same =
      output->type == embedding->type && output->data.size() == embedding->data.size() &&
      std::memcmp(output->data.data(), embedding->data.data(), output->data.size()) == 0;
  if (same) {
    reader.mark_read(name);
    return {};
  }
  return Error{ErrorCode::invalid_file,
               output->place +
                   " differs from the embedding, but the config says that both are one "
                   "(tie_word_embeddings)"};
}

}  // namespace

uint64_t Weights::bytes() const {
  uint64_t total =
      embedding.bytes() + (tied ? 0 : output.bytes()) + sizeof(float) * output_norm.size();
  for (const LayerWeights& layer : layers) {
    for (const PackedMatrix* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.attention_output, &layer.router}) {
      total += matrix->bytes();
    }
    for (const FeedForward& expert : layer.experts) {
      total += expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
    }
    for (const auto* vector :
         {&layer.attention_norm, &layer.q_bias, &layer.k_bias, &layer.v_bias, &layer.q_norm,
          &layer.k_norm, &layer.post_attention_norm, &layer.ffn_norm, &layer.post_ffn_norm}) {
      total += sizeof(float) * vector->size();
    }
  }
  return total;
}

Result<Weights> read_weights(const TensorTable& tensors, const ModelConfig& config,
                             const Architecture& architecture, bool norms_plus_one,
                             ThreadPool* pool) {
  KVART_RETURN_IF_ERROR(check_memory(tensors, config));
  TensorReader reader(tensors, config, norms_plus_one, pool);
  // Their values are in config.rope_scaling.
  for (const char* name :
       {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}) {
    reader.mark_read(name);
  }
  Weights weights;
  KVART_RETURN_IF_ERROR(
      reader.matrix("token_embd.weight", config.vocab, config.hidden, &weights.embedding));
  KVART_RETURN_IF_ERROR(reader.norm("output_norm.weight", config.hidden, &weights.output_norm));
  KVART_RETURN_IF_ERROR(read_output(reader, tensors, config, &weights));
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i) {
    KVART_RETURN_IF_ERROR(
        read_layer(reader, config, architecture, i, &weights.layers[static_cast<size_t>(i)]));
  }
  KVART_RETURN_IF_ERROR(reader.check_all_read());
  return weights;
}

}  // namespace kvart
