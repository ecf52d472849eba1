// Writes small GGUF files for tests, right ones and ones that are wrong in any one field.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/file/gguf.h"

namespace kvart::test {

// Little-endian bytes, one field after the other.
class ByteWriter {
 public:
  template <class T>
  ByteWriter& put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    return append(&value, sizeof(T));
  }
  ByteWriter& type(GgufValueType value) { return put(static_cast<uint32_t>(value)); }
  ByteWriter& raw(std::string_view text) { return append(text.data(), text.size()); }
  ByteWriter& raw(const std::vector<uint8_t>& data) { return append(data.data(), data.size()); }
  // As GGUF has a string: its length as u64, its bytes.
  ByteWriter& text(std::string_view value) { return put(uint64_t{value.size()}).raw(value); }

  [[nodiscard]] const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  ByteWriter& append(const void* data, size_t size) {
    if (size == 0) return *this;
    bytes_.resize(bytes_.size() + size);
    std::memcpy(bytes_.data() + bytes_.size() - size, data, size);
    return *this;
  }

  std::vector<uint8_t> bytes_;
};

// The file's parts in the order in which they are added; offsets, padding and counts are made by
// build() unless given.
class GgufWriter {
 public:
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment_bytes = 32;  // what build() pads to; the key isn't written by itself
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> key_count;

  // A key with a value of any type, and the value's bytes as they are.
  GgufWriter& entry(std::string_view key, uint32_t type, const std::vector<uint8_t>& value) {
    keys_.text(key).put(type).raw(value);
    ++keys_written_;
    return *this;
  }
  GgufWriter& entry(std::string_view key, GgufValueType type, const std::vector<uint8_t>& value) {
    return entry(key, static_cast<uint32_t>(type), value);
  }
  template <class T>
  GgufWriter& scalar(std::string_view key, GgufValueType type, T value) {
    return entry(key, type, ByteWriter().put(value).bytes());
  }
  GgufWriter& u32(std::string_view key, uint32_t value) {
    return scalar(key, GgufValueType::u32, value);
  }
  GgufWriter& f32(std::string_view key, float value) {
    return scalar(key, GgufValueType::f32, value);
  }
  GgufWriter& boolean(std::string_view key, bool value) {
    return scalar(key, GgufValueType::boolean, uint8_t{value});
  }
  GgufWriter& string(std::string_view key, std::string_view value) {
    return entry(key, GgufValueType::string, ByteWriter().text(value).bytes());
  }
  GgufWriter& strings(std::string_view key, const std::vector<std::string>& values) {
    ByteWriter out;
    out.type(GgufValueType::string).put(uint64_t{values.size()});
    for (const std::string& value : values) out.text(value);
    return entry(key, GgufValueType::array, out.bytes());
  }
  template <class T>
  GgufWriter& array(std::string_view key, GgufValueType element, const std::vector<T>& values) {
    ByteWriter out;
    out.type(element).put(uint64_t{values.size()});
    for (const T value : values) out.put(value);
    return entry(key, GgufValueType::array, out.bytes());
  }

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type = 0;
    std::vector<uint8_t> data;
    std::optional<uint64_t> offset;     // in place of the right one
    std::optional<uint32_t> dim_count;  // in place of dims.size()
  };
  GgufWriter& tensor(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  GgufWriter& tensor(std::string_view name, std::vector<uint64_t> dims, WeightType type,
                     std::vector<uint8_t> data) {
    return tensor({std::string(name), std::move(dims), static_cast<uint32_t>(type), std::move(data),
                   std::nullopt, std::nullopt});
  }

  [[nodiscard]] std::vector<uint8_t> build() const {
    ByteWriter out;
    out.raw(magic).put(version);
    out.put(tensor_count.value_or(tensors_.size())).put(key_count.value_or(keys_written_));
    out.raw(keys_.bytes());
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
      out.text(tensor.name);
      out.put(tensor.dim_count.value_or(static_cast<uint32_t>(tensor.dims.size())));
      for (const uint64_t dim : tensor.dims) out.put(dim);
      out.put(tensor.type).put(tensor.offset.value_or(offset));
      offset = padded(offset + tensor.data.size());
    }
    for (const Tensor& tensor : tensors_) {
      out.raw(std::vector<uint8_t>(padded(out.bytes().size()) - out.bytes().size()));
      out.raw(tensor.data);
    }
    return out.bytes();
  }

 private:
  [[nodiscard]] uint64_t padded(uint64_t size) const {
    return (size + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  }

  ByteWriter keys_;
  uint64_t keys_written_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace kvart::test
