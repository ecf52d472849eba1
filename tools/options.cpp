// Strict parsing of options' values, and messages about command lines that are wrong.
#include "options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "kvart/cores.h"
#include "streams.h"

namespace kvart::tools {
namespace {

constexpr int max_threads = 1024;
constexpr int threads_per_core = 2;

Error invalid(std::string message) {
  return Error{ErrorCode::invalid_argument, std::move(message)};
}

template <class T>
bool parse_digits(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// Single edits that make `b` of `a`.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const std::string closest = closest_word(word, known);
  return closest.empty() ? "" : fmt::format("; did you mean {}?", closest);
}

}  // namespace

std::string IntegerRange::text() const {
  return allowed.empty() ? fmt::format("{} to {}", min, max) : allowed;
}

std::string NumberRange::text() const {
  return fmt::format("{}{:g} to {:g}", above_min ? "above " : "", min, max);
}

Result<int64_t> parse_integer(std::string_view text, const IntegerRange& range) {
  int64_t value = 0;
  if (parse_digits(text, &value) && value >= range.min && value <= range.max) return value;
  return invalid(fmt::format("'{}' isn't right; use a whole number: {}", text, range.text()));
}

Result<uint64_t> parse_unsigned(std::string_view text) {
  uint64_t value = 0;
  if (parse_digits(text, &value)) return value;
  return invalid(fmt::format("'{}' isn't right; use a whole number: 0 to 2^64 - 1", text));
}

Result<double> parse_number(std::string_view text, const NumberRange& range) {
  double value = 0;
  const bool in_range = parse_digits(text, &value) && std::isfinite(value) && value >= range.min &&
                        value <= range.max && !(range.above_min && value == range.min);
  if (in_range) return value;
  return invalid(fmt::format("'{}' isn't right; use a number: {}", text, range.text()));
}

CLI::Option* add_seed_option(CLI::App& command, uint64_t* seed) {
  return command
      .add_option_function<std::string>(
          "--seed", [seed](const std::string& text) { *seed = *parse_unsigned(text); },
          "of the random draws (0 to 2^64 - 1)")
      ->check([](const std::string& text) { return message_of(parse_unsigned(text)); })
      ->default_str(std::to_string(*seed))
      ->type_name("N");
}

CLI::Option* add_text_option(CLI::App& command, const std::string& name, std::string* value,
                             const std::string& type, const std::string& help) {
  return command
      .add_option_function<std::string>(
          name, [value](const std::string& text) { *value = text; }, help)
      ->check([type](const std::string& text) {
        return text.empty() ? "is empty; give " + type + " or leave it out" : std::string();
      })
      ->type_name(type);
}

CLI::Option* add_threads_option(CLI::App& command, int* threads) {
  const IntegerRange range{
      1, max_threads,
      fmt::format("1 to {}; default: the usable cores, here {}", max_threads, usable_cores())};
  return add_integer_option(command, "-t,--threads", threads, range, "Threads");
}

CLI::Option* add_list_option(CLI::App& command, const std::string& name,
                             std::vector<std::string>* values, const std::string& type,
                             const std::string& help) {
  return command.add_option(name, *values, help)
      ->check([type](const std::string& text) {
        const auto parts = split_commas(text);
        const bool empty = std::any_of(parts.begin(), parts.end(),
                                       [](const std::string& part) { return part.empty(); });
        return empty ? fmt::format("'{}' has an empty part; give {} or leave it out", text, type)
                     : std::string();
      })
      ->type_name(type);
}

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

int threads_to_run(int wanted, bool quiet) {
  const int cores = usable_cores();
  if (wanted == 0) return std::min(cores, max_threads);
  const int most = std::min(threads_per_core * cores, max_threads);
  if (wanted <= most) return wanted;
  if (!quiet) {
    print_message(fmt::format("-t {}: {} core{} can be used; {} threads run", wanted, cores,
                              cores == 1 ? "" : "s", most));
  }
  return most;
}

std::string closest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string closest;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& one : known) {
    const size_t edits = distance(lower_case(word), lower_case(one));
    if (edits >= least) continue;
    least = edits;
    closest = one;
  }
  return closest;
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const auto parsed = app.get_subcommands();
  const std::vector<std::string> extras = app.remaining(true);
  const std::string names = fmt::format("{}", fmt::join(command_names(app), ", "));
  if (parsed.empty()) {
    const std::string hint = fmt::format("; commands: {}; `kvart --help` says more", names);
    if (extras.empty()) return "no command is given" + hint;
    return fmt::format("'{}' isn't a command{}{}", extras[0],
                       suggestion(extras[0], command_names(app)), hint);
  }
  const CLI::App* deepest = parsed.front();
  std::string name = deepest->get_name();
  while (!deepest->get_subcommands().empty()) {
    deepest = deepest->get_subcommands().front();
    name += " " + deepest->get_name();
  }
  const CLI::App& command = *deepest;
  const std::string hint = fmt::format("; `kvart {} --help` says more", name);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !extras.empty()) {
    const std::string& word = extras[0];
    return word[0] == '-' ? fmt::format("{}: '{}' isn't an option{}{}", name, word,
                                        suggestion(word, option_names(command)), hint)
                          : fmt::format("{}: '{}' is one word too many{}", name, word, hint);
  }
  return fmt::format("{}{}", error.what(), hint);
}

}  // namespace kvart::tools
