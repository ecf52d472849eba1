// The parser of GGUF files: bytes of unknown origin in, checked contents out.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvart/result.h"
#include "model/file/file_bytes.h"
#include "model/file/gguf.h"

namespace kvart {

// Parses `bytes`. With a `file`, bytes are the file's, and are loaded as the parser comes to them,
// so that only the metadata is read; spans of tensor data are left empty. Without one (null) all of
// them are there, and the spans are filled in. `name` begins each error.
Result<GgufContents> parse_gguf(std::span<const uint8_t> bytes, FileBytes* file,
                                const std::string& name);

// Bytes of a scalar of this type; 0 for strings, arrays and values that aren't types.
uint64_t gguf_scalar_bytes(GgufValueType type);

// "u32"; empty for a value that isn't a type.
std::string_view gguf_value_type_name(GgufValueType type);

}  // namespace kvart
