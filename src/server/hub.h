// Hub: the threads of a server and the list of its connections. Of the thread that answers, but for
// the pools.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <list>
#include <memory>
#include <new>
#include <thread>
#include <unordered_map>
#include <utility>  // before asio: boost 1.74 uses std::exchange without it
#include <vector>

#include "server/service.h"

namespace kvart::server {

namespace net = boost::asio;

class Connection;

struct Hub {
  Hub(const Model& model, Engine& engine, ServerOptions options)
      : service(model, engine, std::move(options)),
        io(std::make_shared<net::io_context>(1)),
        text(static_cast<size_t>(service.options().text_threads)),
        answers(static_cast<size_t>(service.options().text_threads)) {}

  // Closes the one that has waited for a request for longest; false: none waits.
  bool evict();
  void close_all();
  // The streams that wait for room among the answers go on, if there is some.
  void offer_room() noexcept;
  // For a pool's job: `handler` runs on the thread that answers. While the system has no memory for
  // that, waits until it has.
  template <class Handler>
  void post_back(const Handler& handler) {
    while (true) {
      try {
        return net::post(*io, handler);
      } catch (const std::bad_alloc&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }

  Service service;
  std::shared_ptr<net::io_context> io;  // an engine's thread may post a last time when we are gone
  std::list<Connection*> waiting;       // for a request, the longest first
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
  std::vector<std::weak_ptr<Connection>> wanting_room;
  std::atomic<int> text_jobs = 0;
  bool loopback_only = false;  // where it listens, whatever that was called
  // Last: their jobs use the rest. Prompts that are long in reading hold up no answer that is long
  // in writing.
  net::thread_pool text;
  net::thread_pool answers;
};

}  // namespace kvart::server
