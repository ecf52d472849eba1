// Attention over the cache: planned once per batch, run once per layer. Writes K and V of the
// step's tokens, seals the blocks that they fill, and computes softmax(scale q·k) v for each query
// under the block rule:
//
//   a query at position p sees its own block and the first sink_blocks blocks in full precision,
//   and every other earlier block as decoded from its sealed bytes.
//
// Bit-identity: each query's result depends on its position and on the values it sees only, never
// on chunking, on the rest of the batch or on the number of threads. So a query's sums run over
// tokens in order, in spans fixed by position, and the spans' partial results are merged in span
// order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "cache/kv_cache.h"
#include "kvart/layer_error.h"

namespace kvart {

// The rows of one sequence in a batch: tokens at positions [first, first + count), already reserved
// in the cache.
struct SequenceStep {
  SequenceId sequence = 0;
  int64_t first = 0;
  int count = 0;
};

struct AttentionParams {
  int q_heads =
      0;  // a multiple of the layer's kv_heads; query head h reads KV head h / (q_heads / kv_heads)
  float scale = 0;     // on q·k
  float soft_cap = 0;  // 0: none; else cap * tanh(score / cap)
  // 0: all; else a query at p sees positions > p - window. At most the window of the layer's shape.
  int window = 0;
};

class Attention {
 public:
  // Holds on to cache and pool; both outlive it. max_rows: the largest batch; all memory is taken
  // here. error_sample_interval: of the blocks that are filled, sinks aside, every Nth counts in
  // errors(); 0: none.
  static Result<std::unique_ptr<Attention>> create(KvCache* cache, Isa isa, ThreadPool* pool,
                                                   int max_rows, int max_q_heads,
                                                   int error_sample_interval = 0);
  virtual ~Attention() = default;

  // Bytes that create() takes: staging for the K and V of one layer of max_rows tokens, which
  // blocks filled within one chunk need until they are sealed; for the sealed bytes of those that
  // leave a layer's window within the chunk; scratch and partial results of each thread; and sums
  // of the sampled blocks of a batch.
  static uint64_t workspace_bytes(const PageLayout& layout, int threads, int max_rows,
                                  int max_q_heads, int error_sample_interval = 0);

  // Once per batch. Rows of the batch are the steps' tokens in order; at most one step per
  // sequence. Precondition: reserve() succeeded for each; rows <= max_rows.
  virtual void plan(std::span<const SequenceStep> steps) = 0;

  // Once per layer, in layer order. k, v: [rows][kv_heads][head_dim], after RoPE. Values beyond
  // f16, NaN and Inf mark their sequence as failed (failed()); its results are undefined then,
  // those of the others are not touched.
  virtual void append(int layer, const float* k, const float* v) = 0;

  // After append of the same layer. q, out: [rows][q_heads][head_dim].
  virtual void attend(int layer, const AttentionParams& params, const float* q, float* out) = 0;

  // One entry per step of the plan: not 0 when K or V of that sequence had a value that can't be
  // stored.
  [[nodiscard]] virtual std::span<const uint8_t> failed() const = 0;

  // What sealing lost of the sampled blocks so far, one entry for each layer; without those of
  // sequences that failed in that layer. The same bits whatever the number of threads: blocks are
  // counted in the order of the plans, and added in it.
  [[nodiscard]] virtual std::span<const LayerError> errors() const = 0;
};

}  // namespace kvart
