// Error bodies in vLLM's shape: code is the status, type its name.
#include "server/api_error.h"

#include "server/json_writer.h"

namespace kvart::server {

namespace {

const char* type_name(int status) {
  switch (status) {
    case 400:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 408:
      return "RequestTimeoutError";
    case 413:
      return "RequestTooLargeError";
    case 415:
      return "UnsupportedMediaTypeError";
    case 422:
      return "UnprocessableEntityError";
    case 431:
      return "RequestHeaderTooLargeError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    case 504:
      return "GatewayTimeoutError";
    default:
      return "InternalServerError";
  }
}

}  // namespace

std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_body(const ApiError& error) {
  std::string text;
  JsonWriter json(&text);
  json.begin_object();
  json.name("error");
  json.begin_object();
  json.member("message", error.message);
  json.member("type", type_name(error.status));
  json.name("param");
  if (error.param.empty()) {
    json.value(nullptr);
  } else {
    json.value(error.param);
  }
  json.member("code", error.status);
  json.end_object();
  json.end_object();
  return text;
}

ApiError api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported:
      return {400, error.message};
    case ErrorCode::out_of_memory:
      return {503, error.message};
    default:
      return {500, error.message};
  }
}

}  // namespace kvart::server
