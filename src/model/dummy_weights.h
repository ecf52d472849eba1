// Weights that nobody trained: for measuring a shape without its checkpoint.
#pragma once

#include "base/thread_pool.h"
#include "model/weights.h"

namespace kvart {

// Error out_of_memory: more bytes of weights than this machine has memory, with both figures.
Status check_dummy_memory(const ModelConfig& config);

// Random matrices in 4 bits and a scale for 32 of them (Q4_0), so that each row of a product with a
// normalized row is about as large as that row's values; norms' weights are 1. The same for the
// same config. Error: out_of_memory, sizes that the type can't have.
Result<Weights> dummy_weights(const ModelConfig& config, const Architecture& architecture,
                              ThreadPool* pool);

}  // namespace kvart
