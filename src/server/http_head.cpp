// Status lines, header lines, events, chunks.
#include "server/http_head.h"

#include <fmt/format.h>

namespace kvart::server {

namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

}  // namespace

std::string head_text(const ResponseHead& head) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", head.status, reason(head.status));
  if (!head.content_type.empty()) text += fmt::format("Content-Type: {}\r\n", head.content_type);
  if (head.content_bytes) text += fmt::format("Content-Length: {}\r\n", *head.content_bytes);
  if (head.chunked) text += "Transfer-Encoding: chunked\r\n";
  text += "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n";
  text += head.keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return text + head.more + "\r\n";
}

std::string event_text(std::string_view data) {
  return fmt::format("data: {}\n\n", data);
}

std::string chunk_text(std::string_view data) {
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

}  // namespace kvart::server
