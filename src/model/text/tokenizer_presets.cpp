// The table of pre-tokenizers by GGUF's names. The patterns are those of the models' own
// tokenizer.json, as llama.cpp lists them too, in PCRE2's syntax.
#include "model/text/tokenizer_presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "model/file/printable.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

constexpr size_t pattern_count_max = 6;
using Patterns = std::array<const char*, pattern_count_max>;  // up to the first nullptr

struct Row {
  std::string_view name;  // value of tokenizer.ggml.pre
  const Patterns* patterns;
  bool whole_pieces = false, adds_bos = false;
};

#define GPT2_WORDS \
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
// Contractions in either case are spelled out: case folding would also take U+017F for an s.
// (Hugging Face's tokenizers library does fold, so the two differ on "'ſa".)
#define CONTRACTIONS "'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL])"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define OTHERS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
// Words in which capitals come first. Contractions fold case here as in the original.
#define CASED_WORDS(end)                                                                          \
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" end \
  "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" end
#define CASED_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define ASCII_PUNCTUATED_WORD "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
#define MARKED_WORD "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"

constexpr Patterns gpt2 = {GPT2_WORDS};
constexpr Patterns digit_then_gpt2 = {"\\p{N}", GPT2_WORDS};
constexpr Patterns llama3 = {CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" OTHERS "|" SPACES};
constexpr Patterns qwen2 = {CONTRACTIONS "|" WORD "|\\p{N}|" OTHERS "|" SPACES};
constexpr Patterns qwen35 = {CONTRACTIONS
                             "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                             "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES};
constexpr Patterns no_contractions = {WORD "|\\p{N}|" OTHERS "|" SPACES};
constexpr Patterns lines_then_qwen2 = {"[^\\n]+|\\n+",
                                       CONTRACTIONS "|" WORD "|\\p{N}|" OTHERS "|" SPACES};
constexpr Patterns minicpm5 = {"\\p{N}{1,3}", CONTRACTIONS "|" WORD "|\\p{N}+|" OTHERS "|" SPACES};
constexpr Patterns seed_coder = {CONTRACTIONS "|" WORD
                                              "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES};
constexpr Patterns bailing = {CONTRACTIONS "|" WORD "|\\p{N}|" OTHERS
                                           "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"};
constexpr Patterns jais2 = {
    CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" OTHERS
                 "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)"
                 "|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s"};
constexpr Patterns tekken = {CASED_WORDS("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES};
constexpr Patterns gpt4o = {
    CASED_WORDS(CASED_CONTRACTIONS) "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES};
constexpr Patterns youtu = {
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-"
    "ゟ゠-"
    "ヿ]"
    "+",
    CASED_WORDS("(?:" CONTRACTIONS ")?") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES};
// Letters of scripts with two cases, as ranges; what the model's own file has.
constexpr Patterns deepseek_llm = {
    "[\\r\\n]",
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-"
    "ᲺᲽ-"
    "Ჿᴀ-"
    "ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    "Ὗ-\\x{1F7D}ᾀ-ᾴᾶ-ᾼ\\x{1FBE}ῂ-ῄῆ-ῌῐ-\\x{1FD3}ῖ-\\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\\x{2126}ℨ\\x{212A}-ℭ"
    "ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-"
    "𐓓𐓘-"
    "𐓻𐲀-"
    "𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    "\\s?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+",
    "\\s+$",
    "[一-龥ࠀ-一가-\\x{D7FF}]+",
    "\\p{N}+"};
constexpr Patterns deepseek_coder = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
                                     "[一-龥ࠀ-一가-\\x{D7FF}]+", "\\p{N}"};
constexpr Patterns deepseek_v3 = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                                  ASCII_PUNCTUATED_WORD "|" MARKED_WORD
                                                        "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES};
constexpr Patterns spark = {
    "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    ASCII_PUNCTUATED_WORD "|" MARKED_WORD "| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+", "\\p{N}"};
constexpr Patterns falcon = {"[\\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"};
constexpr Patterns bloom = {" ?[^(\\s|.,!?…。，、।۔،)]+"};
constexpr Patterns viking = {" ?[^(\\s|.,!?…。，、।۔،)]+", "\\p{N}"};
constexpr Patterns chameleon = {"<sentinel:[0-9]+>",      "IMGIMG[A-I]{1,4}Z",
                                "[\\t\\n]|    |  ",       "\\p{N}",
                                "[\\p{P}!-/:-@\\[-`{-~]", GPT2_WORDS};
constexpr Patterns default_bpe = {"[\\p{P}$+<=>^~|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"};

constexpr Row rows[] = {
    {"a.x-4.0", &gpt2},
    {"bailingmoe", &bailing},
    {"bailingmoe2", &bailing},
    {"bloom", &bloom},
    {"chameleon", &chameleon, false, true},
    {"chatglm-bpe", &llama3},
    {"codeshell", &digit_then_gpt2},
    {"command-r", &digit_then_gpt2},
    {"dbrx", &llama3},
    {"deepseek-coder", &deepseek_coder},
    {"deepseek-llm", &deepseek_llm},
    {"deepseek-r1-qwen", &qwen2},
    {"deepseek-v3", &deepseek_v3},
    {"default", &default_bpe},
    {"exaone", &digit_then_gpt2},
    {"exaone4", &gpt2},
    {"falcon", &falcon},
    {"falcon-h1", &llama3, true, true},
    {"falcon3", &llama3, true, true},
    {"gigachat", &gpt2},
    {"glm4", &llama3},
    {"gpt-2", &gpt2},
    {"gpt-4o", &gpt4o},
    {"gpt3-finnish", &bloom},
    {"granite-docling", &gpt2},
    {"grok-2", &qwen2},
    {"hunyuan", &qwen2},
    {"hunyuan-dense", &deepseek_v3},
    {"hy_v4", &deepseek_v3},
    {"jais", &gpt2},
    {"jais-2", &jais2},
    {"joyai-llm", &deepseek_v3},
    {"kanana2", &gpt4o},
    {"kormo", &qwen2},
    {"laguna", &lines_then_qwen2},
    {"lfm2", &llama3, true, true},
    {"llada-moe", &bailing},
    {"llama-bpe", &llama3, true, true},
    {"llama-v3", &llama3, true, true},
    {"llama3", &llama3, true, true},
    {"llama4", &gpt4o},
    {"megrez", &qwen2},
    {"mellum", &gpt2},
    {"mellum2", &digit_then_gpt2},
    {"midm-2.0", &llama3, true, true},
    {"minerva-7b", &digit_then_gpt2},
    {"minicpm5", &minicpm5, true},
    {"minimax-m2", &gpt4o},
    {"mpt", &gpt2},
    {"olmo", &gpt2},
    {"phi-2", &gpt2},
    {"pixtral", &llama3, true, true},
    {"poro-chat", &bloom},
    {"qwen2", &qwen2},
    {"qwen35", &qwen35},
    {"refact", &digit_then_gpt2},
    {"seed-coder", &seed_coder},
    {"smaug-bpe", &llama3},
    {"smollm", &digit_then_gpt2},
    {"solar-open", &qwen2},
    {"spark2_5", &spark},
    {"stablelm2", &qwen2},
    {"starcoder", &digit_then_gpt2},
    {"tekken", &tekken, true, true},
    {"trillion", &gpt2},
    {"ufakzeka", &no_contractions},
    {"viking", &viking},
    {"youtu", &youtu, true},
};

const Row* find_row(std::string_view name) {
  const Row* row = std::find_if(std::begin(rows), std::end(rows),
                                [&](const Row& candidate) { return candidate.name == name; });
  return row == std::end(rows) ? nullptr : row;
}

std::string known_names() {
  std::string names;
  for (const Row& row : rows) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

Error unsupported(std::string message) {
  return {ErrorCode::unsupported, std::move(message)};
}

PreTokenizerStep split_at(const char* pattern) {
  PreTokenizerStep step;
  step.pattern = {pattern, TextPattern::Syntax::pcre2};
  return step;
}

Result<TokenizerPipeline> byte_level(const TokenizerData& data) {
  const Row* row = find_row(data.pre);
  if (row == nullptr) {
    return unsupported(
        fmt::format("tokenizer.ggml.pre: pre-tokenizer '{}' isn't supported; known: {}",
                    printable(data.pre), known_names()));
  }
  if (data.add_space_prefix) {
    return unsupported("tokenizer.ggml.add_space_prefix: true isn't supported for 'gpt2'");
  }
  TokenizerPipeline pipeline;
  for (const char* pattern : *row->patterns) {
    if (pattern != nullptr) pipeline.pre_tokenizers.push_back(split_at(pattern));
  }
  pipeline.pre_tokenizers.emplace_back().kind = PreTokenizerStep::Kind::byte_symbols;
  if (row->whole_pieces) pipeline.model.whole_pieces = ModelOptions::WholePieces::always;
  pipeline.decoder.byte_symbols = true;
  return pipeline;
}

// Gemma's later vocabularies: merges of characters, spaces as U+2581, whole lines as pieces.
TokenizerPipeline lines_of_characters() {
  TokenizerPipeline pipeline;
  NormalizerStep spaces;
  spaces.kind = NormalizerStep::Kind::replace;
  spaces.pattern = {" ", TextPattern::Syntax::literal};
  spaces.content = "\u2581";
  pipeline.normalizers.push_back(spaces);
  pipeline.pre_tokenizers.push_back(split_at("[^\\n]+|\\n+"));
  pipeline.model.whole_pieces = ModelOptions::WholePieces::newlines;
  pipeline.model.byte_fallback = true;
  pipeline.decoder.byte_fallback = true;
  pipeline.decoder.replacements.emplace_back("\u2581", " ");
  return pipeline;
}

TokenizerPipeline sentencepiece(const TokenizerData& data, ModelOptions::Kind kind) {
  TokenizerPipeline pipeline;
  NormalizerStep step;
  step.kind = NormalizerStep::Kind::sentencepiece;
  step.content = data.charsmap;
  step.prefix = data.add_space_prefix;
  step.collapse = data.remove_extra_whitespaces;
  step.suffix = data.whitespace_as_suffix;
  pipeline.normalizers.push_back(step);
  pipeline.model.kind = kind;
  pipeline.model.byte_fallback = true;
  pipeline.model.fuse_unknown = true;
  pipeline.decoder.byte_fallback = true;
  pipeline.decoder.replacements.emplace_back("\u2581", " ");
  pipeline.decoder.strips_first_space = data.add_space_prefix && !data.whitespace_as_suffix;
  return pipeline;
}

}  // namespace

const std::string_view gpt2_pattern = gpt2[0];

bool adds_bos_by_default(std::string_view model, std::string_view pre) {
  const Row* row = model == "gpt2" ? find_row(pre) : nullptr;
  return model == "llama" || model == "gemma4" || (row != nullptr && row->adds_bos);
}

bool adds_eos_by_default(std::string_view model) {
  return model == "t5";
}

Result<TokenizerPipeline> preset_pipeline(const TokenizerData& data) {
  if (data.model == "gpt2") return byte_level(data);
  if (data.model == "gemma4") return lines_of_characters();
  if (data.model == "llama") return sentencepiece(data, ModelOptions::Kind::scored_pair);
  if (data.model == "t5") return sentencepiece(data, ModelOptions::Kind::unigram);
  return unsupported(
      fmt::format("tokenizer.ggml.model: tokenizer '{}' isn't supported; known: gemma4, gpt2, "
                  "llama, t5",
                  printable(data.model)));
}

}  // namespace kvart::text
