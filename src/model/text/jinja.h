// A template in the subset of Jinja that chat templates use: parsed once, rendered any number of
// times.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "kvart/result.h"
#include "model/text/jinja_parser.h"
#include "model/text/jinja_runtime.h"

namespace kvart::jinja {

using Context = std::map<std::string, Value, std::less<>>;

class Template {
 public:
  // An error names what can't be read, or is not supported, and its line.
  static Result<Template> parse(std::string_view source);

  // What the template writes with these names defined. An error names construct, limit and line.
  Result<std::string> render(const Context& context, const Options& options = {}) const;

 private:
  explicit Template(Block block) : block_(std::make_shared<const Block>(std::move(block))) {}

  std::shared_ptr<const Block> block_;
};

}  // namespace kvart::jinja
