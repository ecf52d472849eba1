// Functions that a template may call by name: range() and the clock.
#include <algorithm>
#include <array>
#include <ctime>

#include "model/text/jinja_builtins.h"

namespace kvart::jinja {

Value range_list(Runtime& runtime, const Arguments& with) {
  const auto& given = with.positional;
  const bool integers =
      std::all_of(given.begin(), given.end(), [](const Value& v) { return v.is_integral(); });
  if (given.empty() || given.size() > 3 || !with.named.empty() || !integers) {
    return runtime.fail("'range' needs one to three integers");
  }
  const Integer start = given.size() > 1 ? given[0].as_integer() : 0;
  const Integer stop = given[given.size() > 1 ? 1 : 0].as_integer();
  const Integer step = given.size() > 2 ? given[2].as_integer() : 1;
  if (step == 0) {
    return runtime.fail("'range' can't have a step of zero");
  }
  ListBuilder items(runtime);
  std::size_t count = 0;
  for (Integer i = start; step > 0 ? i < stop : i > stop;) {
    if (count++ >= runtime.limits().range_items) {
      return runtime.over_limit("more items", runtime.limits().range_items);
    }
    if (!items.add(Value::integer(i)) || __builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  return items.list();
}

Value time_text(Runtime& runtime, const Arguments& with) {
  if (with.positional.size() != 1 || !with.positional[0].is_string() || !with.named.empty()) {
    return runtime.fail("'strftime_now' needs a format");
  }
  std::array<char, 1024> buffer;
  const std::string& format = with.positional[0].as_string();
  if (format.empty()) {
    return Value::string("");
  }
  if (format.size() > buffer.size()) {
    return runtime.over_limit("a longer format", buffer.size());
  }
  std::tm now{};
  if (runtime.options().now) {
    now = *runtime.options().now;
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &now);
  return size > 0 ? Value::string(std::string(buffer.data(), size))
                  : runtime.over_limit("a longer or emptier text of the time", buffer.size());
}

}  // namespace kvart::jinja
