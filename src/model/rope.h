// Rotary positions of a model: which angles its scaling rule makes of its frequencies.
#pragma once

#include <cstdint>

#include "kvart/model_config.h"
#include "model/ops/ops.h"

namespace kvart {

// Error: a scaling type that isn't known, by name; numbers that it needs and that are missing;
// factors that aren't one for each frequency.
Status check_rope(const ModelConfig& config);

// The angles of layers of that kind (not `none`) in sequences of at most `context` tokens. Rules:
// linear; dynamic NTK; Llama 3; YaRN (Peng et al. 2023); LongRoPE (Ding et al. 2024); all as
// transformers computes them (modeling_rope_utils). dynamic and longrope depend on a sequence's
// length there; here on `context`, so that a key's angle never changes once it is stored: a context
// up to the original one is not stretched, a longer one as transformers does for its last token.
// Precondition: check_rope().
RopeConfig rope_config(const ModelConfig& config, LayerRope rope, RopePairing pairing,
                       int64_t context);

}  // namespace kvart
