// The files of a model, opened and checked: a GGUF file (or its parts), or a folder of a Hugging
// Face checkpoint. Everything that a Model needs but the packing of weights.
#pragma once

#include <string>
#include <vector>

#include "kvart/model_config.h"
#include "model/architecture.h"
#include "model/file/gguf.h"
#include "model/file/safetensors.h"
#include "model/tensor_table.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer.h"

namespace kvart {

struct ModelFiles {
  ModelConfig config;
  TokenizerData tokenizer;
  std::string chat_template;        // Jinja; empty: the file has none
  std::string chat_template_place;  // for messages
  TensorTable tensors;
  // How these files hold what the architecture needs.
  RopePairing pairing = RopePairing::halves;
  bool norms_plus_one = false;

  // The bytes behind `tensors`.
  std::vector<GgufFile> gguf_parts;
  std::vector<SafetensorsFile> shards;

  // Of every byte that a token's K and V can depend on.
  [[nodiscard]] uint64_t fingerprint() const;
  // To be asked after tensors were read. Error: a file was written to meanwhile.
  [[nodiscard]] Status check_unchanged() const;
};

// path: a GGUF file, or a folder with config.json, tokenizer.json and model.safetensors or
// model.safetensors.index.json. Error: a file that is missing, damaged, or that Kvart doesn't run,
// by name.
Result<ModelFiles> open_model_files(const std::string& path);

// The same of a GGUF model whose parts are open.
Result<ModelFiles> model_files_from_gguf(std::vector<GgufFile> parts);

}  // namespace kvart
