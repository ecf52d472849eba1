// Decode attention on heads of 256 channels.
#include "attention/cuda/decode_kernel.cuh"

namespace kvart::cuda {

const DecodeInstance* decode_instance_256(int k_format, int v_format) {
  static constexpr DecodeInstance instances[] = {
#define KVART_PAIR(k, v) \
  instance<isa_cuda::k::Values, isa_cuda::v::Values, 256>(index_##k, index_##v),
#include "kvart_cuda_wide_pairs.inc"
#undef KVART_PAIR
  };
  return find_instance(instances, k_format, v_format);
}

}  // namespace kvart::cuda
