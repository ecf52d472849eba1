// What is in a model's files, without loading a weight.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvart/model_config.h"
#include "kvart/result.h"

namespace kvart {

struct ModelPart {
  std::string path;
  uint64_t file_bytes = 0;
  uint64_t tensors = 0;
};

// All tensors of one type.
struct TensorTypeSum {
  std::string type;
  uint64_t tensors = 0;
  uint64_t values = 0;
  uint64_t bytes = 0;
};

// One key of GGUF's metadata, or of a config.json, fit for a message: values are one line, cut.
struct MetadataEntry {
  std::string key;
  std::string type;
  std::string value;
};

struct ModelInspection {
  std::string kind;                    // "GGUF version 3, 2 parts", "safetensors", "config.json"
  std::vector<ModelPart> parts;        // files with tensors; none beside a config.json alone
  std::vector<TensorTypeSum> types;    // most bytes first
  std::vector<MetadataEntry> entries;  // sorted by key
  std::optional<ModelConfig> config;
  std::string config_refusal;  // why there is no config; empty where there is
  std::string run_refusal;     // why a Model can't be made of these files; empty where nothing that
                               // shows without reading weights is against it
};

// path: a GGUF file (or a part of one that is split), a checkpoint's folder, its config.json, or a
// safetensors file. Error: not such a file, or one that is damaged.
Result<ModelInspection> inspect_model(const std::string& path);

}  // namespace kvart
