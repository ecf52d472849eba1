// Which kernel of decode attention a job gets.
#include "attention/cuda/decode_instances.h"
#include "attention/cuda/launch.h"
#include "attention/cuda/units.cuh"

namespace kvart::cuda {

namespace {

const DecodeInstance* instance_of(const AttendJob& job) {
  switch (job.place.head_dim) {
    case 64:
      return decode_instance_64(job.k_format, job.v_format);
    case 128:
      return decode_instance_128(job.k_format, job.v_format);
    case 256:
      return decode_instance_256(job.k_format, job.v_format);
    default:
      return nullptr;
  }
}

}  // namespace

size_t decode_partial_bytes(int head_dim, int multiprocessors) {
  return sizeof(float) * decode_blocks(head_dim) * multiprocessors * 2 * heads_max * (head_dim + 2);
}

bool launch_decode_attention(const AttendJob& job, int multiprocessors, float* partial,
                             int* arrived, cudaStream_t stream, cudaError_t* error) {
  if (job.type == Element::f32) return false;
  const DecodeInstance* instance = instance_of(job);
  if (instance == nullptr) return false;
  const int head_sets = (job.params.q_heads / job.place.kv_heads + heads_max - 1) / heads_max;
  const int size = instance->sealed_units - 1;
  const int* units = job.plan.units + size * job.plan.units_stride;
  *error = instance->launch({job, head_sets, units, partial, arrived}, multiprocessors, stream);
  return true;
}

}  // namespace kvart::cuda
