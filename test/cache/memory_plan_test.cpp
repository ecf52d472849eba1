// MemoryPlan: published figures, exact figures, windows, sinks, and sizes that can't be.
#include "kvart/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace kvart {
namespace {

using ::testing::HasSubstr;

CacheShape llama_3_8b() {
  return {std::vector<LayerShape>(32, LayerShape{8, 128, 0})};
}

Policy policy_of(const std::string& text) {
  Result<ParsedPolicy> parsed = parse_policy(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return parsed.ok() ? parsed->policy : Policy{};
}

Result<MemoryPlan> plan_llama(const std::string& policy, int64_t context, int64_t sequences,
                              uint64_t budget) {
  return plan_memory({llama_3_8b(), policy_of(policy), context, sequences, budget});
}

TEST(MemoryPlan, PublishedFiguresOfAnEightBillionModel) {
  const Result<MemoryPlan> plan = plan_llama("f16", 32768, 0, 60'000'000'000);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->f16_bytes_per_token, 131'072u);
  EXPECT_EQ(plan->sealed_bytes_per_token, 131'072.0);
  EXPECT_EQ(plan->effective_bits, 16.0);
  EXPECT_EQ(plan->sequences, 13);
  ASSERT_EQ(plan->groups.size(), 1u);
  const GroupPlan& group = plan->groups[0];
  EXPECT_EQ(group.pages_per_sequence, 512);
  EXPECT_EQ(group.slots_per_sequence, 1);
  EXPECT_EQ(group.page_bytes, 64u * 131'072u);
  EXPECT_EQ(group.pages_per_sequence * group.page_bytes, 4'294'967'296u);  // 4.29 GB
  EXPECT_EQ(plan->bytes_per_sequence, 4'294'967'296u + 64u * 131'072u);
}

TEST(MemoryPlan, ScalesAndOpenBlocksAreCounted) {
  const Result<MemoryPlan> fp8 = plan_llama("fp8", 32768, 0, 60'000'000'000);
  ASSERT_TRUE(fp8.ok());
  EXPECT_EQ(fp8->sealed_bytes_per_token, 32 * 8 * 2 * 130.0);
  EXPECT_EQ(fp8->bytes_per_sequence, 512u * 64 * 32 * 8 * 260 + 64u * 131'072u);
  EXPECT_EQ(fp8->sequences, 27);

  const Result<MemoryPlan> int4 = plan_llama("int4", 32768, 0, 60'000'000'000);
  ASSERT_TRUE(int4.ok());
  EXPECT_EQ(int4->sealed_bytes_per_token, 32 * 8 * 144.0);
  EXPECT_EQ(int4->effective_bits, 4.5);
  EXPECT_EQ(int4->groups[0].pages_per_sequence, 511);  // block 0 is the sink
  EXPECT_EQ(int4->groups[0].slots_per_sequence, 2);
  EXPECT_EQ(int4->bytes_per_sequence, 511u * 64 * 32 * 8 * 144 + 2u * 64 * 131'072u);
  EXPECT_EQ(int4->sequences, 49);  // 55 without scales, sink and open block
}

TEST(MemoryPlan, BytesPerTokenOfTheTableOfFormats) {
  const std::vector<std::pair<std::string, int>> side_bytes = {
      {"f16", 256},      {"bf16", 256},    {"fp8_e4m3", 130}, {"int8", 130},    {"int4_g32", 72},
      {"int2_c64", 40},  {"int3_c64", 56}, {"int4_c64", 72},  {"int5_c64", 88}, {"int6_c64", 104},
      {"int8_c64", 136}, {"int4_c32", 80}, {"int2_c32", 48},  {"int4_a32", 80}, {"int2_a32", 48}};
  EXPECT_EQ(side_bytes.size(), formats().size());
  for (const auto& [name, bytes] : side_bytes) {
    const Result<MemoryPlan> plan = plan_llama("k=" + name + ",v=" + name, 64, 1, 0);
    ASSERT_TRUE(plan.ok()) << name;
    EXPECT_EQ(plan->sealed_bytes_per_token, 32.0 * 8 * 2 * bytes) << name;
    EXPECT_EQ(plan->groups[0].padding_bytes, 0u) << name;
  }
}

TEST(MemoryPlan, PartsAddUpForEveryPresetAndHeadDim) {
  for (const Preset& preset : presets()) {
    for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
      const CacheShape shape = {std::vector<LayerShape>(5, LayerShape{3, head_dim, 0})};
      const Result<MemoryPlan> plan =
          plan_memory({shape, policy_of(std::string(preset.name)), 1000, 7, 0});
      ASSERT_TRUE(plan.ok()) << preset.name;
      const GroupPlan& group = plan->groups[0];
      EXPECT_EQ(group.code_bytes + group.parameter_bytes + group.padding_bytes, group.page_bytes);
      EXPECT_EQ(plan->bytes_per_sequence,
                static_cast<uint64_t>(group.pages_per_sequence) * group.page_bytes +
                    static_cast<uint64_t>(group.slots_per_sequence) * group.slot_bytes);
      EXPECT_EQ(plan->total_bytes, 7 * plan->bytes_per_sequence);
      EXPECT_EQ(group.pages, 7 * group.pages_per_sequence);
      EXPECT_EQ(group.slots, 7 * group.slots_per_sequence);
    }
  }
}

TEST(MemoryPlan, LayerRangesWithFormatsOfTheirOwn) {
  CacheShape shape = llama_3_8b();
  const Result<MemoryPlan> plan = plan_memory(
      {shape, policy_of("0-1:k=int8,v=f16,2-29:k=int4_c64,v=int4_g32,30-:fp8_e4m3"), 640, 1, 0});
  ASSERT_TRUE(plan.ok());
  const double bytes = 8.0 * (2 * (130 + 256) + 28 * 144 + 2 * 260);
  EXPECT_EQ(plan->sealed_bytes_per_token, bytes);
}

TEST(MemoryPlan, BlocksOfOneSequenceAgainstCounting) {
  for (int sinks = 0; sinks <= 3; ++sinks) {
    const std::string policy = "int4,sink=" + std::to_string(sinks);
    for (int64_t context = 1; context <= 400; ++context) {
      int64_t pages = 0;
      int64_t slots = 0;
      for (int64_t length = 1; length <= context; ++length) {  // while the sequence grows
        const int64_t full = length / 64;
        const int64_t own = (length - 1) / 64;
        pages = std::max(pages, full - std::min<int64_t>(full, sinks));
        slots = std::max(slots, std::min<int64_t>(own + 1, sinks) + (own >= sinks ? 1 : 0));
      }
      const Result<MemoryPlan> plan = plan_llama(policy, context, 1, 0);
      ASSERT_TRUE(plan.ok());
      EXPECT_EQ(plan->groups[0].pages_per_sequence, pages) << context << " sinks " << sinks;
      EXPECT_EQ(plan->groups[0].slots_per_sequence, slots) << context << " sinks " << sinks;
    }
  }
}

TEST(MemoryPlan, WindowedLayersHoldWhatTheWindowTouches) {
  for (const int sinks : {0, 1, 3}) {
    for (const int window : {1, 2, 63, 64, 65, 66, 127, 128, 129, 130, 200, 1024}) {
      for (const int64_t context : {1, 64, 65, 300, 700, 1500}) {
        int64_t pages = 0;
        int64_t slots = 0;
        for (int64_t p = 0; p < context; ++p) {
          const int64_t own = p / 64;
          const int64_t oldest = std::max<int64_t>(0, p - window + 1) / 64;
          int64_t sealed = own >= sinks && p % 64 == 63 ? 1 : 0;
          int64_t full_precision = 1;
          for (int64_t block = oldest; block < own; ++block)
            ++(block < sinks ? full_precision : sealed);
          pages = std::max(pages, sealed);
          slots = std::max(slots, full_precision);
        }
        const CacheShape shape = {{{2, 64, window}}};
        const Result<MemoryPlan> plan =
            plan_memory({shape, policy_of("int4,sink=" + std::to_string(sinks)), context, 1, 0});
        ASSERT_TRUE(plan.ok());
        const GroupPlan& group = plan->groups[0];
        EXPECT_EQ(group.window, window);
        EXPECT_GE(group.pages_per_sequence, pages) << window << " " << context << " " << sinks;
        EXPECT_LE(group.pages_per_sequence, pages + 1) << window << " " << context << " " << sinks;
        EXPECT_GE(group.slots_per_sequence, slots) << window << " " << context << " " << sinks;
        EXPECT_LE(group.slots_per_sequence, slots + 1) << window << " " << context << " " << sinks;
      }
    }
  }
}

TEST(MemoryPlan, StepsNeedTheMoreTheLongerTheyAre) {
  const CacheShape shape = {{{2, 64, 0}, {2, 64, 512}}};  // 8 blocks in the window, 9 pages
  const auto plan_of = [&](int64_t context, int64_t sequences, int64_t step_tokens, int sinks) {
    const Policy policy = policy_of("int4,sink=" + std::to_string(sinks));
    const Result<MemoryPlan> plan =
        plan_memory({shape, policy, context, sequences, 0, step_tokens});
    EXPECT_TRUE(plan.ok());
    EXPECT_EQ(plan->groups[0].step_pages + plan->groups[0].step_slots, 0);
    for (const GroupPlan& group : plan->groups) {
      EXPECT_EQ(group.pages, sequences * group.pages_per_sequence + group.step_pages);
      EXPECT_EQ(group.slots, sequences * group.slots_per_sequence + group.step_slots);
    }
    EXPECT_EQ(plan->total_bytes, sequences * plan->bytes_per_sequence + plan->step_bytes);
    return plan->groups[1];
  };
  for (const auto& [step_tokens, pages] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 0}, {64, 0}, {65, 1}, {128, 1}, {512, 7}, {513, 8}, {4096, 8}}) {
    EXPECT_EQ(plan_of(8192, 1, step_tokens, 0).step_pages, pages) << step_tokens;
    EXPECT_EQ(plan_of(8192, 1, step_tokens, 1).step_slots, 0) << step_tokens;
  }
  EXPECT_EQ(plan_of(8192, 100, 512, 0).step_pages, 7);
  EXPECT_EQ(plan_of(8192, 100, 4096, 0).step_pages, 63);
  EXPECT_EQ(plan_of(8192, 2, 1 << 20, 0).step_pages, 16);
  EXPECT_EQ(plan_of(64 * 11, 2, 1 << 20, 0).step_pages, 4);  // 11 blocks in all
  EXPECT_EQ(plan_of(64 * 9, 2, 1 << 20, 0).step_pages, 0);
  // 12 sinks, at most 10 of which one block after another holds.
  EXPECT_EQ(plan_of(8192, 1, 1 << 20, 12).slots_per_sequence, 10);
  EXPECT_EQ(plan_of(8192, 1, 1 << 20, 12).step_slots, 3);
  EXPECT_EQ(plan_of(8192, 3, 130, 12).step_slots, 2);
  EXPECT_FALSE(plan_memory({shape, policy_of("int4"), 640, 1, 0, 0}).ok());
}

// input: with max_sequences and without a budget. What so many sequences take is a budget for just
// so many; a byte less holds one less, or is refused with both figures.
void expect_filled_budget(MemoryPlanInput input) {
  const uint64_t bytes = plan_memory(input)->total_bytes;
  const int64_t sequences = std::exchange(input.max_sequences, 0);
  input.budget_bytes = bytes;
  EXPECT_EQ(plan_memory(input)->sequences, sequences);
  EXPECT_EQ(plan_memory(input)->total_bytes, bytes);
  input.budget_bytes = bytes - 1;
  const Result<MemoryPlan> less = plan_memory(input);
  ASSERT_EQ(less.ok(), sequences > 1);
  if (less.ok()) {
    EXPECT_EQ(less->sequences, sequences - 1);
  } else {
    EXPECT_EQ(less.error().code, ErrorCode::out_of_memory);
    EXPECT_THAT(less.error().message, HasSubstr(std::to_string(bytes) + " bytes"));
    EXPECT_THAT(less.error().message, HasSubstr(std::to_string(bytes - 1) + " bytes"));
  }
}

TEST(MemoryPlan, ABudgetIsFilledWithStepsCounted) {
  const CacheShape shape = {{{2, 64, 0}, {2, 64, 512}}};
  for (const int64_t sequences : {1, 2, 3, 50}) {
    const MemoryPlanInput input = {shape, policy_of("int8"), 8192, sequences, 0, 2048};
    expect_filled_budget(input);
  }
}

// Slots for short sequences beyond those that fit in full length; pages stay.
TEST(MemoryPlan, OpenSequencesHaveSlots) {
  const CacheShape shape = {{{2, 64, 0}, {2, 64, 512}}};
  for (const int64_t sequences : {1, 3}) {
    MemoryPlanInput input = {shape, policy_of("int4,sink=12"), 8192, sequences, 0, 2048};
    const MemoryPlan plain = *plan_memory(input);
    EXPECT_EQ(plain.open_sequences, sequences);
    EXPECT_EQ(plain.open_bytes, 0u);
    for (const int64_t open : {1, 3, 4, 40}) {
      input.open_sequences = open;
      const MemoryPlan plan = *plan_memory(input);
      EXPECT_EQ(plan.sequences, sequences);
      EXPECT_EQ(plan.open_sequences, std::max(open, sequences));
      EXPECT_EQ(plan.bytes_per_sequence, plain.bytes_per_sequence);
      EXPECT_EQ(plan.total_bytes, static_cast<uint64_t>(sequences) * plan.bytes_per_sequence +
                                      plan.open_bytes + plan.step_bytes);
      uint64_t bytes = 0;
      uint64_t more = 0;
      for (size_t g = 0; g < plan.groups.size(); ++g) {
        const GroupPlan& group = plan.groups[g];
        EXPECT_EQ(group.pages, plain.groups[g].pages);
        EXPECT_EQ(group.slots, plan.open_sequences * group.slots_per_sequence + group.step_slots);
        EXPECT_GE(group.step_slots, plain.groups[g].step_slots);
        bytes += static_cast<uint64_t>(group.pages) * group.page_bytes +
                 static_cast<uint64_t>(group.slots) * group.slot_bytes;
        more +=
            static_cast<uint64_t>((plan.open_sequences - sequences) * group.slots_per_sequence) *
            group.slot_bytes;
      }
      EXPECT_EQ(plan.total_bytes, bytes);
      EXPECT_EQ(plan.open_bytes, more);
    }
  }
}

TEST(MemoryPlan, ABudgetIsFilledWithOpenSequencesCounted) {
  for (const int64_t open : {1, 5, 30}) {
    for (const int64_t sequences : {1, 2, 7}) {
      const MemoryPlanInput input = {llama_3_8b(), policy_of("int4"), 8192, sequences, 0, 512,
                                     open};
      expect_filled_budget(input);
    }
  }
  MemoryPlanInput input = {llama_3_8b(), policy_of("int4"), 8192, 1, 0, 512, -1};
  EXPECT_FALSE(plan_memory(input).ok());
  input.open_sequences = std::numeric_limits<int64_t>::max();
  ASSERT_FALSE(plan_memory(input).ok());
  EXPECT_THAT(plan_memory(input).error().message, HasSubstr("64 bits"));
  input.budget_bytes = 60'000'000'000;
  EXPECT_FALSE(plan_memory(input).ok());
}

TEST(MemoryPlan, LayersGroupByWindowFullOnesFirst) {
  CacheShape shape;
  for (int i = 0; i < 8; ++i)
    shape.layers.push_back({4, 128, i % 4 == 3 ? 0 : (i < 4 ? 1024 : 512)});
  const Result<MemoryPlan> plan = plan_memory({shape, policy_of("int8"), 8192, 2, 0});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->groups.size(), 3u);
  EXPECT_EQ(plan->groups[0].window, 0);
  EXPECT_EQ(plan->groups[0].layers, (std::vector<int>{3, 7}));
  EXPECT_EQ(plan->groups[1].window, 512);
  EXPECT_EQ(plan->groups[1].layers, (std::vector<int>{4, 5, 6}));
  EXPECT_EQ(plan->groups[2].window, 1024);
  EXPECT_EQ(plan->groups[2].layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(plan->groups[0].pages_per_sequence, 128);
  EXPECT_EQ(plan->groups[1].pages_per_sequence, 9);
  EXPECT_EQ(plan->groups[2].pages_per_sequence, 17);
  // What a token costs in the long run: windowed layers grow no more.
  EXPECT_EQ(plan->sealed_bytes_per_token, 2 * 4 * 260.0);
  EXPECT_EQ(plan->f16_bytes_per_token, 8u * 4 * 512);
  uint64_t bytes = 0;
  for (const GroupPlan& group : plan->groups) {
    bytes += static_cast<uint64_t>(group.pages) * group.page_bytes +
             static_cast<uint64_t>(group.slots) * group.slot_bytes;
  }
  EXPECT_EQ(plan->total_bytes, bytes);
}

TEST(MemoryPlan, BudgetAndSequencesTogetherTakeTheSmaller) {
  EXPECT_EQ(plan_llama("f16", 32768, 4, 60'000'000'000)->sequences, 4);
  EXPECT_EQ(plan_llama("f16", 32768, 40, 60'000'000'000)->sequences, 13);
  const Result<MemoryPlan> exact = plan_llama("int4", 32768, 3, 0);
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(plan_llama("int4", 32768, 0, exact->total_bytes)->sequences, 3);
  EXPECT_EQ(plan_llama("int4", 32768, 0, exact->total_bytes - 1)->sequences, 2);
}

TEST(MemoryPlan, BudgetTooSmallSaysBothFigures) {
  const Result<MemoryPlan> plan = plan_llama("f16", 32768, 0, 4'000'000'000);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(plan.error().message, HasSubstr("4303355904 bytes (4.30 GB)"));
  EXPECT_THAT(plan.error().message, HasSubstr("4000000000 bytes (4.00 GB)"));
}

TEST(MemoryPlan, ShapesThatCanNotBe) {
  const Policy policy = policy_of("int4");
  EXPECT_FALSE(plan_memory({{}, policy, 64, 1, 0}).ok());
  for (const int head_dim : {-16, 0, 8, 40, 72, 264, 320, 576}) {
    const Result<MemoryPlan> plan = plan_memory({{{{1, head_dim, 0}}}, policy, 64, 1, 0});
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().code, ErrorCode::unsupported);
    EXPECT_THAT(plan.error().message, HasSubstr(std::to_string(head_dim)));
  }
  EXPECT_FALSE(plan_memory({{{{0, 64, 0}}}, policy, 64, 1, 0}).ok());
  EXPECT_FALSE(plan_memory({{{{-1, 64, 0}}}, policy, 64, 1, 0}).ok());
  EXPECT_FALSE(plan_memory({{{{1, 64, -1}}}, policy, 64, 1, 0}).ok());
  EXPECT_FALSE(plan_memory({{{{1, 64, 0}}}, policy, 0, 1, 0}).ok());
  EXPECT_FALSE(plan_memory({{{{1, 64, 0}}}, policy, -5, 1, 0}).ok());
  EXPECT_FALSE(plan_memory({{{{1, 64, 0}}}, policy, 64, -1, 0}).ok());
  EXPECT_FALSE(plan_memory({{{{1, 64, 0}}}, policy, 64, 0, 0}).ok());
  EXPECT_FALSE(plan_memory({{{{1, 64, 0}}}, policy_of("0-3:int8"), 64, 1, 0}).ok());
  EXPECT_FALSE(plan_memory({llama_3_8b(), policy_of("0-3:int8"), 64, 1, 0}).ok());
}

TEST(MemoryPlan, SizesThatDoNotFitIn64Bits) {
  constexpr int64_t int64_max = std::numeric_limits<int64_t>::max();
  constexpr int int_max = std::numeric_limits<int>::max();
  for (const auto& [context, sequences] : std::vector<std::pair<int64_t, int64_t>>{
           {int64_max, 1}, {1, int64_max}, {int64_max, int64_max}, {int64_t{1} << 45, 1 << 20}}) {
    const Result<MemoryPlan> plan = plan_llama("int4", context, sequences, 0);
    ASSERT_FALSE(plan.ok()) << context << " " << sequences;
    EXPECT_THAT(plan.error().message, HasSubstr("64 bits"));
  }
  // A budget of all there is leaves room for at least one sequence, and for no overflow.
  const Result<MemoryPlan> largest =
      plan_llama("int4", 64, 0, std::numeric_limits<uint64_t>::max());
  ASSERT_TRUE(largest.ok());
  EXPECT_GT(largest->sequences, 1);
  EXPECT_GT(largest->groups[0].slots, 0);
  const CacheShape wide = {std::vector<LayerShape>(1 << 16, LayerShape{int_max, 256, 0})};
  EXPECT_FALSE(plan_memory({wide, policy_of("f16"), 64, 1, 0}).ok());
}

TEST(MemoryPlan, OpenBlocksAreFullPrecision) {
  EXPECT_TRUE(open_block_format().full_precision);
  EXPECT_EQ(open_block_format().name, "f16");
  EXPECT_EQ(open_block_format().side_bytes(128), 64u * 256u);
}

}  // namespace
}  // namespace kvart
