// Row-major rows are columns to cuBLASLt: it computes y^T = weights · x^T.
#include "model/cuda/products.h"

#include <array>
#include <limits>

namespace kvart::cuda {

namespace {

constexpr size_t workspace_bytes = size_t{32} << 20;

void check(cublasStatus_t status, const char* what) {
  KVART_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: %s: status %d", what,
              static_cast<int>(status));
}

}  // namespace

Products::~Products() {
  for (auto& [shape, choice] : choices_) {
    for (const cublasLtMatrixLayout_t layout : {choice.weights, choice.x, choice.y}) {
      lt_.MatrixLayoutDestroy(layout);
    }
  }
  if (operation_ != nullptr) lt_.MatmulDescDestroy(operation_);
  if (handle_ != nullptr) lt_.Destroy(handle_);
}

Status Products::init() {
  auto library = CublasLt::load();
  if (!library) return library.error();
  lt_ = *library;
  if (lt_.Create(&handle_) != CUBLAS_STATUS_SUCCESS) {
    return Error{ErrorCode::unsupported, "cuBLASLt can't be set up on this GPU"};
  }
  check(lt_.MatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(lt_.MatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                   sizeof transposed),
        "operation");
  return workspace_.allocate(workspace_bytes, "the workspace of matrix products");
}

float Products::time_ms(const Choice& choice, const DeviceMatrix& weights, const __nv_bfloat16* x,
                        void* y, cudaStream_t stream) {
  constexpr int rounds = 5;
  const float one = 1;
  const float none = 0;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cuda::check(cudaEventCreate(&begin), "timing");
  cuda::check(cudaEventCreate(&end), "timing");
  bool works = true;
  for (int i = 0; i <= rounds; ++i) {
    if (i == 1) cuda::check(cudaEventRecord(begin, stream), "timing");  // after a first one
    works =
        works && lt_.Matmul(handle_, operation_, &one, weights.data, choice.weights, x, choice.x,
                            &none, y, choice.y, y, choice.y, &choice.algorithm, workspace_.data(),
                            workspace_bytes, stream) == CUBLAS_STATUS_SUCCESS;
  }
  cuda::check(cudaEventRecord(end, stream), "timing");
  cuda::check(cudaEventSynchronize(end), "timing");
  float ms = 0;
  cuda::check(cudaEventElapsedTime(&ms, begin, end), "timing");
  cuda::check(cudaEventDestroy(begin), "timing");
  cuda::check(cudaEventDestroy(end), "timing");
  return works ? ms : std::numeric_limits<float>::infinity();
}

void Products::set_layouts(const Shape& shape, Choice* choice) {
  const auto inputs = static_cast<uint64_t>(shape.inputs);
  const auto outputs = static_cast<uint64_t>(shape.outputs);
  const auto rows = static_cast<uint64_t>(shape.rows);
  check(lt_.MatrixLayoutCreate(&choice->weights, CUDA_R_16BF, inputs, outputs, shape.inputs),
        "layout");
  check(lt_.MatrixLayoutCreate(&choice->x, CUDA_R_16BF, inputs, rows, shape.inputs), "layout");
  check(lt_.MatrixLayoutCreate(&choice->y, shape.type, outputs, rows, shape.outputs), "layout");
}

const Products::Choice& Products::choose(const Shape& shape, const DeviceMatrix& weights,
                                         const __nv_bfloat16* x, cudaStream_t stream) {
  const auto found = choices_.find(shape);
  if (found != choices_.end()) return found->second;
  Choice choice;
  set_layouts(shape, &choice);
  cublasLtMatmulPreference_t preference = nullptr;
  check(lt_.MatmulPreferenceCreate(&preference), "preference");
  check(lt_.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace_bytes, sizeof workspace_bytes),
        "preference");
  std::array<cublasLtMatmulHeuristicResult_t, 8> results{};
  int count = 0;
  check(lt_.MatmulAlgoGetHeuristic(handle_, operation_, choice.weights, choice.x, choice.y,
                                   choice.y, preference, static_cast<int>(results.size()),
                                   results.data(), &count),
        "choosing");
  check(lt_.MatmulPreferenceDestroy(preference), "preference");
  KVART_CHECK(count >= 1, "no product of %d rows with a %lld x %lld matrix", shape.rows,
              static_cast<long long>(shape.outputs), static_cast<long long>(shape.inputs));
  choice.algorithm = results[0].algo;
  // y itself may be added to: it is not for trying.
  DeviceBuffer<float> scratch;
  const size_t values = static_cast<size_t>(shape.outputs) * static_cast<size_t>(shape.rows);
  if (scratch.allocate(values, "trying products").ok()) {
    Choice tried = choice;
    float least_ms = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      tried.algorithm = results[i].algo;
      const float ms = time_ms(tried, weights, x, scratch.data(), stream);
      if (ms >= least_ms) continue;
      least_ms = ms;
      choice.algorithm = tried.algorithm;
    }
  }
  return choices_.emplace(shape, choice).first->second;
}

void Products::run(const Shape& shape, const DeviceMatrix& weights, const __nv_bfloat16* x, void* y,
                   cudaStream_t stream) {
  const Choice& choice = choose(shape, weights, x, stream);
  const float one = 1;
  const float added = shape.adds ? 1 : 0;
  check(lt_.Matmul(handle_, operation_, &one, weights.data, choice.weights, x, choice.x, &added, y,
                   choice.y, y, choice.y, &choice.algorithm, workspace_.data(), workspace_bytes,
                   stream),
        "product");
}

void Products::multiply(const DeviceMatrix& weights, const __nv_bfloat16* x, int rows, bool adds,
                        float* y, cudaStream_t stream) {
  run({weights.rows, weights.columns, rows, adds, CUDA_R_32F}, weights, x, y, stream);
}

void Products::multiply(const DeviceMatrix& weights, const __nv_bfloat16* x, int rows,
                        __nv_bfloat16* y, cudaStream_t stream) {
  run({weights.rows, weights.columns, rows, false, CUDA_R_16BF}, weights, x, y, stream);
}

}  // namespace kvart::cuda
