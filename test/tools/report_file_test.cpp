// Reading of reports that anyone may have written, and what is compared of two of them.
#include "tools/compare/report_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "sample_reports.h"
#include "tools/compare/difference.h"
#include "tools/compare/gate.h"

namespace kvart::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

ReportFile read(const Json& json) {
  auto file = parse_reports(json.dump(), "x.json");
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
  return file.ok() ? *file : ReportFile{};
}

std::string refusal(const std::string& text) {
  const auto file = parse_reports(text, "x.json");
  return file.ok() ? "" : file.error().message;
}

Json divergence(double kld) {
  return {
      {"schema", "kvart.eval-divergence.v1"},
      {"version", "1"},
      {"hashes", {{"model", "a"}, {"text", "b"}}},
      {"row_keys", {{"divergence", {"policy"}}}},
      {"divergence", {{{"policy", "f16"}, {"kl_mean", 0}}, {{"policy", "q"}, {"kl_mean", kld}}}}};
}

TEST(ReportFile, WhatWeWriteIsReadBack) {
  const auto reports = sample_reports();
  const ReportFile file = read(page_json(sample_page(reports)));
  ASSERT_EQ(file.reports.size(), 4u);
  EXPECT_EQ(file.reports[0].schema, "kvart.gain.v1");
  EXPECT_FALSE(file.reports[0].incomplete);
  EXPECT_TRUE(file.reports[1].incomplete);
  const TableData* gain = file.reports[0].table("gain");
  ASSERT_NE(gain, nullptr);
  EXPECT_THAT(gain->row_keys, ElementsAre("policy", "context_tokens"));
  EXPECT_EQ(gain->rows.size(), reports[0].tables[0].rows.size());
  EXPECT_EQ(read(report_json(reports[0])).reports.size(), 1u);
}

TEST(ReportFile, WhatIsNoReportIsRefusedWithTheReason) {
  EXPECT_THAT(refusal(""), HasSubstr("x.json: isn't JSON"));
  EXPECT_THAT(refusal("{\"a\": 1,}"), HasSubstr("line 1, column 9"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("isn't a report"));
  EXPECT_THAT(refusal("{\"a\": 1, \"a\": 2}"), HasSubstr("'a' is there twice"));
  EXPECT_THAT(refusal("{\"schema\": \"kvart.gain.v9\"}"), HasSubstr("reads v1"));
  EXPECT_THAT(refusal("{\"schema\": \"other\"}"), HasSubstr("no schema of Kvart"));
  EXPECT_THAT(refusal("{\"schema\": 7}"), HasSubstr("no schema of Kvart"));
  EXPECT_THAT(refusal("{\"a\": 1e999}"), HasSubstr("isn't JSON"));
  EXPECT_THAT(refusal("{\"a\": \"\xFF\"}"), HasSubstr("isn't JSON"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("deeper than 32"));
  EXPECT_THAT(refusal(std::string(max_report_bytes + 1, ' ')), HasSubstr("more than"));
  EXPECT_THAT(refusal("{\"schema\": \"kvart.report.v1\", \"reports\": []}"), HasSubstr("no list"));
  EXPECT_THAT(refusal("{\"schema\": \"kvart.report.v1\", \"reports\": [3]}"),
              HasSubstr("report 1"));
}

TEST(ReportFile, TablesThatAreNoneAreRefused) {
  for (const auto& [from, to, words] : std::vector<std::array<std::string, 3>>{
           {R"([{"policy":"f16")", R"([3,{"policy":"f16")", "isn't an object"},
           {R"({"policy":"f16",)", R"({)", "row without 'policy'"},
           {R"(["policy"])", R"([])", "no columns"},
           {R"(["policy"])", R"([1])", "something else than names"},
           {R"("row_keys":{"divergence")", R"("row_keys":{"other")", "'other'"},
           {R"({"model":"a","text":"b"})", "[]", "hashes isn't an object"}}) {
    std::string text = divergence(0.1).dump();
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from << " in " << text;
    text.replace(at, from.size(), to);
    EXPECT_THAT(refusal(text), HasSubstr(words));
  }
}

TEST(ReportFile, AnyDamageEndsInAReportOrInOneLine) {
  const auto reports = sample_reports();
  const std::string whole = page_json(sample_page({reports[1]})).dump();
  std::mt19937 random(5);
  for (int round = 0; round < 1500; ++round) {
    std::string text = whole;
    for (size_t i = 0; i < 1 + random() % 3; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text.erase(at, random() % 40);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 60));
      }
      if (text.empty()) text = " ";
    }
    const auto file = parse_reports(text, "x.json");
    if (file.ok()) {
      (void)obstacles(*file, *file);
      EXPECT_TRUE(compare_reports(*file, *file).differences.empty());
      (void)run_gates(*file, {1.0, 0.5, {}});
    } else {
      EXPECT_THAT(file.error().message, HasSubstr("x.json"));
      EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
      EXPECT_LT(file.error().message.size(), 500u);
    }
  }
}

TEST(Difference, RowsAreMatchedByTheirNames) {
  Json a = divergence(0.1);
  Json b = divergence(0.3);
  std::swap(b["divergence"][0], b["divergence"][1]);
  b["divergence"].push_back({{"policy", "new"}, {"kl_mean", 1}});
  const Comparison comparison = compare_reports(read(a), read(b));
  ASSERT_EQ(comparison.tables.size(), 1u);
  EXPECT_EQ(comparison.tables[0].rows, 2u);
  EXPECT_EQ(comparison.tables[0].different, 1u);
  EXPECT_THAT(comparison.tables[0].only_b, ElementsAre("new"));
  ASSERT_EQ(comparison.differences.size(), 1u);
  const ValueDifference& one = comparison.differences[0];
  EXPECT_EQ(one.row, "q");
  EXPECT_NEAR(*one.difference(), 0.2, 1e-12);
  EXPECT_NEAR(*one.ratio(), 3, 1e-12);
  EXPECT_FALSE(one.table.empty());
}

TEST(Difference, RowsOfEqualNamesAreToldApart) {
  Json json = divergence(0.1);
  const Json row = json["divergence"][1];
  for (const char* policy : {"q (2)", "q", "q"}) {
    json["divergence"].push_back(row);
    json["divergence"].back()["policy"] = policy;
    json["divergence"].back()["kl_mean"] = json["divergence"].size();
  }
  const Comparison comparison = compare_reports(read(json), read(json));
  EXPECT_EQ(comparison.tables[0].rows, 5u);
  EXPECT_TRUE(comparison.differences.empty());
}

TEST(Difference, NoRatioToZeroAndNoDifferenceOfWords) {
  EXPECT_FALSE((ValueDifference{"", "", "", 0, 1}).ratio());
  EXPECT_TRUE((ValueDifference{"", "", "", 0, 1}).difference());
  EXPECT_FALSE((ValueDifference{"", "", "", "x", 1}).difference());
  EXPECT_FALSE((ValueDifference{"", "", "", nullptr, 1}).ratio());
}

TEST(Difference, WhatIsNotTheSameIsAnObstacle) {
  const ReportFile a = read(divergence(0.1));
  EXPECT_TRUE(obstacles(a, read(divergence(0.2))).empty());
  Json other = divergence(0.1);
  other["hashes"]["model"] = "z";
  EXPECT_THAT(obstacles(a, read(other)),
              ElementsAre(HasSubstr("not the same model (hash a and z)")));
  other["hashes"].erase("model");
  EXPECT_THAT(obstacles(a, read(other)), ElementsAre(HasSubstr("(hash a and -)")));
  // Another build is what one compares for.
  other = divergence(0.1);
  other["hashes"]["build"] = "c";
  EXPECT_TRUE(obstacles(a, read(other)).empty());
  EXPECT_EQ(read(other).reports[0].build, "c");
  other = divergence(0.1);
  other["schema"] = "kvart.gain.v1";
  EXPECT_EQ(obstacles(a, read(other)).size(), 2u);
  EXPECT_TRUE(pairs_of(a, read(other)).empty());
  other = divergence(0.1);
  other["row_keys"]["divergence"] = {"kl_mean"};
  EXPECT_THAT(obstacles(a, read(other)), ElementsAre(HasSubstr("named by other columns")));
}

TEST(Gate, LimitsAreKeptUpToTheirEnds) {
  const ReportFile file = read(divergence(0.1));
  EXPECT_TRUE(run_gates(file, {0.1, {}, {}})->at(1).passed);
  const auto rows = run_gates(file, {0.0999, {}, {}});
  EXPECT_TRUE(rows->at(0).passed);
  EXPECT_FALSE(rows->at(1).passed);
  EXPECT_EQ(run_gates(file, {0.05, {}, {"f16"}})->size(), 1u);
  EXPECT_THAT(run_gates(file, {1.0, {}, {"none"}}).error().message, HasSubstr("only f16, q"));
  EXPECT_THAT(run_gates(file, {{}, 0.5, {}}).error().message, HasSubstr("kvart eval needle"));
}

TEST(Gate, WhatHasNoNumberFails) {
  for (const Json& value : {Json(nullptr), Json("0.001"), Json(true), Json::object()}) {
    Json json = divergence(0);
    json["divergence"][1]["kl_mean"] = value;
    EXPECT_FALSE(run_gates(read(json), {1.0, {}, {}})->at(1).passed) << value.dump();
  }
  Json json = divergence(0);
  json["divergence"][1].erase("kl_mean");
  EXPECT_FALSE(run_gates(read(json), {1.0, {}, {}})->at(1).passed);
}

TEST(Gate, FoundIsAShareOfWhatWasAsked) {
  EXPECT_DOUBLE_EQ(*found_share({{"found", 6}, {"asked", 8}}), 0.75);
  EXPECT_FALSE(found_share({{"found", 0}, {"asked", 0}}));
  EXPECT_FALSE(found_share({{"found", 1}}));
}

}  // namespace
}  // namespace kvart::tools
