// Matrix products on the device, by cuBLASLt: bf16 in, sums in f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <map>

#include "kvart/result.h"
#include "model/cuda/cublas_lt.h"
#include "model/cuda/device_buffer.h"

namespace kvart::cuda {

// [rows][columns]
struct DeviceMatrix {
  const __nv_bfloat16* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
};

class Products {
 public:
  Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  ~Products();
  Status init();

  // y = x · weights^T (+ y if `adds`), x: [rows][weights.columns], y: [rows][weights.rows].
  // When a shape comes for the first time, the ways that cuBLASLt proposes are timed.
  void multiply(const DeviceMatrix& weights, const __nv_bfloat16* x, int rows, bool adds, float* y,
                cudaStream_t stream);
  void multiply(const DeviceMatrix& weights, const __nv_bfloat16* x, int rows, __nv_bfloat16* y,
                cudaStream_t stream);

 private:
  struct Shape {
    int64_t outputs;
    int64_t inputs;
    int rows;
    bool adds;
    cudaDataType type;
    auto operator<=>(const Shape&) const = default;
  };
  struct Choice {
    cublasLtMatrixLayout_t weights = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };

  const Choice& choose(const Shape& shape, const DeviceMatrix& weights, const __nv_bfloat16* x,
                       cudaStream_t stream);
  void set_layouts(const Shape& shape, Choice* choice);
  // Milliseconds of some products; into memory that nobody reads.
  float time_ms(const Choice& choice, const DeviceMatrix& weights, const __nv_bfloat16* x, void* y,
                cudaStream_t stream);
  void run(const Shape& shape, const DeviceMatrix& weights, const __nv_bfloat16* x, void* y,
           cudaStream_t stream);

  CublasLt lt_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  DeviceBuffer<uint8_t> workspace_;
  std::map<Shape, Choice> choices_;
};

}  // namespace kvart::cuda
