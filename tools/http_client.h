// A small HTTP/1.1 client for measuring servers: one connection, one request at a time, answers
// whole or as server-sent events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kvart/result.h"

namespace kvart::tools {

struct HttpTarget {
  std::string host;  // of an IPv6 address without its brackets
  std::string port;
  std::string prefix;  // of every path: what follows the host in a base URL
};

// HOST:PORT, as in a URL.
std::string authority(const HttpTarget& target);

// text: http://HOST[:PORT][/PREFIX]; an IPv6 address stands in brackets. Error: anything else
// (https too).
Result<HttpTarget> parse_http_url(const std::string& text);

struct HttpAnswer {
  int status = 0;
  std::string body;
};

class HttpClient {
 public:
  // api_key: empty, or sent as a bearer token.
  HttpClient(HttpTarget target, std::string api_key);
  ~HttpClient();

  // body: empty for GET. Error: no connection, an answer that isn't HTTP or takes too long.
  Result<HttpAnswer> get(const std::string& path);
  Result<HttpAnswer> post(const std::string& path, const std::string& json);
  // Calls on_event with the data of each event as it arrives, up to [DONE]. The answer's body is
  // set only where its status isn't 200. Error: likewise, or a stream that ends without [DONE].
  Result<HttpAnswer> stream(const std::string& path, const std::string& json,
                            const std::function<void(std::string_view data)>& on_event);

 private:
  struct Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace kvart::tools
