// What stands in for the kernels of NVIDIA GPUs in a library that is built without them.
#include "attention/cuda_attention.h"

namespace kvart {

namespace {
Error no_cuda() {
  return {ErrorCode::unsupported, "this build has no CUDA kernels: build where nvcc is found"};
}
}  // namespace

Result<CudaDevice> cuda_device() {
  return no_cuda();
}

Result<std::unique_ptr<CudaAttention>> CudaAttention::create(KvCache* /*cache*/,
                                                             const CudaLimits& /*limits*/,
                                                             void* /*workspace*/,
                                                             CudaKernels /*kernels*/) {
  return no_cuda();
}

uint64_t CudaAttention::workspace_bytes(const PageLayout& /*layout*/, const CudaLimits& /*limits*/,
                                        const CudaDevice& /*device*/) {
  return 0;
}

Status cuda_copy_blocks(const BlockCopy* /*copies*/, int /*count*/, size_t /*bytes*/,
                        CudaStream /*stream*/) {
  return no_cuda();
}

}  // namespace kvart
