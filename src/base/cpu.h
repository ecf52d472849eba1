// Which instruction sets this machine has, and which one to use.
#pragma once

#include <string_view>
#include <vector>

#include "kvart/result.h"

namespace kvart {

enum class Isa { scalar, avx2, avx512, amx };

std::string_view isa_name(Isa isa);

// What this machine can run, worst first; always begins with scalar. avx2 needs AVX2, FMA and F16C;
// avx512 needs F, BW, DQ, VL, VNNI besides; amx is avx512 with tiles of 8-bit integers, which the
// operating system must have allowed this process: the first call asks it to.
const std::vector<Isa>& available_isas();

// The best one, or the one that the environment variable KVART_FORCE_ISA (scalar, avx2, avx512,
// amx) names. Error: an unknown name, or one that this machine lacks.
Result<Isa> chosen_isa();

}  // namespace kvart
