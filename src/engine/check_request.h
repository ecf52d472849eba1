// What a request may ask for.
#pragma once

#include "kvart/engine.h"

namespace kvart {

// Error invalid_argument: the option, its value and what it takes; or both figures of a request
// that does not fit `context_tokens`.
Status check_request(const GenerationRequest& request, int vocab, int64_t context_tokens);

}  // namespace kvart
