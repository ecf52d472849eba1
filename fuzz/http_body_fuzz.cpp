// Fuzz target of requests' bodies: any bytes end in a request that the engine takes or a refusal
// that names why.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/api_request.h"
#include "server/prompt.h"

namespace {

using kvart::server::ApiError;
using kvart::server::ApiRequest;

void check(const std::optional<ApiError>& fault, const ApiRequest& request) {
  if (fault) {
    KVART_CHECK(!fault->message.empty() && fault->status >= 400 && fault->status < 500);
    (void)kvart::server::error_body(*fault);
    return;
  }
  const kvart::GenerationOptions& options = request.options;
  KVART_CHECK(options.sampling.check().ok());
  KVART_CHECK(options.max_tokens >= 0 && options.min_tokens >= 0);
  KVART_CHECK(options.logprobs >= -1 && options.logprobs <= 20);
  KVART_CHECK(request.choices >= 1 && request.choices <= 128);
  KVART_CHECK(request.truncate_prompt_tokens >= 0);
  for (const std::string& stop : options.stop) KVART_CHECK(!stop.empty());
  for (const int32_t token : options.stop_token_ids) KVART_CHECK(token >= 0 && token < 1000);
  for (const auto& [token, bias] : options.sampling.logit_bias) {
    KVART_CHECK(token >= 0 && token < 1000 && bias >= -100 && bias <= 100);
  }
  for (const auto& prompt : request.prompts) {
    for (const int32_t token : prompt.ids) KVART_CHECK(token >= 0 && token < 1000);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  kvart::server::Json json;
  if (kvart::server::parse_body(text, &json)) return 0;
  const kvart::server::ApiLimits limits{1000, 4096, {"m"}, {"enable_thinking"}};
  ApiRequest completion;
  check(parse_completion(json, limits, &completion), completion);
  ApiRequest chat;
  check(parse_chat(json, limits, &chat), chat);
  return 0;
}
