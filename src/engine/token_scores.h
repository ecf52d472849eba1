// Scores of tokens: log-probabilities from a row of logits.
#pragma once

#include <cstdint>
#include <span>

#include "kvart/engine.h"

namespace kvart {

// The log-probability of `token` under logits [vocab], its rank, and the `top` most likely tokens
// (at most vocab of them). Equal logits: the lower id is the more likely one.
ScoredToken score_token(std::span<const float> logits, int32_t token, int top);

}  // namespace kvart
