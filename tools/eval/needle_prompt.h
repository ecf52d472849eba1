// Prompts with facts in them, as tokens, as long as a context has room for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvart/model.h"
#include "tools/eval/haystack.h"
#include "tools/watch.h"

namespace kvart::tools {

struct NeedlePrompt {
  Question question;
  std::vector<int32_t> tokens;  // with the beginning of the reply
  std::vector<int32_t> answer;  // its right continuation
  // Tokens of the prompt that the (first) value stands in: [first, last]; -1: a control.
  int64_t needle_first = -1;
  int64_t needle_last = -1;
};

struct PromptShape {
  int64_t context_tokens = 0;  // prompt and reply
  int64_t reply_tokens = 0;    // at least so many for the reply
  bool raw = false;            // without the chat template
};

struct NeedlePrompts {
  std::vector<NeedlePrompt> prompts;  // one for each question
  int64_t reply_tokens = 0;           // that the context leaves to each
  int64_t least_reply_tokens = 0;     // that the right answers need
  bool ended = false;                 // before all of them were made
};

// All questions about one text, which fills the context up to a few tokens. sentences_name: where
// they are from, for messages. Error: too few sentences, a context too small for the question, a
// chat template that can't be run.
Result<NeedlePrompts> make_prompts(const Model& model, const NeedleSet& set,
                                   const std::vector<std::string>& sentences,
                                   const std::string& sentences_name, const PromptShape& shape,
                                   const Watch& watch);

// As many sentences as any context of that many tokens can hold.
size_t enough_sentences(int64_t context_tokens);

}  // namespace kvart::tools
