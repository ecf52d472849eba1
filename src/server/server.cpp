// The listening socket, signals, and the two ends of a server's life.
#include "kvart/server.h"

#include <fmt/format.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <thread>

#include "model/file/printable.h"
#include "server/connection.h"
#include "server/guard.h"

namespace kvart {

namespace {

using server::Connection;
using server::Hub;
using server::tcp;
namespace net = boost::asio;

// What answers still have to be written may take that long after the last token.
constexpr std::chrono::milliseconds flush_time{2000};
constexpr std::chrono::milliseconds look_again{20};

Error invalid(std::string message) {
  return Error{ErrorCode::invalid_argument, std::move(message)};
}

Status check_options(const ServerOptions& options) {
  if (options.port < 0 || options.port > 65535) return invalid("port must be 0 to 65535");
  if (options.model_names.empty()) return invalid("a served model needs a name");
  if (options.max_connections < 1) return invalid("max_connections must be 1 or more");
  if (options.request_timeout.count() < 0) return invalid("request_timeout must be 0 or more");
  if (options.text_threads < 1 || options.text_threads > 64) {
    return invalid("text_threads must be 1 to 64");
  }
  for (const std::string& key : options.api_keys) {
    if (key.empty()) return invalid("an API key is empty; give at least one character");
  }
  for (const std::string& origin : options.cors_origins) {
    if (origin.find_first_of("\r\n") != std::string::npos)
      return invalid("a CORS origin is broken");
  }
  return {};
}

Result<tcp::endpoint> find_endpoint(net::io_context& io, const ServerOptions& options) {
  const auto port = static_cast<unsigned short>(options.port);
  boost::system::error_code error;
  const auto address = net::ip::make_address(options.host, error);
  if (!error) return tcp::endpoint(address, port);
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(port), error);
  if (!error && !found.empty()) {
    for (const auto& one : found) {  // 127.0.0.1 rather than ::1
      if (one.endpoint().address().is_v4()) return one.endpoint();
    }
    return found.begin()->endpoint();
  }
  return Error{ErrorCode::not_found,
               fmt::format("host {} isn't an address of this machine; use 127.0.0.1 for this "
                           "machine alone, 0.0.0.0 for all who can reach it",
                           printable(options.host))};
}

bool is_loopback(const net::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

Error listen_error(const ServerOptions& options, const boost::system::error_code& error) {
  std::string what = error.message();
  if (error == net::error::address_in_use) {
    what = "the port is in use; stop what uses it, or choose another one";
  } else if (error == net::error::access_denied) {
    what = "this port needs more rights; choose one from 1024 on";
  } else if (error == boost::system::errc::address_not_available) {
    what = "this machine doesn't have that address; use 127.0.0.1 or 0.0.0.0";
  }
  return Error{ErrorCode::io,
               fmt::format("{} port {}: {}", printable(options.host), options.port, what)};
}

class HttpServer : public Server {
 public:
  HttpServer(const Model& model, Engine& engine, ServerOptions options)
      : hub_(model, engine, std::move(options)),
        acceptor_(*hub_.io),
        signals_(*hub_.io),
        timer_(*hub_.io) {}
  ~HttpServer() override {
    if (drainer_.joinable()) drainer_.join();
    hub_.close_all();
  }

  Status listen() {
    const ServerOptions& options = hub_.service.options();
    const auto endpoint = find_endpoint(*hub_.io, options);
    if (!endpoint.ok()) return endpoint.error();
    boost::system::error_code error;
    acceptor_.open(endpoint->protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(*endpoint, error);
    if (!error) acceptor_.listen(net::socket_base::max_listen_connections, error);
    if (error) return listen_error(options, error);
    port_ = acceptor_.local_endpoint(error).port();
    hub_.loopback_only = is_loopback(endpoint->address());
    return {};
  }

  [[nodiscard]] int port() const override { return port_; }
  [[nodiscard]] std::string url() const override {
    const std::string& host = hub_.service.options().host;
    const bool v6 = host.find(':') != std::string::npos;
    return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port_);
  }

  [[nodiscard]] bool loopback_only() const override { return hub_.loopback_only; }

  void run() override {
    if (hub_.service.options().handle_signals) wait_for_signal();
    // Where the last handler that was to come has thrown, it would stop.
    const auto work = net::make_work_guard(*hub_.io);
    while (!hub_.io->stopped()) {
      try {
        if (!accepting_ && acceptor_.is_open()) accept();
        hub_.io->run();
      } catch (const std::exception& error) {  // of a system without memory
        hub_.service.note_lost("a connection", error);
      }
    }
    if (drainer_.joinable()) drainer_.join();
    for (net::thread_pool* pool : {&hub_.text, &hub_.answers}) {
      pool->stop();
      pool->join();
    }
    hub_.close_all();
  }

  void stop() override {
    net::post(*hub_.io, [this] { begin_stop(); });
  }

 private:
  // What ends with an exception before it waits again, run() does once more.
  void accept() {
    acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      accepting_ = false;
      if (!acceptor_.is_open()) return;
      if (error) return recover(error);
      Hub& hub = hub_;
      const int most = hub.service.options().max_connections;
      // Where none waits for a request, all are being answered: the new one is closed.
      if (hub.service.connections < most || hub.evict()) {
        std::make_shared<Connection>(hub, std::move(socket))->start();
      }
      accept();
    });
    accepting_ = true;
  }

  // Where the system has no file or memory for another connection, the one that is idle for longest
  // gives its own, at once: those who wait to be accepted may be many.
  void recover(const boost::system::error_code& error) {
    if (error == net::error::connection_aborted) return accept();  // gone before we came
    const bool full = error == net::error::no_descriptors || error == net::error::no_memory ||
                      error == net::error::no_buffer_space ||
                      error == boost::system::errc::too_many_files_open_in_system;
    if (full && hub_.evict()) return accept();
    timer_.expires_after(look_again);
    timer_.async_wait([this](const boost::system::error_code& cancelled) {
      accepting_ = false;
      if (!cancelled && acceptor_.is_open()) accept();
    });
    accepting_ = true;
  }

  void wait_for_signal() {
    boost::system::error_code ignored;
    signals_.add(SIGINT, ignored);
    signals_.add(SIGTERM, ignored);
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      if (hub_.service.stopping) std::_Exit(EXIT_FAILURE);
      wait_for_signal();
      begin_stop();
    });
  }

  void begin_stop() {
    if (hub_.service.stopping) return;
    const auto time = hub_.service.options().shutdown_timeout;
    // The engine waits for what runs; it must not hold up what is being answered.
    drainer_ = std::thread([this, time] {
      hub_.service.engine().drain(std::chrono::steady_clock::now() + time);
      hub_.post_back([this] {
        boost::system::error_code ignored;
        acceptor_.close(ignored);
        flush(std::chrono::steady_clock::now() + flush_time);
      });
    });
    hub_.service.stopping = true;
    hub_.service.log(fmt::format("shutting down: running requests have {} s",
                                 static_cast<double>(time.count()) / 1000));
  }

  // It looks again whatever happens now.
  void flush(std::chrono::steady_clock::time_point deadline) {
    timer_.expires_after(look_again);
    timer_.async_wait([this, deadline](const boost::system::error_code&) { flush(deadline); });
    close_idle();
    if (hub_.service.connections == 0 || std::chrono::steady_clock::now() >= deadline) {
      hub_.close_all();
      hub_.io->stop();
    }
  }

  void close_idle() {
    const auto all = hub_.connections;
    for (const auto& [unused, weak] : all) {
      const auto connection = weak.lock();
      if (connection && connection->is_idle()) connection->close();
    }
  }

  Hub hub_;
  tcp::acceptor acceptor_;
  net::signal_set signals_;
  net::steady_timer timer_;
  std::thread drainer_;
  bool accepting_ = false;  // a handler of the acceptor will come
  int port_ = 0;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::create(const Model& model, Engine& engine,
                                               ServerOptions options) {
  KVART_RETURN_IF_ERROR(check_options(options));
  auto server = std::make_unique<HttpServer>(model, engine, std::move(options));
  KVART_RETURN_IF_ERROR(server->listen());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace kvart
