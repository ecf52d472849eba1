// Sums up a model's files.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>

#include "kvart/model_inspect.h"
#include "model/config.h"
#include "model/file/json_text.h"
#include "model/file/printable.h"
#include "model/file/safetensors.h"
#include "model/gguf_parts.h"
#include "model/model_files.h"

namespace kvart {

namespace {

namespace fs = std::filesystem;

constexpr size_t max_value_bytes = 96;
constexpr uint64_t shown_elements = 4;

std::string cut(std::string_view text) {
  return printable(text, max_value_bytes);
}

uint64_t file_bytes(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

template <class T>
T load(std::span<const uint8_t> bytes, size_t index) {
  T value{};
  if ((index + 1) * sizeof(T) <= bytes.size()) {
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  }
  return value;
}

// Element `index` of values of a fixed size.
std::string scalar_text(GgufValueType type, std::span<const uint8_t> bytes, size_t index) {
  switch (type) {
    case GgufValueType::u8:
      return std::to_string(load<uint8_t>(bytes, index));
    case GgufValueType::i8:
      return std::to_string(load<int8_t>(bytes, index));
    case GgufValueType::u16:
      return std::to_string(load<uint16_t>(bytes, index));
    case GgufValueType::i16:
      return std::to_string(load<int16_t>(bytes, index));
    case GgufValueType::u32:
      return std::to_string(load<uint32_t>(bytes, index));
    case GgufValueType::i32:
      return std::to_string(load<int32_t>(bytes, index));
    case GgufValueType::u64:
      return std::to_string(load<uint64_t>(bytes, index));
    case GgufValueType::i64:
      return std::to_string(load<int64_t>(bytes, index));
    case GgufValueType::f32:
      return fmt::format("{:g}", load<float>(bytes, index));
    case GgufValueType::f64:
      return fmt::format("{:g}", load<double>(bytes, index));
    case GgufValueType::boolean:
      return load<uint8_t>(bytes, index) != 0 ? "true" : "false";
    case GgufValueType::string:
    case GgufValueType::array:
      break;
  }
  return "";
}

std::string text_of(std::span<const uint8_t> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string array_text(const GgufFile& file, const GgufEntry& entry) {
  std::string text;
  const uint64_t shown = std::min(entry.count, shown_elements);
  if (entry.element_type == GgufValueType::string) {
    const auto strings = file.get_strings(entry.key);
    if (!strings.ok()) return "";
    for (uint64_t i = 0; i < shown; ++i) {
      text += (i == 0 ? "" : ", ") + printable((*strings)[i], max_value_bytes / shown_elements);
    }
  } else {
    for (uint64_t i = 0; i < shown; ++i) {
      text += (i == 0 ? "" : ", ") + scalar_text(entry.element_type, entry.bytes, i);
    }
  }
  return fmt::format("{} values: {}{}", entry.count, text, shown < entry.count ? ", ..." : "");
}

std::string value_text(const GgufFile& file, const GgufEntry& entry) {
  if (entry.type == GgufValueType::string) return cut(text_of(entry.bytes));
  if (entry.type == GgufValueType::array) return array_text(file, entry);
  return scalar_text(entry.type, entry.bytes, 0);
}

// Tensors by type, in any order of adding.
class TypeSums {
 public:
  void add(const std::string& type, uint64_t values, uint64_t bytes) {
    TensorTypeSum& sum = sums_[type];
    sum.type = type;
    ++sum.tensors;
    sum.values += values;
    sum.bytes += bytes;
  }
  [[nodiscard]] std::vector<TensorTypeSum> sorted() const {
    std::vector<TensorTypeSum> list;
    for (const auto& [type, sum] : sums_) list.push_back(sum);
    std::stable_sort(list.begin(), list.end(), [](const TensorTypeSum& a, const TensorTypeSum& b) {
      return a.bytes > b.bytes;
    });
    return list;
  }

 private:
  std::map<std::string, TensorTypeSum> sums_;
};

void add_config(Result<ModelConfig> config, ModelInspection& found) {
  if (config.ok()) {
    found.config = std::move(*config);
  } else {
    found.config_refusal = config.error().message;
    found.run_refusal = found.config_refusal;
  }
}

void add_refusal(const Result<ModelFiles>& files, ModelInspection& found) {
  if (!files.ok()) found.run_refusal = files.error().message;
}

Result<ModelInspection> inspect_gguf(const std::string& path) {
  auto parts = open_gguf_parts(path);  // mapped: no weight is read
  if (!parts.ok()) return parts.error();
  const GgufFile& first = (*parts)[0];
  ModelInspection found;
  found.kind = fmt::format("GGUF version {}", first.version());
  if (parts->size() > 1) found.kind += fmt::format(", {} parts", parts->size());
  TypeSums sums;
  TensorTable tensors;
  for (const GgufFile& part : *parts) {
    const std::string file = parts->size() == 1 ? path : part.name();
    found.parts.push_back({file, file_bytes(file), part.tensors().size()});
    for (const GgufTensor& tensor : part.tensors()) {
      sums.add(std::string(weight_type_info(tensor.type).name),
               static_cast<uint64_t>(tensor.columns()) * static_cast<uint64_t>(tensor.rows()),
               tensor.size_bytes);
    }
    KVART_RETURN_IF_ERROR(tensors.add_gguf(part));
  }
  found.types = sums.sorted();
  for (const GgufEntry& entry : first.entries()) {
    found.entries.push_back({cut(entry.key), gguf_type_name(entry), value_text(first, entry)});
  }
  add_config(config_from_gguf(first, tensors), found);
  if (found.config) add_refusal(model_files_from_gguf(std::move(*parts)), found);
  return found;
}

Status add_shard(const fs::path& path, ModelInspection& found, TypeSums& sums) {
  const auto shard = SafetensorsFile::open(path.string());  // mapped: no weight is read
  if (!shard.ok()) return shard.error();
  found.parts.push_back({shard->name(), file_bytes(path.string()), shard->tensors().size()});
  for (const SafetensorsTensor& tensor : shard->tensors()) {
    uint64_t values = 1;
    for (const int64_t size : tensor.shape) values *= static_cast<uint64_t>(size);
    sums.add(tensor.type_name, values, tensor.size_bytes);
  }
  return {};
}

std::vector<fs::path> shards_of(const fs::path& folder) {
  std::vector<fs::path> shards;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") shards.push_back(it->path());
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

Status add_config_keys(const fs::path& path, ModelInspection& found) {
  const auto json = read_json_file(path.string(), max_config_bytes);
  if (!json.ok()) return json.error();
  if (!json->is_object()) return {};
  for (const auto& [key, value] : json->items()) {
    const std::string dump = value.is_string() ? value.get<std::string>() : value.dump();
    found.entries.push_back({cut(key), value.type_name(), cut(dump)});
  }
  return {};
}

// folder: of the checkpoint; shards: its files with tensors.
Result<ModelInspection> inspect_checkpoint(const fs::path& folder, const fs::path& config_path,
                                           const std::vector<fs::path>& shards) {
  ModelInspection found;
  TypeSums sums;
  for (const fs::path& shard : shards) KVART_RETURN_IF_ERROR(add_shard(shard, found, sums));
  found.types = sums.sorted();
  found.kind = shards.empty() ? "config.json, no weights beside it" : "safetensors";
  std::error_code error;
  if (!fs::exists(config_path, error)) {
    if (!shards.empty()) {
      found.config_refusal = fmt::format("{}: there is no config.json beside the weights",
                                         printable(folder.string(), 512));
      found.run_refusal = found.config_refusal;
      return found;
    }
    return Error{ErrorCode::not_found,
                 fmt::format("{}: a folder with neither config.json nor safetensors files; give a "
                             "GGUF file or a checkpoint's folder",
                             printable(folder.string(), 512))};
  }
  KVART_RETURN_IF_ERROR(add_config_keys(config_path, found));
  add_config(read_model_config(config_path.string()), found);
  if (found.config) add_refusal(open_model_files(folder.string()), found);
  return found;
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

}  // namespace

Result<ModelInspection> inspect_model(const std::string& path) {
  const fs::path file(path);
  std::error_code error;
  if (!fs::exists(file, error)) {
    return Error{ErrorCode::not_found, printable(path, 512) + ": no such file"};
  }
  if (fs::is_directory(file, error)) {
    return inspect_checkpoint(file, file / "config.json", shards_of(file));
  }
  const fs::path folder = folder_of(file);
  if (file.extension() == ".json") return inspect_checkpoint(folder, file, shards_of(folder));
  if (file.extension() == ".safetensors") {
    return inspect_checkpoint(folder, folder / "config.json", {file});
  }
  return inspect_gguf(path);
}

}  // namespace kvart
