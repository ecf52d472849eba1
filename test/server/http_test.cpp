// HTTP over raw sockets: framing, pipelining, refusals, keys, hosts and origins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "server/raw_client.h"
#include "server/routes.h"

namespace kvart {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* ask_text = R"({"prompt": "hi", "max_tokens": 5})";

TEST(Http, AnswersOnEachRoute) {
  const RunningServer server;
  ASSERT_EQ(server.error, "");
  const Response health = server.ask(get("/health"));
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, "");
  EXPECT_EQ(server.ask(post("/ping", "")).status, 200);
  EXPECT_EQ(server.ask(get("/version")).body, R"({"version":"1.2.3"})");
  const Json models = server.ask(get("/v1/models")).json();
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(server.ask(get("/v1/models/fake")).json()["id"], "fake");
  EXPECT_EQ(server.ask(get("/v1/models/other")).status, 404);
  EXPECT_THAT(server.ask(get("/metrics")).body, HasSubstr("vllm:num_requests_running"));
  EXPECT_EQ(server.ask(get("/v1/status")).json()["cache"]["sealed"]["cached"], 30);
  const Response page = server.ask(get("/"));
  EXPECT_THAT(page.head, HasSubstr("text/html"));
  EXPECT_THAT(page.body, HasSubstr("</html>"));
  EXPECT_EQ(server.ask(post("/tokenize", R"({"prompt": "a"})")).json()["count"], 2);
  EXPECT_EQ(server.ask(post("/detokenize", R"({"tokens": [97]})")).json()["prompt"], "a");
  const Json tokenizer = server.ask(get("/tokenizer_info")).json();
  EXPECT_EQ(tokenizer["bos_token"], "<s>");
  EXPECT_EQ(tokenizer["eos_token"], "</s>");
  EXPECT_EQ(tokenizer["add_bos_token"], true);
  EXPECT_EQ(tokenizer["chat_template"], "{{ messages }}");
  EXPECT_EQ(server.ask(post("/reset_prefix_cache", "")).status, 200);
  EXPECT_EQ(server.engine.resets, 1);
  EXPECT_EQ(server.ask(post("/v1/completions", ask_text)).json()["choices"][0]["text"], "abcde");
}

// Late ones end with an error that isn't asked for again; a stream has what was said before.
TEST(Http, ARequestsTimeIsOver) {
  ServerOptions options;
  options.request_timeout = std::chrono::milliseconds(400);
  const RunningServer server(options, std::chrono::milliseconds(5));
  for (const auto& [more, least_s] : {std::pair(R"(, "timeout": 0.2)", 0.2), std::pair("", 0.4),
                                      std::pair(R"(, "timeout": 3600)", 0.4)}) {
    const std::string body = std::string(R"({"prompt": "hi", "max_tokens": 4000)") + more;
    const auto began = std::chrono::steady_clock::now();
    const Response whole = server.ask(post("/v1/completions", body + "}"));
    const double taken_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    EXPECT_GE(taken_s, least_s) << more;
    EXPECT_EQ(whole.status, 504) << more;
    EXPECT_EQ(whole.json()["error"]["type"], "GatewayTimeoutError");
    EXPECT_THAT(whole.json()["error"]["message"].get<std::string>(), HasSubstr("timeout"));
    EXPECT_THAT(whole.head, HasSubstr("X-Should-Retry: false"));
    const Response stream = server.ask(post("/v1/completions", body + R"(, "stream": true})"));
    EXPECT_TRUE(stream.whole);
    EXPECT_THAT(stream.body, HasSubstr(R"("text":"a)"));
    EXPECT_THAT(stream.body, HasSubstr(R"("code":504)"));
    EXPECT_THAT(stream.body, Not(HasSubstr("[DONE]")));
    EXPECT_TRUE(server.idle_within(1000));
  }
  EXPECT_EQ(server.ask(post("/v1/completions", R"({"prompt": "hi", "timeout": 30})")).status, 200);
}

// Bodies with scores are written by another thread; more requests follow on the connection.
TEST(Http, AnswersWithScores) {
  const RunningServer server;
  const std::string scored =
      post("/v1/completions", R"({"prompt": "hi", "max_tokens": 5, "logprobs": 2})");
  RawClient client(server.port());
  ASSERT_TRUE(client.send(scored + scored + post("/v1/completions", ask_text)));
  for (int i = 0; i < 3; ++i) {
    const Response response = client.response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.json()["choices"][0]["text"], "abcde");
    const Json logprobs = response.json()["choices"][0]["logprobs"];
    EXPECT_EQ(logprobs.is_null(), i == 2);
    if (i < 2) {
      EXPECT_EQ(logprobs["tokens"].size(), 5u);
    }
  }
}

TEST(Http, ALineOfEveryStatus) {
  const RunningServer server;
  const Response head = server.ask("HEAD /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(head.head, HasSubstr("Content-Length: 19"));
  const Response wrong = server.ask(get("/v1/completions"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.head, HasSubstr("Allow: POST"));
  EXPECT_EQ(server.ask(post("/version", "")).status, 405);
  EXPECT_EQ(server.ask("DELETE /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 405);
  EXPECT_EQ(server.ask(get("/nothing")).status, 404);
  EXPECT_EQ(server.ask("GARBAGE\r\n\r\n").status, 400);
  EXPECT_EQ(server.ask("GET / HTTP/9.9\r\n\r\n").status, 400);
  EXPECT_EQ(server.ask("GET /health HTTP/1.1\r\n\r\n").status, 400);  // no Host
  EXPECT_EQ(server.ask("GET /health HTTP/1.0\r\n\r\n").status, 200);
  EXPECT_EQ(server.ask(get("http://localhost/health")).status, 404);
  EXPECT_EQ(
      server.ask(std::string("GET / HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n", 41)).status,
      400);
  EXPECT_EQ(server.ask("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n").status,
            400);
}

// A request in pieces of every size gives one answer; so do several in one piece.
TEST(Http, PiecesAndPipelines) {
  const RunningServer server;
  const std::string request = post("/v1/completions", ask_text);
  for (const size_t size : {1, 2, 3, 7, 50}) {
    RawClient client(server.port());
    for (size_t at = 0; at < request.size(); at += size) client.send(request.substr(at, size));
    EXPECT_EQ(client.response().json()["choices"][0]["text"], "abcde") << size;
  }
  RawClient client(server.port());
  const std::string stream = R"({"prompt": "hi", "max_tokens": 2, "stream": true})";
  client.send(request + get("/health") + post("/v1/completions", stream) + "\r\n" +
              get("/version") + request);
  EXPECT_EQ(client.response().json()["choices"][0]["text"], "abcde");
  EXPECT_EQ(client.response().status, 200);
  const Response streamed = client.response();
  EXPECT_THAT(streamed.head, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(streamed.body, HasSubstr("data: [DONE]\n\n"));
  EXPECT_EQ(client.response().body, R"({"version":"1.2.3"})");
  EXPECT_EQ(client.response().json()["choices"][0]["text"], "abcde");
}

TEST(Http, ChunkedBodiesAndContinue) {
  const RunningServer server;
  RawClient client(server.port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "8\r\n{\"prompt\r\n14\r\n\": \"a\", \"max_tokens\"\r\n5\r\n: 3 }\r\n0\r\n\r\n");
  EXPECT_EQ(client.response().json()["choices"][0]["text"], "abc");
  const std::string body = ask_text;
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.receive(), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send(body);
  EXPECT_EQ(client.response().json()["choices"][0]["text"], "abcde");
}

TEST(Http, OldClients) {
  const RunningServer server;
  const std::string stream = R"({"prompt": "hi", "max_tokens": 2, "stream": true})";
  RawClient client(server.port());
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(stream.size()) +
              "\r\n\r\n" + stream);
  const Response response = client.response();
  EXPECT_TRUE(client.ended());
  EXPECT_THAT(response.head, Not(HasSubstr("chunked")));
  EXPECT_THAT(response.head, HasSubstr("Connection: close"));
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  RawClient done(server.port());
  done.send("GET /version HTTP/1.0\r\n\r\n");
  done.finish_sending();
  EXPECT_EQ(done.response().body, R"({"version":"1.2.3"})");
}

TEST(Http, TooMuchIsRefusedBeforeItIsRead) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 2000;
  const RunningServer server(options);
  EXPECT_EQ(server
                .ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Length: 100000000\r\n\r\n")
                .status,
            413);
  EXPECT_EQ(server
                .ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Transfer-Encoding: chunked\r\n\r\n500\r\n" +
                     std::string(0x500, ' ') + "\r\n0\r\n\r\n")
                .status,
            413);
  EXPECT_EQ(server.ask(get("/health", "X: " + std::string(3000, 'a') + "\r\n")).status, 431);
  // Smuggling: two lengths.
  EXPECT_EQ(server
                .ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
                     "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                .status,
            400);
  EXPECT_EQ(server.ask(get("/health")).status, 200);
}

// Smuggling: where something in front of this server sees another end of the body, the rest of it
// must not become a request.
TEST(Http, BodiesOfUnknownLengthEndTheConnection) {
  const RunningServer server;
  const auto ask = [&](const std::string& version, const std::string& lines, int status) {
    RawClient client(server.port());
    client.send("POST /ping HTTP/" + version + "\r\nHost: localhost\r\nConnection: keep-alive\r\n" +
                lines + "\r\n0\r\n\r\n" + get("/version"));
    EXPECT_EQ(client.response().status, status) << lines;
    EXPECT_EQ(client.response().status, 0) << lines;
    EXPECT_TRUE(client.ended()) << lines;
  };
  const std::string name = "Transfer-Encoding: ";
  for (const char* codings : {"gzip", "identity", "", "xchunked", "chunked, identity",
                              "chunked;a=b", "\"chunked\"", ",chunked,", "chunked\r\n , gzip"}) {
    ask("1.1", name + codings + "\r\n", 400);
    ask("1.1", name + codings + "\r\nContent-Length: 5\r\n", 400);
    ask("1.1", "Content-Length: 5\r\n" + name + codings + "\r\n", 400);
  }
  ask("1.1", name + "gzip, chunked\r\n", 501);
  ask("1.1", name + "chunked , Chunked\r\n", 501);
  ask("1.1", name + "gzip\r\n" + name + "chunked\r\n", 400);
  ask("1.1", name + "chunked\r\n" + name + "gzip\r\n", 400);
  ask("1.0", name + "chunked\r\n", 400);
  ask("1.0", name + "gzip\r\n", 400);
  RawClient client(server.port());
  client.send("POST /ping HTTP/1.1\r\nHost: localhost\r\n" + name + " \tCHUNKED \r\n\r\n0\r\n\r\n" +
              get("/version"));
  EXPECT_EQ(client.response().status, 200);
  EXPECT_EQ(client.response().body, R"({"version":"1.2.3"})");
}

// Who sends requests without waiting for answers is read no further than a little ahead.
TEST(Http, APipelineIsReadNoFasterThanItIsAnswered) {
  const RunningServer server;
  RawClient client(server.port());
  client.send_at_most(64 << 10);
  std::ifstream limits("/proc/sys/net/ipv4/tcp_rmem");
  size_t least = 0, usual = 0, most = 0;
  ASSERT_TRUE(limits >> least >> usual >> most);
  const size_t unanswered_most = most + (size_t{1} << 20);  // what the system holds, and a little
  const size_t enough = unanswered_most / 2048;  // an answer that lets 4 KB more in shows by then
  const std::string ask = get("/ping");
  std::string data;
  for (int i = 0; i < 1000; ++i) data += ask;
  size_t sent = 0;
  size_t answered = 0;
  while (sent - answered * ask.size() < unanswered_most && answered < enough) {
    sent += client.send_some(std::string_view(data).substr(sent % ask.size()));
    if (client.response(2).status == 200) ++answered;
  }
  EXPECT_GE(answered, enough);
}

TEST(Http, HostileBodiesLeaveTheServerAlive) {
  const RunningServer server;
  std::string deep(1'000'000, '[');
  for (const std::string& body :
       {deep, std::string("{\"a\":1e999}"), std::string("{\"n\":1,\"n\":1}"),
        std::string("\xEF\xBB\xBF{}"), std::string("{\"prompt\":\"\xFF\"}"), std::string(),
        std::string("\x1f\x8b\x08\x00", 4)}) {
    for (const char* path :
         {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
      const Response response = server.ask(post(path, body));
      EXPECT_EQ(response.status, 400) << path;
      EXPECT_EQ(response.json()["error"]["type"], "BadRequestError");
      EXPECT_EQ(response.json()["error"]["code"], 400);
    }
  }
  EXPECT_EQ(server.ask(post("/v1/completions", ask_text)).status, 200);
}

// Lists of tokens are many times as long as the bodies that ask for them.
TEST(Http, ListsOfTokensAreBounded) {
  const RunningServer server;
  const size_t most = size_t{1} << 18;
  const auto ask = [&](const std::string& request) {
    RawClient client(server.port());
    client.send(request);
    return client.response(60'000);
  };
  const auto text = [&](size_t tokens) {  // with one in front
    return R"({"return_token_strs": true, "prompt": ")" + std::string(tokens - 1, 'a') + "\"}";
  };
  const Response all = ask(post("/tokenize", text(most)));
  EXPECT_EQ(all.json()["token_strs"].size(), most);
  const Response more = ask(post("/tokenize", text(most + 1)));
  EXPECT_EQ(more.status, 400);
  EXPECT_EQ(more.json()["error"]["param"], "prompt");
  const auto ids = [](size_t tokens) {
    std::string list = R"({"tokens": [97)";
    for (size_t i = 1; i < tokens; ++i) list += ",97";
    return list + "]}";
  };
  EXPECT_EQ(ask(post("/detokenize", ids(most))).json()["prompt"], std::string(most, 'a'));
  EXPECT_EQ(ask(post("/detokenize", ids(most + 1))).status, 400);
}

// Every route with every method and key, and paths that only look like it.
TEST(Http, WithoutTheKeyOnlyTheOpenRoutesAnswer) {
  ServerOptions options;
  options.api_keys = {"secret-1", "secret-2"};
  const RunningServer server(options);
  for (const server::Route& route : server::routes()) {
    std::string path(route.path);
    if (path.ends_with('*')) path.back() = 'x';
    for (const char* method : {"GET", "POST", "HEAD", "PUT", "OPTIONS"}) {
      for (const std::string& key :
           {std::string(), std::string("Bearer wrong"), std::string("Bearer secret-1"),
            std::string("Basic secret-1"), std::string("Bearer secret-2")}) {
        const std::string line = key.empty() ? "" : "Authorization: " + key + "\r\n";
        const std::string length = "Content-Length: 0\r\n";
        const Response response =
            server.ask(std::string(method) + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" +
                       line + length + "\r\n");
        const bool right = key.starts_with("Bearer secret");
        EXPECT_EQ(response.status == 401, !right && !route.open) << method << path << key;
      }
    }
    for (const std::string& twisted : {"/" + path, "/v1/.." + path, "/%2e%2e" + path, path + "/",
                                       "/health/.." + path, "http://localhost" + path}) {
      if (twisted == "//" || twisted == "http://localhost/") continue;
      EXPECT_EQ(server.ask(get(twisted)).status, 401) << twisted;
    }
  }
  EXPECT_EQ(server.ask(get("/HEALTH")).status, 401);
  EXPECT_EQ(server.ask("GET /v1/models HTTP/1.0\r\n\r\n").status, 401);
  EXPECT_THAT(server.ask(get("/v1/models")).head, HasSubstr("WWW-Authenticate: Bearer"));
}

TEST(Http, KeysHaveSaltsOfTheirOwn) {
  const auto salt_with = [](const ServerOptions& options, const std::string& key,
                            const std::string& body) {
    const RunningServer server(options);
    const std::string line = key.empty() ? "" : "Authorization: Bearer " + key + "\r\n";
    EXPECT_EQ(server.ask(post("/v1/completions", body, line)).status, 200);
    return server.engine.last()->request().salt;
  };
  const std::string salted = R"({"prompt": "hi", "cache_salt": "x"})";
  ServerOptions keys;
  keys.api_keys = {"a", "b"};
  EXPECT_NE(salt_with(keys, "a", ask_text), salt_with(keys, "b", ask_text));
  EXPECT_EQ(salt_with(keys, "a", ask_text), salt_with(keys, "a", ask_text));
  EXPECT_NE(salt_with(keys, "a", ask_text), salt_with(keys, "a", salted));
  EXPECT_NE(salt_with(keys, "b", salted), salt_with(keys, "a", salted));
  EXPECT_EQ(salt_with({}, "", ask_text), "");
  keys.share_prefixes = true;
  EXPECT_EQ(salt_with(keys, "a", ask_text), salt_with(keys, "b", ask_text));
}

// What one tenant has cached another one can't forget, unless the server is told so.
TEST(Http, OneOfSeveralKeysForgetsNothingOfTheOthers) {
  const auto reset_with = [](const ServerOptions& options) {
    const RunningServer server(options);
    const int status =
        server.ask(post("/reset_prefix_cache", "", "Authorization: Bearer a\r\n")).status;
    EXPECT_EQ(server.engine.resets, status == 200 ? 1 : 0);
    return status;
  };
  ServerOptions keys;
  keys.api_keys = {"a"};
  EXPECT_EQ(reset_with(keys), 200);
  keys.api_keys = {"a", "b"};
  EXPECT_EQ(reset_with(keys), 403);
  keys.allow_reset = true;
  EXPECT_EQ(reset_with(keys), 200);
}

TEST(Http, ForeignHostsAndOrigins) {
  const RunningServer server;
  const auto with = [&](const std::string& host, const std::string& origin, bool post_it) {
    const std::string body = ask_text;
    const std::string more = origin.empty() ? "" : "Origin: " + origin + "\r\n";
    return server.ask((post_it ? "POST /v1/completions" : "GET /v1/models") +
                      std::string(" HTTP/1.1\r\nHost: ") + host + "\r\n" + more +
                      "Content-Length: " + std::to_string(post_it ? body.size() : 0) + "\r\n\r\n" +
                      (post_it ? body : ""));
  };
  EXPECT_EQ(with("evil.example", "", false).status, 403);
  EXPECT_EQ(with("localhost.evil:8000", "", true).status, 403);
  EXPECT_EQ(with("127.0.0.1:8000", "", true).status, 200);
  for (const char* origin : {"http://evil.example", "null", "http://localhost.evil"}) {
    const Response response = with("localhost", origin, false);
    EXPECT_EQ(response.status, 200);
    EXPECT_THAT(response.head, Not(HasSubstr("Access-Control"))) << origin;
    EXPECT_EQ(with("localhost", origin, true).status, 403) << origin;
  }
  EXPECT_EQ(with("localhost:1", "http://localhost:1", true).status, 200);
}

TEST(Http, AllowedOrigins) {
  ServerOptions options;
  options.cors_origins = {"http://a.example"};
  options.api_keys = {"k"};
  const RunningServer server(options);
  const std::string origin = "Origin: http://a.example\r\n";
  const Response preflight =
      server.ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + origin + "\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_THAT(preflight.head, HasSubstr("Access-Control-Allow-Origin: http://a.example\r\n"));
  EXPECT_THAT(preflight.head, HasSubstr("Authorization"));
  EXPECT_THAT(preflight.head, Not(HasSubstr("Allow-Credentials")));
  const Response named = server.ask(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + origin +
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\r\n");
  EXPECT_THAT(named.head, HasSubstr("Access-Control-Allow-Headers: authorization, content-type, "
                                    "x-stainless-os\r\n"));
  const Response answer =
      server.ask(post("/v1/completions", ask_text, origin + "Authorization: Bearer k\r\n"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("Access-Control-Allow-Origin: http://a.example\r\n"));
  EXPECT_EQ(server
                .ask("OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n"
                     "Origin: http://b.example\r\n\r\n")
                .status,
            401);
}

// What a request says is in its own answer only.
TEST(Http, NothingOfARequestIsSeenElsewhere) {
  ServerOptions options;
  options.api_keys = {"CANARY-key"};
  const RunningServer server(options);
  const std::string key = "Authorization: Bearer CANARY-key\r\n";
  const std::string canary = "CANARY-7f3a";
  const std::string body =
      R"({"prompt": ")" + canary + R"(", "user": ")" + canary + R"(", "other": ")" + canary + "\"}";
  EXPECT_EQ(server.ask(post("/v1/completions", body, key)).status, 200);
  EXPECT_EQ(
      server.ask(post("/v1/completions", "{\"prompt\": [\"" + canary + "\", 5]}", key)).status,
      400);
  for (const server::Route& route : server::routes()) {
    const Response response = server.ask(get(route.path, key));
    EXPECT_THAT(response.head + response.body, Not(HasSubstr("CANARY"))) << route.path;
  }
  EXPECT_THAT(server.log(), HasSubstr("other"));
  EXPECT_THAT(server.log(), Not(HasSubstr("CANARY")));
}

}  // namespace
}  // namespace kvart
