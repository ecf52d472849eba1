// What a session runs on: memory for its cache, and a StepRunner that takes a step's rows through
// attention and the layers. The session says which rows, and which blocks of the cache are theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "attention/attention.h"
#include "cache/kv_cache.h"
#include "kvart/layer_error.h"
#include "kvart/session.h"
#include "model/loaded_model.h"

namespace kvart {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Makes room for the logits of that many rows. False: there is no memory; nothing changed.
  [[nodiscard]] virtual bool reserve_logits(int64_t rows) = 0;

  // Writes K and V of the steps' tokens, which have places in the cache, and computes the logits of
  // the `wanted` rows. tokens, positions: [rows], the steps' tokens in order; wanted: ascending,
  // there is room for them. Returns [wanted][vocab], valid until the next call.
  virtual std::span<const float> run(std::span<const SequenceStep> steps,
                                     std::span<const int32_t> tokens,
                                     std::span<const int32_t> positions,
                                     std::span<const int> wanted) = 0;

  // Of the last run, one entry for each wanted row: not 0 where all its logits are numbers.
  [[nodiscard]] virtual std::span<const uint8_t> finite() const = 0;
  // Attention::failed() of the last run, and errors().
  [[nodiscard]] virtual std::span<const uint8_t> failed() const = 0;
  [[nodiscard]] virtual std::span<const LayerError> errors() const = 0;
};

class SessionDevice {
 public:
  virtual ~SessionDevice() = default;
  [[nodiscard]] virtual const CacheMemory& memory() const = 0;
  // The weights for the sessions of a model to share; null where they run on those that were
  // loaded. threads: to decode with. Error: out_of_memory; unsupported: a model that this device
  // doesn't run.
  virtual Result<std::unique_ptr<DeviceCopy>> copy_weights(const LoadedModel& model,
                                                           int threads) = 0;
  // Holds on to all three. Takes all memory of steps but that of logits. Error: out_of_memory;
  // unsupported: what this device doesn't run.
  virtual Result<std::unique_ptr<StepRunner>> create_runner(const LoadedModel& model,
                                                            const SessionOptions& options,
                                                            KvCache* cache) = 0;
};

// Error unsupported: it isn't there, or this build has no kernels for it.
Result<std::unique_ptr<SessionDevice>> session_device(Device device);
Result<std::unique_ptr<SessionDevice>> cuda_session_device();

}  // namespace kvart
