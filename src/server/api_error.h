// What a request is refused with: the body that clients of OpenAI and vLLM read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvart/result.h"

namespace kvart::server {

using Json = nlohmann::ordered_json;

struct ApiError {
  int status = 400;
  std::string message;  // says what is wrong and what is right
  std::string param{};  // the field; may be empty
};

// {"error": {"message", "type", "param", "code"}}, the type by the status.
std::string error_body(const ApiError& error);

// Text of JSON; bytes that are no UTF-8 become U+FFFD.
std::string json_text(const Json& json);

// The status that an error of the model or the engine means to who asked.
ApiError api_error(const Error& error);

}  // namespace kvart::server
