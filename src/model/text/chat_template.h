// A model's chat template: messages and tools as the text that the model was trained on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvart/result.h"
#include "model/text/jinja.h"

namespace kvart {

class ChatTemplate {
 public:
  // An error names what is wrong or not supported, and its line.
  static Result<ChatTemplate> parse(std::string source);

  // `messages` is a list of objects with a role; `tools` a list or null. `extra` is null or an
  // object with more names for the template; a name that is the template's own (messages, tools,
  // bos_token, ...) is an error, never replaced.
  Result<std::string> render(const nlohmann::ordered_json& messages,
                             const nlohmann::ordered_json& tools_or_null,
                             bool add_generation_prompt, const std::string& bos,
                             const std::string& eos,
                             const nlohmann::ordered_json& extra = {}) const;

  const std::string& source() const { return source_; }

  // For tests and callers that need other limits or a fixed clock.
  void set_options(const jinja::Options& options) { options_ = options; }

 private:
  ChatTemplate(std::string source, jinja::Template parsed)
      : source_(std::move(source)), template_(std::move(parsed)) {}

  std::string source_;
  jinja::Template template_;
  jinja::Options options_;
};

// ChatML, for models that carry none.
const ChatTemplate& default_chat_template();

}  // namespace kvart
