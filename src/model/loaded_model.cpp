// Loading a model, and text in and out of it.
#include "model/loaded_model.h"

#include <algorithm>

#include "model/model_files.h"

namespace kvart {

namespace {

class TokenizerStream : public TextStream {
 public:
  explicit TokenizerStream(const Tokenizer& tokenizer) : decoder_(tokenizer) {}
  std::string push(int32_t token) override { return decoder_.push(token); }
  std::string flush() override { return decoder_.flush(); }

 private:
  StreamDecoder decoder_;
};

// Two Unicode noncharacters that no message contains: they mark, through the template, text of
// users that reads like a special token.
struct Marks {
  std::string begin;
  std::string end;
};

std::string noncharacter(int index) {  // U+FDD0 + index, index below 32
  return {'\xEF', '\xB7', static_cast<char>(0x90 + index)};
}

Result<Marks> unused_marks(std::span<const ChatMessage> messages) {
  std::vector<std::string> found;
  for (int i = 0; i < 32 && found.size() < 2; ++i) {
    const std::string mark = noncharacter(i);
    const bool used =
        std::any_of(messages.begin(), messages.end(), [&](const ChatMessage& message) {
          return message.content.find(mark) != std::string::npos;
        });
    if (!used) found.push_back(mark);
  }
  if (found.size() < 2) {
    return Error{ErrorCode::invalid_argument,
                 "a message contains the Unicode noncharacters U+FDD0 to U+FDEF; remove them"};
  }
  return Marks{found[0], found[1]};
}

// Puts marks around every stretch of `text` that spells a control token.
std::string mark_control_text(const Tokenizer& tokenizer, std::string_view text,
                              const Marks& marks) {
  std::string marked;
  size_t plain_from = 0;
  for (size_t at = 0; at < text.size();) {
    size_t longest = 0;
    if (text[at] == '<' || text[at] == '[') {
      for (size_t size = 2; size <= 64 && at + size <= text.size(); ++size) {
        if (tokenizer.find_control(text.substr(at, size))) longest = size;
      }
    }
    if (longest == 0) {
      ++at;
      continue;
    }
    marked.append(text.substr(plain_from, at - plain_from)).append(marks.begin);
    marked.append(text.substr(at, longest)).append(marks.end);
    at += longest;
    plain_from = at;
  }
  return marked.append(text.substr(plain_from));
}

// Tokens of a rendered template: special tokens outside the marks, plain text inside.
std::vector<int32_t> tokens_of_marked(const Tokenizer& tokenizer, std::string_view text,
                                      const Marks& marks) {
  std::vector<int32_t> tokens;
  const auto append = [&](std::string_view part, SpecialTokens special) {
    const auto more = tokenizer.encode(part, special);
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  while (true) {
    const size_t begin = text.find(marks.begin);
    append(text.substr(0, begin), SpecialTokens::parse);
    if (begin == std::string_view::npos) return tokens;
    text.remove_prefix(begin + marks.begin.size());
    const size_t end = text.find(marks.end);
    append(text.substr(0, end), SpecialTokens::plain);
    if (end == std::string_view::npos) return tokens;
    text.remove_prefix(end + marks.end.size());
  }
}

std::string control_text(const Tokenizer& tokenizer, std::optional<int32_t> token) {
  return token ? std::string(tokenizer.token_bytes(*token)) : std::string();
}

Result<ChatTemplate> chat_template_of(const ModelFiles& files) {
  if (files.chat_template.empty()) return default_chat_template();
  auto parsed = ChatTemplate::parse(files.chat_template);
  if (parsed) return parsed;
  return Error{parsed.error().code, files.chat_template_place + ": " + parsed.error().message};
}

// A vocabulary may have fewer tokens than the embedding has rows, which are padded for speed.
Status fill_vocabulary(const ModelConfig& config, TokenizerData& data) {
  const auto rows = static_cast<size_t>(config.vocab);
  if (data.tokens.size() > rows) {
    return Error{ErrorCode::invalid_file, config.source + ": the vocabulary has " +
                                              std::to_string(data.tokens.size()) +
                                              " tokens, the model " + std::to_string(rows)};
  }
  const size_t first = data.tokens.size();
  if (!data.token_types.empty()) {
    data.token_types.resize(rows, static_cast<int32_t>(TokenType::unused));
  } else if (first < rows) {
    data.token_types.assign(first, static_cast<int32_t>(TokenType::normal));
    data.token_types.resize(rows, static_cast<int32_t>(TokenType::unused));
  }
  if (!data.scores.empty()) data.scores.resize(rows, 0.0f);
  for (size_t i = first; i < rows; ++i) {
    data.tokens.push_back("<unused row " + std::to_string(i) + " of the embedding>");
  }
  return {};
}

}  // namespace

std::vector<int32_t> LoadedModel::tokenize(std::string_view text, bool special) const {
  std::vector<int32_t> tokens =
      tokenizer_.encode(text, special ? SpecialTokens::parse : SpecialTokens::plain);
  const auto bos = tokenizer_.bos();
  if (tokenizer_.add_bos() && bos && (tokens.empty() || tokens.front() != *bos))
    tokens.insert(tokens.begin(), *bos);
  return tokens;
}

std::unique_ptr<TextStream> LoadedModel::text_stream() const {
  return std::make_unique<TokenizerStream>(tokenizer_);
}

Result<std::vector<int32_t>> LoadedModel::chat_tokens(std::span<const ChatMessage> messages) const {
  const auto marks = unused_marks(messages);
  if (!marks) return marks.error();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    nlohmann::ordered_json entry;
    entry["role"] = message.role;
    entry["content"] = mark_control_text(tokenizer_, message.content, *marks);
    list.push_back(std::move(entry));
  }
  auto text = chat_.render(list, nullptr, true, control_text(tokenizer_, tokenizer_.bos()),
                           control_text(tokenizer_, tokenizer_.eos()));
  if (!text) return text.error();
  std::vector<int32_t> tokens = tokens_of_marked(tokenizer_, *text, *marks);
  const auto bos = tokenizer_.bos();
  if (tokenizer_.add_bos() && bos && (tokens.empty() || tokens.front() != *bos))
    tokens.insert(tokens.begin(), *bos);
  return tokens;
}

Result<std::unique_ptr<Model>> Model::load(const std::string& path, int threads) {
  if (threads < 1 || threads > 1024) {
    return Error{ErrorCode::invalid_argument, "threads must be 1 to 1024"};
  }
  const auto isa = chosen_isa();
  if (!isa) return isa.error();
  auto files = open_model_files(path);
  if (!files) return files.error();
  KVART_RETURN_IF_ERROR(fill_vocabulary(files->config, files->tokenizer));
  auto tokenizer = Tokenizer::create(files->tokenizer);
  if (!tokenizer) return Error{tokenizer.error().code, path + ": " + tokenizer.error().message};
  auto chat = chat_template_of(*files);
  if (!chat) return chat.error();
  ThreadPool pool(threads);
  const Architecture& architecture = *find_architecture(files->config.architecture);
  auto weights =
      read_weights(files->tensors, files->config, architecture, files->norms_plus_one, &pool);
  if (!weights) return weights.error();
  const uint64_t fingerprint = files->fingerprint();
  KVART_RETURN_IF_ERROR(files->check_unchanged());
  return std::unique_ptr<Model>(std::make_unique<LoadedModel>(
      std::move(files->config), architecture, files->pairing, std::move(weights).value(),
      std::move(tokenizer).value(), std::move(chat).value(), fingerprint, *isa));
}

}  // namespace kvart
