// Attention on an NVIDIA GPU (Hopper): the block rule, the formats' bytes and the oracle of the CPU
// (attention.h). Planned once per batch, run once per layer; append() and attend() neither allocate
// nor wait for the device, so a CUDA graph can hold them. It stays valid for later plans with as
// many steps and rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "attention/attention.h"
#include "cache/kv_cache.h"
#include "kvart/result.h"

namespace kvart {

// A cudaStream_t; null: the default stream.
using CudaStream = void*;

// How queries, keys, values and results are stored.
enum class Element { f32, f16, bf16 };

struct CudaDevice {
  std::string name;
  int multiprocessors = 0;
  size_t l2_bytes = 0;
  size_t memory_bytes = 0;
};

// The device that is current. Error unsupported: there is none, none that the kernels are built
// for, or this library was built without them.
Result<CudaDevice> cuda_device();

struct CudaLimits {
  int max_steps = 0;       // sequences of a batch
  int max_rows = 0;        // tokens of a batch
  int64_t max_blocks = 0;  // of all sequences of a batch, from their first token on
  int max_q_heads = 0;
};

enum class CudaKernels {
  fastest,  // that there are for a layer's formats and a batch
  plain,    // the obvious kernel, for comparisons
};

class CudaAttention {
 public:
  // Holds on to `cache`, whose pages and slots lie in memory of the device, and to `workspace`:
  // workspace_bytes() of that memory, aligned to 256 bytes.
  static Result<std::unique_ptr<CudaAttention>> create(KvCache* cache, const CudaLimits& limits,
                                                       void* workspace,
                                                       CudaKernels kernels = CudaKernels::fastest);
  virtual ~CudaAttention() = default;

  // Of the device's memory: the plan, partial results of sequences that are split, and the blocks
  // that a batch fills and that have no place in the cache.
  static uint64_t workspace_bytes(const PageLayout& layout, const CudaLimits& limits,
                                  const CudaDevice& device);

  // Once per batch, as Attention::plan(). Waits until the device has read the plan before. A block
  // that a step fills must not share its slot with the one that the same step begins, as the cache
  // has it after a final step: takes_over() says where it would, and such a step comes in two
  // parts. continued: these are the second parts; what the first ones filled without a page of its
  // own is still there.
  // What else is to be read of the cache (blocks copied, swapped in) is put into the stream before
  // plan(): attend() reads blocks that were full before the batch while the kernel ahead of it
  // still runs.
  virtual Status plan(std::span<const SequenceStep> steps, CudaStream stream,
                      bool continued = false) = 0;
  // Whether a step's last block has the slot of its first one.
  [[nodiscard]] virtual bool takes_over(const SequenceStep& step) const = 0;

  // As Attention::append(); k and v are in the device's memory.
  virtual Status append(int layer, Element type, const void* k, const void* v,
                        CudaStream stream) = 0;

  // As Attention::attend(); q and out are in the device's memory, q aligned to 8 bytes. f32 goes to
  // the plain kernel.
  virtual Status attend(int layer, const AttentionParams& params, Element type, const void* q,
                        void* out, CudaStream stream) = 0;

  // Attention::failed() of the layers that have been appended. Waits for the device.
  virtual Status failed(std::span<uint8_t> steps, CudaStream stream) = 0;

  // The values of one side of one KV head of a sealed block. page: of the layer's group; out:
  // [64][head_dim] in the device's memory.
  virtual Status decode(int layer, int kv_head, bool v_side, const uint8_t* page, float* out,
                        CudaStream stream) = 0;
};

struct BlockCopy {
  const uint8_t* from;
  uint8_t* to;
};

// Copies `count` blocks of `bytes`, a multiple of 16: to fork, swap and gather. copies: in the
// device's memory; blocks: there or in pinned memory of the host. No block is both source and
// target.
Status cuda_copy_blocks(const BlockCopy* copies, int count, size_t bytes, CudaStream stream);

}  // namespace kvart
