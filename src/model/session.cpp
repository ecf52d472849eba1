// Session: cache, attention and forward pass put together.
#include "kvart/session.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "base/check.h"
#include "cache/kv_cache.h"
#include "model/step_runner.h"

namespace kvart {

namespace {

// Without memory for the text, one that needs none.
Error invalid_data(const char* text) try {
  return {ErrorCode::invalid_data, text};
} catch (const std::bad_alloc&) {
  return {ErrorCode::invalid_data, "NaN or Inf"};
}

class ModelSession : public Session {
 public:
  ModelSession(const LoadedModel& model, const SessionOptions& options, MemoryPlan plan,
               std::unique_ptr<SessionDevice> device, std::unique_ptr<KvCache> cache)
      : model_(model),
        options_(options),
        plan_(std::move(plan)),
        device_(std::move(device)),
        cache_(std::move(cache)) {}

  Status finish_creation() {
    auto runner = device_->create_runner(model_, options_, cache_.get());
    if (!runner) return runner.error();
    runner_ = std::move(runner).value();
    // A step that has taken places in the cache must come to its end, so it needs no memory then.
    const auto most = static_cast<size_t>(options_.max_step_tokens);
    steps_.reserve(most);
    request_of_step_.reserve(most);
    tokens_.reserve(most);
    positions_.reserve(most);
    wanted_.reserve(most);
    return {};
  }

  Result<SequenceId> start(std::span<const int32_t> prompt, std::string_view salt) override {
    return cache_->start(prompt, salt);
  }
  [[nodiscard]] bool can_start(std::span<const int32_t> prompt, std::string_view salt,
                               int64_t length) const override {
    return cache_->can_start(prompt, salt, length, options_.max_step_tokens);
  }
  [[nodiscard]] int64_t cached_tokens(SequenceId sequence) const override {
    return cache_->cached_tokens(sequence);
  }
  [[nodiscard]] int64_t length(SequenceId sequence) const override {
    return cache_->committed(sequence);
  }
  Result<int64_t> restore(SequenceId sequence, std::span<const int32_t> tokens) override {
    KVART_CHECK(!has_reservation(sequence), "sequence %d has a reservation", sequence);
    return cache_->restore(sequence, tokens);
  }
  Status reserve(SequenceId sequence, std::span<const int32_t> tokens) override;
  void unreserve(SequenceId sequence) override {
    if (has_reservation(sequence)) cache_->unreserve(sequence);
  }
  [[nodiscard]] bool has_room(SequenceId sequence, int64_t tokens) const override {
    if (is_lost(sequence)) return tokens == 0;
    return cache_->has_room(sequence, tokens);
  }
  std::span<const StepResult> step(std::span<const StepRequest> requests) override;
  Result<SequenceId> fork(SequenceId sequence) override {
    if (is_lost(sequence)) return lost_error();
    return cache_->fork(sequence);
  }
  Result<SequenceId> imitate(const Session& from, SequenceId like, int64_t length) override;
  Status truncate(SequenceId sequence, int64_t length) override {
    if (is_lost(sequence)) return lost_error();
    KVART_CHECK(!has_reservation(sequence), "sequence %d has a reservation", sequence);
    return cache_->truncate(sequence, length);
  }
  void release(SequenceId sequence) override {
    std::erase(lost_, sequence);
    cache_->release(sequence);
  }
  void reset_prefix_cache() override { cache_->reset_prefix_cache(); }

  [[nodiscard]] const MemoryPlan& plan() const override { return plan_; }
  [[nodiscard]] uint64_t allocated_cache_bytes() const override {
    return cache_->allocated_bytes();
  }
  [[nodiscard]] SessionStats stats() const override {
    const CacheStats s = cache_->stats();
    return {.pages_total = s.pages_total,
            .pages_free = s.pages_free,
            .pages_cached = s.pages_cached,
            .pages_referenced = s.pages_referenced,
            .slots_total = s.slots_total,
            .slots_free = s.slots_free,
            .slots_cached = s.slots_cached,
            .slots_referenced = s.slots_referenced,
            .parked_pages = s.parked_pages,
            .fullest_share = s.fullest_share,
            .prefix_queries_tokens = s.prefix_queries_tokens,
            .prefix_hits_tokens = s.prefix_hits_tokens,
            .evictions = s.evictions,
            .host_blocks = s.host_blocks,
            .host_bytes_used = s.host_bytes_used,
            .host_bytes_total = s.host_bytes_total,
            .swapped_out_blocks = s.swapped_out_blocks,
            .swapped_in_blocks = s.swapped_in_blocks,
            .damaged_host_blocks = s.damaged_host_blocks};
  }
  [[nodiscard]] std::span<const LayerError> layer_errors() const override {
    return runner_->errors();
  }
  [[nodiscard]] std::vector<uint8_t> sealed_block(SequenceId sequence,
                                                  int64_t block) const override {
    std::vector<uint8_t> bytes;
    const PageLayout& layout = cache_->page_layout();
    for (int group = 0; group < layout.groups(); ++group) {
      const BlockPlace place = cache_->blocks(sequence, group)[static_cast<size_t>(block)];
      if (place.page < 0) continue;
      const size_t before = bytes.size();
      bytes.resize(before + layout.block_bytes(group));
      device_->memory().read(bytes.data() + before, cache_->page(group, place.page),
                             layout.block_bytes(group));
    }
    return bytes;
  }

 private:
  static Error lost_error() {
    return {ErrorCode::invalid_data,
            "the sequence ended with an error in an earlier step; release it"};
  }
  [[nodiscard]] Error beyond_context(int64_t tokens) const {
    return {ErrorCode::out_of_memory, "the sequence would have " + std::to_string(tokens) +
                                          " tokens, the context holds " +
                                          std::to_string(options_.context_tokens)};
  }
  [[nodiscard]] bool is_lost(SequenceId sequence) const {
    return std::find(lost_.begin(), lost_.end(), sequence) != lost_.end();
  }
  // Tokens with a place that no step has run. Those of a lost sequence are none.
  [[nodiscard]] bool has_reservation(SequenceId sequence) const {
    return !is_lost(sequence) && cache_->appended(sequence) != cache_->committed(sequence);
  }
  [[nodiscard]] bool reserve_logits(std::span<const StepRequest> requests);
  Status make_room(const StepRequest& request);
  void gather(std::span<const StepRequest> requests);
  void hand_out(std::span<const StepRequest> requests, std::span<const float> logits);

  const LoadedModel& model_;
  SessionOptions options_;
  MemoryPlan plan_;
  std::unique_ptr<SessionDevice> device_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<StepRunner> runner_;
  // A step of theirs met a NaN or an Inf: nothing more can be computed.
  std::vector<SequenceId> lost_;

  // One step's rows; kept to save allocations.
  std::vector<StepResult> results_;
  std::vector<SequenceStep> steps_;
  std::vector<size_t> request_of_step_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<int> wanted_;
};

Status ModelSession::reserve(SequenceId sequence, std::span<const int32_t> tokens) try {
  for (const int32_t token : tokens) {
    KVART_CHECK(token >= 0 && token < model_.config().vocab, "token %d", token);
  }
  if (is_lost(sequence)) return lost_error();
  const int64_t wanted = cache_->committed(sequence) + static_cast<int64_t>(tokens.size());
  if (wanted > options_.context_tokens) return beyond_context(wanted);
  return cache_->reserve(sequence, tokens, Durability::final);
} catch (const std::bad_alloc&) {
  return no_memory();
}

Result<SequenceId> ModelSession::imitate(const Session& from, SequenceId like, int64_t length) {
  const auto* other = dynamic_cast<const ModelSession*>(&from);
  KVART_CHECK(other != nullptr && &other->model_ == &model_ &&
                  other->options_.policy.name == options_.policy.name,
              "a session of another model or policy");
  if (other->is_lost(like)) return lost_error();
  if (length > options_.context_tokens) return beyond_context(length);
  return cache_->imitate(*other->cache_, like, length);
}

Status ModelSession::make_room(const StepRequest& request) {
  if (!has_reservation(request.sequence)) return reserve(request.sequence, request.tokens);
  const auto reserved = cache_->tokens(request.sequence)
                            .subspan(static_cast<size_t>(cache_->committed(request.sequence)));
  KVART_CHECK(
      std::equal(reserved.begin(), reserved.end(), request.tokens.begin(), request.tokens.end()),
      "sequence %d has room for other tokens than these", request.sequence);
  return {};
}

void ModelSession::gather(std::span<const StepRequest> requests) {
  steps_.clear();
  request_of_step_.clear();
  tokens_.clear();
  positions_.clear();
  wanted_.clear();
  results_.assign(requests.size(), StepResult{});
  lost_.reserve(lost_.size() + requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const StepRequest& request = requests[i];
    KVART_CHECK(!request.tokens.empty(), "sequence %d has no tokens", request.sequence);
    results_[i].status = make_room(request);
    if (!results_[i].status.ok()) continue;
    const int64_t first = cache_->committed(request.sequence);
    const int count = static_cast<int>(request.tokens.size());
    const int first_row = static_cast<int>(tokens_.size());
    steps_.push_back({request.sequence, first, count});
    request_of_step_.push_back(i);
    for (int j = 0; j < count; ++j) {
      tokens_.push_back(request.tokens[j]);
      positions_.push_back(static_cast<int32_t>(first + j));
      const bool last = j == count - 1;
      if (request.logits == WantLogits::all || (request.logits == WantLogits::last && last)) {
        wanted_.push_back(first_row + j);
      }
    }
  }
  KVART_CHECK(tokens_.size() <= static_cast<size_t>(options_.max_step_tokens), "%zu tokens",
              tokens_.size());
}

void ModelSession::hand_out(std::span<const StepRequest> requests, std::span<const float> logits) {
  const auto vocab = static_cast<size_t>(model_.config().vocab);
  const std::span<const uint8_t> finite = runner_->finite();
  size_t row = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const StepRequest& request = requests[request_of_step_[s]];
    StepResult& result = results_[request_of_step_[s]];
    size_t rows = request.logits == WantLogits::all ? request.tokens.size() : 0;
    if (request.logits == WantLogits::last) rows = 1;
    result.logits = logits.subspan(row * vocab, rows * vocab);
    const auto of_rows = finite.subspan(row, rows);
    row += rows;
    const char* wrong = nullptr;
    if (runner_->failed()[s] != 0) {
      wrong = "K or V of the sequence has a value beyond 16 bits, NaN or Inf";
    } else if (std::find(of_rows.begin(), of_rows.end(), 0) != of_rows.end()) {
      wrong =
          "the model's logits have a NaN or an Inf: its weights are damaged, or its activations "
          "leave 32 bits";
    }
    if (wrong != nullptr) {
      result.logits = {};
      result.status = invalid_data(wrong);
      lost_.push_back(request.sequence);
      cache_->poison(request.sequence);
      continue;
    }
    cache_->commit(request.sequence, cache_->appended(request.sequence));
  }
}

// Before any place in the cache is taken, so that a step without memory changes nothing.
bool ModelSession::reserve_logits(std::span<const StepRequest> requests) {
  size_t rows = 0;
  for (const StepRequest& request : requests) {
    if (request.logits == WantLogits::all) rows += request.tokens.size();
    if (request.logits == WantLogits::last) rows += 1;
  }
  return runner_->reserve_logits(static_cast<int64_t>(rows));
}

std::span<const StepResult> ModelSession::step(std::span<const StepRequest> requests) {
  if (!reserve_logits(requests)) {
    results_.assign(requests.size(),
                    {Error{ErrorCode::out_of_memory, "no memory for the step's logits"}, {}});
    return results_;
  }
  gather(requests);
  if (steps_.empty()) return results_;
  const std::span<const float> logits = runner_->run(steps_, tokens_, positions_, wanted_);
  hand_out(requests, logits);
  return results_;
}

Status check_options(const SessionOptions& options, const ModelConfig& config) {
  const auto bad = [](std::string message) {
    return Error{ErrorCode::invalid_argument, std::move(message)};
  };
  if (options.threads < 1 || options.threads > 1024) return bad("threads must be 1 to 1024");
  if (options.max_step_tokens < 1) return bad("max_step_tokens must be 1 or more");
  if (options.error_sample_interval < 0) return bad("error_sample_interval must be 0 or more");
  if (options.context_tokens < 1) return bad("context_tokens must be 1 or more");
  if (config.context_length > 0 && options.context_tokens > config.context_length) {
    return bad("a context of " + std::to_string(options.context_tokens) +
               " tokens: the model was made for " + std::to_string(config.context_length));
  }
  return {};
}

}  // namespace

MemoryPlanInput plan_input(const ModelConfig& config, const SessionOptions& options) {
  MemoryPlanInput input;
  input.shape = config.cache_shape();
  input.policy = options.policy;
  input.context_tokens = options.context_tokens;
  input.max_sequences = options.max_sequences;
  input.budget_bytes = options.budget_bytes;
  input.step_tokens = options.max_step_tokens;
  input.open_sequences = options.open_sequences;
  return input;
}

Result<std::unique_ptr<Session>> Session::create(const Model& model,
                                                 const SessionOptions& options) {
  const auto& loaded = static_cast<const LoadedModel&>(model);
  KVART_RETURN_IF_ERROR(check_options(options, model.config()));
  auto device = session_device(model.device());
  if (!device) return device.error();
  const MemoryPlanInput input = plan_input(model.config(), options);
  auto plan = plan_memory(input);
  if (!plan) return plan.error();
  CacheConfig config;
  config.shape = input.shape;
  config.policy = options.policy;
  config.model_fingerprint = model.fingerprint();
  config.plan = *plan;
  config.prefix_caching = options.prefix_caching;
  config.host_bytes = options.host_bytes;
  config.memory = &(*device)->memory();
  auto cache = KvCache::create(config);
  if (!cache) return cache.error();
  auto session =
      std::make_unique<ModelSession>(loaded, options, std::move(plan).value(),
                                     std::move(device).value(), std::move(cache).value());
  KVART_RETURN_IF_ERROR(session->finish_creation());
  return std::unique_ptr<Session>(std::move(session));
}

}  // namespace kvart
