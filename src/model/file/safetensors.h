// A safetensors file: named tensors, every field of the header checked before it is used.
//
// Format: u64 length of the header, JSON header {name: {dtype, shape, data_offsets}}, data. The
// tensors cover the data exactly, in any order (github.com/huggingface/safetensors, README).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/file/file_bytes.h"
#include "model/file/mapped_file.h"

namespace kvart {

// The types that checkpoints are stored in. What else a file may have is refused by name.
enum class SafetensorsType { F32, F16, BF16, F8_E4M3, other };

struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::other;
  std::string type_name;  // as the file has it
  std::vector<int64_t> shape;
  uint64_t file_offset = 0;
  uint64_t size_bytes = 0;
  std::span<const uint8_t> data;  // at any address
};

class SafetensorsFile {
 public:
  // Errors name the file, the tensor and the field. Refused: offsets that leave the file, overlap
  // or leave a gap, sizes that don't fit shape and type, a name twice, types of unknown size.
  static Result<SafetensorsFile> open(const std::string& path);
  // `bytes`: the whole file.
  static Result<SafetensorsFile> parse(std::span<const uint8_t> bytes, const std::string& name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  // The header's text: what a fingerprint needs besides the data.
  [[nodiscard]] std::string_view header() const { return header_; }
  // To be asked after tensors were read: see MappedFile::check().
  [[nodiscard]] Status check_unchanged() const { return data_.check(); }

 private:
  std::string name_;
  std::string header_;
  std::vector<SafetensorsTensor> tensors_;
  MappedFile data_;
};

}  // namespace kvart
