// Server: an engine behind HTTP, in the shapes that clients of OpenAI and vLLM speak.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/engine.h"
#include "kvart/model.h"
#include "kvart/result.h"

namespace kvart {

struct ServerOptions {
  std::string host = "127.0.0.1";  // an address, or localhost
  int port = 8000;                 // 0: any that is free
  // What requests may call the model; the first is what answers call it. Not empty.
  std::vector<std::string> model_names;
  std::string version;
  std::string cache_words;  // the policy of the cache, as it was asked for

  // One of them must come with each request but those of the open routes; none: all may ask.
  std::vector<std::string> api_keys;
  // Requests with different keys share cached prefixes: how fast an answer begins then tells what
  // others have asked.
  bool share_prefixes = false;
  // One of several keys may forget the cached prefixes of all (POST /reset_prefix_cache).
  bool allow_reset = false;
  std::vector<std::string> cors_origins;  // web pages that may ask; "*": all
  // Names that a request's chat_template_kwargs may set.
  std::vector<std::string> template_names = {"enable_thinking", "thinking", "reasoning_effort"};
  bool old_metric_names = false;  // vllm:gpu_cache_usage_perc and its like besides the new ones

  int max_connections = 4096;  // one more takes the place of the one that is idle for longest
  size_t max_header_bytes = size_t{16} << 10;
  size_t max_body_bytes = size_t{16} << 20;
  size_t max_bodies_bytes = size_t{256} << 20;  // of all requests, until their prompts are tokens
  // Of all answers that are made but not yet written; above it no more of them is made. Those that
  // are being made then, as many as text_threads, come on top.
  size_t max_answers_bytes = size_t{256} << 20;
  int text_threads = 2;      // tokenize and render templates; as many write long answers
  int max_text_jobs = 1024;  // that wait for them
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds write_timeout{30'000};  // that a client takes nothing
  std::chrono::milliseconds shutdown_timeout{30'000};
  // Of a request that generates, from its whole body to its last token; 0: any. A request may ask
  // for less.
  std::chrono::milliseconds request_timeout{0};

  // SIGINT and SIGTERM stop the server, a second one ends the program at once.
  bool handle_signals = false;
  // Gets one line for each thing worth a note; called from the server's threads.
  std::function<void(std::string_view)> log;
};

class Server {
 public:
  // Takes the port. model and engine outlive the server. Error: an option out of range, a port in
  // use (io), a host that is no address of this machine.
  static Result<std::unique_ptr<Server>> create(const Model& model, Engine& engine,
                                                ServerOptions options);
  virtual ~Server() = default;

  [[nodiscard]] virtual int port() const = 0;
  [[nodiscard]] virtual std::string url() const = 0;
  // Nobody but programs of this machine can reach it.
  [[nodiscard]] virtual bool loopback_only() const = 0;
  // Answers until stop() has been called and what was running has ended, at shutdown_timeout at
  // the latest. Once only.
  virtual void run() = 0;
  // New requests are refused; run() returns soon. From any thread; idempotent.
  virtual void stop() = 0;
};

}  // namespace kvart
