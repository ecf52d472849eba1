// Reads tensors by name, checks their shapes, and keeps count of what was read.
#include "model/weights.h"

#include <unistd.h>

#include <set>

#include "model/file/weight_blocks.h"

namespace kvart {

namespace {

Error wrong(std::string message) {
  return Error{ErrorCode::invalid_file, std::move(message)};
}

// Reads tensors by name and keeps count of what was read.
class TensorReader {
 public:
  TensorReader(const GgufFile& file, ThreadPool* pool) : file_(file), pool_(pool) {}

  [[nodiscard]] bool has(const std::string& name) const {
    return file_.find_tensor(name) != nullptr;
  }

  Status matrix(const std::string& name, int64_t rows, int64_t columns, PackedMatrix* out) {
    auto tensor = find(name, rows, columns);
    if (!tensor) return tensor.error();
    auto packed = PackedMatrix::pack((*tensor)->type, rows, columns, (*tensor)->data, pool_);
    if (!packed)
      return Error{packed.error().code,
                   file_.name() + ": tensor " + name + ": " + packed.error().message};
    *out = std::move(packed).value();
    return {};
  }

  Status vector(const std::string& name, int64_t count, std::vector<float>* out) {
    auto tensor = find(name, 1, count);
    if (!tensor) return tensor.error();
    out->resize(static_cast<size_t>(count));
    decode_weights((*tensor)->type, (*tensor)->data.data(), count, out->data());
    return {};
  }

  Status optional_vector(const std::string& name, int64_t count, std::vector<float>* out) {
    return has(name) ? vector(name, count, out) : Status();
  }

  // Error: the file holds a tensor that was not read.
  [[nodiscard]] Status check_all_read() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (!read_.contains(tensor.name)) {
        return Error{ErrorCode::unsupported,
                     file_.name() + ": tensor " + tensor.name +
                         " has no use in this architecture as Kvart knows it; running without "
                         "it would give wrong answers"};
      }
    }
    return {};
  }

 private:
  Result<const GgufTensor*> find(const std::string& name, int64_t rows, int64_t columns) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) return wrong(file_.name() + ": tensor " + name + " is missing");
    const auto& dims = tensor->dims;
    if (dims[0] != columns || dims[1] != rows || dims[2] != 1 || dims[3] != 1) {
      return wrong(file_.name() + ": tensor " + name + " has shape [" + std::to_string(dims[0]) +
                   ", " + std::to_string(dims[1]) + ", " + std::to_string(dims[2]) + ", " +
                   std::to_string(dims[3]) + "], its header asks for [" + std::to_string(columns) +
                   ", " + std::to_string(rows) + "]");
    }
    read_.insert(name);
    return tensor;
  }

  const GgufFile& file_;
  ThreadPool* pool_;
  std::set<std::string> read_;
};

Status read_layer(TensorReader& reader, const ModelConfig& config, int index, LayerWeights* layer) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t hidden = config.hidden;
  const int64_t q_size = static_cast<int64_t>(config.q_heads) * config.head_dim;
  const int64_t kv_size = static_cast<int64_t>(config.kv_heads) * config.head_dim;
  KVART_RETURN_IF_ERROR(reader.vector(prefix + "attn_norm.weight", hidden, &layer->attention_norm));
  KVART_RETURN_IF_ERROR(reader.matrix(prefix + "attn_q.weight", q_size, hidden, &layer->q));
  KVART_RETURN_IF_ERROR(reader.matrix(prefix + "attn_k.weight", kv_size, hidden, &layer->k));
  KVART_RETURN_IF_ERROR(reader.matrix(prefix + "attn_v.weight", kv_size, hidden, &layer->v));
  KVART_RETURN_IF_ERROR(reader.optional_vector(prefix + "attn_q.bias", q_size, &layer->q_bias));
  KVART_RETURN_IF_ERROR(reader.optional_vector(prefix + "attn_k.bias", kv_size, &layer->k_bias));
  KVART_RETURN_IF_ERROR(reader.optional_vector(prefix + "attn_v.bias", kv_size, &layer->v_bias));
  KVART_RETURN_IF_ERROR(
      reader.matrix(prefix + "attn_output.weight", hidden, q_size, &layer->attention_output));
  KVART_RETURN_IF_ERROR(reader.vector(prefix + "ffn_norm.weight", hidden, &layer->ffn_norm));
  KVART_RETURN_IF_ERROR(
      reader.matrix(prefix + "ffn_gate.weight", config.ffn, hidden, &layer->gate));
  KVART_RETURN_IF_ERROR(reader.matrix(prefix + "ffn_up.weight", config.ffn, hidden, &layer->up));
  return reader.matrix(prefix + "ffn_down.weight", hidden, config.ffn, &layer->down);
}

// Refuses what can't work before minutes are spent on it.
Status check_memory(const GgufFile& file) {
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t weights = 0;
  for (const GgufTensor& tensor : file.tensors()) weights += tensor.size_bytes;
  if (weights <= memory) return {};
  return Error{ErrorCode::out_of_memory,
               file.name() + ": the weights take " + std::to_string(weights) +
                   " bytes and this machine has " + std::to_string(memory) +
                   " bytes of memory; use a smaller model"};
}

}  // namespace

uint64_t Weights::bytes() const {
  uint64_t total =
      embedding.bytes() + (tied ? 0 : output.bytes()) + sizeof(float) * output_norm.size();
  for (const LayerWeights& layer : layers) {
    for (const PackedMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.attention_output,
                                       &layer.gate, &layer.up, &layer.down}) {
      total += matrix->bytes();
    }
    total += sizeof(float) * (layer.attention_norm.size() + layer.ffn_norm.size());
  }
  return total;
}

Result<Weights> read_weights(const GgufFile& file, const ModelConfig& config, ThreadPool* pool) {
  KVART_RETURN_IF_ERROR(check_memory(file));
  TensorReader reader(file, pool);
  Weights weights;
  KVART_RETURN_IF_ERROR(
      reader.matrix("token_embd.weight", config.vocab, config.hidden, &weights.embedding));
  KVART_RETURN_IF_ERROR(reader.vector("output_norm.weight", config.hidden, &weights.output_norm));
  weights.tied = !reader.has("output.weight");
  if (!weights.tied) {
    KVART_RETURN_IF_ERROR(
        reader.matrix("output.weight", config.vocab, config.hidden, &weights.output));
  }
  KVART_RETURN_IF_ERROR(
      reader.optional_vector("rope_freqs.weight", config.rope_dim / 2, &weights.rope_factors));
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i) {
    KVART_RETURN_IF_ERROR(read_layer(reader, config, i, &weights.layers[i]));
  }
  KVART_RETURN_IF_ERROR(reader.check_all_read());
  return weights;
}

}  // namespace kvart
