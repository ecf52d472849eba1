// Tables of words; see the header. A preset kXvY that isn't listed here is still understood:
// parse_policy knows the rule.
#include "format/policy_words.h"

#include <array>

namespace kvart {

namespace {
constexpr std::array<PresetRow, 19> preset_table = {{
    {{"f16", "full precision: what the others are compared with"}, "f16", "f16"},
    {{"bf16", "bfloat16, for models that run in it"}, "bf16", "bf16"},
    {{"fp8", "8-bit floats with a scale per token"}, "fp8_e4m3", "fp8_e4m3"},
    {{"int8", "8 bits per token"}, "int8", "int8"},
    {{"k8v8", "8 bits per channel: closest to f16"}, "int8_c64", "int8_c64"},
    {{"k8v4", "8-bit K, 4-bit V"}, "int8_c64", "int4_c64"},
    {{"k6v4", "6-bit K, 4-bit V: closer to f16 than fp8"}, "int6_c64", "int4_c64"},
    {{"k5v4", "5-bit K, 4-bit V"}, "int5_c64", "int4_c64"},
    {{"k5v3", "5-bit K, 3-bit V"}, "int5_c64", "int3_c64"},
    {{"int4", "4 bits per channel on both sides (k4v4): the flagship"}, "int4_c64", "int4_c64"},
    {{"k4v3", "4-bit K, 3-bit V"}, "int4_c64", "int3_c64"},
    {{"k4v2", "4-bit K, 2-bit V"}, "int4_c64", "int2_c64"},
    {{"k3v4", "3-bit K, 4-bit V"}, "int3_c64", "int4_c64"},
    {{"k3v3", "3 bits on both sides"}, "int3_c64", "int3_c64"},
    {{"int4_g32", "4 bits per token on both sides: kept for comparison"}, "int4_g32", "int4_g32"},
    {{"fp8v4", "fp8 K, per-token 4-bit V"}, "fp8_e4m3", "int4_g32"},
    {{"int8v4", "int8 K, per-token 4-bit V"}, "int8", "int4_g32"},
    {{"kivi4", "KIVI at 4 bits"}, "int4_c32", "int4_a32"},
    {{"kivi2", "KIVI at 2 bits"}, "int2_c32", "int2_a32"},
}};

constexpr std::string_view scale_differs =
    "one f16 scale per token and head, computed from the data";
constexpr std::array<AliasRow, 20> alias_table = {{
    {"float16", "f16", ""},
    {"half", "f16", ""},
    {"fp16", "f16", ""},
    {"bfloat16", "bf16", ""},
    {"k4v4", "int4", ""},
    {"fp8_e4m3", "fp8", ""},
    {"fp8_per_token_head", "fp8", scale_differs},
    {"int8_per_token_head", "int8", scale_differs},
    {"q8_0", "int8", "one scale per token instead of one per 32 values"},
    {"int4_per_token_head", "int4",
     "scale and minimum per channel over 64 tokens instead of per token"},
    {"q4_0", "int4_g32", "the same bytes, in planes"},
    {"iq4_nl", "int4_g32", "uniform levels instead of a code book, the same bytes"},
    {"q4_1", "int4_a32", "the same bytes, in planes"},
    {"turboquant_k8v4", "k8v4", "per-channel ranges instead of a rotation"},
    {"turboquant_4bit_nc", "int4", "per-channel ranges instead of a rotation"},
    {"turboquant_k3v4_nc", "k3v4", "per-channel ranges instead of a rotation"},
    {"turboquant_3bit_nc", "k3v3", "per-channel ranges instead of a rotation"},
    {"kivi", "kivi2", ""},
    {"int4_per_channel", "int4", ""},
    {"mxfp8", "fp8", "one f16 scale per token instead of a power of two per 32 values"},
}};

constexpr std::array<RefusedRow, 15> refused_table = {{
    {"auto", "name a format: Kvart doesn't guess one; start with k6v4, or f16 for no quantization"},
    {"f32", "caches hold 16 bits at most; use f16"},
    {"fp8_e5m2", "not offered, two mantissa bits are too few; use fp8"},
    {"fp8_inc", "a format of Gaudi accelerators; use fp8"},
    {"fp8_ds_mla", "a latent-attention format, and such models aren't supported"},
    {"nvfp4_ds_mla", "a latent-attention format, and such models aren't supported"},
    {"nvfp4", "not offered yet; the nearest is int4 (the same bytes)"},
    {"nvfp4_4over6", "not offered yet; the nearest is int4 (the same bytes)"},
    {"fp4_e2m1", "not offered yet; the nearest is int4 (the same bytes)"},
    {"fp4_mx_block16", "not offered yet; the nearest is int4 (the same bytes)"},
    {"mxfp4", "not offered yet; the nearest is int4"},
    {"q5_0", "not offered; the nearest are k5v4 and int8"},
    {"q5_1", "not offered; the nearest are k5v4 and int8"},
    {"q6_0", "not offered; the nearest are k6v4 and int8"},
    {"q8_KV", "not offered; the nearest is int8"},
}};
}  // namespace

std::span<const PresetRow> preset_rows() {
  return preset_table;
}
std::span<const AliasRow> alias_rows() {
  return alias_table;
}
std::span<const RefusedRow> refused_rows() {
  return refused_table;
}

}  // namespace kvart
