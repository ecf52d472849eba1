// The error of a system that has no memory for a list or a text.
#pragma once

#include "kvart/result.h"

namespace kvart {

// A text so short that the string needs no memory of its own.
inline Error no_memory() {
  return {ErrorCode::out_of_memory, "no memory left"};
}

}  // namespace kvart
