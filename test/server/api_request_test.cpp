// Bodies of requests: what is taken, what is refused and with which field named.
#include "server/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/fake_model.h"
#include "server/prompt.h"

namespace kvart::server {
namespace {

using testing::HasSubstr;

ApiLimits limits() {
  return {258, 100, {"fake", "alias"}, {"enable_thinking", "reasoning_effort"}};
}

std::optional<ApiError> parse(const std::string& text, ApiRequest* request, bool chat = false) {
  Json json;
  if (auto fault = parse_body(text, &json)) return fault;
  return chat ? parse_chat(json, limits(), request) : parse_completion(json, limits(), request);
}

ApiRequest taken(const std::string& text, bool chat = false) {
  ApiRequest request;
  const auto fault = parse(text, &request, chat);
  EXPECT_FALSE(fault) << text << ": " << fault->message;
  return request;
}

ApiError refused(const std::string& text, bool chat = false) {
  ApiRequest request;
  const auto fault = parse(text, &request, chat);
  EXPECT_TRUE(fault) << text;
  return fault.value_or(ApiError{});
}

std::string completion(const std::string& more) {
  return R"({"prompt": "hi", )" + more + "}";
}
std::string chat(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + more + "}";
}

TEST(Completion, Defaults) {
  const ApiRequest request = taken(R"({"prompt": "hi"})");
  EXPECT_EQ(request.options.max_tokens, 16);
  EXPECT_EQ(request.options.sampling.temperature, 1);
  EXPECT_EQ(request.options.sampling.top_p, 1);
  EXPECT_EQ(request.options.logprobs, -1);
  EXPECT_EQ(request.options.prompt_logprobs, -1);
  EXPECT_EQ(request.choices, 1);
  EXPECT_EQ(request.model, "fake");
  EXPECT_FALSE(request.stream || request.echo || request.seed);
  EXPECT_EQ(
      taken(completion(R"("max_tokens": null, "stop": null, "seed": null)")).options.max_tokens,
      16);
}

TEST(Completion, PromptsOfAllShapes) {
  EXPECT_EQ(taken(R"({"prompt": ["a", "b"]})").prompts.size(), 2u);
  EXPECT_EQ(taken(R"({"prompt": [1, 2, 257]})").prompts[0].ids.size(), 3u);
  const ApiRequest two = taken(R"({"prompt": [[1, 2], [3]]})");
  ASSERT_EQ(two.prompts.size(), 2u);
  EXPECT_EQ(two.prompts[1].ids, std::vector<int32_t>{3});
  for (const char* wrong :
       {"{}", R"({"prompt": null})", R"({"prompt": []})", R"({"prompt": 5})", R"({"prompt": {}})",
        R"({"prompt": ["a", 5]})", R"({"prompt": [1, "a"]})", R"({"prompt": [[1], 2]})",
        R"({"prompt": [258]})", R"({"prompt": [-1]})", R"({"prompt": [1.0]})",
        R"({"prompt": [9007199254740993]})", R"({"prompt": [[["a"]]]})", R"({"prompt": [true]})"}) {
    EXPECT_EQ(refused(wrong).param, "prompt") << wrong;
  }
  std::string many = "[";
  for (int i = 0; i < 1025; ++i) many += i == 0 ? "\"a\"" : ",\"a\"";
  EXPECT_EQ(refused("{\"prompt\": " + many + "]}").param, "prompt");
}

TEST(Completion, MaxTokens) {
  EXPECT_EQ(taken(completion("\"max_tokens\": 2147483647")).options.max_tokens, 2147483647);
  for (const char* wrong :
       {"-1", "2147483648", "9223372036854775808", "1.0", "\"5\"", "0", "[]", "true", "1e3"}) {
    const ApiError fault = refused(completion(std::string("\"max_tokens\": ") + wrong));
    EXPECT_EQ(fault.param, "max_tokens") << wrong;
    EXPECT_EQ(fault.status, 400);
  }
  const ApiRequest scored = taken(completion(R"("max_tokens": 0, "echo": true, "logprobs": 2)"));
  EXPECT_EQ(scored.options.max_tokens, 0);
  EXPECT_EQ(scored.options.prompt_logprobs, 2);
  EXPECT_EQ(taken(chat("\"max_tokens\": 5"), true).options.max_tokens, 5);
}

// Every number field, with numbers at the edges of types: taken or refused by name.
TEST(Fields, NumbersAtTheEdgesOfTypes) {
  const std::vector<std::string> names = {"max_tokens",
                                          "n",
                                          "best_of",
                                          "logprobs",
                                          "prompt_logprobs",
                                          "seed",
                                          "top_k",
                                          "min_tokens",
                                          "priority",
                                          "truncate_prompt_tokens",
                                          "temperature",
                                          "top_p",
                                          "min_p",
                                          "repetition_penalty",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "timeout"};
  const std::vector<std::string> values = {"-1",
                                           "-2147483648",
                                           "2147483647",
                                           "4294967296",
                                           "9007199254740993",
                                           "-9223372036854775808",
                                           "9223372036854775807",
                                           "18446744073709551615",
                                           "18446744073709551616",
                                           "1e308",
                                           "-1e308",
                                           "1e-320",
                                           "0",
                                           "-0.0",
                                           "\"1\"",
                                           "true",
                                           "[]",
                                           "{}"};
  for (const std::string& name : names) {
    for (const std::string& value : values) {
      for (const bool is_chat : {false, true}) {
        ApiRequest request;
        const std::string more = "\"" + name + "\": " + value;
        const auto fault = parse(is_chat ? chat(more) : completion(more), &request, is_chat);
        if (!fault) {
          request.options.sampling.seed = request.seed.value_or(0);
          EXPECT_TRUE(request.options.sampling.check().ok()) << more;
          EXPECT_GE(request.options.max_tokens, 0);
          EXPECT_LE(request.options.max_tokens, 2147483647);
          continue;
        }
        EXPECT_EQ(fault->status, 400);
        const bool named = fault->param == name || (name == "max_tokens" || name == "min_tokens");
        EXPECT_TRUE(named) << more << ": " << fault->message;
      }
    }
  }
}

TEST(Fields, SamplingOutOfRangeNamesFieldAndRange) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"temperature", "-1"},
      {"temperature", "101"},
      {"top_p", "0"},
      {"top_p", "1.0001"},
      {"top_k", "-2"},
      {"min_p", "1.5"},
      {"repetition_penalty", "0"},
      {"presence_penalty", "2.1"},
      {"frequency_penalty", "-2.1"},
      {"n", "0"},
      {"n", "129"},
      {"logprobs", "21"},
      {"logprobs", "true"},
      {"best_of", "2"},
      {"truncate_prompt_tokens", "0"},
      {"timeout", "0"},
      {"timeout", "-1"},
      {"timeout", "86400.5"},
      {"timeout", "\"5\""},
      {"stop", "\"\""},
      {"stop", "[\"a\", \"\"]"},
      {"stop", "[1]"},
      {"stop_token_ids", "[258]"},
      {"stop_token_ids", "5"},
      {"cache_salt", "\"\""},
      {"cache_salt", "\"a b\""},
      {"cache_salt", "5"},
      {"request_id", "\"a\\nb\""},
      {"stream", "1"},
      {"stream_options", "{}"},
      {"response_format", "{\"type\": \"json_object\"}"},
      {"guided_json", "{\"a\": 1}"},
      {"suffix", "\"x\""},
      {"echo", "\"true\""}};
  for (const auto& [name, value] : wrong) {
    const ApiError fault = refused(completion("\"" + name + "\": " + value));
    EXPECT_EQ(fault.param, name) << value;
    EXPECT_THAT(fault.message, HasSubstr(name));
  }
  EXPECT_EQ(refused(completion("\"cache_salt\": \"" + std::string(257, 'a') + "\"")).param,
            "cache_salt");
  for (const char* tiny : {"1e-10", "1e-38", "1e-320", "0"}) {
    const ApiRequest request = taken(completion(std::string("\"temperature\": ") + tiny));
    EXPECT_TRUE(request.options.sampling.check().ok());
  }
  EXPECT_EQ(taken(completion("\"top_k\": -1")).options.sampling.top_k, 0);
  EXPECT_TRUE(taken(completion("\"top_p\": 1e-320")).options.sampling.check().ok());
  EXPECT_TRUE(
      taken(completion(R"("response_format": {"type": "text"}, "suffix": "")")).unknown.empty());
}

TEST(Fields, LogitBias) {
  const ApiRequest request = taken(completion(R"("logit_bias": {"5": -100, "257": 1.5})"));
  ASSERT_EQ(request.options.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(request.options.sampling.logit_bias[1], (std::pair<int32_t, float>{257, 1.5f}));
  for (const char* wrong : {R"({"-1": 1})", R"({"258": 1})", R"({"999999": 1})", R"({"a": 1})",
                            R"({"1a": 1})", R"({"": 1})", R"({" 1": 1})", R"({"0": 1e39})",
                            R"({"0": 101})", R"({"0": "1"})", R"({"0": null})", "[1]", "5"}) {
    EXPECT_EQ(refused(completion(std::string("\"logit_bias\": ") + wrong)).param, "logit_bias")
        << wrong;
  }
}

TEST(Fields, UnknownOnesAreNamedAndTakeNoPart) {
  const ApiRequest request = taken(completion(R"("user": "u", "frobnicate": 1, "x\n": {})"));
  EXPECT_EQ(request.unknown, (std::vector<std::string>{"frobnicate", "x\\x0A"}));
  std::string many = "\"x\": 0";
  for (int i = 0; i < 1000; ++i) many += ", \"x" + std::to_string(i) + "\": 0";
  EXPECT_EQ(taken(completion(many)).unknown.size(), 100u);
}

TEST(Fields, AWrongModelIs404) {
  EXPECT_EQ(taken(completion("\"model\": \"alias\"")).model, "alias");
  const ApiError fault = refused(completion("\"model\": \"other\""));
  EXPECT_EQ(fault.status, 404);
  EXPECT_EQ(fault.param, "model");
  EXPECT_THAT(error_body(fault), HasSubstr(R"("type":"NotFoundError","param":"model","code":404)"));
}

TEST(Body, HostileTextIsRefusedWithTheReason) {
  ApiRequest request;
  std::string deep = R"({"prompt": "a", "x": )";
  for (int i = 0; i < 1'000'000; ++i) deep += '[';
  std::string deep_object;
  for (int i = 0; i < 100'000; ++i) deep_object += "{\"a\":";
  for (const std::string& wrong :
       {deep, deep_object, std::string(R"({"a": 1e999})"), std::string(R"({"n": 1, "n": 2})"),
        std::string(R"({"x": {"a": 1, "a": 1}})"), std::string("\xEF\xBB\xBF{\"prompt\": \"a\"}"),
        std::string("{\"prompt\": \"\xFF\"}"), std::string("{\"prompt\": \"\xC0\x80\"}"),
        std::string("{\"prompt\": \"\\ud800\"}"), std::string("{\"prompt\": \"a\"} x"),
        std::string("{\"prompt\": \"a\""), std::string(""), std::string("nul"),
        std::string("{\"prompt\": NaN}"), std::string("[1]"), std::string("5"),
        std::string("\x1f\x8b\x08", 3)}) {
    const ApiError fault = refused(wrong);
    EXPECT_EQ(fault.status, 400);
    EXPECT_LT(fault.message.size(), 400u);
  }
  EXPECT_THAT(refused(deep).message, HasSubstr("nested"));
  EXPECT_THAT(refused(R"({"n": 1, "n": 2})").message, HasSubstr("twice"));
  const ApiError biases = refused(completion(R"("logit_bias": {"005": 1, "5": 2})"));
  EXPECT_EQ(biases.message, "logit_bias: token 5 is there twice");
}

TEST(Body, AFaultInsideStreamOptionsIsNamedOnce) {
  const ApiError fault =
      refused(completion(R"("stream": true, "stream_options": {"include_usage": 1})"));
  EXPECT_EQ(fault.message, "stream_options.include_usage: must be true or false");
  EXPECT_EQ(fault.param, "stream_options.include_usage");
}

TEST(Body, ManyKeysTakeLinearTime) {
  std::string text = "{\"prompt\": \"a\"";
  for (int i = 0; i < 300'000; ++i) text += ",\"k" + std::to_string(i) + "\":0";
  ApiRequest request;
  EXPECT_FALSE(parse(text + "}", &request));
}

TEST(Chat, MessagesOfAllShapes) {
  const ApiRequest request = taken(R"({"messages": [
      {"role": "system", "content": "be brief"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
      {"role": "tool", "content": "42", "tool_call_id": "1"}]})",
                                   true);
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[1].content, "a\nb");
  EXPECT_EQ(request.messages[2].more, R"({"tool_calls":[{"id":"1"}]})");
  EXPECT_EQ(request.messages[3].more, R"({"tool_call_id":"1"})");
  for (const char* wrong :
       {"null", "[]", "{}", "\"hi\"", "[5]", R"([{"content": "a"}])", R"([{"role": "user"}])",
        R"([{"role": "", "content": "a"}])", R"([{"role": 5, "content": "a"}])",
        R"([{"role": "user", "content": 5}])", R"([{"role": "user", "content": null}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
        R"([{"role": "user", "content": [{"type": "text"}]}])",
        R"([{"role": "user", "content": [{"text": "a"}]}])",
        R"([{"role": "user", "content": ["a"]}])"}) {
    EXPECT_EQ(refused(std::string("{\"messages\": ") + wrong + "}", true).param, "messages")
        << wrong;
  }
  EXPECT_EQ(refused("{}", true).param, "messages");
}

TEST(Chat, OnlyListedNamesReachTheTemplate) {
  EXPECT_EQ(
      taken(chat(R"("chat_template_kwargs": {"enable_thinking": false})"), true).chat_options.names,
      R"({"enable_thinking":false})");
  EXPECT_EQ(taken(chat(R"("reasoning_effort": "low")"), true).chat_options.names,
            R"({"reasoning_effort":"low"})");
  for (const char* name : {"messages", "tokenize", "chat_template", "bos_token", "tools", "x",
                           "add_generation_prompt", "__class__"}) {
    const ApiError fault =
        refused(chat(std::string(R"("chat_template_kwargs": {")") + name + "\": 1}"), true);
    EXPECT_EQ(fault.param, "chat_template_kwargs") << name;
    EXPECT_THAT(fault.message, HasSubstr("enable_thinking"));
  }
  EXPECT_EQ(refused(chat(R"("chat_template": "{{ 1 }}")"), true).param, "chat_template");
}

TEST(Chat, ToolsAreCheckedAndPassed) {
  const std::string tool =
      R"({"type": "function", "function": {"name": "f", "parameters": {"pattern": "((((("}}})";
  const ApiRequest request = taken(chat("\"tools\": [" + tool + "]"), true);
  EXPECT_EQ(Json::parse(request.chat_options.tools)[0]["function"]["name"], "f");
  EXPECT_EQ(
      taken(chat("\"tool_choice\": \"none\", \"tools\": [" + tool + "]"), true).chat_options.tools,
      "");
  for (const char* wrong :
       {"5", "{}", "[5]", "[{}]", R"([{"type": 5, "function": {"name": "f"}}])",
        R"([{"type": "function"}])", R"([{"type": "function", "function": {"name": 5}}])"}) {
    EXPECT_EQ(refused(chat(std::string("\"tools\": ") + wrong), true).param, "tools") << wrong;
  }
  EXPECT_EQ(refused(chat("\"tool_choice\": \"required\""), true).param, "tool_choice");
}

TEST(Chat, LogprobsAndTokens) {
  EXPECT_EQ(taken(chat(R"("logprobs": true, "top_logprobs": 3)"), true).options.logprobs, 3);
  EXPECT_EQ(taken(chat(R"("logprobs": true)"), true).options.logprobs, 0);
  EXPECT_EQ(refused(chat(R"("top_logprobs": 3)"), true).param, "top_logprobs");
  EXPECT_EQ(taken(chat(R"("max_completion_tokens": 3, "max_tokens": 9)"), true).options.max_tokens,
            3);
}

// The prompt's length against the context of 100.
TEST(Prompts, TheContextIsTheLimit) {
  const FakeModel model;
  const auto prompts_of = [&](size_t tokens, const std::string& more) {
    std::string ids;
    for (size_t i = 0; i < tokens; ++i) ids += i == 0 ? "1" : ",1";
    ApiRequest request = taken("{\"prompt\": [" + ids + "]" + more + "}");
    std::vector<std::vector<int32_t>> prompts;
    return make_prompts(model, 100, request, &prompts);
  };
  EXPECT_FALSE(prompts_of(99, ""));
  EXPECT_FALSE(prompts_of(50, ", \"max_tokens\": 1000"));
  for (const size_t tokens : {100, 101, 1000}) {
    const auto fault = prompts_of(tokens, "");
    ASSERT_TRUE(fault) << tokens;
    EXPECT_EQ(fault->status, 400);
    EXPECT_THAT(fault->message, HasSubstr("100 tokens"));
    EXPECT_THAT(fault->message, HasSubstr(std::to_string(tokens) + " tokens"));
  }
  EXPECT_FALSE(prompts_of(1000, ", \"truncate_prompt_tokens\": 10"));
  EXPECT_FALSE(prompts_of(1000, ", \"truncate_prompt_tokens\": -1"));
  EXPECT_FALSE(prompts_of(100, ", \"max_tokens\": 0, \"echo\": true, \"logprobs\": 0"));
}

// What scoring prompts makes of an answer: each choice of a completion lists all of them.
TEST(Prompts, TheirScoresAreBounded) {
  ApiRequest request;
  const std::vector<std::vector<int32_t>> prompts(2, std::vector<int32_t>(4096, 1));
  EXPECT_FALSE(check_repeated(request, prompts).has_value());
  request.choices = 128;
  EXPECT_FALSE(check_repeated(request, prompts).has_value());  // none are asked for
  request.options.prompt_logprobs = 0;
  EXPECT_FALSE(check_repeated(request, prompts).has_value());  // just as many as there may be
  request.options.prompt_logprobs = 1;
  EXPECT_EQ(check_repeated(request, prompts)->status, 400);
  request.chat = true;
  EXPECT_FALSE(check_repeated(request, prompts).has_value());
}

// A short body could ask for an answer of gigabytes.
TEST(Prompts, WhatEachChoiceRepeatsIsBounded) {
  const std::vector<std::vector<int32_t>> prompts(2, std::vector<int32_t>(4097, 1));
  const auto fault = [&](bool chat, bool echo, bool token_ids, int choices) {
    ApiRequest request;
    request.chat = chat;
    request.echo = echo;
    request.token_ids = token_ids;
    request.choices = choices;
    const auto found = check_repeated(request, prompts);
    return found ? found->param : "";
  };
  EXPECT_EQ(fault(false, true, false, 128), "echo");
  EXPECT_EQ(fault(false, false, true, 128), "return_token_ids");
  EXPECT_EQ(fault(false, true, true, 127), "");
  EXPECT_EQ(fault(false, false, false, 128), "");
  EXPECT_EQ(fault(true, false, true, 128), "");  // a chat's choices have them together
  // Once they may be as many as the body had.
  ApiRequest request;
  request.token_ids = true;
  EXPECT_FALSE(check_repeated(request, {std::vector<int32_t>(3'000'000, 1)}));
}

TEST(Prompts, BeginOfSequenceCanBeLeftOut) {
  const FakeModel model;
  EXPECT_EQ(tokenize_prompt(model, "ab", true)->size(), 3u);
  EXPECT_EQ(*tokenize_prompt(model, "ab", false), (std::vector<int32_t>{'a', 'b'}));
}

TEST(Tokenize, AnswersAndFaults) {
  const FakeModel model;
  std::string answer;
  const Json body = Json::parse(R"({"prompt": "hi", "return_token_strs": true})");
  ASSERT_FALSE(tokenize_answer(model, limits(), body, &answer));
  EXPECT_EQ(answer, R"({"count":3,"max_model_len":100,"tokens":[256,104,105],)"
                    R"("token_strs":["<s>","h","i"]})");
  ASSERT_FALSE(
      detokenize_answer(model, limits(), Json::parse(R"({"tokens": [104, 105]})"), &answer));
  EXPECT_EQ(answer, R"({"prompt":"hi"})");
  EXPECT_EQ(detokenize_answer(model, limits(), Json::parse(R"({"tokens": [999]})"), &answer)->param,
            "tokens");
  EXPECT_EQ(detokenize_answer(model, limits(), Json::parse("{}"), &answer)->param, "tokens");
  EXPECT_EQ(tokenize_answer(model, limits(), Json::parse("{}"), &answer)->param, "prompt");
}

// Token ids at the edges of types, wherever they may stand.
TEST(Tokenize, IdsOutsideTheVocabularyAreRefused) {
  const FakeModel model;
  for (const char* id :
       {"-1", "-2147483648", "258", "2147483647", "4294967296", "4294967393", "9007199254740993",
        "9223372036854775807", "18446744073709551615", "97.0", "\"97\"", "null", "true", "[97]"}) {
    const std::string list = "[97, " + std::string(id) + "]";
    std::string answer;
    const auto fault =
        detokenize_answer(model, limits(), Json::parse("{\"tokens\": " + list + "}"), &answer);
    ASSERT_TRUE(fault) << id;
    EXPECT_EQ(fault->param, "tokens") << id;
    EXPECT_EQ(refused("{\"prompt\": " + list + "}").param, "prompt") << id;
    EXPECT_EQ(refused("{\"prompt\": [" + list + "]}").param, "prompt") << id;
    EXPECT_EQ(refused(completion("\"stop_token_ids\": " + list)).param, "stop_token_ids") << id;
  }
}

}  // namespace
}  // namespace kvart::server
