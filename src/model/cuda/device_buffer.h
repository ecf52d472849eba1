// Memory of the device, and pinned memory of the host, that end with their owner.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "attention/cuda/cuda_status.h"
#include "base/check.h"

namespace kvart::cuda {

// Of calls that only fail when the device is lost: nothing can be computed then.
inline void check(cudaError_t error, const char* what) {
  KVART_CHECK(error == cudaSuccess, "CUDA: %s: %s", what, cudaGetErrorString(error));
}

enum class MemoryKind { device, pinned };

template <class T, MemoryKind kind>
class CudaBuffer {
 public:
  CudaBuffer() = default;
  CudaBuffer(CudaBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  CudaBuffer& operator=(CudaBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  ~CudaBuffer() {
    if (data_ == nullptr) return;
    if constexpr (kind == MemoryKind::device) {
      cudaFree(data_);
    } else {
      cudaFreeHost(data_);
    }
  }

  // In place of what it has. Error out_of_memory: it has nothing.
  Status allocate(size_t count, const char* what) {
    *this = CudaBuffer();
    if (count == 0) return {};
    void* memory = nullptr;
    const size_t bytes = count * sizeof(T);
    const cudaError_t error = kind == MemoryKind::device
                                  ? cudaMalloc(&memory, bytes)
                                  : cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // else the next launch would report it
      return Error{ErrorCode::out_of_memory,
                   std::string("the GPU has no ") + std::to_string(bytes) + " bytes for " + what};
    }
    KVART_RETURN_IF_ERROR(status_of(error, what));
    data_ = static_cast<T*>(memory);
    size_ = count;
    return {};
  }

  // The memory is the caller's then.
  [[nodiscard]] T* release() {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

template <class T>
using DeviceBuffer = CudaBuffer<T, MemoryKind::device>;
template <class T>
using PinnedBuffer = CudaBuffer<T, MemoryKind::pinned>;

}  // namespace kvart::cuda
