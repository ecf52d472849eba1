// Parsing of safetensors headers: see safetensors.h.
#include "model/file/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "model/file/printable.h"

namespace kvart {

namespace {

using Json = nlohmann::json;

constexpr uint64_t max_header_bytes = uint64_t{100} << 20;  // the format's own bound
constexpr size_t max_tensors = size_t{1} << 20;
constexpr size_t max_dims = 8;
constexpr const char* damaged = "the file is damaged or incomplete; fetch it again";

struct KnownType {
  std::string_view name;
  SafetensorsType type;
  uint64_t bits;
};
constexpr std::array<KnownType, 17> known_types{{{"F32", SafetensorsType::F32, 32},
                                                 {"F16", SafetensorsType::F16, 16},
                                                 {"BF16", SafetensorsType::BF16, 16},
                                                 {"F8_E4M3", SafetensorsType::F8_E4M3, 8},
                                                 {"F8_E5M2", SafetensorsType::other, 8},
                                                 {"F8_E8M0", SafetensorsType::other, 8},
                                                 {"F4", SafetensorsType::other, 4},
                                                 {"F64", SafetensorsType::other, 64},
                                                 {"I64", SafetensorsType::other, 64},
                                                 {"I32", SafetensorsType::other, 32},
                                                 {"I16", SafetensorsType::other, 16},
                                                 {"I8", SafetensorsType::other, 8},
                                                 {"U64", SafetensorsType::other, 64},
                                                 {"U32", SafetensorsType::other, 32},
                                                 {"U16", SafetensorsType::other, 16},
                                                 {"U8", SafetensorsType::other, 8},
                                                 {"BOOL", SafetensorsType::other, 8}}};

// Takes the header's events. A header is an object of objects: {name: {dtype, shape, offsets}}, and
// __metadata__, an object of texts.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  std::vector<SafetensorsTensor> tensors;
  std::string error;

  bool null() override { return refuse("null"); }
  bool boolean(bool /*value*/) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return refuse(fmt::format("the number {}", value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return refuse("the number " + printable(text));
  }
  bool binary(binary_t& /*value*/) override { return refuse("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ == 3 && !metadata_ && array_ && field_ == "shape") {
      if (value > INT64_MAX) return refuse(fmt::format("the number {}", value));
      tensors.back().shape.push_back(static_cast<int64_t>(value));
      return tensors.back().shape.size() <= max_dims || refuse("more than 8 dimensions");
    }
    if (depth_ == 3 && !metadata_ && array_ && field_ == "data_offsets") {
      if (offsets_ == 2) return refuse("a third offset");
      (offsets_++ == 0 ? begin_ : end_) = value;
      return true;
    }
    return refuse(fmt::format("the number {}", value));
  }
  bool string(string_t& value) override {
    if (metadata_ && depth_ == 2) return true;
    if (depth_ != 2 || field_ != "dtype") return refuse("text");
    const auto known = std::find_if(known_types.begin(), known_types.end(),
                                    [&](const KnownType& type) { return type.name == value; });
    tensors.back().type_name = printable(value);
    if (known == known_types.end()) {
      error = fmt::format("tensor '{}' has type {}, which isn't known", tensor_name(),
                          printable(value));
      return false;
    }
    tensors.back().type = known->type;
    bits_ = known->bits;
    return true;
  }
  bool start_object(std::size_t /*size*/) override {
    if (depth_ >= 2) return refuse("an object");
    ++depth_;
    if (depth_ == 2 && !metadata_) {
      fields_.clear();
      offsets_ = 0;
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1) {
      if (!metadata_ && !finish_tensor()) return false;
      metadata_ = false;
    }
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ != 2 || metadata_ || (field_ != "shape" && field_ != "data_offsets")) {
      return refuse("a list");
    }
    array_ = true;
    ++depth_;
    return true;
  }
  bool end_array() override {
    array_ = false;
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      if (!names_.insert(name).second) {
        error = fmt::format("the name '{}' is there twice", printable(name));
        return false;
      }
      metadata_ = name == "__metadata__";
      if (metadata_) return true;
      if (tensors.size() == max_tensors) {
        error = fmt::format("more than {} tensors", max_tensors);
        return false;
      }
      tensors.emplace_back();
      tensors.back().name = name;
      field_.clear();
      return true;
    }
    if (metadata_) return true;
    field_ = name;
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
      return refuse("a field of this name");
    }
    return fields_.insert(field_).second || refuse("a second value");
  }
  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*cause*/) override {
    if (error.empty()) error = fmt::format("the header is no JSON (byte {} of it)", byte);
    return false;
  }

 private:
  [[nodiscard]] std::string tensor_name() const {
    return tensors.empty() ? "" : printable(tensors.back().name);
  }
  bool refuse(const std::string& what) {
    const std::string where = metadata_         ? "'__metadata__'"
                              : tensors.empty() ? "the header"
                                                : fmt::format("tensor '{}'", tensor_name());
    error = fmt::format("{} {}has {}", where,
                        field_.empty() || metadata_ ? "" : fmt::format("({}) ", printable(field_)),
                        what);
    return false;
  }

  // Sizes are compared by division, so that no product wraps.
  bool finish_tensor() {
    SafetensorsTensor& tensor = tensors.back();
    field_.clear();
    if (fields_.size() != 3 || offsets_ != 2) return refuse("no dtype, shape or data_offsets");
    if (begin_ > end_) return refuse(fmt::format("offsets {} to {}", begin_, end_));
    uint64_t values = 1;
    for (const int64_t dim : tensor.shape) {
      if (__builtin_mul_overflow(values, static_cast<uint64_t>(dim), &values)) {
        return refuse("more values than can be counted");
      }
    }
    uint64_t bits = 0;
    if (__builtin_mul_overflow(values, bits_, &bits) || bits % 8 != 0 ||
        bits / 8 != end_ - begin_) {
      return refuse(
          fmt::format("{} values of {} in {} bytes", values, tensor.type_name, end_ - begin_));
    }
    tensor.file_offset = begin_;
    tensor.size_bytes = end_ - begin_;
    return true;
  }

  int depth_ = 0;
  bool metadata_ = false;
  bool array_ = false;
  std::string field_;
  std::set<std::string> fields_;
  std::set<std::string> names_;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  int offsets_ = 0;
  uint64_t bits_ = 0;
};

// Each byte of the data section belongs to exactly one tensor.
std::string find_gap(const std::vector<SafetensorsTensor>& tensors, uint64_t data_bytes) {
  std::vector<const SafetensorsTensor*> order;
  order.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->file_offset, a->size_bytes) < std::pair(b->file_offset, b->size_bytes);
  });
  uint64_t covered = 0;
  for (const SafetensorsTensor* tensor : order) {
    if (tensor->size_bytes > data_bytes || tensor->file_offset > data_bytes - tensor->size_bytes) {
      return fmt::format("tensor '{}' ends at byte {} of the data, which has {}",
                         printable(tensor->name), tensor->file_offset + tensor->size_bytes,
                         data_bytes);
    }
    if (tensor->file_offset != covered) {
      return fmt::format("tensor '{}' begins at byte {} of the data, the one before it ends at {}",
                         printable(tensor->name), tensor->file_offset, covered);
    }
    covered += tensor->size_bytes;
  }
  if (covered == data_bytes) return {};
  return fmt::format("{} bytes of data, of which the tensors cover {}", data_bytes, covered);
}

Error invalid(const std::string& name, const std::string& what) {
  return {ErrorCode::invalid_file, fmt::format("{}: {}: {}", name, what, damaged)};
}

// The length of the header, from the file's first 8 bytes.
Result<uint64_t> header_bytes(std::span<const uint8_t> first, uint64_t file_bytes,
                              const std::string& name) {
  if (file_bytes < 8) return invalid(name, "not a safetensors file: it is shorter than 8 bytes");
  uint64_t length = 0;
  std::memcpy(&length, first.data(), sizeof(length));
  if (length > max_header_bytes || length > file_bytes - 8) {
    return invalid(name, fmt::format("not a safetensors file: its header would have {} bytes, the "
                                     "file has {}",
                                     length, file_bytes));
  }
  return length;
}

Result<std::vector<SafetensorsTensor>> parse_header(std::string_view header, uint64_t file_bytes,
                                                    const std::string& name) {
  if (header.empty() || header[0] != '{') {
    return invalid(name, "not a safetensors file: its header doesn't begin with '{'");
  }
  HeaderReader reader;
  if (!Json::sax_parse(header.begin(), header.end(), &reader)) {
    return invalid(name, reader.error);
  }
  const uint64_t data_start = 8 + header.size();
  const std::string gap = find_gap(reader.tensors, file_bytes - data_start);
  if (!gap.empty()) return invalid(name, gap);
  for (SafetensorsTensor& tensor : reader.tensors) tensor.file_offset += data_start;
  return std::move(reader.tensors);
}

std::string_view as_text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto file = FileBytes::open(path);
  if (!file.ok()) return file.error();
  SafetensorsFile out;
  out.name_ = printable(path, 512);
  KVART_RETURN_IF_ERROR(file->load(std::min<size_t>(8, file->size())));
  const auto length = header_bytes(file->bytes(), file->size(), out.name_);
  if (!length.ok()) return length.error();
  KVART_RETURN_IF_ERROR(file->load(8 + *length));
  out.header_ = as_text(file->bytes().subspan(8, *length));
  auto tensors = parse_header(out.header_, file->size(), out.name_);
  if (!tensors.ok()) return tensors.error();
  out.tensors_ = std::move(*tensors);
  auto data = file->map();
  if (!data.ok()) return data.error();
  out.data_ = std::move(*data);
  for (SafetensorsTensor& tensor : out.tensors_) {
    tensor.data = out.data_.bytes().subspan(tensor.file_offset, tensor.size_bytes);
  }
  return out;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const uint8_t> bytes,
                                               const std::string& name) {
  SafetensorsFile out;
  out.name_ = printable(name, 512);
  const auto length = header_bytes(bytes, bytes.size(), out.name_);
  if (!length.ok()) return length.error();
  out.header_ = as_text(bytes.subspan(8, *length));
  auto tensors = parse_header(out.header_, bytes.size(), out.name_);
  if (!tensors.ok()) return tensors.error();
  out.tensors_ = std::move(*tensors);
  for (SafetensorsTensor& tensor : out.tensors_) {
    tensor.data = bytes.subspan(tensor.file_offset, tensor.size_bytes);
  }
  return out;
}

}  // namespace kvart
