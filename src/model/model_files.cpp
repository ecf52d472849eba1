// Opens a GGUF model or a checkpoint's folder, and hashes what it holds.
#include "model/model_files.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "model/config.h"
#include "model/file/json_text.h"
#include "model/file/printable.h"
#include "model/file/text_file.h"
#include "model/gguf_parts.h"
#include "model/kv_scheme.h"
#include "model/text/tokenizer_gguf.h"
#include "model/text/tokenizer_json.h"

namespace kvart {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_json_bytes = 256 << 20;  // of a tokenizer.json; known ones have below 40 MB
constexpr uint64_t max_template_bytes = 1 << 20;

Error invalid(const fs::path& path, const std::string& what) {
  return {ErrorCode::invalid_file, fmt::format("{}: {}", printable(path.string(), 512), what)};
}

Result<nlohmann::json> read_json(const fs::path& path) {
  auto json = read_json_file(path.string(), max_json_bytes);
  if (json.ok() && !json->is_object()) return invalid(path, "not a JSON object");
  return json;
}

using WeightMap = std::map<std::string, std::string>;  // tensor -> file

// What the index says. Only plain names of files: nothing outside the folder is opened.
Result<WeightMap> read_index(const fs::path& index) {
  const auto json = read_json(index);
  if (!json.ok()) return json.error();
  const auto found = json->find("weight_map");
  if (found == json->end() || !found->is_object() || found->empty()) {
    return invalid(index, "weight_map is missing, or is no object");
  }
  WeightMap map;
  for (const auto& [tensor, file] : found->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == ".." ||
        name.find('\0') != std::string::npos) {
      return invalid(index, fmt::format("weight_map names '{}' for tensor '{}'; expected the name "
                                        "of a file in the same folder",
                                        printable(name), printable(tensor)));
    }
    map.emplace(tensor, name);
  }
  return map;
}

// Every tensor of `shard` is one that the index has there; it is taken out of the map.
Status check_shard(const fs::path& index, const SafetensorsFile& shard, const std::string& name,
                   WeightMap& map) {
  for (const SafetensorsTensor& tensor : shard.tensors()) {
    const auto expected = map.find(tensor.name);
    if (expected == map.end() || expected->second != name) {
      return invalid(index, fmt::format("{} has a tensor '{}' that weight_map doesn't name for it: "
                                        "not a part of this model",
                                        printable(name), printable(tensor.name)));
    }
    map.erase(expected);
  }
  return {};
}

Status open_shards(const fs::path& folder, ModelFiles& files) {
  std::error_code error;
  const fs::path index = folder / "model.safetensors.index.json";
  const fs::path single = folder / "model.safetensors";
  if (!fs::exists(index, error)) {
    if (!fs::exists(single, error)) {
      return Error{ErrorCode::not_found,
                   fmt::format("{}: neither model.safetensors nor model.safetensors.index.json: "
                               "fetch the weights, or give a GGUF file",
                               printable(folder.string(), 512))};
    }
    auto file = SafetensorsFile::open(single.string());
    if (!file.ok()) return file.error();
    files.shards.push_back(std::move(*file));
    return {};
  }
  auto map = read_index(index);
  if (!map.ok()) return map.error();
  std::set<std::string> names;
  for (const auto& [tensor, file] : *map) names.insert(file);
  for (const std::string& name : names) {
    auto shard = SafetensorsFile::open((folder / name).string());
    if (!shard.ok()) return shard.error();
    KVART_RETURN_IF_ERROR(check_shard(index, *shard, name, *map));
    files.shards.push_back(std::move(*shard));
  }
  if (map->empty()) return {};
  return invalid(index,
                 fmt::format("tensor '{}' isn't in {}, where weight_map has it",
                             printable(map->begin()->first), printable(map->begin()->second)));
}

// Ids at which generation ends, besides the tokenizer's own: one or a list.
Status add_ends(const fs::path& path, TokenizerData& data) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  const auto json = read_json(path);
  if (!json.ok()) return json.error();
  const auto found = json->find("eos_token_id");
  if (found == json->end() || found->is_null()) return {};
  const nlohmann::json list = found->is_array() ? *found : nlohmann::json::array({*found});
  for (const auto& one : list) {
    const bool right = one.is_number_unsigned() && one.get<uint64_t>() < data.tokens.size();
    if (!right) return invalid(path, "eos_token_id isn't a token of the vocabulary");
    data.ends.push_back(one.get<int32_t>());
  }
  return {};
}

// tokenizer_config.json holds the template as text, or as a list of named ones.
Result<std::string> template_of_settings(const fs::path& path) {
  const auto json = read_json(path);
  if (!json.ok()) return json.error();
  const auto found = json->find("chat_template");
  if (found == json->end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  for (const auto& one : found->is_array() ? *found : nlohmann::json::array()) {
    const bool named = one.is_object() && one.value("name", nlohmann::json()) == "default";
    const auto text = named ? one.find("template") : one.end();
    if (named && text != one.end() && text->is_string()) return text->get<std::string>();
  }
  return invalid(path, "chat_template is neither text nor a list with one named default");
}

// The text of a file of the folder; empty if it isn't there.
Result<std::string> optional_text(const fs::path& path, uint64_t max_bytes) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::string();
  return read_text_file(path.string(), max_bytes);
}

Status read_tokenizer(const fs::path& folder, ModelFiles& files) {
  const fs::path vocabulary = folder / "tokenizer.json";
  const auto text = read_text_file(vocabulary.string(), max_json_bytes);
  if (!text.ok()) return text.error();
  const auto settings = optional_text(folder / "tokenizer_config.json", max_json_bytes);
  if (!settings.ok()) return settings.error();
  auto data = tokenizer_data_from_json(*text, *settings, printable(vocabulary.string(), 512));
  if (!data.ok()) return data.error();
  files.tokenizer = std::move(*data);
  return add_ends(folder / "generation_config.json", files.tokenizer);
}

Status read_chat_template(const fs::path& folder, ModelFiles& files) {
  const fs::path own = folder / "chat_template.jinja";
  auto text = optional_text(own, max_template_bytes);
  if (!text.ok()) return text.error();
  files.chat_template_place = printable(own.string(), 512);
  const fs::path settings = folder / "tokenizer_config.json";
  std::error_code error;
  if (text->empty() && fs::exists(settings, error)) {
    text = template_of_settings(settings);
    if (!text.ok()) return text.error();
    files.chat_template_place = printable(settings.string(), 512) + ": chat_template";
  }
  files.chat_template = std::move(*text);
  return {};
}

Result<ModelFiles> open_folder(const fs::path& folder) {
  auto config = read_model_config(folder.string());
  if (!config.ok()) return config.error();
  KVART_RETURN_IF_ERROR(config->check_runnable());
  ModelFiles files;
  files.config = std::move(*config);
  const Architecture& architecture = *find_architecture(files.config.architecture);
  files.norms_plus_one = architecture.norms_plus_one;
  KVART_RETURN_IF_ERROR(open_shards(folder, files));
  for (const SafetensorsFile& shard : files.shards) {
    KVART_RETURN_IF_ERROR(files.tensors.add_safetensors(shard, architecture.post_norms));
  }
  KVART_RETURN_IF_ERROR(take_kv_scales(files.tensors, files.config));
  KVART_RETURN_IF_ERROR(read_tokenizer(folder, files));
  KVART_RETURN_IF_ERROR(read_chat_template(folder, files));
  return files;
}

void add_text(XXH3_state_t* state, std::string_view text) {
  const uint64_t size = text.size();
  XXH3_64bits_update(state, &size, sizeof(size));
  XXH3_64bits_update(state, text.data(), text.size());
}

void add_data(XXH3_state_t* state, std::span<const uint8_t> bytes) {
  XXH3_64bits_update(state, bytes.data(), bytes.size());
}

}  // namespace

uint64_t ModelFiles::fingerprint() const {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  for (const GgufFile& part : gguf_parts) {
    for (const GgufEntry& entry : part.entries()) {
      add_text(state, entry.key);
      add_data(state, entry.bytes);
    }
    for (const GgufTensor& tensor : part.tensors()) {
      add_text(state, tensor.name);
      XXH3_64bits_update(state, tensor.dims.data(), sizeof(tensor.dims));
      add_data(state, tensor.data);
    }
  }
  for (const SafetensorsFile& shard : shards) {
    add_text(state, shard.header());
    for (const SafetensorsTensor& tensor : shard.tensors()) add_data(state, tensor.data);
  }
  // What a checkpoint's config.json says of the arithmetic.
  add_text(state, config.architecture);
  const RopeScaling& rope = config.rope_scaling;
  add_text(state, rope.type);
  for (const double number :
       {config.rope_theta, config.rope_theta_local, static_cast<double>(config.norm_eps),
        config.attention_scale, config.attention_soft_cap, rope.factor, rope.low_freq_factor,
        rope.high_freq_factor, static_cast<double>(rope.original_context), rope.attention_factor,
        rope.beta_fast, rope.beta_slow, rope.mscale, rope.mscale_all_dim,
        static_cast<double>(config.experts_used), static_cast<double>(config.rope_dim)}) {
    XXH3_64bits_update(state, &number, sizeof(number));
  }
  for (const auto* factors : {&rope.short_factors, &rope.long_factors}) {
    XXH3_64bits_update(state, factors->data(), factors->size() * sizeof(double));
  }
  for (const LayerShape& layer : config.layer_shapes) {
    XXH3_64bits_update(state, &layer.window, sizeof(layer.window));
  }
  const uint64_t hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return hash;
}

Status ModelFiles::check_unchanged() const {
  for (const GgufFile& part : gguf_parts) KVART_RETURN_IF_ERROR(part.check_unchanged());
  for (const SafetensorsFile& shard : shards) KVART_RETURN_IF_ERROR(shard.check_unchanged());
  return {};
}

Result<ModelFiles> model_files_from_gguf(std::vector<GgufFile> parts) {
  ModelFiles files;
  files.gguf_parts = std::move(parts);
  for (const GgufFile& part : files.gguf_parts) {
    KVART_RETURN_IF_ERROR(files.tensors.add_gguf(part));
  }
  const GgufFile& first = files.gguf_parts[0];
  auto config = config_from_gguf(first, files.tensors);
  if (!config.ok()) return config.error();
  KVART_RETURN_IF_ERROR(config->check_runnable());
  files.config = std::move(*config);
  files.pairing = find_architecture(files.config.architecture)->gguf_pairing;
  auto tokenizer = tokenizer_data_from_gguf(first);
  if (!tokenizer.ok()) return tokenizer.error();
  files.tokenizer = std::move(*tokenizer);
  constexpr const char* key = "tokenizer.chat_template";
  if (first.has(key)) {
    auto text = first.get_string(key);
    if (!text.ok()) return text.error();
    files.chat_template = std::move(*text);
    files.chat_template_place = fmt::format("{}: {}", first.name(), key);
  }
  return files;
}

Result<ModelFiles> open_model_files(const std::string& path) {
  std::error_code error;
  const fs::path place(path);
  if (fs::is_directory(place, error)) return open_folder(place);
  if (place.extension() == ".json" || place.extension() == ".safetensors") {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{}: give the folder that it is in, or a GGUF file", printable(path, 512))};
  }
  auto parts = open_gguf_parts(path);
  if (!parts.ok()) return parts.error();
  return model_files_from_gguf(std::move(*parts));
}

}  // namespace kvart
