// What stands in for NVIDIA GPUs in a library that is built without them.
#include "kvart/gpu.h"
#include "model/step_runner.h"

namespace kvart {

namespace {

Error no_cuda() {
  return {ErrorCode::unsupported,
          "this build runs no models on GPUs: build where nvcc and cublasLt.h are found, or run on "
          "the CPU"};
}

}  // namespace

Result<std::unique_ptr<SessionDevice>> cuda_session_device() {
  return no_cuda();
}

Result<GpuFigures> gpu_figures() {
  return no_cuda();
}

Result<double> gpu_read_bandwidth() {
  return no_cuda();
}

}  // namespace kvart
