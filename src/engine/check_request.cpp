// What a request may ask for: every number before anything is computed with it.
#include "engine/check_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvart {

namespace {

constexpr int choices_max = 128;
constexpr int logprobs_max = 100;
constexpr size_t stops_max = 64;
constexpr size_t stop_bytes_max = 4096;

Status check_range(std::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{} = {} is out of range; it takes {} to {}", name, value, least, most)};
}

Status check_tokens(std::string_view name, std::span<const int32_t> tokens, int vocab) {
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{}: token {} is not in the vocabulary of {} tokens", name, token, vocab)};
  }
  return {};
}

Status check_stops(const GenerationOptions& options) {
  KVART_RETURN_IF_ERROR(
      check_range("number of stop texts", static_cast<int64_t>(options.stop.size()), 0, stops_max));
  for (const std::string& stop : options.stop) {
    KVART_RETURN_IF_ERROR(check_range("length of a stop text in bytes",
                                      static_cast<int64_t>(stop.size()), 1, stop_bytes_max));
  }
  return {};
}

Status check_length(const GenerationRequest& request, int64_t context_tokens) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t most = context_tokens - prompt;
  if (request.options.max_tokens <= most) return {};
  if (most <= 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the prompt has {} tokens; the context holds {}, the answer included",
                             prompt, context_tokens)};
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("max_tokens = {} and a prompt of {} tokens are {} together; the context "
                           "holds {}: at most {} tokens are left for the answer",
                           request.options.max_tokens, prompt, prompt + request.options.max_tokens,
                           context_tokens, most)};
}

// Before min_tokens nothing that ends an answer may come: something must be left that may.
Status check_ends(const GenerationOptions& options, int vocab,
                  std::span<const int32_t> model_ends) {
  if (options.min_tokens == 0) return {};
  std::vector<int32_t> ends(options.stop_token_ids.begin(), options.stop_token_ids.end());
  if (!options.ignore_eos) ends.insert(ends.end(), model_ends.begin(), model_ends.end());
  std::sort(ends.begin(), ends.end());
  const auto different = std::unique(ends.begin(), ends.end()) - ends.begin();
  if (different < vocab) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("min_tokens = {}: no token may come before, as each one of the {} ends "
                           "the answer",
                           options.min_tokens, vocab)};
}

}  // namespace

Status check_request(const GenerationRequest& request, int vocab, int64_t context_tokens,
                     std::span<const int32_t> model_ends) {
  const GenerationOptions& options = request.options;
  if (request.prompt.empty()) {
    return Error{ErrorCode::invalid_argument, "the prompt has no tokens"};
  }
  KVART_RETURN_IF_ERROR(options.sampling.check());
  for (const auto& [token, bias] : options.sampling.logit_bias) {
    KVART_RETURN_IF_ERROR(check_tokens("logit_bias", {&token, 1}, vocab));
  }
  KVART_RETURN_IF_ERROR(check_tokens("prompt", request.prompt, vocab));
  KVART_RETURN_IF_ERROR(check_tokens("stop_token_ids", options.stop_token_ids, vocab));
  KVART_RETURN_IF_ERROR(check_stops(options));
  KVART_RETURN_IF_ERROR(check_range("n", request.choices, 1, choices_max));
  KVART_RETURN_IF_ERROR(check_range("logprobs", options.logprobs, -1, logprobs_max));
  KVART_RETURN_IF_ERROR(check_range("prompt_logprobs", options.prompt_logprobs, -1, logprobs_max));
  KVART_RETURN_IF_ERROR(check_range("max_tokens", options.max_tokens, 0, int64_t{1} << 40));
  KVART_RETURN_IF_ERROR(check_range("min_tokens", options.min_tokens, 0, options.max_tokens));
  KVART_RETURN_IF_ERROR(check_ends(options, vocab, model_ends));
  return check_length(request, context_tokens);
}

}  // namespace kvart
