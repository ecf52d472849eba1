// Translates checkpoints' names of tensors into GGUF's, and gathers a model's tensors.
#include "model/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "model/file/printable.h"

namespace kvart {

namespace {

struct Renamed {
  std::string_view from;
  std::string_view to;
};

constexpr Renamed outer_names[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"lm_head.", "output."},
};

// After "model.layers.N."; the rest of the name (weight, bias, weight_scale ...) is kept.
constexpr Renamed layer_names[] = {
    {"input_layernorm.", "attn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.qkv_proj.", "attn_qkv."},
    {"self_attn.o_proj.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."},
    {"pre_feedforward_layernorm.", "ffn_norm."},
    {"post_feedforward_layernorm.", "post_ffw_norm."},
    {"mlp.gate.", "ffn_gate_inp."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.gate_up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
};

constexpr Renamed expert_names[] = {
    {"gate_proj.", "ffn_gate_exps."},
    {"up_proj.", "ffn_up_exps."},
    {"down_proj.", "ffn_down_exps."},
};

// Parts of checkpoints that a text's forward pass has no use for.
constexpr std::string_view left_out[] = {"vision_tower.", "multi_modal_projector.",
                                         "model.vision_tower.", "model.multi_modal_projector."};

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Digits and the dot after them, off the front of `text`; empty if it doesn't begin so.
std::string_view take_number(std::string_view& text) {
  const size_t end = text.find_first_not_of("0123456789");
  if (end == 0 || end == std::string_view::npos || text[end] != '.') return {};
  const std::string_view digits = text.substr(0, end);
  text.remove_prefix(end + 1);
  return digits;
}

std::string layer_name_of(std::string_view layer, std::string_view rest, bool post_norms) {
  const auto name = [&](std::string_view stem, std::string_view tail) {
    return fmt::format("blk.{}.{}{}", layer, stem, tail);
  };
  if (take_prefix(rest, "post_attention_layernorm.")) {
    return name(post_norms ? "post_attention_norm." : "ffn_norm.", rest);
  }
  if (rest == "self_attn.rotary_emb.inv_freq") return {};
  for (const Renamed& known : layer_names) {
    std::string_view tail = rest;
    if (take_prefix(tail, known.from)) return name(known.to, tail);
  }
  std::string_view expert = rest;
  if (take_prefix(expert, "mlp.experts.")) {
    const std::string_view number = take_number(expert);
    for (const Renamed& known : expert_names) {
      std::string_view tail = expert;
      if (number.empty() || !take_prefix(tail, known.from)) continue;
      return name(known.to, fmt::format("{}.{}", number, tail));
    }
  }
  return name(rest, "");
}

std::optional<StoredTensor> stored(const SafetensorsTensor& tensor, std::string place) {
  StoredTensor out;
  out.place = std::move(place);
  out.size_bytes = tensor.size_bytes;
  out.data = tensor.data;
  if (tensor.shape.size() > out.dims.size()) return std::nullopt;
  std::copy(tensor.shape.rbegin(), tensor.shape.rend(), out.dims.begin());
  switch (tensor.type) {
    case SafetensorsType::F32:
      out.type = WeightType::F32;
      return out;
    case SafetensorsType::F16:
      out.type = WeightType::F16;
      return out;
    case SafetensorsType::BF16:
      out.type = WeightType::BF16;
      return out;
    case SafetensorsType::F8_E4M3:
      out.is_fp8 = true;
      return out;
    case SafetensorsType::other:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::string gguf_name_of(const std::string& name, bool post_norms) {
  std::string_view text = name;
  for (const std::string_view prefix : left_out) {
    if (text.substr(0, prefix.size()) == prefix) return {};
  }
  // Models that also see images have their language model inside.
  std::string inner(text);
  if (take_prefix(text, "language_model.")) inner = text;
  if (take_prefix(text, "model.language_model.")) inner = fmt::format("model.{}", text);
  text = inner;
  for (const Renamed& known : outer_names) {
    std::string_view tail = text;
    if (take_prefix(tail, known.from)) return std::string(known.to) + std::string(tail);
  }
  if (take_prefix(text, "model.layers.")) {
    const std::string_view layer = take_number(text);
    if (!layer.empty()) return layer_name_of(layer, text, post_norms);
  }
  return inner;
}

Status TensorTable::add(std::string name, StoredTensor&& tensor) {
  const auto [found, added] = tensors_.try_emplace(std::move(name), std::move(tensor));
  if (added) return {};
  return Error{ErrorCode::invalid_file,
               fmt::format("{}: tensor {} is there twice: the parts aren't of one model",
                           found->second.place, found->first)};
}

Status TensorTable::add_gguf(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    StoredTensor out;
    out.place = fmt::format("{}: tensor {}", file.name(), printable(tensor.name));
    out.type = tensor.type;
    out.dims = tensor.dims;
    out.size_bytes = tensor.size_bytes;
    out.data = tensor.data;
    KVART_RETURN_IF_ERROR(add(tensor.name, std::move(out)));
  }
  return {};
}

Status TensorTable::add_safetensors(const SafetensorsFile& file, bool post_norms) {
  for (const SafetensorsTensor& tensor : file.tensors()) {
    std::string name = gguf_name_of(tensor.name, post_norms);
    if (name.empty()) continue;
    const std::string place = fmt::format("{}: tensor {}", file.name(), printable(tensor.name));
    auto out = stored(tensor, place);
    if (!out) {
      return Error{ErrorCode::unsupported,
                   fmt::format("{}: it has type {} and {} dimensions; weights are F32, F16, BF16 "
                               "or F8_E4M3 with at most 4",
                               place, tensor.type_name, tensor.shape.size())};
    }
    KVART_RETURN_IF_ERROR(add(std::move(name), std::move(*out)));
  }
  return {};
}

}  // namespace kvart
