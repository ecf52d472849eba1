// Access to a GGUF file's contents: see gguf.h.
#include "model/file/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "model/file/gguf_parser.h"
#include "model/file/printable.h"

namespace kvart {

namespace {

// Precondition: bytes holds a T at offset (the parser has checked it).
template <class T>
T load(std::span<const uint8_t> bytes, size_t offset = 0) {
  KVART_CHECK(offset + sizeof(T) <= bytes.size(), "%zu of %zu bytes", offset, bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <class T>
std::vector<T> load_array(const GgufEntry& entry) {
  KVART_CHECK(entry.bytes.size() == entry.count * sizeof(T), "%zu bytes", entry.bytes.size());
  std::vector<T> values(entry.count);
  if (!values.empty()) std::memcpy(values.data(), entry.bytes.data(), entry.bytes.size());
  return values;
}

struct Integer {
  bool negative = false;
  uint64_t value = 0;  // its two's complement where negative
};

template <class T>
Integer load_integer(const GgufEntry& entry) {
  const T value = load<T>(entry.bytes);
  return {value < 0, static_cast<uint64_t>(static_cast<int64_t>(value))};
}

template <>
Integer load_integer<uint64_t>(const GgufEntry& entry) {
  return {false, load<uint64_t>(entry.bytes)};
}

// The entry's value if it is of an integer type.
bool read_integer(const GgufEntry& entry, Integer& out) {
  switch (entry.type) {
    case GgufValueType::u8:
      out = load_integer<uint8_t>(entry);
      return true;
    case GgufValueType::i8:
      out = load_integer<int8_t>(entry);
      return true;
    case GgufValueType::u16:
      out = load_integer<uint16_t>(entry);
      return true;
    case GgufValueType::i16:
      out = load_integer<int16_t>(entry);
      return true;
    case GgufValueType::u32:
      out = load_integer<uint32_t>(entry);
      return true;
    case GgufValueType::i32:
      out = load_integer<int32_t>(entry);
      return true;
    case GgufValueType::u64:
      out = load_integer<uint64_t>(entry);
      return true;
    case GgufValueType::i64:
      out = load_integer<int64_t>(entry);
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string gguf_type_name(const GgufEntry& entry) {
  if (entry.type != GgufValueType::array) return std::string(gguf_value_type_name(entry.type));
  return fmt::format("array of {}", gguf_value_type_name(entry.element_type));
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  auto file = FileBytes::open(path);
  if (!file.ok()) return file.error();
  GgufFile gguf;
  gguf.name_ = printable(path, 512);
  gguf.file_ = std::move(*file);
  auto contents = parse_gguf(gguf.file_.bytes(), &gguf.file_, gguf.name_);
  if (!contents.ok()) return contents.error();
  gguf.contents_ = std::move(*contents);
  auto data = gguf.file_.map();
  if (!data.ok()) return data.error();
  gguf.data_ = std::move(*data);
  for (GgufTensor& tensor : gguf.contents_.tensors) {
    tensor.data = gguf.data_.bytes().subspan(tensor.file_offset, tensor.size_bytes);
  }
  return gguf;
}

Result<GgufFile> GgufFile::parse(std::span<const uint8_t> bytes, const std::string& name) {
  GgufFile gguf;
  gguf.name_ = printable(name, 512);
  auto contents = parse_gguf(bytes, nullptr, gguf.name_);
  if (!contents.ok()) return contents.error();
  gguf.contents_ = std::move(*contents);
  return gguf;
}

const GgufEntry* GgufFile::find(std::string_view key) const {
  const auto& entries = contents_.entries;
  const auto it = std::lower_bound(
      entries.begin(), entries.end(), key,
      [](const GgufEntry& entry, std::string_view wanted) { return entry.key < wanted; });
  return it != entries.end() && it->key == key ? &*it : nullptr;
}

bool GgufFile::is_array(std::string_view key) const {
  const GgufEntry* entry = find(key);
  return entry != nullptr && entry->type == GgufValueType::array;
}

Result<const GgufEntry*> GgufFile::require(std::string_view key, const char* expected) const {
  const GgufEntry* entry = find(key);
  if (entry != nullptr) return entry;
  return Error{ErrorCode::not_found,
               fmt::format("{}: key '{}' ({}) is missing; the model can't be used without it, "
                           "convert it again with current tools",
                           name_, printable(key), expected)};
}

Error GgufFile::wrong_type(const GgufEntry& entry, const char* expected) const {
  const std::string count =
      entry.type == GgufValueType::array ? fmt::format(" of {} elements", entry.count) : "";
  return {ErrorCode::invalid_file,
          fmt::format("{}: key '{}' is of type {}{}, expected {}; convert the model again with "
                      "current tools",
                      name_, printable(entry.key), gguf_type_name(entry), count, expected)};
}

Result<const GgufEntry*> GgufFile::require_array(std::string_view key, GgufValueType element,
                                                 const char* expected) const {
  auto entry = require(key, expected);
  if (!entry.ok()) return entry;
  if ((*entry)->type != GgufValueType::array || (*entry)->element_type != element) {
    return wrong_type(**entry, expected);
  }
  return entry;
}

Result<uint64_t> GgufFile::integer(std::string_view key, uint64_t max, const char* expected) const {
  auto entry = require(key, expected);
  if (!entry.ok()) return entry.error();
  Integer found;
  if (!read_integer(**entry, found)) return wrong_type(**entry, expected);
  if (found.negative || found.value > max) {
    const std::string value = found.negative ? std::to_string(static_cast<int64_t>(found.value))
                                             : std::to_string(found.value);
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: key '{}' is {}, expected 0 to {}; convert the model again with "
                             "current tools",
                             name_, printable(key), value, max)};
  }
  return found.value;
}

Result<uint32_t> GgufFile::get_u32(std::string_view key) const {
  const auto value = integer(key, std::numeric_limits<uint32_t>::max(), "u32");
  if (!value.ok()) return value.error();
  return static_cast<uint32_t>(*value);
}

Result<uint64_t> GgufFile::get_u64(std::string_view key) const {
  return integer(key, std::numeric_limits<uint64_t>::max(), "u64");
}

Result<float> GgufFile::get_f32(std::string_view key) const {
  auto entry = require(key, "f32");
  if (!entry.ok()) return entry.error();
  double value = 0;
  if ((*entry)->type == GgufValueType::f32) {
    value = load<float>((*entry)->bytes);
  } else if ((*entry)->type == GgufValueType::f64) {
    value = load<double>((*entry)->bytes);
  } else {
    return wrong_type(**entry, "f32");
  }
  if (!(std::fabs(value) <= std::numeric_limits<float>::max())) {  // NaN too
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: key '{}' is {}, expected a finite f32; convert the model again "
                             "with current tools",
                             name_, printable(key), value)};
  }
  return static_cast<float>(value);
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  auto entry = require(key, "bool");
  if (!entry.ok()) return entry.error();
  if ((*entry)->type != GgufValueType::boolean) return wrong_type(**entry, "bool");
  return load<uint8_t>((*entry)->bytes) != 0;
}

Result<std::string> GgufFile::get_string(std::string_view key) const {
  auto entry = require(key, "string");
  if (!entry.ok()) return entry.error();
  if ((*entry)->type != GgufValueType::string) return wrong_type(**entry, "string");
  return std::string((*entry)->bytes.begin(), (*entry)->bytes.end());
}

Result<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  auto entry = require_array(key, GgufValueType::string, "array of string");
  if (!entry.ok()) return entry.error();
  const std::span<const uint8_t> bytes = (*entry)->bytes;
  std::vector<std::string_view> strings;
  strings.reserve((*entry)->count);
  size_t position = 0;
  for (uint64_t i = 0; i < (*entry)->count; ++i) {
    const auto length = load<uint64_t>(bytes, position);
    position += sizeof(length);
    KVART_CHECK(length <= bytes.size() - position, "%zu bytes", bytes.size());
    strings.emplace_back(reinterpret_cast<const char*>(bytes.data()) + position, length);
    position += length;
  }
  return strings;
}

Result<std::vector<int32_t>> GgufFile::get_i32s(std::string_view key) const {
  constexpr const char* expected = "array of i32";
  auto entry = require(key, expected);
  if (!entry.ok()) return entry.error();
  const bool array = (*entry)->type == GgufValueType::array;
  if (array && (*entry)->element_type == GgufValueType::i32) return load_array<int32_t>(**entry);
  if (!array || (*entry)->element_type != GgufValueType::u32) return wrong_type(**entry, expected);
  std::vector<int32_t> values = load_array<int32_t>(**entry);
  const auto over = std::find_if(values.begin(), values.end(), [](int32_t v) { return v < 0; });
  if (over != values.end()) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: element {} of key '{}' is {}, expected at most {}; convert the "
                             "model again with current tools",
                             name_, over - values.begin(), printable(key),
                             static_cast<uint32_t>(*over), std::numeric_limits<int32_t>::max())};
  }
  return values;
}

Result<std::vector<float>> GgufFile::get_f32s(std::string_view key) const {
  auto entry = require_array(key, GgufValueType::f32, "array of f32");
  if (!entry.ok()) return entry.error();
  return load_array<float>(**entry);
}

}  // namespace kvart
