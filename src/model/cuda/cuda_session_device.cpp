// A GPU as what sessions run on: one stream for each session, whose order is that of copies and
// steps.
#include "attention/cuda_attention.h"
#include "model/cuda/cuda_runner.h"

namespace kvart {

namespace {

using namespace cuda;

class DeviceCacheMemory final : public CacheMemory {
 public:
  explicit DeviceCacheMemory(cudaStream_t stream) : stream_(stream) {}

  [[nodiscard]] Result<Arena> take(size_t bytes) const override {
    if (bytes == 0) return Arena();
    DeviceBuffer<uint8_t> buffer;
    KVART_RETURN_IF_ERROR(buffer.allocate(bytes, "the cache; give it less memory"));
    check(cudaMemsetAsync(buffer.data(), 0, bytes, stream_), "the cache");
    return Arena(buffer.release(), bytes, [](uint8_t* data, size_t) { cudaFree(data); });
  }
  void copy(uint8_t* to, const uint8_t* from, size_t bytes) const override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying a block");
  }
  void read(uint8_t* to, const uint8_t* from, size_t bytes) const override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "reading a block");
    check(cudaStreamSynchronize(stream_), "reading a block");
  }
  void write(uint8_t* to, const uint8_t* from, size_t bytes) const override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "writing a block");
    check(cudaStreamSynchronize(stream_), "writing a block");
  }

 private:
  cudaStream_t stream_;
};

class CudaSessionDevice final : public SessionDevice {
 public:
  explicit CudaSessionDevice(cudaStream_t stream) : stream_(stream), memory_(stream) {}
  ~CudaSessionDevice() override { cudaStreamDestroy(stream_); }

  [[nodiscard]] const CacheMemory& memory() const override { return memory_; }
  Result<std::unique_ptr<DeviceCopy>> copy_weights(const LoadedModel& model, int threads) override {
    return DeviceWeights::create(model, threads);
  }
  Result<std::unique_ptr<StepRunner>> create_runner(const LoadedModel& model,
                                                    const SessionOptions& options,
                                                    KvCache* cache) override {
    auto runner = std::make_unique<CudaRunner>(model, options, cache, stream_);
    KVART_RETURN_IF_ERROR(runner->init());
    return std::unique_ptr<StepRunner>(std::move(runner));
  }

 private:
  cudaStream_t stream_;
  DeviceCacheMemory memory_;
};

}  // namespace

Result<std::unique_ptr<SessionDevice>> cuda_session_device() {
  const Result<CudaDevice> device = cuda_device();
  if (!device) return device.error();
  cudaStream_t stream = nullptr;
  KVART_RETURN_IF_ERROR(status_of(cudaStreamCreate(&stream), "a stream"));
  return std::unique_ptr<SessionDevice>(std::make_unique<CudaSessionDevice>(stream));
}

}  // namespace kvart
