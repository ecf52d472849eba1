// What a request may ask for.
#pragma once

#include <cstdint>
#include <span>

#include "kvart/engine.h"

namespace kvart {

// Error invalid_argument: the option, its value and what it takes; or both figures of a request
// that does not fit `context_tokens`. model_ends: the tokens at which the model's answers end.
Status check_request(const GenerationRequest& request, int vocab, int64_t context_tokens,
                     std::span<const int32_t> model_ends);

}  // namespace kvart
