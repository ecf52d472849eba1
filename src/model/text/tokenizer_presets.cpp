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
// The look-behind isn't in the model's file and changes no match: behind a blank that ended a match
// the run of blanks holds no line end, as it would have been in that match. Without it each of a
// long run's pieces would look through all of the rest.
constexpr Patterns jais2 = {
    CONTRACTIONS
    "|" WORD "|\\p{N}{1,3}|" OTHERS
    "|(?<![^\\S\\r\\n])\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)"
    "|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s"};
constexpr Patterns tekken = {CASED_WORDS("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES};
constexpr Patterns gpt4o = {
    CASED_WORDS(CASED_CONTRACTIONS) "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES};
constexpr Patterns youtu = {
    "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}"
    "\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|["
    "\\x{3105}-\\x{312F}]+|[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
    CASED_WORDS("(?:" CONTRACTIONS ")?") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES};
// Letters of scripts with two cases, as ranges; what the model's own file has.
constexpr Patterns deepseek_llm = {
    "[\\r\\n]",
    "\\s?[A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-"
    "\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}"
    "\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-"
    "\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}"
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}"
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}"
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-"
    "\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}"
    "\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}"
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-"
    "\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}"
    "-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-"
    "\\x{118DF}\\x{1E900}-\\x{1E943}]+",
    "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]"
    "+",
    "\\s+$",
    "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+",
    "\\p{N}+"};
constexpr Patterns deepseek_coder = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
                                     "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+",
                                     "\\p{N}"};
constexpr Patterns deepseek_v3 = {
    "\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
    ASCII_PUNCTUATED_WORD "|" MARKED_WORD "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES};
constexpr Patterns spark = {
    "\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
    ASCII_PUNCTUATED_WORD "|" MARKED_WORD "| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+", "\\p{N}"};
constexpr Patterns falcon = {"[\\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"};
constexpr Patterns bloom = {
    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"};
constexpr Patterns viking = {
    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+", "\\p{N}"};
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
