// Loading a model, and text in and out of it.
#include "model/loaded_model.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "model/dummy_weights.h"
#include "model/file/json_text.h"
#include "model/model_files.h"
#include "model/step_runner.h"

namespace kvart {

namespace {

class TokenizerStream : public TextStream {
 public:
  TokenizerStream(const Tokenizer& tokenizer, ControlTokens control)
      : decoder_(tokenizer, control) {}
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

using Json = nlohmann::ordered_json;

// What a template gets of a request. The parser bounds the depth, so recursion is safe.
struct ChatInput {
  Json messages = Json::array();
  Json tools;
  Json names;
};

bool holds(const Json& json, const std::string& mark) {
  if (json.is_string()) return json.get_ref<const std::string&>().find(mark) != std::string::npos;
  for (auto item = json.begin(); item != json.end(); ++item) {
    if (json.is_object() && item.key().find(mark) != std::string::npos) return true;
    if (json.is_structured() && holds(*item, mark)) return true;
  }
  return false;
}

Result<Marks> unused_marks(const ChatInput& input) {
  std::vector<std::string> found;
  for (int i = 0; i < 32 && found.size() < 2; ++i) {
    const std::string mark = noncharacter(i);
    if (holds(input.messages, mark) || holds(input.tools, mark) || holds(input.names, mark)) {
      continue;
    }
    found.push_back(mark);
  }
  if (found.size() < 2) {
    return Error{ErrorCode::invalid_argument,
                 "a message contains the Unicode noncharacters U+FDD0 to U+FDEF; remove them"};
  }
  return Marks{found[0], found[1]};
}

// All texts in it, keys included, with what spells a control token marked.
Json marked(const Json& json, const ControlNames& names, const Marks& marks) {
  const auto mark = [&](const std::string& text) {
    return names.mark(text, marks.begin, marks.end);
  };
  if (json.is_string()) return mark(json.get_ref<const std::string&>());
  if (!json.is_structured()) return json;
  Json out = json.is_array() ? Json::array() : Json::object();
  for (auto item = json.begin(); item != json.end(); ++item) {
    Json value = marked(*item, names, marks);
    if (json.is_array()) {
      out.push_back(std::move(value));
    } else {
      out.get_ref<Json::object_t&>().emplace_back(mark(item.key()), std::move(value));
    }
  }
  return out;
}

Result<Json> json_of(const std::string& text, const char* what) {
  if (text.empty()) return Json();
  auto json = parse_ordered_json(text);
  if (json.ok()) return json;
  return Error{ErrorCode::invalid_argument, std::string(what) + ": " + json.error().message};
}

Result<ChatInput> chat_input(std::span<const ChatMessage> messages, const ChatOptions& options) {
  ChatInput input;
  for (const ChatMessage& message : messages) {
    Json entry = Json::object();
    entry["role"] = message.role;
    entry["content"] = message.content;
    auto more = json_of(message.more, "a message");
    if (!more.ok()) return more.error();
    if (!more->is_null() && !more->is_object()) {
      return Error{ErrorCode::invalid_argument, "a message's further members must be an object"};
    }
    for (auto item = more->begin(); item != more->end(); ++item) {
      if (item.key() == "role" || item.key() == "content") continue;
      entry[item.key()] = std::move(*item);
    }
    input.messages.push_back(std::move(entry));
  }
  auto tools = json_of(options.tools, "tools");
  if (!tools.ok()) return tools.error();
  auto names = json_of(options.names, "the names for the chat template");
  if (!names.ok()) return names.error();
  input.tools = std::move(*tools);
  input.names = std::move(*names);
  return input;
}

// A rendered template without its marks, and where text of users stood between them.
struct Unmarked {
  std::string text;
  std::vector<TextRange> plain;
};

// Error: marks that don't pair up, because the template cut a message in the middle of a special
// token's name: what of it is the user's can't be told any more.
Result<Unmarked> unmark(std::string_view text, const Marks& marks) {
  const Error cut{ErrorCode::invalid_argument,
                  "the chat template cut a message within the name of a special token; leave such "
                  "names out of messages"};
  Unmarked out;
  bool inside = false;
  while (true) {
    const size_t begin = text.find(marks.begin);
    const size_t next = std::min(begin, text.find(marks.end));
    out.text.append(text.substr(0, next));
    if (next == std::string_view::npos) break;
    const bool opens = next == begin;
    if (opens == inside) return cut;
    if (opens) out.plain.push_back({out.text.size(), out.text.size()});
    if (!opens) out.plain.back().end = out.text.size();
    inside = opens;
    text.remove_prefix(next + marks.begin.size());  // both marks have one size
  }
  if (inside) return cut;
  return out;
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

Result<std::vector<int32_t>> LoadedModel::with_bos(Result<std::vector<int32_t>> tokens) const {
  const auto bos = tokenizer_.bos();
  if (tokens && tokenizer_.add_bos() && bos && (tokens->empty() || tokens->front() != *bos)) {
    tokens->insert(tokens->begin(), *bos);
  }
  return tokens;
}

Result<std::vector<int32_t>> LoadedModel::tokenize(std::string_view text, bool special) const {
  return with_bos(tokenizer_.encode(text, special ? SpecialTokens::parse : SpecialTokens::plain));
}

std::unique_ptr<TextStream> LoadedModel::text_stream(bool show_special) const {
  return std::make_unique<TokenizerStream>(
      tokenizer_, show_special ? ControlTokens::show : ControlTokens::skip);
}

std::string LoadedModel::detokenize(std::span<const int32_t> tokens, bool show_special) const {
  return tokenizer_.decode(tokens, show_special ? ControlTokens::show : ControlTokens::skip);
}

Result<std::vector<int32_t>> LoadedModel::chat_tokens(std::span<const ChatMessage> messages,
                                                      const ChatOptions& options) const {
  const auto input = chat_input(messages, options);
  if (!input.ok()) return input.error();
  const auto marks = unused_marks(*input);
  if (!marks) return marks.error();
  const auto with_marks = [&](const Json& json) { return marked(json, control_names_, *marks); };
  auto text =
      chat_.render(with_marks(input->messages), with_marks(input->tools),
                   options.add_generation_prompt, control_text(tokenizer_, tokenizer_.bos()),
                   control_text(tokenizer_, tokenizer_.eos()), with_marks(input->names));
  if (!text) return text.error();
  const auto unmarked = unmark(*text, *marks);
  if (!unmarked) return unmarked.error();
  return with_bos(tokenizer_.encode(unmarked->text, unmarked->plain));
}

namespace {

Status check_load(int threads, Device device) {
  if (threads < 1 || threads > 1024) {
    return Error{ErrorCode::invalid_argument, "threads must be 1 to 1024"};
  }
  // Known before minutes are spent on weights.
  auto found = session_device(device);
  return found ? Status{} : Status{found.error()};
}

// The model, with its copy on the device.
Result<std::unique_ptr<Model>> finished(std::unique_ptr<LoadedModel> model, int threads) {
  auto device = session_device(model->device());
  if (!device) return device.error();
  auto copy = (*device)->copy_weights(*model, threads);
  if (!copy) return copy.error();
  model->set_device_copy(std::move(copy).value());
  return std::unique_ptr<Model>(std::move(model));
}

// All that a dummy's weights and what is computed with them depend on.
std::string shape_text(const ModelConfig& config) {
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", config.source,
                                 config.architecture, config.layers, config.hidden, config.ffn,
                                 config.q_heads, config.head_dim, config.rope_dim, config.vocab,
                                 config.tied_embeddings, config.qkv_bias, config.experts,
                                 config.experts_used, config.expert_ffn, config.context_length);
  text += fmt::format(" {} {} {} {} {}", config.rope_theta, config.rope_theta_local,
                      config.rope_scaling.type, config.rope_scaling.factor, config.norm_eps);
  for (const LayerShape& layer : config.layer_shapes) {
    text += fmt::format(" {}x{}w{}", layer.kv_heads, layer.head_dim, layer.window);
  }
  return text;
}

// Bytes, so that any text has tokens.
TokenizerData byte_vocabulary() {
  TokenizerData data;
  data.source = "a vocabulary of bytes";
  data.model = "llama";
  data.tokens = {"<unk>"};
  data.token_types = {static_cast<int32_t>(TokenType::unknown)};
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    data.token_types.push_back(static_cast<int32_t>(TokenType::byte));
  }
  data.scores.assign(data.tokens.size(), 0.0f);
  data.unk = 0;
  return data;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::dummy(const ModelConfig& config, int threads, Device device) {
  KVART_RETURN_IF_ERROR(check_load(threads, device));
  KVART_RETURN_IF_ERROR(config.check_runnable());
  KVART_RETURN_IF_ERROR(check_dummy_memory(config));
  const auto isa = chosen_isa();
  if (!isa) return isa.error();
  TokenizerData data = byte_vocabulary();
  KVART_RETURN_IF_ERROR(fill_vocabulary(config, data));
  auto tokenizer = Tokenizer::create(data);
  if (!tokenizer) return tokenizer.error();
  ThreadPool pool(threads);
  const Architecture& architecture = *find_architecture(config.architecture);
  auto weights = dummy_weights(config, architecture, &pool);
  if (!weights) return Error{weights.error().code, config.source + ": " + weights.error().message};
  // Caches of processes are apart; within one the shape tells dummies apart.
  const std::string shape = shape_text(config);
  const uint64_t fingerprint = XXH3_64bits(shape.data(), shape.size());
  return finished(
      std::make_unique<LoadedModel>(config, architecture, RopePairing::halves,
                                    std::move(weights).value(), std::move(tokenizer).value(),
                                    default_chat_template(), fingerprint, *isa, device),
      threads);
}

Result<std::unique_ptr<Model>> Model::load(const std::string& path, int threads, Device device) {
  KVART_RETURN_IF_ERROR(check_load(threads, device));
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
  return finished(
      std::make_unique<LoadedModel>(std::move(files->config), architecture, files->pairing,
                                    std::move(weights).value(), std::move(tokenizer).value(),
                                    std::move(chat).value(), fingerprint, *isa, device),
      threads);
}

}  // namespace kvart
