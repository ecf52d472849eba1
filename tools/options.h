// Options whose values are checked as they are read: a wrong one is refused with its name and what
// is allowed.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"

namespace kvart::tools {

struct IntegerRange {
  int64_t min = 0;
  int64_t max = 0;
  std::string allowed;  // for messages and help; empty: "min to max"

  [[nodiscard]] std::string text() const;
};

struct NumberRange {
  double min = 0;
  double max = 0;
  bool above_min = false;  // min itself isn't allowed

  [[nodiscard]] std::string text() const;
};

// Decimal digits, after a "-" where min is below 0. Error: anything else, or out of the range.
Result<int64_t> parse_integer(std::string_view text, const IntegerRange& range);
// Decimal digits, up to 2^64 - 1.
Result<uint64_t> parse_unsigned(std::string_view text);
// Finite and in the range.
Result<double> parse_number(std::string_view text, const NumberRange& range);

// "" for a value that is right, otherwise what is wrong: how an option asks.
template <class T>
std::string message_of(const Result<T>& result) {
  return result.ok() ? std::string() : result.error().message;
}

template <class T>
CLI::Option* add_integer_option(CLI::App& command, const std::string& name, T* value,
                                const IntegerRange& range, const std::string& help) {
  return command
      .add_option_function<std::string>(
          name,
          [value, range](const std::string& text) {
            *value = static_cast<T>(*parse_integer(text, range));
          },
          help + " (" + range.text() + ")")
      ->check([range](const std::string& text) { return message_of(parse_integer(text, range)); })
      ->type_name("N");
}

template <class T>
CLI::Option* add_number_option(CLI::App& command, const std::string& name, T* value,
                               const NumberRange& range, const std::string& help) {
  return command
      .add_option_function<std::string>(
          name,
          [value, range](const std::string& text) {
            *value = static_cast<T>(*parse_number(text, range));
          },
          help + " (" + range.text() + ")")
      ->check([range](const std::string& text) { return message_of(parse_number(text, range)); })
      ->type_name("X");
}

CLI::Option* add_seed_option(CLI::App& command, uint64_t* seed);
// Text that isn't empty.
CLI::Option* add_text_option(CLI::App& command, const std::string& name, std::string* value,
                             const std::string& type, const std::string& help);
// 0 where it isn't given.
CLI::Option* add_threads_option(CLI::App& command, int* threads);
// The same for lists: each entry, and each part of one between commas, isn't empty.
CLI::Option* add_list_option(CLI::App& command, const std::string& name,
                             std::vector<std::string>* values, const std::string& type,
                             const std::string& help);

// Parts of `text` between commas; empty ones stay.
std::vector<std::string> split_commas(std::string_view text);

// How many threads run where `wanted` (0: as many as cores) were asked for. Beyond twice the cores
// that can be used they only wait for each other: no more are taken, and unless `quiet` a line on
// stderr says so.
int threads_to_run(int wanted, bool quiet);

// The known word that `word` most likely stands for; empty if none is close.
std::string closest_word(std::string_view word, const std::vector<std::string>& known);

// What was wrong with the command line, in one line, and what to do.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace kvart::tools
