// Clients that vanish, idle or crawl, and servers that stop.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "server/raw_client.h"

namespace kvart {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

std::string long_request(bool stream, int tokens = 4000) {
  return post("/v1/completions", std::string(R"({"prompt": "hi", "max_tokens": )") +
                                     std::to_string(tokens) +
                                     ", \"stream\": " + (stream ? "true" : "false") + "}");
}

milliseconds time_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start);
}

TEST(Lifetime, AClientThatIsGoneCancelsWithinASecond) {
  const RunningServer server({}, milliseconds(5));
  for (const bool stream : {false, true}) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 200; ++i) {
      auto& client = clients.emplace_back(std::make_unique<RawClient>(server.port()));
      client->send(long_request(stream));
      if (stream && i % 3 == 0) client->receive(5000);
    }
    while (server.engine.submitted() < 200) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_GE(server.engine.running(), 100u);
    const auto taken = time_of([&] {
      clients.clear();
      EXPECT_TRUE(server.idle_within(5000));
    });
    EXPECT_LT(taken, milliseconds(5000));  // far less than their answers would have taken
    EXPECT_TRUE(server.engine.last()->cancelled());
  }
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  EXPECT_THAT(server.ask(get("/metrics")).body, HasSubstr("kvart:http_connections{"));
}

// Gone while the prompt is being tokenized: nothing is submitted.
TEST(Lifetime, AClientThatIsGoneBeforeItsPromptIsRead) {
  const RunningServer server;
  for (int i = 0; i < 4; ++i) {
    RawClient client(server.port());
    client.send(
        post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "slow"}]})"));
    std::this_thread::sleep_for(milliseconds(20));
  }
  std::this_thread::sleep_for(milliseconds(900));
  EXPECT_EQ(server.engine.submitted(), 0);
  EXPECT_EQ(server.ask(get("/health")).status, 200);
}

// Bodies of clients that are gone count until their jobs are done: they are still in memory.
TEST(Lifetime, BodiesOfClientsThatAreGoneCount) {
  ServerOptions options;
  options.text_threads = 1;
  options.max_bodies_bytes = 300'000;
  const RunningServer server(options);
  std::string slow = R"({"messages": [{"role": "user", "content": "slow"})";
  for (int i = 0; i < 9; ++i) slow += R"(, {"role": "user", "content": "slow"})";  // 3 s
  RawClient first(server.port());
  first.send(post("/v1/chat/completions", slow + "]}"));
  const std::string large =
      post("/tokenize", R"({"prompt": "a", "user": ")" + std::string(100'000, 'x') + "\"}");
  for (int i = 0; i < 2; ++i) {
    RawClient(server.port()).send(large);
    // The first one's connection and the one that asks.
    std::string metrics;
    while (metrics.find("kvart:http_connections{engine=\"0\",model_name=\"fake\"} 2\n") ==
           std::string::npos) {
      metrics = server.ask(get("/metrics")).body;
    }
  }
  EXPECT_EQ(server.ask(large).status, 503);
  EXPECT_EQ(server.ask(get("/health")).status, 200);
  // Nobody waits for what they have asked.
  Response after;
  for (int i = 0; i < 100 && after.status != 200; ++i) {
    std::this_thread::sleep_for(milliseconds(100));
    after = server.ask(large);
  }
  EXPECT_EQ(after.status, 200);
}

// What is echoed with scores takes seconds to write here, in a stream and in a body.
TEST(Lifetime, LongAnswersHoldUpNobody) {
  const RunningServer server;
  for (const char* stream : {"true", "false"}) {
    RawClient client(server.port());
    client.send(post("/v1/completions", std::string(R"({"prompt": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
                     "max_tokens": 2, "echo": true, "logprobs": 1, "stream": )") +
                                            stream + "}"));
    while (server.engine.running() > 0 || server.engine.submitted() == 0) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::vector<milliseconds> times;
    const auto taken = time_of([&] {
      std::string begin;
      while (begin.find(R"("text_offset")") == std::string::npos) {
        times.push_back(time_of([&] { EXPECT_EQ(server.ask(get("/health")).status, 200); }));
        begin += client.receive(5);
      }
    });
    EXPECT_GT(taken, milliseconds(1000)) << "nobody could have been held up";
    EXPECT_LT(*std::max_element(times.begin(), times.end()), taken / 2) << stream;
  }
}

TEST(Lifetime, APromptThatIsLongInReadingHoldsUpNoScores) {
  ServerOptions options;
  options.text_threads = 1;
  const RunningServer server(options, milliseconds(5));
  RawClient scored(server.port());
  scored.send(post("/v1/completions",
                   R"({"prompt": "hi", "max_tokens": 100, "logprobs": 1, "stream": true})"));
  while (scored.receive().find("text_offset") == std::string::npos) ASSERT_FALSE(scored.ended());
  RawClient slow(server.port());
  std::string messages = R"({"role": "user", "content": "slow"})";
  for (int i = 0; i < 9; ++i) messages += R"(, {"role": "user", "content": "slow"})";  // 3 s
  slow.send(post("/v1/chat/completions", "{\"messages\": [" + messages + "]}"));
  std::string end;
  while (end.find("[DONE]") == std::string::npos && !scored.ended()) end += scored.receive();
  EXPECT_FALSE(scored.ended());
  EXPECT_EQ(server.engine.submitted(), 1) << "the slow prompt was read first";
}

TEST(Lifetime, ASlowReaderPausesItsGenerationOnly) {
  ServerOptions options;
  options.write_timeout = milliseconds(60'000);
  const RunningServer server(options, std::chrono::microseconds(20));
  RawClient slow(server.port(), 4096);
  // Many bytes for each token.
  slow.send(post("/v1/completions",
                 R"({"prompt": "hi", "max_tokens": 4000, "stream": true, "logprobs": 20})"));
  int64_t said = -1;
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    const auto last = server.engine.last();
    if (last && last->said() == said) break;
    said = last ? last->said() : -1;
  }
  EXPECT_LT(said, 4000);
  EXPECT_EQ(server.ask(long_request(false, 50)).status, 200);
  const Response response = slow.response(60'000);
  EXPECT_TRUE(response.whole);
  EXPECT_THAT(response.body, HasSubstr("[DONE]"));
}

TEST(Lifetime, AReaderThatNeverReadsIsCutOff) {
  ServerOptions options;
  options.write_timeout = milliseconds(200);
  const RunningServer server(options, std::chrono::microseconds(20));
  RawClient never(server.port(), 4096);
  never.send(post("/v1/completions",
                  R"({"prompt": "hi", "max_tokens": 4000, "stream": true, "logprobs": 20})"));
  while (server.engine.submitted() == 0) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(server.idle_within(10'000));
  EXPECT_TRUE(server.engine.last()->cancelled());
}

TEST(Lifetime, HeadersBodiesAndIdlenessHaveLimits) {
  ServerOptions options;
  options.header_timeout = options.body_timeout = options.idle_timeout = milliseconds(300);
  const RunningServer server(options);
  RawClient silent(server.port());
  RawClient header(server.port());
  RawClient body(server.port());
  RawClient idle(server.port());
  idle.send(get("/health"));
  EXPECT_EQ(idle.response().status, 200);
  header.send("GET /health HT");
  body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{");
  // A byte now and then doesn't help.
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    header.send("T");
    body.send(" ");
  }
  EXPECT_EQ(header.response(5000).status, 408);
  EXPECT_EQ(body.response(5000).status, 408);
  silent.receive(5000);
  idle.receive(5000);
  EXPECT_TRUE(silent.ended());
  EXPECT_TRUE(idle.ended());
}

// More clients than connections: those that wait for longest give way, those that are answered
// stay.
TEST(Lifetime, IdleConnectionsGiveWay) {
  ServerOptions options;
  options.max_connections = 20;
  const RunningServer server(options, milliseconds(2));
  RawClient busy(server.port());
  busy.send(long_request(true, 400));
  busy.receive();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(std::make_unique<RawClient>(server.port()));
  std::vector<milliseconds> times;
  for (int i = 0; i < 50; ++i) {
    times.push_back(time_of([&] { EXPECT_EQ(server.ask(get("/health")).status, 200); }));
  }
  // It waits for none of them; how fast it is, bench/soak.py measures.
  EXPECT_LT(*std::max_element(times.begin(), times.end()), milliseconds(5000));
  EXPECT_FALSE(server.engine.last()->cancelled());
}

// The system has no file for another connection: the idle give way, and who asks isn't kept waiting
// for long behind all of them.
TEST(Lifetime, WithoutAFileLeftTheIdleGiveWay) {
  const RunningServer server;
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(std::make_unique<RawClient>());
  RawClient asks;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int first_free = ::open("/dev/null", O_RDONLY);
  ASSERT_GE(first_free, 0);
  ::close(first_free);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(first_free) + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (const auto& client : idle) client->connect(server.port());
  const auto taken = time_of([&] {
    asks.connect(server.port());
    asks.send(get("/health"));
    EXPECT_EQ(asks.response(20'000).status, 200);
  });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(taken, milliseconds(3000));  // 300 pauses of the acceptor would be twice that
}

TEST(Lifetime, StoppingLetsRunningRequestsFinish) {
  RunningServer server({}, milliseconds(2));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(long_request(i % 2 == 0, 800));
  }
  while (server.engine.submitted() < 8) std::this_thread::sleep_for(milliseconds(2));
  RawClient open(server.port());
  open.send(get("/health"));
  EXPECT_EQ(open.response().status, 200);
  server.server->stop();
  std::this_thread::sleep_for(milliseconds(50));
  open.send(get("/health"));
  EXPECT_EQ(open.response().status, 503);
  EXPECT_EQ(server.ask(post("/v1/completions", R"({"prompt": "a"})")).status, 503);
  for (size_t i = 0; i < clients.size(); ++i) {
    const Response response = clients[i]->response(30'000);
    EXPECT_TRUE(response.whole);
    EXPECT_THAT(response.body, HasSubstr(i % 2 == 0 ? "[DONE]" : "\"length\""));
  }
  server.join();
  EXPECT_FALSE(RawClient(server.port()).connected());
}

TEST(Lifetime, StoppingEndsWhatTakesTooLongWithAnError) {
  ServerOptions options;
  options.shutdown_timeout = milliseconds(200);
  RunningServer server(options, milliseconds(10));
  RawClient stream(server.port());
  RawClient whole(server.port());
  stream.send(long_request(true));
  whole.send(long_request(false));
  while (server.engine.submitted() < 2) std::this_thread::sleep_for(milliseconds(2));
  const auto taken = time_of([&] {
    server.server->stop();
    server.server->stop();
    server.join();
  });
  EXPECT_LT(taken, milliseconds(2000));
  EXPECT_EQ(whole.response().status, 503);
  const Response response = stream.response();
  EXPECT_TRUE(response.whole);
  EXPECT_THAT(response.body, HasSubstr("\"code\":503"));
  EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
}

// Where it listens counts, not how that was called.
TEST(Lifetime, OnlyLoopbackAddressesAreForThisMachineAlone) {
  FakeModel model;
  FakeEngine engine;
  ServerOptions options;
  options.model_names = {"x"};
  options.port = 0;
  for (const auto& [host, alone] :
       {std::pair("127.0.0.1", true), std::pair("localhost", true), std::pair("127.9.9.9", true),
        std::pair("127.1", true), std::pair("::1", true), std::pair("0:0:0:0:0:0:0:1", true),
        std::pair("::ffff:127.0.0.1", true), std::pair("0.0.0.0", false), std::pair("::", false)}) {
    options.host = host;
    const auto server = Server::create(model, engine, options);
    const bool v6 = std::string(host).find(':') != std::string::npos;
    if (!server.ok() && v6) continue;  // a machine without it
    ASSERT_TRUE(server.ok()) << host << ": " << server.error().message;
    EXPECT_EQ((*server)->loopback_only(), alone) << host;
  }
}

TEST(Lifetime, APortInUseIsNamed) {
  const RunningServer server;
  FakeModel model;
  FakeEngine engine;
  ServerOptions options;
  options.port = server.port();
  options.model_names = {"x"};
  const auto second = Server::create(model, engine, options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr("in use"));
  options.host = "no such host";
  EXPECT_FALSE(Server::create(model, engine, options).ok());
  options.host = "192.0.2.1";
  EXPECT_FALSE(Server::create(model, engine, options).ok());
}

}  // namespace
}  // namespace kvart
