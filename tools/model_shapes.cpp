// The table of built-in shapes.
#include "model_shapes.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "gpus.h"

namespace kvart::tools {
namespace {

// name, layers, hidden, ffn, query heads, KV heads, head_dim, vocabulary, tied, billions, context,
// window, full every
constexpr std::array table = {
    ModelShape{"Llama-2-7B", 32, 4096, 11008, 32, 32, 128, 32000, false, 6.74, 4096},
    ModelShape{"Llama-2-13B", 40, 5120, 13824, 40, 40, 128, 32000, false, 13.0, 4096},
    ModelShape{"Llama-2-70B", 80, 8192, 28672, 64, 8, 128, 32000, false, 69.0, 4096},
    ModelShape{"Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128256, false, 8.0, 8192},
    ModelShape{"Llama-3-70B", 80, 8192, 28672, 64, 8, 128, 128256, false, 70.6, 8192},
    ModelShape{"Llama-3.1-8B", 32, 4096, 14336, 32, 8, 128, 128256, false, 8.0, 131072},
    ModelShape{"Llama-3.1-70B", 80, 8192, 28672, 64, 8, 128, 128256, false, 70.6, 131072},
    ModelShape{"Llama-3.1-405B", 126, 16384, 53248, 128, 8, 128, 128256, false, 405.9, 131072},
    ModelShape{"Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128256, true, 1.24, 131072},
    ModelShape{"Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128, 128256, true, 3.21, 131072},
    ModelShape{"Llama-3.3-70B", 80, 8192, 28672, 64, 8, 128, 128256, false, 70.6, 131072},
    ModelShape{"TinyLlama-1.1B", 22, 2048, 5632, 32, 4, 64, 32000, false, 1.10, 2048},
    ModelShape{"Qwen2.5-0.5B", 24, 896, 4864, 14, 2, 64, 151936, true, 0.49, 32768},
    ModelShape{"Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151936, true, 1.54, 32768},
    ModelShape{"Qwen2.5-3B", 36, 2048, 11008, 16, 2, 128, 151936, true, 3.09, 32768},
    ModelShape{"Qwen2.5-7B", 28, 3584, 18944, 28, 4, 128, 152064, false, 7.62, 32768},
    ModelShape{"Qwen2.5-14B", 48, 5120, 13824, 40, 8, 128, 152064, false, 14.8, 32768},
    ModelShape{"Qwen2.5-32B", 64, 5120, 27648, 40, 8, 128, 152064, false, 32.8, 32768},
    ModelShape{"Qwen2.5-72B", 80, 8192, 29568, 64, 8, 128, 152064, false, 72.7, 32768},
    ModelShape{"Qwen3-0.6B", 28, 1024, 3072, 16, 8, 128, 151936, true, 0.60, 40960},
    ModelShape{"Qwen3-1.7B", 28, 2048, 6144, 16, 8, 128, 151936, true, 1.72, 40960},
    ModelShape{"Qwen3-4B", 36, 2560, 9728, 32, 8, 128, 151936, true, 4.02, 40960},
    ModelShape{"Qwen3-8B", 36, 4096, 12288, 32, 8, 128, 151936, false, 8.19, 40960},
    ModelShape{"Qwen3-14B", 40, 5120, 17408, 40, 8, 128, 151936, false, 14.8, 40960},
    ModelShape{"Qwen3-32B", 64, 5120, 25600, 64, 8, 128, 151936, false, 32.8, 40960},
    ModelShape{"Mistral-7B-v0.1", 32, 4096, 14336, 32, 8, 128, 32000, false, 7.24, 32768, 4096},
    ModelShape{"Mistral-7B-v0.2", 32, 4096, 14336, 32, 8, 128, 32000, false, 7.24, 32768},
    ModelShape{"Mistral-7B-v0.3", 32, 4096, 14336, 32, 8, 128, 32768, false, 7.25, 32768},
    ModelShape{"Mistral-Nemo-12B", 40, 5120, 14336, 32, 8, 128, 131072, false, 12.2, 131072},
    ModelShape{"Mistral-Small-24B", 40, 5120, 32768, 32, 8, 128, 131072, false, 23.6, 32768},
    ModelShape{"Gemma-2-2B", 26, 2304, 9216, 8, 4, 256, 256000, true, 2.61, 8192, 4096, 2},
    ModelShape{"Gemma-2-9B", 42, 3584, 14336, 16, 8, 256, 256000, true, 9.24, 8192, 4096, 2},
    ModelShape{"Gemma-2-27B", 46, 4608, 36864, 32, 16, 128, 256000, true, 27.2, 8192, 4096, 2},
    ModelShape{"Gemma-3-270M", 18, 640, 2048, 4, 1, 256, 262144, true, 0.27, 32768, 512, 6},
    ModelShape{"Gemma-3-1B", 26, 1152, 6912, 4, 1, 256, 262144, true, 1.00, 32768, 512, 6},
    ModelShape{"Gemma-3-4B", 34, 2560, 10240, 8, 4, 256, 262208, true, 3.88, 131072, 1024, 6},
    ModelShape{"Gemma-3-12B", 48, 3840, 15360, 16, 8, 256, 262208, true, 11.8, 131072, 1024, 6},
    ModelShape{"Gemma-3-27B", 62, 5376, 21504, 32, 16, 128, 262208, true, 27.0, 131072, 1024, 6},
    ModelShape{"Phi-3-mini-4k", 32, 3072, 8192, 32, 32, 96, 32064, false, 3.82, 4096, 2047},
    ModelShape{"Phi-3-mini-128k", 32, 3072, 8192, 32, 32, 96, 32064, false, 3.82, 131072},
    ModelShape{"Phi-3-medium-128k", 40, 5120, 17920, 40, 10, 128, 32064, false, 14.0, 131072},
    ModelShape{"Phi-4", 40, 5120, 17920, 40, 10, 128, 100352, false, 14.7, 16384},
    ModelShape{"SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152, true, 0.135, 8192},
    ModelShape{"SmolLM2-360M", 32, 960, 2560, 15, 5, 64, 49152, true, 0.362, 8192},
    ModelShape{"SmolLM2-1.7B", 24, 2048, 8192, 32, 32, 64, 49152, true, 1.71, 8192},
    ModelShape{"SmolLM3-3B", 36, 2048, 11008, 16, 4, 128, 128256, true, 3.08, 65536},
};

// Without owner, the maker's prefix and what a tuned version adds: these have the same shape.
std::string shape_name(std::string_view name) {
  if (const size_t slash = name.rfind('/'); slash != std::string_view::npos) {
    name.remove_prefix(slash + 1);
  }
  std::string plain = plain_name(name);
  if (plain.compare(0, 9, "metallama") == 0) plain.erase(0, 4);
  for (const std::string_view ending : {"instruct", "chat", "base", "it"}) {
    if (plain.size() > ending.size() &&
        plain.compare(plain.size() - ending.size(), ending.size(), ending) == 0) {
      plain.resize(plain.size() - ending.size());
      break;
    }
  }
  return plain;
}

}  // namespace

CacheShape ModelShape::cache_shape() const {
  CacheShape shape;
  for (int layer = 0; layer < layers; ++layer) {
    const bool full = window == 0 || (full_every != 0 && (layer + 1) % full_every == 0);
    shape.layers.push_back({kv_heads, head_dim, full ? 0 : window});
  }
  return shape;
}

double ModelShape::computed_parameters() const {
  const double width = hidden;
  const double attention = 2.0 * width * head_dim * (q_heads + kv_heads);
  return width * vocab * (tied_embeddings ? 1 : 2) + layers * (attention + 3 * width * ffn);
}

std::span<const ModelShape> model_shapes() {
  return table;
}

Result<ModelShape> find_model_shape(std::string_view name) {
  const std::string wanted = shape_name(name);
  std::string names;
  for (const ModelShape& shape : table) {
    if (shape_name(shape.name) == wanted) return shape;
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  }
  return Error{ErrorCode::not_found,
               fmt::format("{}: neither a file or folder nor a built-in shape; give a GGUF file, a "
                           "config.json or one of {}",
                           name, names)};
}

}  // namespace kvart::tools
