// The first lines of a response.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvart::server {

struct ResponseHead {
  int status = 200;
  std::string_view content_type = "application/json";
  std::optional<size_t> content_bytes;  // none: it comes in chunks, or ends with the connection
  bool chunked = false;
  bool keep_alive = true;
  std::string more{};  // further lines, each with its \r\n
};

std::string head_text(const ResponseHead& head);

// One event of a stream.
std::string event_text(std::string_view data);

// One chunk of a chunked body; the empty one ends it.
std::string chunk_text(std::string_view data);

}  // namespace kvart::server
