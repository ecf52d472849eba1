// Parsing of GGUF files: see gguf_parser.h. No field is used before it is checked, and no sum or
// product is formed that could wrap: sizes are compared with what is left, never added up first.
#include "model/file/gguf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "model/file/printable.h"

namespace kvart {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie");

namespace {

constexpr uint64_t default_alignment_bytes = 32;
constexpr uint64_t max_alignment_bytes = uint64_t{1} << 20;
constexpr uint64_t max_key_bytes = 65535;       // the format's own limits: keys,
constexpr uint64_t max_tensor_name_bytes = 63;  // names of tensors
constexpr uint64_t max_keys = 1 << 16;          // bounds on memory, far above any real model
constexpr uint64_t max_tensors = 1 << 18;
constexpr int max_array_depth = 8;
constexpr uint64_t least_key_bytes = 8 + 1 + 4 + 1;             // length, name, type, value
constexpr uint64_t least_tensor_bytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, type, offset
constexpr const char* damaged = "the file is damaged or incomplete; fetch it again";

struct TypeInfo {
  std::string_view name;
  uint64_t scalar_bytes;
};
constexpr std::array<TypeInfo, 13> value_types = {{{"u8", 1},
                                                   {"i8", 1},
                                                   {"u16", 2},
                                                   {"i16", 2},
                                                   {"u32", 4},
                                                   {"i32", 4},
                                                   {"f32", 4},
                                                   {"bool", 1},
                                                   {"string", 0},
                                                   {"array", 0},
                                                   {"u64", 8},
                                                   {"i64", 8},
                                                   {"f64", 8}}};

class Parser {
 public:
  Parser(std::span<const uint8_t> bytes, FileBytes* file, const std::string& name)
      : bytes_(bytes), file_(file), name_(name) {}

  Result<GgufContents> parse() {
    KVART_RETURN_IF_ERROR(read_header());
    for (uint64_t i = 0; i < key_count_; ++i) KVART_RETURN_IF_ERROR(read_entry(i));
    KVART_RETURN_IF_ERROR(check_entries());
    for (uint64_t i = 0; i < tensor_count_; ++i) KVART_RETURN_IF_ERROR(read_tensor(i));
    KVART_RETURN_IF_ERROR(check_names());
    KVART_RETURN_IF_ERROR(place_tensors());
    return std::move(contents_);
  }

 private:
  template <class... Args>
  [[nodiscard]] Error invalid(fmt::format_string<Args...> format, Args&&... args) const {
    return {ErrorCode::invalid_file,
            name_ + ": " + fmt::format(format, std::forward<Args>(args)...)};
  }

  [[nodiscard]] uint64_t left() const { return bytes_.size() - position_; }

  // Moves past `count` bytes and gives them. `what` says what they are.
  Status take(uint64_t count, const char* what, std::span<const uint8_t>& out) {
    if (count > left()) {
      return invalid("{} at byte {} takes {} bytes, but only {} are left: {}", what, position_,
                     count, left(), damaged);
    }
    if (file_ != nullptr) KVART_RETURN_IF_ERROR(file_->load(position_ + count));
    out = bytes_.subspan(position_, count);
    position_ += count;
    return {};
  }

  template <class T>
  Status read(T& out, const char* what) {
    std::span<const uint8_t> bytes;
    KVART_RETURN_IF_ERROR(take(sizeof(T), what, bytes));
    std::memcpy(&out, bytes.data(), sizeof(T));
    return {};
  }

  // A length and as many bytes of text.
  Status read_text(std::span<const uint8_t>& out, const char* what) {
    const size_t start = position_;
    uint64_t length = 0;
    KVART_RETURN_IF_ERROR(read(length, what));
    if (length > left()) {
      return invalid("{} at byte {} has length {}, but only {} bytes are left: {}", what, start,
                     length, left(), damaged);
    }
    return take(length, what, out);
  }

  Status read_name(std::string_view& out, uint64_t max_bytes, const char* what) {
    const size_t start = position_;
    std::span<const uint8_t> text;
    KVART_RETURN_IF_ERROR(read_text(text, what));
    out = {reinterpret_cast<const char*>(text.data()), text.size()};
    if (out.empty() || out.size() > max_bytes) {
      return invalid("{} at byte {} is {} bytes long (1 to {} are allowed): {}", what, start,
                     out.size(), max_bytes, damaged);
    }
    return {};
  }

  Status read_header();
  Status read_entry(uint64_t index);
  Status skip_value(GgufEntry& entry);
  Status skip_array(GgufEntry& entry, int depth);
  Status check_entries();
  Status read_tensor(uint64_t index);
  Status read_dims(GgufTensor& tensor);
  Status size_tensor(GgufTensor& tensor, uint32_t type_id, size_t type_position);
  Status check_names();
  Status place_tensors();
  [[nodiscard]] Status check_overlap() const;

  std::span<const uint8_t> bytes_;
  FileBytes* file_;
  const std::string& name_;
  size_t position_ = 0;
  uint64_t key_count_ = 0;
  uint64_t tensor_count_ = 0;
  GgufContents contents_;
};

Status Parser::read_header() {
  std::span<const uint8_t> magic;
  KVART_RETURN_IF_ERROR(take(4, "the mark of a GGUF file", magic));
  const std::string_view mark(reinterpret_cast<const char*>(magic.data()), magic.size());
  if (mark != "GGUF") {
    return invalid("not a GGUF file: it begins with '{}' instead of 'GGUF'; give a .gguf file",
                   printable(mark));
  }
  uint32_t version = 0;
  KVART_RETURN_IF_ERROR(read(version, "the version"));
  if (version == 1) {
    return Error{ErrorCode::unsupported,
                 name_ +
                     ": GGUF version 1, which Kvart doesn't read (2 and 3 it does); convert "
                     "the model again with current tools"};
  }
  if (version != 2 && version != 3) {
    const bool big_endian = version != 0 && (version & 0xFFFFu) == 0;
    return Error{ErrorCode::unsupported,
                 big_endian
                     ? name_ +
                           ": a big-endian GGUF file, which Kvart doesn't read; convert it to "
                           "little-endian"
                     : fmt::format("{}: GGUF version {} at byte 4, which Kvart doesn't know; it "
                                   "reads 2 and 3",
                                   name_, version)};
  }
  contents_.version = version;
  KVART_RETURN_IF_ERROR(read(tensor_count_, "the number of tensors"));
  KVART_RETURN_IF_ERROR(read(key_count_, "the number of keys"));
  const uint64_t tensor_limit = std::min(max_tensors, left() / least_tensor_bytes);
  if (tensor_count_ > tensor_limit) {
    return invalid("{} tensors at byte 8, but at most {} are possible here: {}", tensor_count_,
                   tensor_limit, damaged);
  }
  const uint64_t key_limit = std::min(max_keys, left() / least_key_bytes);
  if (key_count_ > key_limit) {
    return invalid("{} keys at byte 16, but at most {} are possible here: {}", key_count_,
                   key_limit, damaged);
  }
  return {};
}

Status Parser::read_entry(uint64_t index) {
  const size_t start = position_;
  GgufEntry entry;
  KVART_RETURN_IF_ERROR(read_name(entry.key, max_key_bytes, "a key's name"));
  uint32_t type = 0;
  KVART_RETURN_IF_ERROR(read(type, "a key's type"));
  if (type >= value_types.size()) {
    return invalid(
        "key '{}' (number {}, at byte {}) has value type {}, which GGUF doesn't have: {}",
        printable(entry.key), index, start, type, damaged);
  }
  entry.type = static_cast<GgufValueType>(type);
  const Status status = skip_value(entry);
  if (!status.ok()) {
    if (status.error().code != ErrorCode::invalid_file) return status.error();
    const std::string_view cause =
        std::string_view(status.error().message).substr(name_.size() + 2);
    return invalid("key '{}' (number {}, at byte {}): {}", printable(entry.key), index, start,
                   cause);
  }
  contents_.entries.push_back(entry);
  return {};
}

Status Parser::skip_value(GgufEntry& entry) {
  if (entry.type == GgufValueType::string) return read_text(entry.bytes, "its text");
  if (entry.type == GgufValueType::array) return skip_array(entry, 1);
  const size_t start = position_;
  KVART_RETURN_IF_ERROR(take(gguf_scalar_bytes(entry.type), "its value", entry.bytes));
  if (entry.type == GgufValueType::boolean && entry.bytes[0] > 1) {
    return invalid("a bool at byte {} is {}, not 0 or 1: {}", start, entry.bytes[0], damaged);
  }
  return {};
}

// Fills in the array's type, count and bytes. Recursion is bounded by max_array_depth.
Status Parser::skip_array(GgufEntry& entry, int depth) {
  const size_t start = position_;
  if (depth > max_array_depth) {
    return invalid("arrays in arrays more than {} deep at byte {}: {}", max_array_depth, start,
                   damaged);
  }
  uint32_t type = 0;
  KVART_RETURN_IF_ERROR(read(type, "an array's type"));
  KVART_RETURN_IF_ERROR(read(entry.count, "an array's count"));
  if (type >= value_types.size()) {
    return invalid("an array at byte {} has element type {}, which GGUF doesn't have: {}", start,
                   type, damaged);
  }
  entry.element_type = static_cast<GgufValueType>(type);
  const uint64_t scalar_bytes = gguf_scalar_bytes(entry.element_type);
  const bool nested = entry.element_type == GgufValueType::array;
  const uint64_t least_bytes = scalar_bytes != 0 ? scalar_bytes : nested ? 12 : 8;
  if (entry.count > left() / least_bytes) {
    return invalid(
        "an array at byte {} has {} elements of {} bytes or more, but only {} bytes are "
        "left: {}",
        start, entry.count, least_bytes, left(), damaged);
  }
  if (scalar_bytes != 0) return take(entry.count * scalar_bytes, "an array", entry.bytes);
  const size_t first = position_;
  for (uint64_t i = 0; i < entry.count; ++i) {
    GgufEntry element;
    KVART_RETURN_IF_ERROR(nested ? skip_array(element, depth + 1)
                                 : read_text(element.bytes, "a string of an array"));
  }
  entry.bytes = bytes_.subspan(first, position_ - first);
  return {};
}

Status Parser::check_entries() {
  std::vector<GgufEntry>& entries = contents_.entries;
  std::sort(entries.begin(), entries.end(),
            [](const GgufEntry& a, const GgufEntry& b) { return a.key < b.key; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].key == entries[i - 1].key) {
      return invalid("key '{}' is there twice: {}", printable(entries[i].key), damaged);
    }
  }
  contents_.alignment_bytes = default_alignment_bytes;
  for (const GgufEntry& entry : entries) {
    if (entry.key != "general.alignment") continue;
    if (entry.type != GgufValueType::u32) {
      return invalid("key 'general.alignment' is of type {}, expected u32: {}",
                     gguf_type_name(entry), damaged);
    }
    uint32_t alignment = 0;
    std::memcpy(&alignment, entry.bytes.data(), sizeof(alignment));
    if (!std::has_single_bit(alignment) || alignment < 8 || alignment > max_alignment_bytes) {
      return invalid("key 'general.alignment' is {}, expected a power of two from 8 to {}: {}",
                     alignment, max_alignment_bytes, damaged);
    }
    contents_.alignment_bytes = alignment;
  }
  return {};
}

Status Parser::read_tensor(uint64_t index) {
  const size_t start = position_;
  std::string_view name;
  KVART_RETURN_IF_ERROR(read_name(name, max_tensor_name_bytes, "a tensor's name"));
  GgufTensor tensor;
  tensor.name = name;
  uint32_t type_id = 0;
  const auto read_rest = [&]() -> Status {
    KVART_RETURN_IF_ERROR(read_dims(tensor));
    const size_t type_position = position_;
    KVART_RETURN_IF_ERROR(read(type_id, "its type"));
    KVART_RETURN_IF_ERROR(size_tensor(tensor, type_id, type_position));
    const size_t offset_position = position_;
    KVART_RETURN_IF_ERROR(read(tensor.file_offset, "its offset"));
    if (tensor.file_offset % contents_.alignment_bytes != 0) {
      return invalid("its offset {} (at byte {}) isn't a multiple of the alignment {}: {}",
                     tensor.file_offset, offset_position, contents_.alignment_bytes, damaged);
    }
    return {};
  };
  const Status status = read_rest();
  if (!status.ok()) {
    if (status.error().code == ErrorCode::io) return status.error();
    const std::string_view cause =
        std::string_view(status.error().message).substr(name_.size() + 2);
    return Error{status.error().code, fmt::format("{}: tensor '{}' (number {}, at byte {}): {}",
                                                  name_, printable(name), index, start, cause)};
  }
  contents_.tensors.push_back(std::move(tensor));
  return {};
}

Status Parser::read_dims(GgufTensor& tensor) {
  const size_t start = position_;
  uint32_t dim_count = 0;
  KVART_RETURN_IF_ERROR(read(dim_count, "its number of dimensions"));
  if (dim_count < 1 || dim_count > tensor.dims.size()) {
    return invalid("it has {} dimensions (at byte {}), 1 to {} are possible: {}", dim_count, start,
                   tensor.dims.size(), damaged);
  }
  tensor.dim_count = static_cast<int>(dim_count);
  for (uint32_t i = 0; i < dim_count; ++i) {
    const size_t position = position_;
    KVART_RETURN_IF_ERROR(read(tensor.dims[i], "a dimension"));
    if (tensor.dims[i] < 1) {
      return invalid("dimension {} (at byte {}) is {}, expected 1 or more: {}", i, position,
                     tensor.dims[i], damaged);
    }
  }
  return {};
}

Status Parser::size_tensor(GgufTensor& tensor, uint32_t type_id, size_t type_position) {
  const auto type = weight_type_from_id(type_id);
  if (!type) {
    const std::string_view type_name = stored_type_name(type_id);
    const std::string found = type_name.empty() ? fmt::format("an unknown type {}", type_id)
                                                : fmt::format("type {}", type_name);
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: it has {} (at byte {}), which Kvart doesn't read; supported: {}",
                             name_, found, type_position, supported_weight_types())};
  }
  tensor.type = *type;
  const WeightTypeInfo info = weight_type_info(*type);
  uint64_t values = 1;
  for (const int64_t dim : tensor.dims) {
    if (__builtin_mul_overflow(values, static_cast<uint64_t>(dim), &values) ||
        values > static_cast<uint64_t>(INT64_MAX)) {
      return invalid("its dimensions {} x {} x {} x {} make more values than can be counted: {}",
                     tensor.dims[0], tensor.dims[1], tensor.dims[2], tensor.dims[3], damaged);
    }
  }
  const auto block_values = static_cast<uint64_t>(info.block_values);
  if (static_cast<uint64_t>(tensor.dims[0]) % block_values != 0) {
    return invalid("rows of {} values don't fill blocks of {}, as type {} has: {}", tensor.dims[0],
                   block_values, info.name, damaged);
  }
  if (__builtin_mul_overflow(values / block_values, static_cast<uint64_t>(info.block_bytes),
                             &tensor.size_bytes)) {
    return invalid("its {} values take more bytes than can be counted: {}", values, damaged);
  }
  return {};
}

Status Parser::check_names() {
  const std::vector<GgufTensor>& tensors = contents_.tensors;
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (tensors[order[i]].name == tensors[order[i - 1]].name) {
      return invalid("tensor '{}' is there twice: {}", printable(tensors[order[i]].name), damaged);
    }
  }
  return {};
}

// Turns offsets from the data section's start into offsets in the file, and checks that each tensor
// lies in it.
Status Parser::place_tensors() {
  const uint64_t alignment = contents_.alignment_bytes;
  const uint64_t padding = (alignment - position_ % alignment) % alignment;
  const uint64_t space = left() - std::min(left(), padding);
  const uint64_t data_start = position_ + padding;
  for (GgufTensor& tensor : contents_.tensors) {
    if (tensor.file_offset > space || tensor.size_bytes > space - tensor.file_offset) {
      return invalid(
          "tensor '{}' takes {} bytes from byte {} of the data section, which has {} "
          "bytes (from byte {}): {}",
          printable(tensor.name), tensor.size_bytes, tensor.file_offset, space, data_start,
          damaged);
    }
    tensor.file_offset += data_start;
    if (file_ == nullptr) {
      tensor.data = bytes_.subspan(tensor.file_offset, tensor.size_bytes);
    }
  }
  return check_overlap();
}

Status Parser::check_overlap() const {
  std::vector<const GgufTensor*> order;
  order.reserve(contents_.tensors.size());
  for (const GgufTensor& tensor : contents_.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return a->file_offset < b->file_offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->file_offset + order[i - 1]->size_bytes > order[i]->file_offset) {
      return invalid("tensors '{}' and '{}' overlap at byte {}: {}", printable(order[i - 1]->name),
                     printable(order[i]->name), order[i]->file_offset, damaged);
    }
  }
  return {};
}

}  // namespace

uint64_t gguf_scalar_bytes(GgufValueType type) {
  const auto index = static_cast<size_t>(type);
  return index < value_types.size() ? value_types[index].scalar_bytes : 0;
}

std::string_view gguf_value_type_name(GgufValueType type) {
  const auto index = static_cast<size_t>(type);
  return index < value_types.size() ? value_types[index].name : std::string_view();
}

Result<GgufContents> parse_gguf(std::span<const uint8_t> bytes, FileBytes* file,
                                const std::string& name) {
  return Parser(bytes, file, name).parse();
}

}  // namespace kvart
