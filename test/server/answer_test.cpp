// Bodies and streams of answers: shapes, indices, logprobs, usage, the end.
#include "server/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "server/fake_engine.h"
#include "server/fake_model.h"
#include "server/prompt.h"

namespace kvart::server {
namespace {

class AnswerTest : public testing::Test {
 protected:
  // Everything that the answer gives until it has finished.
  std::string all(const std::string& text, bool chat) {
    Json json;
    EXPECT_FALSE(parse_body(text, &json));
    ApiRequest request;
    const ApiLimits limits{258, 4096, {"fake"}, {}};
    const auto fault =
        chat ? parse_chat(json, limits, &request) : parse_completion(json, limits, &request);
    EXPECT_FALSE(fault) << fault->message;
    std::vector<std::vector<int32_t>> prompts;
    EXPECT_FALSE(make_prompts(model_, 4096, request, &prompts));
    const bool stream = request.stream;
    Answer answer(model_, std::move(request), {"cmpl-1", 1234});
    EXPECT_FALSE(answer.submit(engine_, std::move(prompts), "", [] {}));
    std::string events;
    while (!answer.finished()) {
      events += answer.poll();
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    events += answer.poll();
    failed_ = answer.failed();
    return stream || failed_ ? events : answer.body();
  }
  Json body(const std::string& text, bool chat = false) { return Json::parse(all(text, chat)); }
  // The data of a stream's events; [DONE] was the last.
  std::vector<Json> events(const std::string& text, bool chat = false) {
    std::string left = all(text, chat);
    std::vector<Json> found;
    bool done = false;
    while (!left.empty()) {
      const size_t end = left.find("\n\n");
      EXPECT_EQ(left.substr(0, 6), "data: ");
      EXPECT_FALSE(done);
      const std::string data = left.substr(6, end - 6);
      left.erase(0, end + 2);
      done = data == "[DONE]";
      if (!done) found.push_back(Json::parse(data));
    }
    EXPECT_EQ(done, !failed_);
    return found;
  }

  FakeModel model_;
  FakeEngine engine_{std::chrono::microseconds(100)};
  std::optional<ApiError> failed_;
};

TEST_F(AnswerTest, ACompletionsBody) {
  EXPECT_EQ(body(R"({"prompt": "hi", "max_tokens": 3, "return_token_ids": true})"),
            Json::parse(R"({"id": "cmpl-1", "object": "text_completion", "created": 1234,
      "model": "fake", "choices": [{"index": 0, "text": "abc", "logprobs": null,
      "finish_reason": "length", "stop_reason": null, "token_ids": [97, 98, 99],
      "prompt_token_ids": [256, 104, 105], "prompt_logprobs": null}],
      "usage": {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3,
      "prompt_tokens_details": {"cached_tokens": 0}}})"));
}

TEST_F(AnswerTest, AChatsBody) {
  const Json json = body(R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2,
      "logprobs": true, "top_logprobs": 2})",
                         true);
  EXPECT_EQ(json["object"], "chat.completion");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["message"], Json::parse(R"({"role": "assistant", "content": "ab"})"));
  EXPECT_EQ(choice["finish_reason"], "length");
  ASSERT_EQ(choice["logprobs"]["content"].size(), 2u);
  EXPECT_EQ(choice["logprobs"]["content"][1], Json::parse(R"({"token": "b", "logprob": -0.125,
      "bytes": [98], "top_logprobs": [{"token": "b", "logprob": -0.125, "bytes": [98]},
      {"token": "c", "logprob": -1.125, "bytes": [99]}]})"));
}

// What lm-evaluation-harness reads: the prompt's own scores, the first one null.
TEST_F(AnswerTest, EchoWithLogprobs) {
  const Json json =
      body(R"({"prompt": [256, 104, 105], "max_tokens": 1, "echo": true, "logprobs": 1})");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "<s>hia");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::parse(R"(["<s>", "h", "i", "a"])"));
  EXPECT_EQ(logprobs["token_logprobs"], Json::parse("[null, -0.5, -0.5, -0.125]"));
  EXPECT_EQ(logprobs["text_offset"], Json::parse("[0, 3, 4, 5]"));
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1], Json::parse(R"({"z": -0.25, "h": -0.5})"));
}

TEST_F(AnswerTest, PromptLogprobs) {
  const Json json = body(R"({"prompt": "h", "max_tokens": 0, "prompt_logprobs": 1})");
  EXPECT_EQ(json["choices"][0]["text"], "");
  EXPECT_EQ(json["choices"][0]["prompt_logprobs"], Json::parse(R"([null,
      {"104": {"logprob": -0.5, "rank": 2, "decoded_token": "h"},
       "122": {"logprob": -0.25, "rank": 1, "decoded_token": "z"}}])"));
}

TEST_F(AnswerTest, SeveralPromptsAndChoicesCountOn) {
  const Json json = body(R"({"prompt": ["x", "y"], "n": 2, "max_tokens": 3})");
  ASSERT_EQ(json["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(json["choices"][static_cast<size_t>(i)]["index"], i);
  EXPECT_EQ(json["choices"][2]["text"], "abc");
  EXPECT_EQ(json["choices"][3]["text"], "bc");
  EXPECT_EQ(json["usage"]["completion_tokens"], 10);
}

// Choice i of a generation draws with its seed + i: no two of a request draw with the same one,
// unless the client says which.
TEST_F(AnswerTest, PromptsDrawWithSeedsOfTheirOwn) {
  const std::string prompts = R"({"prompt": ["x", "x", "x"], "n": 2, "max_tokens": 3)";
  body(prompts + "}");
  EXPECT_THAT(engine_.seeds(), testing::ElementsAre(0, 2, 4));
  body(prompts + R"(, "seed": 7})");
  EXPECT_THAT(engine_.seeds(), testing::ElementsAre(0, 2, 4, 7, 7, 7));
}

// Streamed or not: the same text, tokens and figures, each index with one end.
TEST_F(AnswerTest, AStreamOfSeveralChoices) {
  for (const bool chat : {false, true}) {
    const std::string what =
        chat ? R"("messages": [{"role": "user", "content": "hi"}], "logprobs": true,
                  "top_logprobs": 20,)"
             : R"("prompt": "hi", "logprobs": 2,)";
    const std::string request = "{" + what + R"("n": 4, "max_tokens": 30, "stream": )";
    const auto chunks =
        events(request + R"(true, "stream_options": {"include_usage": true}})", chat);
    const Json whole = body(request + "false}", chat);
    std::map<int, std::string> texts;
    std::map<int, Json> scores;
    std::multiset<int> ends;
    int usages = 0;
    for (const Json& chunk : chunks) {
      EXPECT_EQ(chunk["object"], chat ? "chat.completion.chunk" : "text_completion");
      EXPECT_EQ(chunk["id"], "cmpl-1");
      if (chunk["choices"].empty()) {
        ++usages;
        EXPECT_EQ(&chunk, &chunks.back());
        EXPECT_EQ(chunk["usage"], whole["usage"]);
        continue;
      }
      EXPECT_EQ(chunk["usage"], nullptr);
      ASSERT_EQ(chunk["choices"].size(), 1u);
      const Json& choice = chunk["choices"][0];
      const int index = choice["index"];
      EXPECT_EQ(ends.count(index), 0u);
      texts[index] += chat ? choice["delta"].value("content", "") : choice.value("text", "");
      if (!choice["finish_reason"].is_null()) ends.insert(index);
      if (choice["logprobs"].is_null()) continue;
      const Json& list =
          chat ? choice["logprobs"]["content"] : choice["logprobs"]["token_logprobs"];
      for (const Json& one : list) scores[index].push_back(one);
    }
    EXPECT_EQ(usages, 1);
    EXPECT_EQ(ends, (std::multiset<int>{0, 1, 2, 3}));
    for (int i = 0; i < 4; ++i) {
      const Json& choice = whole["choices"][static_cast<size_t>(i)];
      EXPECT_EQ(texts[i], chat ? choice["message"]["content"] : choice["text"]);
      EXPECT_EQ(scores[i],
                chat ? choice["logprobs"]["content"] : choice["logprobs"]["token_logprobs"]);
    }
  }
}

TEST_F(AnswerTest, AChatsStreamBeginsWithTheRole) {
  const auto chunks = events(R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2,
      "stream": true, "stream_options": {"continuous_usage_stats": true},
      "return_token_ids": true})",
                             true);
  ASSERT_GE(chunks.size(), 2u);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"],
            Json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_TRUE(chunks[0].contains("prompt_token_ids"));
  EXPECT_FALSE(chunks[1].contains("prompt_token_ids"));
  EXPECT_TRUE(chunks[1]["choices"][0].contains("token_ids"));
  for (const Json& chunk : chunks) EXPECT_TRUE(chunk["usage"].is_object());
}

TEST_F(AnswerTest, AnEchoedStreamBeginsWithThePrompt) {
  const auto chunks = events(R"({"prompt": "hi", "max_tokens": 2, "echo": true, "logprobs": 0,
      "stream": true, "return_token_ids": true})");
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "hi");
  EXPECT_EQ(chunks[0]["choices"][0]["prompt_token_ids"].size(), 3u);
  EXPECT_EQ(chunks[0]["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_FALSE(chunks[1]["choices"][0].contains("prompt_token_ids"));
}

// Whatever waits: events are made by pieces, and every part of a request has its turn.
TEST_F(AnswerTest, NoPollOfAStreamIsLong) {
  struct Case {
    const char* what;
    std::string body;
    size_t event_bytes;
  };
  const Case cases[] = {
      {"scores of many choices", R"("prompt": "hi", "logprobs": 20, "n": 100, "max_tokens": 250)",
       400'000},
      {"an echo for each choice",
       R"("prompt": ")" + std::string(1000, 'x') +
           R"(", "logprobs": 5, "echo": true, "n": 120, "max_tokens": 1)",
       200'000},
      {"many prompts",
       [] {
         std::string prompts = R"("prompt": ["a")";
         for (int i = 1; i < 500; ++i) prompts += R"(, "a")";
         return prompts + R"(], "max_tokens": 200, "logprobs": 1, "n": 2)";
       }(),
       50'000},
  };
  for (const Case& one : cases) {
    Json json;
    ApiRequest request;
    ASSERT_FALSE(parse_body("{" + one.body + R"(, "stream": true})", &json));
    ASSERT_FALSE(parse_completion(json, {258, 4096, {"fake"}, {}}, &request));
    std::vector<std::vector<int32_t>> prompts;
    ASSERT_FALSE(make_prompts(model_, 4096, request, &prompts));
    const size_t choices = prompts.size() * static_cast<size_t>(request.choices);
    Answer answer(model_, std::move(request), {"cmpl-1", 1234});
    ASSERT_FALSE(answer.submit(engine_, std::move(prompts), "", [] {}));
    while (engine_.running() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::string all;
    size_t polls = 0;
    do {
      const std::string events = answer.poll();
      EXPECT_LT(events.size(), Answer::poll_bytes + one.event_bytes) << one.what;
      EXPECT_EQ(answer.has_more(), !answer.finished()) << one.what;
      all += events;
      ++polls;
    } while (answer.has_more());
    EXPECT_LE(polls, all.size() / Answer::poll_bytes + 1) << one.what;
    EXPECT_GT(polls, 3u) << one.what;
    EXPECT_TRUE(all.ends_with("data: [DONE]\n\n")) << one.what;
    size_t ends = 0;
    for (size_t at = 0; (at = all.find(R"("finish_reason":"length")", at)) != std::string::npos;) {
      ++ends;
      ++at;
    }
    EXPECT_EQ(ends, choices) << one.what;
  }
}

// What was said before a fault comes before it, unless nothing was.
TEST_F(AnswerTest, AFaultComesBehindWhatWasSaid) {
  Json json;
  ApiRequest request;
  ASSERT_FALSE(parse_body(R"({"prompt": "hi", "max_tokens": 4000, "stream": true})", &json));
  ASSERT_FALSE(parse_completion(json, {258, 4096, {"fake"}, {}}, &request));
  Answer answer(model_, request, {"cmpl-1", 1});
  ASSERT_FALSE(answer.submit(engine_, {{1}}, "", [] {}));
  while (engine_.last()->said() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  engine_.last()->cancel();
  while (engine_.running() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::string events = answer.poll();
  EXPECT_TRUE(answer.finished());
  EXPECT_THAT(events, testing::HasSubstr(R"("text":"abcde)"));
  EXPECT_THAT(events, testing::HasSubstr(R"("finish_reason":null)"));
  EXPECT_GT(events.find(R"("code":503)"), events.find("abcde"));
}

TEST_F(AnswerTest, AFaultEndsTheStreamWithoutDone) {
  engine_.fail_next();
  const auto chunks = events(R"({"prompt": "hi", "stream": true})");
  EXPECT_EQ(chunks.back()["error"]["code"], 500);
  EXPECT_EQ(chunks.back()["error"]["type"], "InternalServerError");
  engine_.fail_next();
  EXPECT_EQ(all(R"({"prompt": "hi"})", false), "");
  EXPECT_EQ(failed_->status, 500);
}

TEST_F(AnswerTest, EachPromptIsAnsweredUpToTheContextsEnd) {
  const std::string ids = "1" + [] {
    std::string more;
    for (int i = 1; i < 4090; ++i) more += ",1";
    return more;
  }();
  const Json json = body("{\"prompt\": [[" + ids + "], [1]], \"min_tokens\": 8}");
  EXPECT_EQ(json["choices"][0]["text"], "abcdef");
  EXPECT_EQ(json["choices"][1]["text"], "abcdefghijklmnop");
}

TEST_F(AnswerTest, DroppingItCancels) {
  Json json;
  ApiRequest request;
  ASSERT_FALSE(parse_body(R"({"prompt": ["a", "b"], "max_tokens": 4000})", &json));
  ASSERT_FALSE(parse_completion(json, {258, 4096, {"fake"}, {}}, &request));
  {
    Answer answer(model_, request, {"cmpl-1", 1});
    ASSERT_FALSE(answer.submit(engine_, {{1}, {2}}, "", [] {}));
  }
  for (int i = 0; i < 1000 && engine_.running() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(engine_.running(), 0u);
}

Json lists_of(CompletionLogprobs& logprobs) {
  std::string text;
  JsonWriter json(&text);
  logprobs.write(&json);
  return Json::parse(text);
}

TEST(Logprobs, PartsOfCharactersAndInfinity) {
  const FakeModel model;
  EXPECT_EQ(token_text(model, 0xE2), "bytes:\\xe2");
  EXPECT_EQ(token_text(model, 'a'), "a");
  EXPECT_EQ(finite_logprob(-std::numeric_limits<float>::infinity()), -9999.0);
  // Offsets count characters of the text, and a character counts with its last byte.
  CompletionLogprobs logprobs(model, false, {});
  std::vector<ScoredToken> scores;
  for (const int32_t token : {0xE2, 0x82, 0xAC, static_cast<int32_t>('a')}) {
    scores.push_back({token, -1, 1, {}});
  }
  logprobs.add(scores);
  const Json json = lists_of(logprobs);
  EXPECT_EQ(json["text_offset"], Json::parse("[0, 0, 0, 1]"));
  EXPECT_EQ(json["tokens"][0], "bytes:\\xe2");
}

// Behind a prompt a space is a character of the text, at its beginning it may be none.
TEST(Logprobs, OffsetsBehindAPromptCountTheFirstSpace) {
  const FakeModel model(true);
  const std::vector<ScoredToken> scores = {{' ', -1, 1, {}}, {'a', -1, 1, {}}, {'b', -1, 1, {}}};
  for (const auto& [before, offsets] :
       {std::pair<std::vector<int32_t>, const char*>{{fake_bos, 'x'}, "[0, 1, 2]"},
        {{fake_bos}, "[0, 0, 1]"},
        {{}, "[0, 0, 1]"}}) {
    CompletionLogprobs logprobs(model, false, before);
    logprobs.add(scores);
    EXPECT_EQ(lists_of(logprobs)["text_offset"], Json::parse(offsets));
  }
}

}  // namespace
}  // namespace kvart::server
