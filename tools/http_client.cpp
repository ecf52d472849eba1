// HttpClient on Boost.Beast. Every request has a connection of its own, as benchmark clients do: a
// server's limits on connections are part of what is measured.
#include "http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>

namespace kvart::tools {

namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::asio::ip::tcp;

constexpr std::chrono::minutes longest_wait(10);  // for anything at all to arrive

Error failed(const HttpTarget& target, const char* what, const beast::error_code& code) {
  return {ErrorCode::io, fmt::format("http://{}: {}: {}", authority(target), what, code.message())};
}

// Lines of an event stream from bytes as they come.
class EventReader {
 public:
  explicit EventReader(const std::function<void(std::string_view)>& on_event)
      : on_event_(on_event) {}

  void push(std::string_view bytes) {
    pending_ += bytes;
    size_t begin = 0;
    for (size_t end = pending_.find('\n'); end != std::string::npos;
         end = pending_.find('\n', begin)) {
      line(std::string_view(pending_).substr(begin, end - begin));
      begin = end + 1;
    }
    pending_.erase(0, begin);
  }
  [[nodiscard]] bool done() const { return done_; }

 private:
  void line(std::string_view text) {
    if (text.ends_with('\r')) text.remove_suffix(1);
    constexpr std::string_view data = "data: ";
    if (done_ || !text.starts_with(data)) return;
    text.remove_prefix(data.size());
    if (text == "[DONE]") {
      done_ = true;
    } else {
      on_event_(text);
    }
  }

  const std::function<void(std::string_view)>& on_event_;
  std::string pending_;
  bool done_ = false;
};

}  // namespace

struct HttpClient::Connection {
  HttpTarget target;
  std::string api_key;
  boost::asio::io_context context;

  // Runs what was started on the context to its end.
  beast::error_code wait(beast::error_code& code) {
    context.restart();
    context.run();
    return code;
  }

  Result<HttpAnswer> exchange(http::verb verb, const std::string& path, const std::string& json,
                              const std::function<void(std::string_view)>* on_event);
  Result<HttpAnswer> read(beast::tcp_stream& stream,
                          const std::function<void(std::string_view)>* on_event);
};

Result<HttpAnswer> HttpClient::Connection::exchange(
    http::verb verb, const std::string& path, const std::string& json,
    const std::function<void(std::string_view)>* on_event) {
  beast::error_code code;
  tcp::resolver resolver(context);
  const auto addresses = resolver.resolve(target.host, target.port, code);
  if (code) return failed(target, "no such host", code);
  beast::tcp_stream stream(context);
  stream.expires_after(longest_wait);
  stream.async_connect(addresses,
                       [&](beast::error_code result, const tcp::endpoint&) { code = result; });
  if (wait(code)) return failed(target, "no connection; is the server running?", code);
  stream.socket().set_option(tcp::no_delay(true), code);
  http::request<http::string_body> request(verb, target.prefix + path, 11);
  request.set(http::field::host, authority(target));
  request.set(http::field::user_agent, "kvart");
  if (!api_key.empty()) request.set(http::field::authorization, "Bearer " + api_key);
  if (verb == http::verb::post) {
    request.set(http::field::content_type, "application/json");
    request.body() = json;
  }
  request.prepare_payload();
  http::async_write(stream, request, [&](beast::error_code result, size_t) { code = result; });
  if (wait(code)) return failed(target, "the request was not taken", code);
  return read(stream, on_event);
}

Result<HttpAnswer> HttpClient::Connection::read(
    beast::tcp_stream& stream, const std::function<void(std::string_view)>* on_event) {
  beast::error_code code;
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  // boost::none would mean no limit, but Boost 1.74 then takes no answer at all.
  parser.body_limit(std::numeric_limits<uint64_t>::max());
  stream.expires_after(longest_wait);
  http::async_read_header(stream, buffer, parser,
                          [&](beast::error_code result, size_t) { code = result; });
  if (wait(code)) return failed(target, "no answer", code);
  HttpAnswer answer;
  answer.status = parser.get().result_int();
  const bool events = on_event != nullptr && answer.status == 200;
  const std::function<void(std::string_view)> ignore = [](std::string_view) {};
  EventReader reader(events ? *on_event : ignore);
  char bytes[16384];
  while (!parser.is_done() && !reader.done()) {
    parser.get().body().data = bytes;
    parser.get().body().size = sizeof(bytes);
    stream.expires_after(longest_wait);
    http::async_read_some(stream, buffer, parser,
                          [&](beast::error_code result, size_t) { code = result; });
    wait(code);
    if (code == http::error::need_buffer) code = {};
    if (code) return failed(target, "the answer broke off", code);
    const std::string_view arrived(bytes, sizeof(bytes) - parser.get().body().size);
    if (events) {
      reader.push(arrived);
    } else {
      answer.body += arrived;
    }
  }
  if (events && !reader.done()) {
    return Error{ErrorCode::io,
                 fmt::format("http://{}: the stream ended without [DONE]", authority(target))};
  }
  return answer;
}

HttpClient::HttpClient(HttpTarget target, std::string api_key)
    : connection_(std::make_unique<Connection>()) {
  connection_->target = std::move(target);
  connection_->api_key = std::move(api_key);
}

HttpClient::~HttpClient() = default;

Result<HttpAnswer> HttpClient::get(const std::string& path) {
  return connection_->exchange(http::verb::get, path, "", nullptr);
}

Result<HttpAnswer> HttpClient::post(const std::string& path, const std::string& json) {
  return connection_->exchange(http::verb::post, path, json, nullptr);
}

Result<HttpAnswer> HttpClient::stream(const std::string& path, const std::string& json,
                                      const std::function<void(std::string_view data)>& on_event) {
  return connection_->exchange(http::verb::post, path, json, &on_event);
}

std::string authority(const HttpTarget& target) {
  const bool v6 = target.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", target.host, v6 ? "]" : "", target.port);
}

Result<HttpTarget> parse_http_url(const std::string& text) {
  constexpr std::string_view scheme = "http://";
  std::string_view rest = text;
  const Error wrong{ErrorCode::invalid_argument,
                    fmt::format("{}: give a base URL such as http://127.0.0.1:8000", text)};
  if (!rest.starts_with(scheme)) return wrong;
  rest.remove_prefix(scheme.size());
  HttpTarget target;
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    target.prefix = rest.substr(slash);
    while (target.prefix.ends_with('/')) target.prefix.pop_back();
    rest = rest.substr(0, slash);
  }
  const bool bracketed = rest.starts_with('[');
  const size_t end = bracketed ? rest.find(']') : rest.find(':');
  if (bracketed && end == std::string_view::npos) return wrong;
  target.host = bracketed ? rest.substr(1, end - 1) : rest.substr(0, end);
  rest.remove_prefix(std::min(rest.size(), bracketed ? end + 1 : end));
  if (!rest.empty() && !rest.starts_with(':')) return wrong;
  target.port = rest.empty() ? "80" : std::string(rest.substr(1));
  const bool digits = !target.port.empty() && target.port.size() <= 5 &&
                      target.port.find_first_not_of("0123456789") == std::string::npos;
  if (target.host.empty() || !digits) return wrong;
  return target;
}

}  // namespace kvart::tools
