// From a request's text to tokens: what takes long with hostile text, so it runs beside the thread
// that answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/model.h"
#include "server/api_request.h"

namespace kvart::server {

// Text with begin-of-sequence in front where the model wants one and `add_special`; names of
// special tokens in it are those tokens: the client writes the whole prompt itself.
Result<std::vector<int32_t>> tokenize_prompt(const Model& model, const std::string& text,
                                             bool add_special);

// The tokens of each prompt, cut and checked against the context. Otherwise the fault.
std::optional<ApiError> make_prompts(const Model& model, int64_t context_tokens,
                                     const ApiRequest& request,
                                     std::vector<std::vector<int32_t>>* prompts);

// The fault of a request whose answer would repeat too much of its prompts, scores or tokens: each
// of a completion's choices has them all.
std::optional<ApiError> check_repeated(const ApiRequest& request,
                                       const std::vector<std::vector<int32_t>>& prompts);

// Drops what only make_prompts needs: it may be as long as a body, and the request is kept as long
// as its answer takes. Texts that the answer echoes stay.
void forget_prompts(ApiRequest* request);

// A body's JSON with its bounds. Otherwise a 400.
std::optional<ApiError> parse_body(std::string_view body, Json* json);

// POST /tokenize and /detokenize: the answer's body, or the fault. 2^18 tokens at most, or as many
// as the context has.
std::optional<ApiError> tokenize_answer(const Model& model, const ApiLimits& limits,
                                        const Json& body, std::string* answer);
std::optional<ApiError> detokenize_answer(const Model& model, const ApiLimits& limits,
                                          const Json& body, std::string* answer);

}  // namespace kvart::server
