// Fitting of a text into a context, and where its facts came to lie.
#include "tools/eval/needle_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tools/eval/running.h"

namespace kvart::tools {
namespace {

// A sentence that is generated has no fewer tokens.
constexpr int64_t fewest_tokens_per_sentence = 5;
// What a reply may need besides the right answer: an end, another separator.
constexpr int64_t spare_reply_tokens = 4;
// On average of a text, and by far.
constexpr int64_t most_bytes_per_token = 256;
// With how many sentences a text is begun to be fitted.
constexpr size_t first_try_sentences = 16;

class PromptMaker {
 public:
  PromptMaker(const Model& model, const NeedleSet& set, const std::vector<std::string>& sentences,
              bool raw)
      : model_(model), set_(set), sentences_(sentences), raw_(raw) {}

  struct Length {
    size_t sentences = 0;
    size_t words = 0;  // of the next one
  };

  // Tokens of a question's prompt, and of the same with `more` behind it.
  Result<std::vector<int32_t>> tokens(const Length& length, const Question& question,
                                      const std::string& more) const {
    const std::string text =
        set_.intro + "\n\n" +
        haystack_text(sentences_, length.sentences, length.words, set_.needles) + "\n\n" +
        question.text;
    if (raw_) return model_.tokenize(text + "\n\n" + question.lead + more, false);
    const ChatMessage message{"user", text};
    auto tokens = model_.chat_tokens({&message, 1});
    if (!tokens.ok()) {
      return Error{tokens.error().code,
                   fmt::format("{}: {}; --raw does without a chat template", model_.config().source,
                               tokens.error().message)};
    }
    const auto reply = tokens_of_text(model_, question.lead + more);
    if (!reply.ok()) return reply.error();
    tokens->insert(tokens->end(), reply->begin(), reply->end());
    return tokens;
  }

  Result<int64_t> count(const Length& length, const Question& question) const {
    const auto all = tokens(length, question, "");
    if (!all.ok()) return all.error();
    return static_cast<int64_t>(all->size());
  }

 private:
  const Model& model_;
  const NeedleSet& set_;
  const std::vector<std::string>& sentences_;
  bool raw_;
};

using Length = PromptMaker::Length;

size_t words_of(const std::string& sentence) {
  return static_cast<size_t>(std::count(sentence.begin(), sentence.end(), ' '));
}

int64_t bytes_of(const std::vector<std::string>& sentences, size_t count) {
  int64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<int64_t>(sentences[i].size());
  return bytes;
}

// What a prompt without a text takes, where that is more than the context leaves to it.
Error no_room(int64_t prompt_tokens, const PromptShape& shape, const NeedlePrompts& made) {
  const int64_t most = std::max<int64_t>(0, shape.context_tokens - made.reply_tokens);
  const std::string what =
      fmt::format("the facts and the question alone take {} tokens, the context has room for {}",
                  prompt_tokens, most);
  // The reply takes it: with what the answers need there would be room.
  if (prompt_tokens <= shape.context_tokens - made.least_reply_tokens) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--reply-tokens {}: {}; give at most {}, or a larger context",
                             shape.reply_tokens, what, shape.context_tokens - prompt_tokens)};
  }
  return Error{ErrorCode::invalid_argument, what + "; give a larger one, or fewer keys"};
}

// The longest text whose prompt has at most `most` tokens. None: it was ended before it was known.
Result<std::optional<Length>> fit(const PromptMaker& maker, const Question& question,
                                  const std::vector<std::string>& sentences,
                                  const std::string& sentences_name, int64_t most,
                                  const Watch& watch) {
  // From below, and what is out of the question isn't cut into tokens: of a text of hundreds of
  // megabytes no more is looked at than a context can hold.
  const auto fits = [&](const Length& length) -> Result<bool> {
    if (bytes_of(sentences, length.sentences) > most * most_bytes_per_token) return false;
    const auto count = maker.count(length, question);
    if (!count.ok()) return count.error();
    return *count <= most;
  };
  size_t low = 0;
  size_t high = sentences.size();  // one too many
  for (size_t next = first_try_sentences; low + 1 < high;) {
    if (watch.should_end()) return std::optional<Length>();
    const bool unbounded = high == sentences.size();
    const size_t middle = unbounded ? std::min(next, high - 1) : (low + high) / 2;
    const auto ok = fits({middle, 0});
    if (!ok.ok()) return ok.error();
    (*ok ? low : high) = middle;
    next = 2 * middle;
  }
  if (high == sentences.size()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} has {} sentences, too few to fill {} tokens; give a longer text "
                             "or a shorter context",
                             sentences_name, sentences.size(), most)};
  }
  Length length{low, 0};
  for (size_t words = 1; words <= words_of(sentences[low]); ++words) {
    if (watch.should_end()) return std::optional<Length>();
    const auto ok = fits({low, words});
    if (!ok.ok()) return ok.error();
    if (!*ok) break;
    length.words = words;
  }
  return std::optional(length);
}

// Which of the prompt's tokens the bytes of `value` are in.
Status locate(const Model& model, NeedlePrompt* prompt) {
  if (prompt->question.control) return {};
  const std::string& value = prompt->question.expected[0];
  std::string bytes;
  std::vector<size_t> ends;  // of each token, in `bytes`
  for (const int32_t token : prompt->tokens) {
    bytes += model.token_bytes(token);
    ends.push_back(bytes.size());
  }
  const size_t at = bytes.find(value);
  if (at == std::string::npos) {
    return Error{ErrorCode::unsupported,
                 "the tokenizer changes the facts in the text: " + prompt->question.needle};
  }
  const auto token_of = [&](size_t byte) {
    return std::upper_bound(ends.begin(), ends.end(), byte) - ends.begin();
  };
  prompt->needle_first = token_of(at);
  prompt->needle_last = token_of(at + value.size() - 1);
  return {};
}

// The answer begins where the tokens of prompt and answer leave those of the prompt alone.
Result<NeedlePrompt> prompt_of(const Model& model, const PromptMaker& maker, const Length& length,
                               const Question& question) {
  auto alone = maker.tokens(length, question, "");
  if (!alone.ok()) return alone.error();
  auto whole = maker.tokens(length, question, question.answer);
  if (!whole.ok()) return whole.error();
  const auto parted = std::mismatch(alone->begin(), alone->end(), whole->begin(), whole->end());
  NeedlePrompt prompt;
  prompt.question = question;
  prompt.answer.assign(parted.second, whole->end());
  alone->erase(parted.first, alone->end());
  prompt.tokens = std::move(*alone);
  KVART_RETURN_IF_ERROR(locate(model, &prompt));
  return prompt;
}

}  // namespace

size_t enough_sentences(int64_t context_tokens) {
  return static_cast<size_t>(context_tokens / fewest_tokens_per_sentence) + 2;
}

Result<NeedlePrompts> make_prompts(const Model& model, const NeedleSet& set,
                                   const std::vector<std::string>& sentences,
                                   const std::string& sentences_name, const PromptShape& shape,
                                   const Watch& watch) {
  const PromptMaker maker(model, set, sentences, shape.raw);
  NeedlePrompts result;
  const Question* longest = nullptr;
  int64_t longest_tokens = 0;
  for (const Question& question : set.questions) {
    const auto answer = tokens_of_text(model, question.answer);
    if (!answer.ok()) return answer.error();
    const auto count = static_cast<int64_t>(answer->size());
    result.least_reply_tokens = std::max(result.least_reply_tokens, count + spare_reply_tokens);
    const auto asked = tokens_of_text(model, question.text + question.lead);
    if (!asked.ok()) return asked.error();
    if (longest != nullptr && static_cast<int64_t>(asked->size()) <= longest_tokens) continue;
    longest = &question;
    longest_tokens = static_cast<int64_t>(asked->size());
  }
  result.reply_tokens = std::max(shape.reply_tokens, result.least_reply_tokens);
  const int64_t most = shape.context_tokens - result.reply_tokens;
  const auto none = maker.count({}, *longest);
  if (!none.ok()) return none.error();
  if (*none > most) return no_room(*none, shape, result);
  const auto length = fit(maker, *longest, sentences, sentences_name, most, watch);
  if (!length.ok()) return length.error();
  result.ended = !length->has_value();
  for (const Question& question : set.questions) {
    result.ended = result.ended || watch.should_end();
    if (result.ended) return result;
    auto prompt = prompt_of(model, maker, **length, question);
    if (!prompt.ok()) return prompt.error();
    result.prompts.push_back(std::move(*prompt));
  }
  return result;
}

}  // namespace kvart::tools
