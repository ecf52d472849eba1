// Parsing and printing of numbers with units.
#include "units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace kvart::tools {
namespace {

struct Quantity {
  double value = 0;
  std::string unit;
};

// A finite number of 0 or more, and what follows it.
Result<Quantity> split_quantity(std::string_view text) {
  const Error bad{ErrorCode::invalid_argument,
                  fmt::format("'{}' isn't a number; it begins with digits", text.substr(0, 40))};
  if (text.empty() || text.size() > 40 || (text[0] != '.' && (text[0] < '0' || text[0] > '9')) ||
      text.substr(0, 2) == "0x" || text.substr(0, 2) == "0X") {
    return bad;
  }
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !std::isfinite(value) || value < 0) return bad;
  std::string unit(end);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size()
                                                                 : unit.find_first_not_of(' '));
  return Quantity{value, unit};
}

constexpr std::array<std::pair<std::string_view, double>, 14> byte_units{{
    {"", 1},
    {"b", 1},
    {"kb", 1e3},
    {"mb", 1e6},
    {"gb", 1e9},
    {"tb", 1e12},
    {"k", 1e3},
    {"m", 1e6},
    {"g", 1e9},
    {"t", 1e12},
    {"kib", 1024.0},
    {"mib", 1048576.0},
    {"gib", 1073741824.0},
    {"tib", 1099511627776.0},
}};

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

Result<double> scaled_bytes(const Quantity& quantity, std::string_view unit,
                            std::string_view text) {
  const std::string lower = lower_case(unit);
  for (const auto& [name, factor] : byte_units) {
    if (name == lower) return quantity.value * factor;
  }
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("'{}': unit '{}' isn't known; use MB, GB, TB, MiB, GiB or TiB", text, unit)};
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity.ok()) return quantity.error();
  const auto bytes = scaled_bytes(*quantity, quantity->unit, text);
  if (!bytes.ok()) return bytes.error();
  if (*bytes < 1 || *bytes >= 9.2e18) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' is out of range; sizes are 1 byte to 9.2e18", text)};
  }
  return static_cast<uint64_t>(std::llround(*bytes));
}

Result<double> parse_bandwidth(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity.ok()) return quantity.error();
  std::string_view unit = quantity->unit;
  const std::string_view end = unit.size() > 2 ? unit.substr(unit.size() - 2) : "";
  if (end == "/s" || end == "/S") unit.remove_suffix(2);
  const auto bytes = scaled_bytes(*quantity, unit, text);
  if (!bytes.ok()) return bytes.error();
  if (*bytes < 1e6 || *bytes > 1e17) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' is out of range; a bandwidth reads like 3.35TB/s", text)};
  }
  return *bytes;
}

Result<int64_t> parse_tokens(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity.ok()) return quantity.error();
  double factor = 0;
  if (quantity->unit.empty()) factor = 1;
  if (quantity->unit == "k" || quantity->unit == "K") factor = 1024;
  if (quantity->unit == "m" || quantity->unit == "M") factor = 1048576;
  const double tokens = quantity->value * factor;
  if (tokens < 1 || tokens > 2147483648.0 || tokens != std::floor(tokens)) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' isn't a number of tokens; use 32768 or 32k (1,024 each), at "
                             "most 2^31",
                             text)};
  }
  return static_cast<int64_t>(tokens);
}

Result<Load> parse_load(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity.ok()) return quantity.error();
  const std::string unit = lower_case(quantity->unit);
  const bool sequences = unit.empty() || unit == "seq" || unit == "sequences";
  const bool tokens = unit == "tok/s" || unit == "tokens/s";
  if ((!sequences && !tokens) || quantity->value <= 0 || quantity->value > 1e15) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' isn't a load; use 200 (sequences at the same time) or "
                             "20000tok/s",
                             text)};
  }
  return Load{quantity->value, tokens};
}

std::string with_commas(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string counted(uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", with_commas(count), what, count == 1 ? "" : "s");
}

int64_t usual_context(int64_t model_context) {
  constexpr int64_t most = 32768;
  return model_context > 0 ? std::min(model_context, most) : most;
}

std::string gigabytes(double bytes) {
  if (bytes >= 1e8) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e5) return fmt::format("{:.2f} MB", bytes / 1e6);
  return fmt::format("{:.0f} B", bytes);
}

std::string tokens_text(int64_t tokens) {
  return with_commas(static_cast<uint64_t>(tokens));
}

}  // namespace kvart::tools
