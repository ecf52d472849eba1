// The steps of a pre-tokenizer: splitting with each behaviour, and rewriting pieces.
#include "model/text/tokenizer_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

struct Part {
  Span span;
  bool match = false;
};

// The matches in `segment` and what lies between them.
Status parts_of(const Pattern& pattern, std::string_view subject, Span segment, bool invert,
                EncodeWork& work, std::vector<Span>& matches, std::vector<Part>& parts) {
  matches.clear();
  parts.clear();
  KVART_RETURN_IF_ERROR(pattern.find_all(subject, segment, work, matches));
  size_t begin = segment.begin;
  for (const Span& match : matches) {
    if (match.begin > begin) parts.push_back({{begin, match.begin}, invert});
    parts.push_back({match, !invert});
    begin = match.end;
  }
  if (begin < segment.end) parts.push_back({{begin, segment.end}, invert});
  return {};
}

// Each part joined to the one before it where `joins` (of the part before and this one) says so.
template <class Joins>
void append_joined(const std::vector<Part>& parts, Joins joins, std::vector<Span>& out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && joins(parts[i - 1], parts[i])) {
      out.back().end = parts[i].span.end;
    } else {
      out.push_back(parts[i].span);
    }
  }
}

void append_pieces(const std::vector<Part>& parts, SplitBehaviour behaviour,
                   std::vector<Span>& out) {
  switch (behaviour) {
    case SplitBehaviour::isolated:
      append_joined(
          parts, [](const Part&, const Part&) { return false; }, out);
      return;
    case SplitBehaviour::contiguous:
      append_joined(
          parts, [](const Part& a, const Part& b) { return a.match == b.match; }, out);
      return;
    case SplitBehaviour::merged_with_previous:
      append_joined(
          parts, [](const Part& a, const Part& b) { return b.match && !a.match; }, out);
      return;
    case SplitBehaviour::merged_with_next:
      append_joined(
          parts, [](const Part& a, const Part& b) { return a.match && !b.match; }, out);
      return;
    case SplitBehaviour::removed:
      for (const Part& part : parts) {
        if (!part.match) out.push_back(part.span);
      }
      return;
  }
}

Status apply_split(const PreTokenizerStep& step, const Pattern& pattern, EncodeWork& work,
                   PreTokenizer::Pieces& pieces) {
  const std::string shown = pattern.is_regex() ? regex_subject(pieces.text) : std::string();
  const std::string_view subject = pattern.is_regex() ? shown : pieces.text;
  std::vector<Span> finer, matches;
  std::vector<Part> parts;
  finer.reserve(std::max(pieces.spans.size(), pieces.text.size() / 4));
  for (const Span& segment : pieces.spans) {
    const size_t before = finer.size();
    KVART_RETURN_IF_ERROR(parts_of(pattern, subject, segment, step.invert, work, matches, parts));
    append_pieces(parts, step.behaviour, finer);
    const auto is_empty = [](const Span& span) { return span.begin == span.end; };
    finer.erase(
        std::remove_if(finer.begin() + static_cast<std::ptrdiff_t>(before), finer.end(), is_empty),
        finer.end());
  }
  pieces.spans = std::move(finer);
  return {};
}

// Rewrites each piece: append(piece, out) writes what it becomes.
template <class Append>
void rewrite(EncodeWork& work, PreTokenizer::Pieces& pieces, Append append) {
  std::string text;
  text.reserve(pieces.text.size());
  for (Span& span : pieces.spans) {
    const size_t begin = text.size();
    append(std::string_view(pieces.text).substr(span.begin, span.end - span.begin), text);
    if (!work.charge(1 + text.size() - begin)) return;
    span = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

void apply_replace(const PreTokenizerStep& step, EncodeWork& work, PreTokenizer::Pieces& pieces) {
  rewrite(work, pieces, [&](std::string_view piece, std::string& out) {
    (void)append_replaced(piece, step.pattern.text, step.content, work, out);
  });
}

void apply_prefix(const PreTokenizerStep& step, bool at_start, EncodeWork& work,
                  PreTokenizer::Pieces& pieces) {
  if (step.at_start_only && !at_start) return;
  bool first = true;
  rewrite(work, pieces, [&](std::string_view piece, std::string& out) {
    const bool wanted = first || !step.at_start_only;
    first = false;
    if (wanted && piece.substr(0, step.content.size()) != step.content) out += step.content;
    out += piece;
  });
}

void apply_byte_symbols(EncodeWork& work, PreTokenizer::Pieces& pieces) {
  rewrite(work, pieces, [](std::string_view piece, std::string& out) {
    for (const char c : piece) append_utf8(byte_symbols[static_cast<uint8_t>(c)], out);
  });
}

}  // namespace

Result<PreTokenizer> PreTokenizer::create(std::span<const PreTokenizerStep> steps,
                                          const std::string& field) {
  using Kind = PreTokenizerStep::Kind;
  PreTokenizer result;
  if (!steps.empty() && steps.back().kind == Kind::byte_symbols) {
    result.gives_bytes_ = true;
    steps = steps.first(steps.size() - 1);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    Step step{steps[i], fmt::format("{}[{}]", field, i), std::nullopt};
    if (steps[i].kind == Kind::split || steps[i].kind == Kind::replace) {
      auto pattern = Pattern::create(steps[i].pattern, step.place);
      if (!pattern) return pattern.error();
      step.pattern = std::move(*pattern);
    }
    result.steps_.push_back(std::move(step));
  }
  return result;
}

Result<PreTokenizer::Pieces> PreTokenizer::split(std::string text, bool at_start,
                                                 EncodeWork& work) const {
  Pieces pieces;
  if (text.empty()) return pieces;
  pieces.spans.push_back({0, text.size()});
  pieces.text = std::move(text);
  for (const Step& step : steps_) {
    switch (step.what.kind) {
      case PreTokenizerStep::Kind::split:
        KVART_RETURN_IF_ERROR(apply_split(step.what, *step.pattern, work, pieces));
        break;
      case PreTokenizerStep::Kind::replace:
        apply_replace(step.what, work, pieces);
        break;
      case PreTokenizerStep::Kind::prefix:
        apply_prefix(step.what, at_start, work, pieces);
        break;
      case PreTokenizerStep::Kind::byte_symbols:
        apply_byte_symbols(work, pieces);
        break;
    }
    if (work.exhausted()) return work.error(step.place);
  }
  return pieces;
}

}  // namespace kvart::text
