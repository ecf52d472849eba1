// A GGUF model file: typed metadata and tensors, every field checked before it is used.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/file/file_bytes.h"
#include "model/file/mapped_file.h"
#include "model/file/weight_type.h"

namespace kvart {

enum class GgufValueType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

// One key of the metadata and its value as it lies in the file, already checked.
struct GgufEntry {
  std::string_view key;
  GgufValueType type = GgufValueType::u8;
  GgufValueType element_type = GgufValueType::u8;  // of an array
  uint64_t count = 0;                              // elements of an array
  std::span<const uint8_t> bytes;                  // a scalar, a string's text, an array's elements
};

struct GgufTensor {
  std::string name;
  WeightType type = WeightType::F32;
  int dim_count = 0;                           // 1 to 4
  std::array<int64_t, 4> dims = {1, 1, 1, 1};  // dims[0] is the contiguous one: a matrix's columns
  uint64_t file_offset = 0;
  uint64_t size_bytes = 0;
  std::span<const uint8_t> data;  // size_bytes bytes

  [[nodiscard]] int64_t columns() const { return dims[0]; }
  [[nodiscard]] int64_t rows() const { return dims[1] * dims[2] * dims[3]; }
};

struct GgufContents {
  uint32_t version = 0;
  uint64_t alignment_bytes = 0;
  std::vector<GgufEntry> entries;   // sorted by key
  std::vector<GgufTensor> tensors;  // in the file's order
};

// Every string_view and span that it gives lives as long as the object (open) or the bytes (parse).
class GgufFile {
 public:
  // Errors name the file, the key or tensor and the byte, say what is wrong and what to do.
  // Refused: versions other than 2 and 3, big-endian files, tensors of types that Kvart doesn't
  // read, and whatever is damaged, truncated, ambiguous (a name twice, tensors that overlap) or out
  // of bounds. Metadata is read, tensors are mapped.
  static Result<GgufFile> open(const std::string& path);
  // The same of bytes in memory.
  static Result<GgufFile> parse(std::span<const uint8_t> bytes,
                                const std::string& name = "GGUF data");

  // The path, fit for a message.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] uint32_t version() const { return contents_.version; }
  [[nodiscard]] uint64_t alignment_bytes() const { return contents_.alignment_bytes; }

  // All entries, sorted by key; for lists of keys. Values are read with the functions below.
  [[nodiscard]] const std::vector<GgufEntry>& entries() const { return contents_.entries; }
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] bool is_array(std::string_view key) const;

  // The key's value. Error: not_found where the key isn't there; invalid_file where its type is
  // another or its value is out of range, naming key, expected and found. An integer may be stored
  // in any integer type that holds it.
  [[nodiscard]] Result<uint32_t> get_u32(std::string_view key) const;
  [[nodiscard]] Result<uint64_t> get_u64(std::string_view key) const;
  [[nodiscard]] Result<float> get_f32(std::string_view key) const;  // or f64; always finite
  [[nodiscard]] Result<bool> get_bool(std::string_view key) const;
  [[nodiscard]] Result<std::string> get_string(std::string_view key) const;
  [[nodiscard]] Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  [[nodiscard]] Result<std::vector<int32_t>> get_i32s(std::string_view key) const;  // i32 or u32
  [[nodiscard]] Result<std::vector<float>> get_f32s(std::string_view key) const;    // as stored

  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return contents_.tensors; }

  // To be asked after tensors were read: whether they were the file's. Error: the file got shorter
  // or was written to meanwhile.
  [[nodiscard]] Status check_unchanged() const { return data_.check(); }

 private:
  GgufFile() = default;
  [[nodiscard]] const GgufEntry* find(std::string_view key) const;
  [[nodiscard]] Result<const GgufEntry*> require(std::string_view key, const char* expected) const;
  [[nodiscard]] Result<const GgufEntry*> require_array(std::string_view key, GgufValueType element,
                                                       const char* expected) const;
  [[nodiscard]] Error wrong_type(const GgufEntry& entry, const char* expected) const;
  [[nodiscard]] Result<uint64_t> integer(std::string_view key, uint64_t max,
                                         const char* expected) const;

  std::string name_;
  FileBytes file_;
  MappedFile data_;
  GgufContents contents_;
};

// "u32", "array of string": for messages.
std::string gguf_type_name(const GgufEntry& entry);

}  // namespace kvart
