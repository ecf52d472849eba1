// Decodes rows on the CPU and sends them piece by piece.
#include "model/cuda/device_weights.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>

#include "base/half.h"
#include "base/thread_pool.h"

namespace kvart::cuda {

namespace {

constexpr size_t piece_values = size_t{16} << 20;
constexpr size_t alignment = 128;  // values

size_t rounded(size_t count) {
  return (count + alignment - 1) / alignment * alignment;
}

size_t values_of(const PackedMatrix& matrix) {
  return static_cast<size_t>(matrix.rows()) * static_cast<size_t>(matrix.columns());
}

Status check_runnable(const LoadedModel& model) {
  const ModelConfig& config = model.config();
  if (!model.architecture().mixture) return {};
  return Error{
      ErrorCode::unsupported,
      config.source + ": mixtures of experts don't run on the GPU yet; leave --device out"};
}

}  // namespace

// Matrices and vectors one after the other: first counted, then sent.
class WeightUpload {
 public:
  WeightUpload(DeviceWeights* to, int threads) : to_(to), pool_(threads) {}
  Status init(size_t matrix_values, size_t vector_values) {
    KVART_RETURN_IF_ERROR(to_->matrices_.allocate(matrix_values, "the model's weights in 16 bits"));
    KVART_RETURN_IF_ERROR(to_->vectors_.allocate(vector_values, "the model's vectors"));
    for (Piece& piece : pieces_) {
      KVART_RETURN_IF_ERROR(piece.values.allocate(piece_values, "sending weights"));
      KVART_RETURN_IF_ERROR(status_of(cudaEventCreateWithFlags(&piece.sent, cudaEventDisableTiming),
                                      "sending weights"));
    }
    return {};
  }
  ~WeightUpload() {
    for (Piece& piece : pieces_) {
      if (piece.sent != nullptr) cudaEventDestroy(piece.sent);
    }
  }

  // Their rows below each other.
  DeviceMatrix matrix(std::initializer_list<const PackedMatrix*> parts) {
    DeviceMatrix made{to_->matrices_.data() + matrix_end_, 0, (*parts.begin())->columns()};
    size_t at = matrix_end_;
    for (const PackedMatrix* part : parts) {
      send_rows(*part, at);
      at += values_of(*part);
      made.rows += part->rows();
    }
    matrix_end_ = rounded(at);
    return made;
  }

  // Below each other; null where all are empty.
  const float* vector(std::initializer_list<const std::vector<float>*> parts) {
    const size_t begin = vector_end_;
    for (const std::vector<float>* part : parts) {
      if (part->empty()) continue;
      check(cudaMemcpy(to_->vectors_.data() + vector_end_, part->data(),
                       part->size() * sizeof(float), cudaMemcpyHostToDevice),
            "sending vectors");
      vector_end_ += part->size();
    }
    if (vector_end_ == begin) return nullptr;
    vector_end_ = rounded(vector_end_);
    return to_->vectors_.data() + begin;
  }

 private:
  struct Piece {
    PinnedBuffer<uint16_t> values;
    cudaEvent_t sent = nullptr;
  };

  void send_rows(const PackedMatrix& matrix, size_t at) {
    const auto columns = static_cast<size_t>(matrix.columns());
    const auto rows_at_a_time = static_cast<int64_t>(std::max<size_t>(1, piece_values / columns));
    for (int64_t row = 0; row < matrix.rows(); row += rows_at_a_time) {
      const int64_t count = std::min(rows_at_a_time, matrix.rows() - row);
      Piece& piece = pieces_[next_++ % pieces_.size()];
      check(cudaEventSynchronize(piece.sent), "sending weights");
      decode(matrix, row, count, piece.values.data());
      check(cudaMemcpyAsync(to_->matrices_.data() + at + static_cast<size_t>(row) * columns,
                            piece.values.data(), static_cast<size_t>(count) * columns * 2,
                            cudaMemcpyHostToDevice, nullptr),
            "sending weights");
      check(cudaEventRecord(piece.sent, nullptr), "sending weights");
    }
  }

  void decode(const PackedMatrix& matrix, int64_t first, int64_t count, uint16_t* to) {
    const auto columns = static_cast<size_t>(matrix.columns());
    constexpr int64_t slice = 16;
    pool_.run(static_cast<int>((count + slice - 1) / slice), [&](int index, int /*thread*/) {
      std::vector<float> row(columns);
      const int64_t end = std::min(count, (index + 1) * slice);
      for (int64_t i = index * slice; i < end; ++i) {
        matrix.decode_row(first + i, row.data());
        uint16_t* out = to + static_cast<size_t>(i) * columns;
        for (size_t c = 0; c < columns; ++c) out[c] = f32_to_bf16(row[c]);
      }
    });
  }

  DeviceWeights* to_;
  ThreadPool pool_;
  std::array<Piece, 2> pieces_;
  size_t next_ = 0;
  size_t matrix_end_ = 0;
  size_t vector_end_ = 0;
};

namespace {

// What all matrices and vectors take.
struct Counts {
  size_t matrix_values = 0;
  size_t vector_values = 0;

  void add(std::initializer_list<const PackedMatrix*> parts) {
    size_t values = 0;
    for (const PackedMatrix* part : parts) values += values_of(*part);
    matrix_values += rounded(values);
  }
  void add(std::initializer_list<const std::vector<float>*> parts) {
    size_t values = 0;
    for (const std::vector<float>* part : parts) values += part->size();
    vector_values += rounded(values);
  }
};

Counts count(const Weights& weights) {
  Counts counts;
  counts.add({&weights.embedding});
  if (!weights.tied) counts.add({&weights.output});
  counts.add({&weights.output_norm});
  for (const LayerWeights& layer : weights.layers) {
    const FeedForward& ffn = layer.experts[0];
    counts.add({&layer.q, &layer.k, &layer.v});
    counts.add({&layer.attention_output});
    counts.add({&ffn.gate, &ffn.up});
    counts.add({&ffn.down});
    counts.add({&layer.attention_norm});
    counts.add({&layer.ffn_norm});
    counts.add({&layer.q_bias, &layer.k_bias, &layer.v_bias});
    for (const std::vector<float>* one :
         {&layer.q_norm, &layer.k_norm, &layer.post_attention_norm, &layer.post_ffn_norm}) {
      counts.add({one});
    }
  }
  return counts;
}

DeviceLayer send_layer(const LayerWeights& layer, WeightUpload& upload) {
  const FeedForward& ffn = layer.experts[0];
  DeviceLayer to{};
  to.qkv = upload.matrix({&layer.q, &layer.k, &layer.v});
  to.attention_output = upload.matrix({&layer.attention_output});
  to.gate_up = upload.matrix({&ffn.gate, &ffn.up});
  to.down = upload.matrix({&ffn.down});
  to.attention_norm = upload.vector({&layer.attention_norm});
  to.ffn_norm = upload.vector({&layer.ffn_norm});
  to.qkv_bias = upload.vector({&layer.q_bias, &layer.k_bias, &layer.v_bias});
  to.q_norm = upload.vector({&layer.q_norm});
  to.k_norm = upload.vector({&layer.k_norm});
  to.post_attention_norm = upload.vector({&layer.post_attention_norm});
  to.post_ffn_norm = upload.vector({&layer.post_ffn_norm});
  return to;
}

}  // namespace

Result<std::unique_ptr<DeviceCopy>> DeviceWeights::create(const LoadedModel& model, int threads) {
  KVART_RETURN_IF_ERROR(check_runnable(model));
  const Weights& weights = model.weights();
  const Counts counts = count(weights);
  auto made = std::make_unique<DeviceWeights>();
  WeightUpload upload(made.get(), threads);
  KVART_RETURN_IF_ERROR(upload.init(counts.matrix_values, counts.vector_values));
  made->embedding = upload.matrix({&weights.embedding});
  made->output = weights.tied ? made->embedding : upload.matrix({&weights.output});
  made->output_norm = upload.vector({&weights.output_norm});
  for (const LayerWeights& layer : weights.layers) {
    made->layers.push_back(send_layer(layer, upload));
  }
  KVART_RETURN_IF_ERROR(status_of(cudaDeviceSynchronize(), "sending weights"));
  return std::unique_ptr<DeviceCopy>(std::move(made));
}

}  // namespace kvart::cuda
