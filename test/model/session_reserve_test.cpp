// Room for steps to come: reserve, unreserve, has_room, and slots for more sequences than fit in
// full length.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kvart/session.h"

namespace kvart {
namespace {

class SessionReserve : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = Model::load(std::string(KVART_TINY_MODELS) + "/llama", 1);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(*model);
  }
  static void TearDownTestSuite() { model_.reset(); }

  static SessionOptions options(int64_t context, int64_t sequences, int64_t open = 0) {
    SessionOptions options;
    options.policy = parse_policy("int4").value().policy;
    options.context_tokens = context;
    options.max_sequences = sequences;
    options.open_sequences = open;
    options.max_step_tokens = 512;
    return options;
  }
  static std::unique_ptr<Session> session(const SessionOptions& options) {
    auto session = Session::create(*model_, options);
    EXPECT_TRUE(session.ok()) << session.error().message;
    return std::move(*session);
  }
  static std::unique_ptr<Model> model_;
};
std::unique_ptr<Model> SessionReserve::model_;

std::vector<int32_t> text(int count, int seed = 1) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 31 + seed * 7 + i * i % 11) % 256);
  return tokens;
}

std::vector<float> logits(Session& session, SequenceId sequence,
                          const std::vector<int32_t>& tokens) {
  const StepRequest request{sequence, tokens, WantLogits::last};
  const StepResult& result = session.step({&request, 1})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.error().message;
  return {result.logits.begin(), result.logits.end()};
}

void expect_all_free(const Session& session) {
  const SessionStats stats = session.stats();
  EXPECT_EQ(stats.pages_referenced, 0);
  EXPECT_EQ(stats.slots_referenced, 0);
}

// The answer of a cache to has_room is what reserve does, to the token, and asking changes nothing.
TEST_F(SessionReserve, RoomIsSaidAsItIs) {
  const auto one = session(options(512, 1, 4));
  const SequenceId a = *one->start({}, "");
  const SequenceId b = *one->start({}, "");
  logits(*one, a, text(200));
  for (int tokens = 0; tokens < 512; tokens += tokens < 380 ? 37 : 1) {
    const SessionStats before = one->stats();
    const bool room = one->has_room(b, tokens);
    EXPECT_EQ(one->stats().pages_free, before.pages_free);
    EXPECT_EQ(one->stats().evictions, before.evictions);
    const Status status = one->reserve(b, text(tokens));
    ASSERT_EQ(status.ok(), room) << tokens;
    if (!room) {
      EXPECT_EQ(status.error().code, ErrorCode::out_of_memory);
    }
    EXPECT_EQ(one->length(b), 0);
    one->unreserve(b);
    EXPECT_EQ(one->stats().pages_referenced, before.pages_referenced);
    EXPECT_EQ(one->stats().slots_referenced, before.slots_referenced);
  }
  // 7 sealed blocks of a whole context; two of them are a's, and b's sixth has no page.
  EXPECT_TRUE(one->has_room(b, 64 * 6 + 63));
  EXPECT_FALSE(one->has_room(b, 64 * 7));
  one->release(a);
  EXPECT_TRUE(one->has_room(b, 64 * 7));
  // What is asked for several sequences together isn't bounded by the context of one.
  EXPECT_FALSE(one->has_room(b, 100'000));
}

TEST_F(SessionReserve, WhatIsReservedIsRunAndGivesTheSameBits) {
  const auto alone = session(options(512, 2));
  const SequenceId other = *alone->start({}, "");
  const auto expected = logits(*alone, other, text(150));
  const auto rest = logits(*alone, other, text(100, 3));

  const auto one = session(options(512, 1, 4));
  const SequenceId a = *one->start({}, "");
  ASSERT_TRUE(one->reserve(a, text(150)).ok());
  // Another sequence takes all that is left; the first one's step has its room.
  const SequenceId b = *one->start({}, "");
  int taken = 0;
  while (one->has_room(b, 1)) {
    logits(*one, b, {taken % 256});
    ++taken;
  }
  EXPECT_EQ(taken, 511);  // a sink block, six sealed ones, and the open one until it is full
  const std::vector<int32_t> last = text(1);
  const StepRequest request{b, last, WantLogits::last};
  EXPECT_EQ(one->step({&request, 1})[0].status.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(logits(*one, a, text(150)), expected);
  EXPECT_EQ(one->length(a), 150);
  const Status full = one->reserve(a, text(100, 3));
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(one->length(a), 150);
  one->release(b);
  ASSERT_TRUE(one->reserve(a, text(100, 3)).ok());
  one->unreserve(a);
  EXPECT_EQ(one->length(a), 150);
  one->unreserve(a);  // there is none
  EXPECT_EQ(logits(*one, a, text(100, 3)), rest);
  ASSERT_TRUE(one->reserve(a, text(64)).ok());
  one->release(a);
  expect_all_free(*one);
}

// The open block's rows are what they were, wherever the reservation ended.
TEST_F(SessionReserve, UnreservedItGoesOnAsBefore) {
  for (const int length : {1, 63, 64, 65, 100, 128}) {
    for (const int more : {1, 27, 28, 63, 64, 65, 200}) {
      const auto one = session(options(512, 2));
      const SequenceId straight = *one->start({}, "");
      const SequenceId sequence = *one->start({}, "other");
      logits(*one, straight, text(length));
      logits(*one, sequence, text(length));
      ASSERT_TRUE(one->reserve(sequence, text(more, 9)).ok());
      one->unreserve(sequence);
      EXPECT_TRUE(one->truncate(sequence, length).ok());
      EXPECT_EQ(logits(*one, sequence, text(80, 5)), logits(*one, straight, text(80, 5)))
          << length << " + " << more;
    }
  }
}

TEST_F(SessionReserve, TheContextIsLookedAtByReserveAlone) {
  const auto one = session(options(128, 4));
  const SequenceId a = *one->start({}, "");
  EXPECT_TRUE(one->has_room(a, 129));
  const Status status = one->reserve(a, text(129));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message,
              testing::AllOf(testing::HasSubstr("129"), testing::HasSubstr("128")));
  EXPECT_TRUE(one->reserve(a, text(128)).ok());
}

TEST_F(SessionReserve, OtherTokensThanReservedAreABug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto one = session(options(128, 2));
  const SequenceId a = *one->start({}, "");
  ASSERT_TRUE(one->reserve(a, text(5)).ok());
  EXPECT_DEATH(logits(*one, a, text(4)), "room for other tokens");
  EXPECT_DEATH(static_cast<void>(one->reserve(a, text(5))), "uncommitted tokens");
  EXPECT_DEATH(static_cast<void>(one->has_room(a, 1)), "uncommitted tokens");
  EXPECT_DEATH(static_cast<void>(one->truncate(a, 0)), "has a reservation");
}

// Memory for one sequence of full length runs many short ones, once they have slots.
TEST_F(SessionReserve, ShortSequencesRunInTheMemoryOfALongOne) {
  for (const int64_t open : {0, 7}) {
    const auto one = session(options(512, 1, open));
    EXPECT_EQ(one->plan().sequences, 1);
    EXPECT_EQ(one->allocated_cache_bytes(), one->plan().total_bytes);
    EXPECT_EQ(one->stats().slots_total, 2 * std::max<int64_t>(1, open));
    int running = 0;
    for (int i = 0; i < 8; ++i) {
      const SequenceId id = *one->start({}, "");
      if (!one->has_room(id, 100)) break;
      logits(*one, id, text(100, i));
      ++running;
    }
    EXPECT_EQ(running, open == 0 ? 1 : 7);
  }
}

TEST_F(SessionReserve, PrefixQueriesAreCounted) {
  const auto one = session(options(512, 1));
  const SequenceId a = *one->start(text(200), "");
  logits(*one, a, text(200));
  one->release(a);
  one->release(*one->start(text(200), ""));
  const SessionStats stats = one->stats();
  EXPECT_EQ(stats.prefix_queries_tokens, 400);
  EXPECT_EQ(stats.prefix_hits_tokens, 192);
  EXPECT_EQ(stats.evictions, 0);
  EXPECT_EQ(stats.host_bytes_total, 0);
}

}  // namespace
}  // namespace kvart
