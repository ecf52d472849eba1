// Service: what all connections share. Of the thread that answers, where nothing else is said.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvart/server.h"
#include "server/answer.h"
#include "server/api_request.h"

namespace kvart::server {

class Service {
 public:
  Service(const Model& model, Engine& engine, ServerOptions options);

  // From any thread.
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const ServerOptions& options() const { return options_; }
  [[nodiscard]] const ApiLimits& limits() const { return limits_; }
  [[nodiscard]] Engine& engine() const { return engine_; }
  void log(std::string_view line) const;
  // A line about what an exception has ended; there may be no memory for the line either.
  void note_lost(std::string_view what, const std::exception& error) const noexcept;

  [[nodiscard]] AnswerHead new_head(const ApiRequest& request,
                                    std::chrono::steady_clock::time_point asked);
  // How long it may take: as it asks for, and no longer than the server allows.
  [[nodiscard]] std::optional<std::chrono::milliseconds> timeout(const ApiRequest& request) const;
  [[nodiscard]] uint64_t random_seed() { return random_(); }
  // Under which cached prefixes are shared. key: which API key came with the request.
  [[nodiscard]] std::string salt(size_t key, const std::string& cache_salt) const;
  // A log line for each name that hasn't been noted yet.
  void note_unknown(const std::vector<std::string>& names);
  void count(std::string_view route, int status);

  [[nodiscard]] std::string version_body() const;
  [[nodiscard]] std::string models_body() const;
  [[nodiscard]] std::string model_body(const std::string& name) const;  // empty: no such one
  [[nodiscard]] std::string tokenizer_info_body() const;
  [[nodiscard]] std::string metrics_body() const;
  [[nodiscard]] std::string status_body() const;

  int64_t connections = 0;
  bool stopping = false;
  std::atomic<size_t> bodies_bytes = 0;   // of all requests that are being read or prepared
  std::atomic<size_t> answers_bytes = 0;  // made, but not yet written
  // From any thread: whether more of an answer may be made.
  [[nodiscard]] bool has_room() const { return answers_bytes < options_.max_answers_bytes; }

 private:
  void write_model(const std::string& name, JsonWriter* json) const;

  const Model& model_;
  Engine& engine_;
  ServerOptions options_;
  ApiLimits limits_;
  std::mt19937_64 random_;
  int64_t created_s_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::set<std::string> noted_;
  std::map<std::pair<std::string, int>, uint64_t> counts_;
};

// What the status page shows, as members of an object.
void write_status(const EngineStats& stats, const MemoryPlan& plan, const EngineOptions& options,
                  JsonWriter* json);

}  // namespace kvart::server
