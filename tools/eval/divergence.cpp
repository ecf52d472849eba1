// Running of the policies side by side.
#include "tools/eval/divergence.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/eval/distribution.h"
#include "tools/hash.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

constexpr int64_t usual_window = 2048;

struct Window {
  std::vector<int32_t> tokens;  // begins with the begin-of-sequence that the model wants
};

// Nothing is 0 any more.
Status complete_options(const ModelConfig& config, DivergenceOptions* options) {
  const int64_t limit = config.context_length;
  if (options->context_tokens == 0) {
    options->context_tokens = limit > 0 ? std::min(limit, usual_window) : usual_window;
    if (options->text_tokens > 0) {
      options->context_tokens = std::min(options->context_tokens, options->text_tokens);
    }
  }
  if (limit > 0 && options->context_tokens > limit) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--context {}: the model was made for {} tokens",
                             options->context_tokens, limit)};
  }
  if (options->text_tokens == 0) options->text_tokens = options->context_tokens;
  return {};
}

// all: as many of the text's tokens as are asked for.
Result<std::vector<Window>> windows_of(const Model& model, const DivergenceOptions& options,
                                       const std::vector<int32_t>& all) {
  const int64_t shortest = shortest_window(options.policies);
  const TokenizerInfo info = model.tokenizer_info();
  std::vector<int32_t> head;
  if (info.adds_bos && info.bos) head.push_back(*info.bos);
  const auto count = static_cast<int64_t>(all.size());
  const int64_t step = options.context_tokens - static_cast<int64_t>(head.size());
  const auto too_short = [&](int64_t has, const std::string& what, const std::string& give) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} has {} tokens: up to {} nothing is read quantized and every "
                             "policy gives the answers of full precision; give {}",
                             what, has, shortest - 1, give)};
  };
  if (options.context_tokens < shortest) {
    return too_short(options.context_tokens, "the context",
                     fmt::format("--context {} or more", shortest));
  }
  std::vector<Window> windows;
  for (int64_t first = 0; first < count; first += step) {
    Window window{head};
    window.tokens.insert(window.tokens.end(), all.begin() + first,
                         all.begin() + std::min(first + step, count));
    if (static_cast<int64_t>(window.tokens.size()) >= shortest) windows.push_back(window);
  }
  if (windows.empty()) {
    return too_short(count, options.text.name,
                     fmt::format("a text (and --tokens) of at least {}", shortest));
  }
  return windows;
}

int64_t widest_window(const ModelConfig& config) {
  int64_t widest = 0;
  for (const LayerShape& layer : config.layer_shapes) {
    if (layer.window == 0) return 0;
    widest = std::max<int64_t>(widest, layer.window);
  }
  return widest;
}

class Measurement {
 public:
  Measurement(const Model& model, DivergenceResult* result, Watch* watch)
      : result_(*result),
        watch_(*watch),
        vocab_(static_cast<size_t>(model.config().vocab)),
        widest_window_(widest_window(model.config())) {}

  Status prepare(const Model& model, int64_t longest) {
    const DivergenceOptions& asked = result_.asked;
    for (const NamedPolicy& policy : asked.policies) {
      PolicyDivergence row;
      row.policy = policy;
      const auto bytes = policy_bytes(model.config(), policy.policy);
      if (!bytes.ok()) return bytes.error();
      row.bytes = *bytes;
      const auto quantized = quantizes(model.config(), policy.policy);
      if (!quantized.ok()) return quantized.error();
      row.quantizes = *quantized;
      result_.policies.push_back(std::move(row));
      auto session =
          make_session(model, policy.policy, {longest, asked.chunk_tokens, asked.threads, false});
      if (!session.ok()) return session.error();
      sessions_.push_back(std::move(*session));
    }
    return {};
  }

  // The last token is scored, but not run.
  Status run(const Window& window) {
    std::vector<SequenceId> sequences;
    for (const auto& session : sessions_) {
      const auto sequence = session->start({}, "");
      if (!sequence.ok()) return sequence.error();
      sequences.push_back(*sequence);
    }
    const std::span<const int32_t> tokens = window.tokens;
    const size_t rows = tokens.size() - 1;
    for (size_t first = 0; first < rows && !watch_.should_end();) {
      const auto chunk = static_cast<size_t>(result_.asked.chunk_tokens);
      const size_t count = std::min(rows - first, chunk);
      KVART_RETURN_IF_ERROR(run_chunk(sequences, tokens, first, count));
      first += count;
    }
    for (size_t i = 0; i < sessions_.size(); ++i) sessions_[i]->release(sequences[i]);
    return {};
  }

 private:
  // The reference first; its logits stay while the others run.
  Status run_chunk(const std::vector<SequenceId>& sequences, std::span<const int32_t> tokens,
                   size_t first, size_t count) {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      const StepRequest request{sequences[i], tokens.subspan(first, count), WantLogits::all};
      const StepResult& step = sessions_[i]->step({&request, 1})[0];
      if (!step.status.ok()) {
        return Error{step.status.error().code,
                     fmt::format("{}, token {}: {}", result_.policies[i].policy.word, first,
                                 step.status.error().message)};
      }
      const std::span<const int32_t> next = tokens.subspan(first + 1, count);
      if (i == 0) {
        score_reference(step.logits, next);
      } else {
        score(i, step.logits, next);
      }
      count_reads(i, sequences[i], first, count);
      watch_.advance(static_cast<double>(count));
    }
    for (size_t row = 0; row < count; ++row) {
      result_.positions.push_back(static_cast<int32_t>(first + row));
    }
    return {};
  }

  void score_reference(std::span<const float> logits, std::span<const int32_t> next) {
    reference_.set(logits, vocab_);
    for (size_t row = 0; row < next.size(); ++row) {
      result_.policies[0].logprobs.push_back(
          static_cast<float>(reference_.logprob(row, next[row])));
    }
  }

  void score(size_t policy, std::span<const float> logits, std::span<const int32_t> next) {
    PolicyDivergence& out = result_.policies[policy];
    for (size_t row = 0; row < next.size(); ++row) {
      const auto one = reference_.compare(row, logits.subspan(row * vocab_, vocab_), next[row]);
      out.kl.push_back(static_cast<float>(one.kl));
      out.delta_p.push_back(static_cast<float>(one.delta_p));
      out.same_top.push_back(one.same_top ? 1 : 0);
      out.logprobs.push_back(static_cast<float>(one.logprob));
    }
  }

  // By the rule, where the cache shows that what lies before the open block is sealed.
  void count_reads(size_t policy, SequenceId sequence, size_t first, size_t count) {
    PolicyDivergence& out = result_.policies[policy];
    const int64_t last_block = sessions_[policy]->length(sequence) / block_tokens - 1;
    const int64_t sinks = out.policy.policy.sink_blocks;
    if (!out.quantizes || last_block < sinks) return;
    if (sessions_[policy]->sealed_block(sequence, last_block).empty()) return;
    for (size_t row = first; row < first + count; ++row) {
      const auto position = static_cast<int64_t>(row);
      const int64_t end = position / block_tokens * block_tokens;
      const int64_t seen = widest_window_ == 0 ? 0 : position + 1 - widest_window_;
      const int64_t reads = std::max<int64_t>(0, end - std::max(sinks * block_tokens, seen));
      out.quantized_reads += reads;
      out.quantized_tokens += reads > 0 ? 1 : 0;
    }
  }

  DivergenceResult& result_;
  Watch& watch_;
  size_t vocab_;
  int64_t widest_window_;  // of a layer; 0: it sees everything
  std::vector<std::unique_ptr<Session>> sessions_;
  ReferenceRows reference_;
};

}  // namespace

int64_t shortest_window(const std::vector<NamedPolicy>& policies) {
  int64_t least = 0;
  for (const NamedPolicy& policy : policies) {
    least = std::max(least, first_quantized_read(policy.policy));
  }
  return least + 2;  // the token at that position is scored by the one that follows it
}

Result<DivergenceResult> measure_divergence(const Model& model, const DivergenceOptions& options,
                                            Watch& watch) {
  DivergenceResult result;
  result.asked = options;
  result.model = model_json(model);
  KVART_RETURN_IF_ERROR(complete_options(model.config(), &result.asked));
  const auto all = first_tokens(model, result.asked.text.text, result.asked.text_tokens, watch);
  if (!all.ok()) return all.error();
  result.incomplete = !all->has_value();
  if (result.incomplete) return result;
  const auto windows = windows_of(model, result.asked, **all);
  if (!windows.ok()) return windows.error();
  double tokens = 0;
  size_t longest = 0;
  Hash hash;
  for (const Window& window : *windows) {
    tokens += static_cast<double>(window.tokens.size() - 1);
    longest = std::max(longest, window.tokens.size());
    hash.add(window.tokens);
  }
  result.tokens_hash = hash.value();
  result.asked.context_tokens = static_cast<int64_t>(longest);  // the text may have no more
  Measurement measurement(model, &result, &watch);
  KVART_RETURN_IF_ERROR(measurement.prepare(model, static_cast<int64_t>(longest)));
  watch.begin("divergence", tokens * static_cast<double>(options.policies.size()));
  for (const Window& window : *windows) {
    if (watch.should_end()) break;
    KVART_RETURN_IF_ERROR(measurement.run(window));
    result.windows += 1;
  }
  result.incomplete = static_cast<double>(result.positions.size()) < tokens;
  return result;
}

}  // namespace kvart::tools
