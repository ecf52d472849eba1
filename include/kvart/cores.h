// What this program uses of the processor: how many cores, and which instructions.
#pragma once

#include <string>

#include "kvart/result.h"

namespace kvart {

// Those that the scheduler gives it (affinity), or fewer where a control group's quota allows the
// time of fewer; at least 1.
int usable_cores();

// The instruction set that kernels run in: scalar, avx2, avx512 or amx. Error: the environment
// variable KVART_FORCE_ISA names an unknown one, or one that the machine lacks.
Result<std::string> instruction_set();

}  // namespace kvart
