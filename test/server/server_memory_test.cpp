// What requests hold while they are answered, and a server that once gets no memory. All memory of
// this program is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "failing_new.h"
#include "server/raw_client.h"

namespace kvart {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t body_bytes = std::size_t{2} << 20;

// Parts of bodies that are as long as a body may be, though little of them is used.
std::vector<std::pair<const char*, std::string>> long_bodies() {
  const std::string text(body_bytes, 'x');
  std::string ids = "[97";
  while (ids.size() < body_bytes) ids += ",97";
  std::string fields;
  for (int i = 0; fields.size() < body_bytes; ++i) {
    fields += ",\"an unknown field with a long name, number " + std::to_string(i) + "\":0";
  }
  const char* completion = "/v1/completions";
  return {
      {completion, R"("prompt":"a","user":")" + text + '"'},
      {completion, R"("prompt":"a")" + fields},
      {completion, R"("truncate_prompt_tokens":5,"prompt":")" + text + '"'},
      {completion, R"("truncate_prompt_tokens":5,"echo":true,"prompt":")" + text + '"'},
      {completion, R"("truncate_prompt_tokens":5,"prompt":)" + ids + "]"},
      {"/v1/chat/completions",
       R"("truncate_prompt_tokens":5,"messages":[{"role":"user","content":")" + text + "\"}]"},
  };
}

TEST(ServerMemory, AnAnswerHoldsNothingOfALongBody) {
  for (const auto& [path, part] : long_bodies()) {
    const RunningServer server({}, milliseconds(20));
    ASSERT_EQ(server.ask(get("/health")).status, 200);
    RawClient client(server.port());
    std::string request = post(path, "{\"max_tokens\":4000,\"stream\":true," + part + "}");
    const std::size_t before = live_bytes - request.capacity();
    ASSERT_TRUE(client.send(request));
    std::string().swap(request);
    const std::string head = client.receive(60'000).substr(0, 15);
    ASSERT_EQ(head, "HTTP/1.1 200 OK") << part.substr(0, 40);
    EXPECT_LT(static_cast<double>(live_bytes) - static_cast<double>(before), body_bytes / 4.0)
        << part.substr(0, 40);
    EXPECT_FALSE(server.engine.last()->cancelled());
  }
}

// Nor do many prompts hold lists of their own.
TEST(ServerMemory, PromptsOfARequestShareItsLists) {
  constexpr int prompts = 500;
  constexpr int entries = 1000;
  std::string body = R"({"max_tokens":4000,"stream":true,"prompt":["a")";
  for (int i = 1; i < prompts; ++i) body += R"(,"a")";
  body += R"(],"stop_token_ids":[1)";
  for (int i = 1; i < entries; ++i) body += ",1";
  body += R"(],"logit_bias":{"0":1)";
  for (int i = 1; i < 258; ++i) body += ",\"" + std::to_string(i) + "\":1";
  const RunningServer server({}, milliseconds(20));
  ASSERT_EQ(server.ask(get("/health")).status, 200);
  RawClient client(server.port());
  const std::size_t before = live_bytes;
  ASSERT_TRUE(client.send(post("/v1/completions", body + "}}")));
  ASSERT_EQ(client.receive(60'000).substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_EQ(server.engine.running(), static_cast<std::size_t>(prompts));
  EXPECT_LT(static_cast<double>(live_bytes) - static_cast<double>(before),
            prompts * 2000.0);  // copies would take 4000 bytes each, and 2064
}

std::string scored(bool stream, int choices) {
  std::string prompt = "[97";
  for (int i = 1; i < 500; ++i) prompt += ",97";
  return post("/v1/completions", R"({"max_tokens":1,"echo":true,"logprobs":5,"n":)" +
                                     std::to_string(choices) + R"(,"stream":)" +
                                     (stream ? "true" : "false") + R"(,"prompt":)" + prompt + "]}");
}

TEST(ServerMemory, AnIdleConnectionHoldsNothingOfItsLastAnswer) {
  const RunningServer server;
  ASSERT_EQ(server.ask(get("/health")).status, 200);
  RawClient client(server.port());
  const std::size_t before = live_bytes;
  ASSERT_TRUE(client.send(scored(false, 20)));
  std::size_t bytes = 0;
  for (std::string more = client.receive(); !more.empty(); more = client.receive(1000)) {
    bytes += more.size();
  }
  EXPECT_GT(bytes, 300'000u);
  for (int i = 0; i < 500 && live_bytes > before + 200'000; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(live_bytes, before + 200'000);
}

// Answers that nobody takes: no more are made than the limit allows, and once there is room those
// that had to wait go on.
TEST(ServerMemory, AnswersThatNobodyTakesAreBounded) {
  ServerOptions options;
  options.max_answers_bytes = 100'000;
  const RunningServer server(options);
  RawClient lazy(server.port(), 4096);
  ASSERT_TRUE(lazy.send(scored(false, 40)));
  ASSERT_NE(lazy.receive(10'000), "");  // made, and being written
  EXPECT_EQ(server.ask(scored(false, 1)).status, 503);
  EXPECT_EQ(server.ask(post("/v1/completions", R"({"prompt":"a","max_tokens":3})")).status, 503);
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  RawClient streams[2] = {RawClient(server.port()), RawClient(server.port())};
  ASSERT_TRUE(streams[0].send(scored(true, 1)));
  ASSERT_TRUE(
      streams[1].send(post("/v1/completions", R"({"prompt":"a","max_tokens":3,"stream":true})")));
  for (RawClient& stream : streams) {
    EXPECT_EQ(stream.response(300).body, "");  // the head alone
  }
  lazy.close();
  for (RawClient& stream : streams) {
    const Response response = stream.response();
    EXPECT_TRUE(response.whole);
    EXPECT_THAT(response.body, testing::HasSubstr("[DONE]"));
  }
  EXPECT_EQ(server.ask(scored(false, 1)).status, 200);
}

struct Kind {
  const char* name;
  std::string request;
  std::string right;  // is in the right answer, and in no other
};

std::vector<Kind> kinds() {
  const std::string ask = R"({"prompt":"hi","max_tokens":3)";
  const std::string scores = ask + R"(,"echo":true,"logprobs":2,"n":3)";
  const char* path = "/v1/completions";
  return {
      {"a body", post(path, ask + "}"), R"("text":"abc")"},
      {"a stream", post(path, ask + R"(,"stream":true})"), "data: [DONE]"},
      {"scores", post(path, scores + "}"), R"("text":"hiabc")"},
      {"a stream of scores", post(path, scores + R"(,"stream":true})"), "data: [DONE]"},
      {"a chat",
       post("/v1/chat/completions",
            R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3})"),
       R"("content":"abc")"},
      {"tokens", post("/tokenize", R"({"prompt":"abc"})"), R"("count":4)"},
      {"figures", get("/metrics"), "vllm:num_requests_running"},
      {"status", get("/v1/status"), R"("kv_cache_dtype":"int4")"},
      {"models", get("/v1/models"), R"("owned_by":"kvart")"},
  };
}

enum class End { right, told, cut_off };

// The answer to a request during which the server's allocation `n` from now on fails.
End ask_without(const RunningServer& server, const Kind& kind, int64_t n) {
  successes_left = n;
  RawClient client(server.port());
  client.send(kind.request);
  const Response response = client.response();
  successes_left = never;
  EXPECT_TRUE(response.whole || client.ended()) << "neither answered nor cut off";
  if (!response.whole) return End::cut_off;
  const bool right = response.body.find(kind.right) != std::string::npos;
  const bool told = response.body.find(R"("code":503)") != std::string::npos;
  EXPECT_NE(right, told) << response.body;
  EXPECT_TRUE(response.status == 200 || (response.status == 503 && told)) << response.head;
  return right ? End::right : End::told;
}

// Whoever lacks memory hears of it or is cut off; nothing is left of the request, and nobody else
// notices.
TEST(ServerMemory, ARequestThatGetsNoneEndsAlone) {
  spared = true;  // this thread, which is the client's
  const RunningServer server;
  ASSERT_EQ(server.ask(get("/health")).status, 200);
  const std::size_t before = live_bytes;
  for (const Kind& kind : kinds()) {
    std::map<End, int> ends;
    for (int64_t n = 0;; n += 1 + n / 100) {
      failures = 0;
      ++ends[ask_without(server, kind, n)];
      EXPECT_TRUE(server.idle_within(2000));
      EXPECT_EQ(server.ask(get("/health")).status, 200);
      ASSERT_FALSE(testing::Test::HasFailure()) << kind.name << " without allocation " << n;
      if (failures == 0) break;
    }
    EXPECT_GT(ends[End::told], ends[End::cut_off]) << kind.name;
  }
  EXPECT_LT(live_bytes, before + 200'000);
}

// A long answer that there is no memory for, once its stream has begun and before its body has.
TEST(ServerMemory, AnAnswerThatGetsNoneEndsWithAnError) {
  spared = true;
  const RunningServer server;
  for (const bool stream : {false, true}) {
    failing_bytes = 200'000;  // its text grows beyond that
    const Response response = server.ask(scored(stream, 40));
    EXPECT_EQ(failing_bytes, 0u);
    EXPECT_TRUE(response.whole);
    EXPECT_EQ(response.status, stream ? 200 : 503);
    EXPECT_THAT(response.body, testing::HasSubstr("there is no memory"));
    EXPECT_THAT(response.body, testing::Not(testing::HasSubstr("[DONE]")));
    EXPECT_TRUE(server.idle_within(1000));
    EXPECT_EQ(server.ask(scored(stream, 1)).status, 200);
  }
}

// The system has no memory for one connection, and for the next one it has.
TEST(ServerMemory, AConnectionThatGetsNoneIsTheOnlyOneLost) {
  const RunningServer server;
  ASSERT_EQ(server.ask(get("/health")).status, 200);
  failing_bytes = 8192;  // a connection has that much for what comes in
  EXPECT_EQ(server.ask(get("/health")).status, 0);
  EXPECT_EQ(failing_bytes, 0u);
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  EXPECT_THAT(server.log(), testing::HasSubstr("a connection was lost"));
}

}  // namespace
}  // namespace kvart
