// A client that sends exactly the bytes it is told to, and a server in a thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "kvart/server.h"
#include "server/fake_engine.h"
#include "server/fake_model.h"

namespace kvart {

using Json = nlohmann::ordered_json;

struct Response {
  int status = 0;
  std::string head;
  std::string body;  // chunks put together
  bool whole = false;

  [[nodiscard]] Json json() const { return Json::parse(body, nullptr, false); }
};

class RawClient {
 public:
  // It has its file, but isn't connected.
  RawClient() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {}
  explicit RawClient(int port, int receive_bytes = 0) : RawClient() {
    if (receive_bytes > 0) {
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    connect(port);
  }
  void connect(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  [[nodiscard]] bool connected() const { return connected_; }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  void finish_sending() const { ::shutdown(socket_, SHUT_WR); }
  bool send(std::string_view bytes) {
    head_only_ = bytes.starts_with("HEAD ");
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // As much as the system takes without waiting; how many bytes those are.
  size_t send_some(std::string_view bytes) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent > 0 ? static_cast<size_t>(sent) : 0;
  }
  // The system holds no more than about twice so many that the server hasn't taken.
  void send_at_most(int bytes) const {
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }
  // What is there within the time; empty and ended() at the end.
  std::string receive(int wait_ms = 5000) {
    pollfd one{socket_, POLLIN, 0};
    if (::poll(&one, 1, wait_ms) <= 0) return {};
    std::string data(65536, '\0');
    const ssize_t count = ::recv(socket_, data.data(), data.size(), 0);
    if (count <= 0) ended_ = true;
    data.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return data;
  }
  [[nodiscard]] bool ended() const { return ended_; }

  // The next response, up to its end or the time's.
  Response response(int wait_ms = 5000) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    while (true) {
      Response found = parse();
      if (found.whole) return found;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      if (ended_ || left.count() <= 0) return found;
      buffer_ += receive(static_cast<int>(left.count()));
    }
  }

 private:
  // Takes a whole response out of the buffer; otherwise what there is of one stays in it.
  Response parse() {
    Response out;
    const size_t end = buffer_.find("\r\n\r\n");
    if (end == std::string::npos) return out;
    out.head = buffer_.substr(0, end + 2);
    out.status = out.head.size() > 12 ? std::stoi(out.head.substr(9, 3)) : 0;
    size_t at = end + 4;
    if (out.status == 100) {
      buffer_.erase(0, at);
      return parse();
    }
    const size_t length = out.head.find("Content-Length: ");
    if (length != std::string::npos) {
      const size_t size = head_only_ ? 0 : std::stoul(out.head.substr(length + 16));
      out.whole = buffer_.size() >= at + size;
      out.body = buffer_.substr(at, size);
      if (out.whole) buffer_.erase(0, at + size);
      return out;
    }
    if (out.head.find("chunked") == std::string::npos) {  // up to the end of the connection
      out.body = buffer_.substr(at);
      out.whole = ended_ || out.status == 204;
      if (out.status == 204) buffer_.erase(0, at);
      return out;
    }
    while (true) {
      const size_t line = buffer_.find("\r\n", at);
      if (line == std::string::npos) return out;
      const size_t size = std::stoul(buffer_.substr(at, line - at), nullptr, 16);
      if (buffer_.size() < line + 2 + size + 2) return out;
      out.body += buffer_.substr(line + 2, size);
      at = line + 2 + size + 2;
      if (size > 0) continue;
      out.whole = true;
      buffer_.erase(0, at);
      return out;
    }
  }

  int socket_;
  bool connected_ = false;
  bool ended_ = false;
  bool head_only_ = false;  // the answer has no body, whatever its length says
  std::string buffer_;
};

inline std::string get(std::string_view path, std::string_view more = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(more) +
         "\r\n";
}
inline std::string post(std::string_view path, std::string_view body, std::string_view more = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(more) + "\r\n" + std::string(body);
}

// A server with a fake engine, on a port of its own.
class RunningServer {
 public:
  explicit RunningServer(ServerOptions options = {},
                         std::chrono::microseconds tick = std::chrono::microseconds(200))
      : engine(tick) {
    options.port = 0;
    if (options.model_names.empty()) options.model_names = {"fake"};
    options.version = "1.2.3";
    options.cache_words = "int4";
    options.log = [this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      log_ += std::string(line) + "\n";
    };
    auto created = Server::create(model, engine, std::move(options));
    if (!created.ok()) {
      error = created.error().message;
      return;
    }
    server = std::move(*created);
    thread_ = std::thread([this] { server->run(); });
  }
  ~RunningServer() {
    if (server) server->stop();
    join();
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] int port() const { return server->port(); }
  // One request on a connection of its own.
  [[nodiscard]] Response ask(std::string_view request) const {
    RawClient client(port());
    client.send(request);
    return client.response();
  }
  [[nodiscard]] std::string log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  // Within the time nothing runs any more.
  [[nodiscard]] bool idle_within(int wait_ms) const {
    for (int waited = 0; waited < wait_ms; waited += 5) {
      if (engine.running() == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return engine.running() == 0;
  }

  FakeModel model;
  FakeEngine engine;
  std::unique_ptr<Server> server;
  std::string error;

 private:
  mutable std::mutex mutex_;
  std::string log_;
  std::thread thread_;
};

}  // namespace kvart
