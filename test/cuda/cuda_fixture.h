// What the tests of the GPU share: the test cache in the device's memory, and an Attention that
// sends what it is given to the device, so that the fixture of the CPU's tests drives it.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/attention_fixture.h"
#include "attention/cuda_attention.h"
#include "base/half.h"

namespace kvart {

inline void cuda_ok(cudaError_t error) {
  KVART_CHECK(error == cudaSuccess, "%s", cudaGetErrorString(error));
}

// Skips where there is no device.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<CudaDevice> device = cuda_device();
    if (!device.ok()) GTEST_SKIP() << device.error().message;
  }
};

// An array in the device's memory, poisoned at first.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    cuda_ok(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()));
    cuda_ok(cudaMemset(data_, 0xff, bytes()));
  }
  explicit DeviceArray(std::span<const T> from) : DeviceArray(from.size()) {
    cuda_ok(cudaMemcpy(data_, from.data(), from.size_bytes(), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    cuda_ok(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  [[nodiscard]] size_t bytes() const { return std::max<size_t>(1, count_ * sizeof(T)); }

  size_t count_;
  T* data_ = nullptr;
};

class DeviceBlockMemory final : public BlockMemory {
 public:
  uint8_t* take(size_t bytes) override {
    return arrays_.emplace_back(std::make_unique<DeviceArray<uint8_t>>(bytes))->data();
  }
  void poison(uint8_t* at, size_t bytes) override { cuda_ok(cudaMemset(at, 0xff, bytes)); }

 private:
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> arrays_;
};

// Floats as the given type, and back.
inline std::vector<uint8_t> to_elements(Element type, std::span<const float> x) {
  std::vector<uint8_t> bytes(x.size() * (type == Element::f32 ? 4 : 2));
  if (type == Element::f32) std::memcpy(bytes.data(), x.data(), bytes.size());
  for (size_t i = 0; type != Element::f32 && i < x.size(); ++i) {
    const uint16_t half = type == Element::f16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

inline void from_elements(Element type, std::span<const uint8_t> bytes, float* out) {
  if (type == Element::f32) std::memcpy(out, bytes.data(), bytes.size());
  for (size_t i = 0; type != Element::f32 && i < bytes.size() / 2; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    out[i] = type == Element::f16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
}

// Takes and gives the host's floats.
class HostSideAttention final : public Attention {
 public:
  HostSideAttention(KvCache* cache, const CudaLimits& limits, CudaKernels kernels, Element kv,
                    Element q)
      : cache_(cache),
        kv_(kv),
        q_(q),
        workspace_(
            CudaAttention::workspace_bytes(cache->page_layout(), limits, cuda_device().value())) {
    auto made = CudaAttention::create(cache, limits, workspace_.data(), kernels);
    KVART_CHECK(made.ok(), "%s", made.ok() ? "" : made.error().message.c_str());
    cuda_ = std::move(made).value();
  }

  void plan(std::span<const SequenceStep> steps) override {
    rows_ = 0;
    for (const SequenceStep& step : steps) rows_ += step.count;
    failed_.resize(steps.size());
    check(cuda_->plan(steps, nullptr));
  }
  void append(int layer, const float* k, const float* v) override {
    const LayerShape& shape = cache_->page_layout().shape(layer);
    const auto values = static_cast<size_t>(rows_) * shape.kv_heads * shape.head_dim;
    const DeviceArray<uint8_t> device_k(to_elements(kv_, {k, values}));
    const DeviceArray<uint8_t> device_v(to_elements(kv_, {v, values}));
    check(cuda_->append(layer, kv_, device_k.data(), device_v.data(), nullptr));
    check(cuda_->failed(failed_, nullptr));
  }
  void attend(int layer, const AttentionParams& params, const float* q, float* out) override {
    const size_t values =
        static_cast<size_t>(rows_) * params.q_heads * cache_->page_layout().shape(layer).head_dim;
    const std::vector<uint8_t> bytes = to_elements(q_, {q, values});
    const DeviceArray<uint8_t> device_q{std::span(bytes)};
    const DeviceArray<uint8_t> device_out(bytes.size());
    check(cuda_->attend(layer, params, q_, device_q.data(), device_out.data(), nullptr));
    from_elements(q_, device_out.read(), out);
  }
  [[nodiscard]] std::span<const uint8_t> failed() const override { return failed_; }
  [[nodiscard]] std::span<const LayerError> errors() const override { return {}; }
  [[nodiscard]] CudaAttention& cuda() { return *cuda_; }

 private:
  static void check(const Status& status) {
    KVART_CHECK(status.ok(), "%s", status.ok() ? "" : status.error().message.c_str());
  }

  KvCache* cache_;
  Element kv_;
  Element q_;
  int rows_ = 0;
  DeviceArray<uint8_t> workspace_;
  std::unique_ptr<CudaAttention> cuda_;
  std::vector<uint8_t> failed_;
};

// A runner on the device, and what it runs. Steps beyond one block must be speculative.
struct CudaRunner {
  HostSideAttention* attention = nullptr;
  std::unique_ptr<AttentionRunner> runner;

  CudaRunner(const AttentionCase& c, int max_rows, CudaKernels kernels, Element kv = Element::f32,
             Element q = Element::f16) {
    auto cache = std::make_unique<VectorKvCache>(c.layers, c.formats, c.sink_blocks,
                                                 std::make_unique<DeviceBlockMemory>());
    CudaLimits limits;
    limits.max_steps = std::min(max_rows, 64);
    limits.max_rows = max_rows;
    limits.max_blocks = 1 << 14;
    for (const LayerShape& shape : c.layers) {
      limits.max_q_heads = std::max(limits.max_q_heads, shape.kv_heads * c.group);
    }
    auto made = std::make_unique<HostSideAttention>(cache.get(), limits, kernels, kv, q);
    attention = made.get();
    runner = std::make_unique<AttentionRunner>(c, std::move(cache), std::move(made));
  }
};

// As AttentionRunner::sealed_bytes(), of a cache on the device.
inline std::vector<uint8_t> device_sealed_bytes(KvCache& cache, SequenceId id) {
  std::vector<uint8_t> bytes;
  const PageLayout& layout = cache.page_layout();
  for (int layer = 0; layer < layout.layers(); ++layer) {
    const int group = layout.group(layer);
    const int d = layout.shape(layer).head_dim;
    for (const BlockPlace& place : cache.blocks(id, group)) {
      if (place.page < 0) continue;
      std::vector<uint8_t> page(layout.block_bytes(group));
      cuda_ok(cudaMemcpy(page.data(), cache.page(group, place.page), page.size(),
                         cudaMemcpyDeviceToHost));
      for (int head = 0; head < layout.shape(layer).kv_heads; ++head) {
        const auto k = page.begin() + static_cast<ptrdiff_t>(layout.k(layer, head).codes);
        const auto v = page.begin() + static_cast<ptrdiff_t>(layout.v(layer, head).codes);
        bytes.insert(bytes.end(), k, k + layout.formats(layer).k->side_bytes(d));
        bytes.insert(bytes.end(), v, v + layout.formats(layer).v->side_bytes(d));
      }
    }
  }
  return bytes;
}

// Random values, with queries that f16 and bf16 hold.
inline SequenceData cuda_sequence(const AttentionCase& c, int64_t tokens, uint64_t seed) {
  SequenceData data = random_sequence(c, tokens, seed);
  for (std::vector<float>& layer : data.q) {
    for (float& x : layer) x = bf16_to_f32(f32_to_bf16(x));
  }
  return data;
}

}  // namespace kvart
