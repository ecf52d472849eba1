// A template: what may be parsed, and how a render ends.
#include "model/text/jinja.h"

#include <new>
#include <utility>

#include "model/text/jinja_interpreter.h"
#include "model/text/jinja_lexer.h"

namespace kvart::jinja {

Result<Template> Template::parse(std::string_view source) {
  constexpr std::size_t source_bytes_max = 1u << 20;
  if (source.size() > source_bytes_max) {
    return template_error(ErrorCode::invalid_file, 1,
                          "a template of " + std::to_string(source.size()) +
                              " bytes, more than the limit of " + std::to_string(source_bytes_max));
  }
  Result<Block> block = parse_template(source);
  if (!block) {
    return block.error();
  }
  return Template(std::move(*block));
}

Result<std::string> Template::render(const Context& context, const Options& options) const {
  try {
    return Interpreter(context, options).run(*block_);
  } catch (const std::bad_alloc&) {  // the machine has less than the limits allow
    return template_error(ErrorCode::out_of_memory, 1,
                          "no memory left within the limit of " +
                              std::to_string(options.limits.memory_bytes) + " bytes");
  }
}

}  // namespace kvart::jinja
