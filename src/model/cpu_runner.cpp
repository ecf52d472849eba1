// Steps on the CPU: a pool of threads, Attention and ForwardPass.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/forward.h"
#include "model/step_runner.h"

namespace kvart {

namespace {

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

class CpuRunner final : public StepRunner {
 public:
  explicit CpuRunner(int threads) : pool_(threads) {}

  Status init(const LoadedModel& model, const SessionOptions& options, KvCache* cache) {
    auto attention = Attention::create(cache, model.isa(), &pool_, options.max_step_tokens,
                                       model.config().q_heads, options.error_sample_interval);
    if (!attention) return attention.error();
    attention_ = std::move(attention).value();
    auto forward = ForwardPass::create(model, attention_.get(), &pool_, options.max_step_tokens,
                                       options.context_tokens);
    if (!forward) return forward.error();
    forward_ = std::move(forward).value();
    // A step that has taken places in the cache must come to its end, so it needs no memory then.
    finite_.reserve(static_cast<size_t>(options.max_step_tokens));
    return {};
  }

  [[nodiscard]] bool reserve_logits(int64_t rows) override {
    return forward_->reserve_logits(rows);
  }
  std::span<const float> run(std::span<const SequenceStep> steps, std::span<const int32_t> tokens,
                             std::span<const int32_t> positions,
                             std::span<const int> wanted) override {
    attention_->plan(steps);
    const std::span<const float> logits = forward_->run(tokens, positions, wanted);
    const size_t vocab = wanted.empty() ? 0 : logits.size() / wanted.size();
    finite_.resize(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      finite_[i] = all_finite(logits.subspan(i * vocab, vocab)) ? 1 : 0;
    }
    return logits;
  }
  [[nodiscard]] std::span<const uint8_t> finite() const override { return finite_; }
  [[nodiscard]] std::span<const uint8_t> failed() const override { return attention_->failed(); }
  [[nodiscard]] std::span<const LayerError> errors() const override { return attention_->errors(); }

 private:
  ThreadPool pool_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<ForwardPass> forward_;
  std::vector<uint8_t> finite_;
};

class CpuDevice final : public SessionDevice {
 public:
  [[nodiscard]] const CacheMemory& memory() const override { return system_memory(); }
  Result<std::unique_ptr<DeviceCopy>> copy_weights(const LoadedModel& /*model*/,
                                                   int /*threads*/) override {
    return std::unique_ptr<DeviceCopy>();
  }
  Result<std::unique_ptr<StepRunner>> create_runner(const LoadedModel& model,
                                                    const SessionOptions& options,
                                                    KvCache* cache) override {
    auto runner = std::make_unique<CpuRunner>(options.threads);
    KVART_RETURN_IF_ERROR(runner->init(model, options, cache));
    return std::unique_ptr<StepRunner>(std::move(runner));
  }
};

}  // namespace

Result<std::unique_ptr<SessionDevice>> session_device(Device device) {
  if (device == Device::cuda) return cuda_session_device();
  return std::unique_ptr<SessionDevice>(std::make_unique<CpuDevice>());
}

}  // namespace kvart
