// The tensors of a model under one set of names (GGUF's), whatever files hold them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kvart/result.h"
#include "model/file/gguf.h"
#include "model/file/safetensors.h"

namespace kvart {

struct StoredTensor {
  std::string place;  // file and the tensor's own name there, for messages
  WeightType type = WeightType::F32;
  bool is_fp8 = false;  // e4m3 codes in place of `type`; a tensor NAME_scale says what they mean
  std::array<int64_t, 4> dims = {1, 1, 1, 1};  // dims[0] is the contiguous one: a matrix's columns
  uint64_t size_bytes = 0;
  std::span<const uint8_t> data;  // size_bytes bytes; empty where the file was opened without data
};

class TensorTable {
 public:
  // Error: a name that is there already, in another part of the model.
  Status add(std::string name, StoredTensor&& tensor);

  // Adds all tensors of one file. Their data must outlive the table.
  Status add_gguf(const GgufFile& file);
  // Names are translated; `layer kind` norms etc. have the same meaning afterwards. Tensors that no
  // forward pass has a use for (images, frequencies that are computed) are left out. Error: a type
  // that weights can't have, more than 4 dimensions.
  Status add_safetensors(const SafetensorsFile& file, bool post_norms);

  [[nodiscard]] const StoredTensor* find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  void remove(const std::string& name) { tensors_.erase(name); }
  [[nodiscard]] const std::map<std::string, StoredTensor>& all() const { return tensors_; }

 private:
  std::map<std::string, StoredTensor> tensors_;
};

// The GGUF name of a checkpoint's tensor ("model.layers.3.self_attn.q_proj.weight" ->
// "blk.3.attn_q.weight"); the name itself where there is none, and empty for a tensor that is to be
// left out. Experts: "blk.3.ffn_up_exps.7.weight". post_norms: whether the family normalizes what a
// block computes, on which the meaning of post_attention_layernorm depends.
std::string gguf_name_of(const std::string& name, bool post_norms);

}  // namespace kvart
