// ModelConfig: what follows from its fields, and which kind of file a path is.
#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "model/file/json_text.h"
#include "model/file/printable.h"
#include "model/file/text_file.h"
#include "model/gguf_parts.h"
#include "model/kv_scheme.h"

namespace kvart {
namespace {

namespace fs = std::filesystem;

// The model*.safetensors files of the folder, or, if there are none, all; 0 if there are none. Some
// checkpoints have their weights a second time, under another name (consolidated.safetensors).
uint64_t safetensors_bytes(const fs::path& folder) {
  uint64_t all = 0;
  uint64_t named = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".safetensors") continue;
    const auto size = it->file_size(error);
    if (error) return 0;
    all += size;
    if (it->path().filename().string().substr(0, 5) == "model") named += size;
  }
  if (error) return 0;
  return named != 0 ? named : all;
}

Result<ModelConfig> read_json_config(const fs::path& path) {
  auto text = read_text_file(path.string(), max_config_bytes);
  if (!text.ok()) return text.error();
  auto config = config_from_json(*text, printable(path.string(), 512));
  if (!config.ok()) return config;
  const fs::path folder = fs::absolute(path).parent_path();
  config->name = printable(folder.filename().string());
  const fs::path quantization = folder / "hf_quant_config.json";
  std::error_code error;
  if (fs::exists(quantization, error)) {
    const auto json = read_json_file(quantization.string(), max_config_bytes);
    if (!json.ok()) return json.error();
    KVART_RETURN_IF_ERROR(read_kv_scheme(*json, printable(quantization.string(), 512), *config));
  }
  if (const uint64_t bytes = safetensors_bytes(folder); bytes != 0) {
    config->weight_bytes = bytes;
    config->weight_basis = "size of the safetensors files";
  }
  return config;
}

bool starts_with_gguf_magic(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  char magic[4] = {};
  return stream.read(magic, sizeof magic) && std::memcmp(magic, "GGUF", sizeof magic) == 0;
}

}  // namespace

bool ModelConfig::windowed() const {
  return std::any_of(layer_shapes.begin(), layer_shapes.end(),
                     [](const LayerShape& layer) { return layer.window != 0; });
}

uint64_t ModelConfig::parameters() const {
  if (experts != 0) return 0;
  const auto width = static_cast<uint64_t>(hidden);
  uint64_t total = width * vocab * (tied_embeddings ? 1 : 2) + width;
  for (const LayerShape& layer : layer_shapes) {
    const uint64_t attention = width * layer.head_dim * 2 * (q_heads + layer.kv_heads);
    total += attention + (gated_ffn ? 3 : 2) * width * ffn + 2 * width;
  }
  return total;
}

Status ModelConfig::check_runnable() const {
  if (run_refusal.empty()) return {};
  return Error{ErrorCode::unsupported, fmt::format("{}: {}", source, run_refusal)};
}

Result<ModelConfig> read_model_config(const std::string& path) {
  std::error_code error;
  const fs::path file(path);
  const auto status = fs::status(file, error);
  if (!fs::exists(status)) {
    return Error{ErrorCode::not_found, fmt::format("{}: no such file", printable(path, 512))};
  }
  if (fs::is_directory(status)) {
    if (fs::exists(file / "config.json", error)) return read_json_config(file / "config.json");
    return Error{ErrorCode::not_found,
                 fmt::format("{}: a folder without a config.json; give a GGUF file or a folder "
                             "with one",
                             printable(path, 512))};
  }
  if (starts_with_gguf_magic(file) || file.extension() == ".gguf") {
    const auto parts = open_gguf_parts(path);  // mapped: no weight is read
    if (!parts.ok()) return parts.error();
    TensorTable tensors;
    for (const GgufFile& part : *parts) KVART_RETURN_IF_ERROR(tensors.add_gguf(part));
    return config_from_gguf((*parts)[0], tensors);
  }
  return read_json_config(file);
}

}  // namespace kvart
