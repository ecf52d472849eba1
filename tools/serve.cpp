// `kvart serve MODEL`: the model behind HTTP, in the shapes of OpenAI and vLLM.
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <memory>

#include "commands.h"
#include "kvart/engine.h"
#include "kvart/server.h"
#include "model_loading.h"
#include "report.h"
#include "serve_options.h"
#include "streams.h"

namespace kvart::tools {
namespace {

constexpr int files_besides = 64;  // the model's, the streams, the listener

// Before the server waits for signals there is nothing to finish.
void end_at_once(int) {
  ::_exit(exit_fine);
}

// No fraction of one becomes 0, which may mean something else.
std::chrono::milliseconds milliseconds_of(double time_s) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(time_s * 1000)));
}

// As many files as the system allows; how many connections then fit.
int connections_that_fit(int wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t needed = static_cast<rlim_t>(wanted) + files_besides;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= needed) return wanted;
  return std::max(1, static_cast<int>(limit.rlim_cur) - files_besides);
}

// An empty one would pass for none: then all may ask, where a key was meant to be needed.
Status check_key_of_environment(const std::vector<std::string>& keys) {
  const char* key = std::getenv("KVART_API_KEY");
  if (!keys.empty() || key == nullptr || *key != '\0') return {};
  return Error{ErrorCode::invalid_argument,
               "KVART_API_KEY is empty: give a key, or unset it to serve without one"};
}

// What large requests and answers took goes back to the system once they are done. By itself glibc
// raises both limits to the size of what was freed, up to 32 MiB and 64, and then keeps as much in
// each thread's arena.
void give_memory_back() {
#ifdef __GLIBC__
  (void)::mallopt(M_MMAP_THRESHOLD, 128 << 10);
  (void)::mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

class Serve {
 public:
  explicit Serve(const ServeOptions& options) : options_(options) {}

  Status run() {
    KVART_RETURN_IF_ERROR(check_key_of_environment(options_.server.api_keys));
    auto loaded = load_with_policy(options_.model, options_.cache_dtype, options_.threads,
                                   options_.load, options_.quiet);
    if (!loaded) return loaded.error();
    model_ = std::move(loaded->model);
    policy_ = std::move(loaded->policy);
    threads_ = loaded->threads;
    KVART_RETURN_IF_ERROR(start_engine());
    KVART_RETURN_IF_ERROR(start_server());
    server_->run();
    say("stopped");
    return {};
  }

 private:
  void say(const std::string& line) const {
    if (!options_.quiet) print_line(line);
  }

  Status start_engine() {
    std::vector<std::string> notes;
    auto session =
        plan_session(options_, model_->config(), policy_, available_bytes_of(*model_), &notes);
    if (!session) return session.error();
    for (const std::string& note : notes) say(note);
    EngineOptions engine;
    engine.session = std::move(*session);
    engine.session.threads = threads_;
    // The GPU doesn't measure it.
    if (model_->device() == Device::cuda) engine.session.error_sample_interval = 0;
    engine.max_running = options_.max_num_seqs;
    auto created = Engine::create(*model_, engine);
    if (!created) return created.error();
    engine_ = std::move(created).value();
    for (const std::string& line : cache_lines(engine_->plan(), policy_)) say(line);
    return {};
  }

  Status start_server() {
    ServerOptions server = options_.server;
    if (server.model_names.empty()) server.model_names = {default_model_name(options_.model)};
    server.version = KVART_VERSION;
    server.cache_words = policy_.name;
    const int wanted = server.max_connections;
    server.max_connections = connections_that_fit(wanted);
    if (server.max_connections < wanted) {
      say(
          fmt::format("{} connections at most, not {}: the system allows this process no more open "
                      "files (ulimit -n)",
                      server.max_connections, wanted));
    }
    server.shutdown_timeout = milliseconds_of(options_.shutdown_timeout_s);
    server.request_timeout = milliseconds_of(options_.request_timeout_s);
    server.handle_signals = true;
    if (!options_.quiet) server.log = [](std::string_view line) { print_line(line); };
    const std::string name = server.model_names.front();
    const bool keyless = server.api_keys.empty();
    auto created = Server::create(*model_, *engine_, std::move(server));
    if (!created) return created.error();
    server_ = std::move(created).value();
    if (keyless && !server_->loopback_only()) {
      say("whoever reaches this machine can ask; --api-key asks for a key");
    }
    say(fmt::format("serving {} at {} (API at {}/v1)", name, server_->url(), server_->url()));
    return {};
  }

  const ServeOptions& options_;
  Policy policy_;
  int threads_ = 1;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
};

}  // namespace

void add_serve_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command =
      app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's clients speak it");
  add_serve_options(*command, options.get());
  command->callback([options, exit_code] {
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, end_at_once);
    give_memory_back();
    const Status status = Serve(*options).run();
    if (status.ok()) return;
    *exit_code = fail(status.error());
    if (status.error().code == ErrorCode::out_of_memory) *exit_code = exit_no_fit;
  });
}

}  // namespace kvart::tools
