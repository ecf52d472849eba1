// Result<T>: the value, or what went wrong. For everything the outside world can cause (files,
// requests, full memory). Our own bugs abort instead: src/base/check.h.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace kvart {

enum class ErrorCode {
  invalid_argument,  // a flag, a request or a configuration that can't be right
  invalid_file,      // a file that is damaged, truncated or hostile
  unsupported,       // well-formed, but Kvart doesn't know it; the message names it
  not_found,         // a file or an id that isn't there
  out_of_memory,     // does not fit: the message has both figures
  invalid_data,      // NaN or Inf where numbers are needed
  io,                // the operating system refused
};

struct Error {
  ErrorCode code = ErrorCode::invalid_argument;
  std::string message;  // says what, where and what to do; one line, no trailing newline
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // Precondition of value(), * and ->: ok(). Of error(): !ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  [[nodiscard]] const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : failed_(true), error_(std::move(error)) {}
  [[nodiscard]] bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  bool failed_ = false;
  Error error_;
};

using Status = Result<void>;

}  // namespace kvart

// Returns the error of `expression` (a Status) from the enclosing function, if it has one.
#define KVART_RETURN_IF_ERROR(expression)                              \
  do {                                                                 \
    if (const auto& kvart_status = (expression); !kvart_status.ok()) { \
      return kvart_status.error();                                     \
    }                                                                  \
  } while (false)
