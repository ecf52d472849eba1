// A whole report's parts: what was saved comes back, what is damaged is refused, and what follows
// from the findings.
#include "tools/whole/whole_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tools/whole/findings.h"
#include "tools/whole/saved_report.h"

namespace kvart::tools {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

Report sample_report() {
  Report report;
  report.command = "eval-sample";
  report.facts = {"a fact", "another"};
  report.inputs = {{"model", "m"}, {"list", {1, 2}}};
  report.hashes = {{"model", "00ff"}};
  report.tables = {{"main",
                    "a title",
                    {{"policy", "policy", false}, {"kld", "KL"}},
                    {{{"f16", "f16"}, {"-", nullptr}}, {{"int4", "int4"}, {"0.5", 0.5}}},
                    1}};
  report.records = {{"cells", "", {{"n", "n"}}, {{{"3", 3}}}}};
  LineChart lines{"lines", "x", "y", true, false, true, {}};
  lines.lines.push_back({"a", {{1, 2, 1.5, 2.5, true}, {2, 3, {}, {}, false}}, false, ""});
  lines.lines.push_back({"b", {}, true, "a"});
  HeatMap heat{"heat", "x", "y", {"1k", "2k"}, {"0 %"}, {{{0.5, "50", true}, {{}, "", false}}},
               0,      1};
  BarChart bars{"bars", "x", "y", true, {"g"}, {"K", "V"}, {{{1, 0.5, 2}, {2, {}, {}}}}};
  report.figures = {{lines, "main"}, {heat, "main"}, {bars, "cells"}};
  report.incomplete = true;
  report.notes = {"a note"};
  report.verdict = "a verdict";
  report.verdict_facts = {{"fits", true}};
  report.flag = "--kv-cache-dtype int4";
  return report;
}

TEST(SavedReport, ComesBackAsItWas) {
  const Report report = sample_report();
  const auto back = restored_report(saved_report(report));
  ASSERT_TRUE(back.ok());
  // Nothing is left out: what is saved again is the same, and it names all that the sample has.
  EXPECT_EQ(saved_report(*back), saved_report(report));
  EXPECT_EQ(back->command, report.command);
  EXPECT_EQ(back->tables[0].rows[1][1].value, 0.5);
  EXPECT_TRUE(back->tables[0].rows[0][1].value.is_null());
  EXPECT_EQ(back->tables[0].keys, 1u);
  EXPECT_EQ(back->records[0].key, "cells");
  const auto& lines = std::get<LineChart>(back->figures[0].figure);
  EXPECT_EQ(lines.lines[0].points[0].high, 2.5);
  EXPECT_EQ(lines.lines[1].pair_of, "a");
  EXPECT_TRUE(std::get<HeatMap>(back->figures[1].figure).cells[0][0].set_aside);
  EXPECT_EQ(std::get<BarChart>(back->figures[2].figure).bars[0][0].low, 0.5);
  EXPECT_TRUE(back->incomplete);
  // As text and back, as in the file.
  EXPECT_TRUE(restored_report(Json::parse(saved_report(report).dump())).ok());
}

// Every member of every object, taken away or of another type.
void for_each_damage(Json& whole, Json& part, const std::function<void(const std::string&)>& check,
                     const std::string& path) {
  if (part.is_object()) {
    std::vector<std::string> keys;
    for (const auto& item : part.items()) keys.push_back(item.key());
    for (const std::string& key : keys) {
      const Json before = part[key];
      part.erase(key);
      check(path + "/" + key + " missing");
      part[key] = before;
      for_each_damage(whole, part[key], check, path + "/" + key);
    }
  } else if (part.is_array()) {
    for (size_t i = 0; i < part.size(); ++i) {
      for_each_damage(whole, part[i], check, path + "/" + std::to_string(i));
    }
  }
}

TEST(SavedReport, WhatIsMissingIsRefused) {
  Json json = saved_report(sample_report());
  // What a command puts there is its own; it may be anything.
  for (const char* free : {"inputs", "hashes", "verdict_facts"}) json[free] = Json();
  int tried = 0;
  for_each_damage(
      json, json,
      [&](const std::string& what) {
        ++tried;
        EXPECT_FALSE(restored_report(json).ok()) << what;
      },
      "");
  EXPECT_GT(tried, 60);
}

TEST(SavedReport, OtherTypesAreRefused) {
  for (const Json& other : {Json(), Json(3), Json("text"), Json::array(), Json::object()}) {
    EXPECT_FALSE(restored_report(other).ok()) << other;
    Json json = saved_report(sample_report());
    if (!other.is_array()) {
      json["tables"] = other;
      EXPECT_FALSE(restored_report(json).ok()) << other;
    }
    json = saved_report(sample_report());
    json["tables"][0]["rows"][0] = other;
    EXPECT_FALSE(restored_report(json).ok()) << other;
    json = saved_report(sample_report());
    json["figures"][1]["figure"]["cells"] = other;
    EXPECT_FALSE(restored_report(json).ok()) << other;
  }
}

TEST(SavedReport, WhatCannotBeWrittenAgainIsRefused) {
  Json json = saved_report(sample_report());
  for (const Json& keys : {Json(3u), Json(-1), Json(0.5), Json("1")}) {
    json["tables"][0]["keys"] = keys;
    EXPECT_FALSE(restored_report(json).ok()) << keys;
  }
  json["tables"][0]["keys"] = 2u;
  ASSERT_TRUE(restored_report(json).ok());
  (void)report_json(*restored_report(json));
  for (const char* own : {"inputs", "hashes", "verdict_facts"}) {
    for (const Json& other : {Json(3), Json("text"), Json::array()}) {
      Json damaged = json;
      damaged[own] = other;
      EXPECT_FALSE(restored_report(damaged).ok()) << own << other;
    }
    json[own] = Json();
  }
  ASSERT_TRUE(restored_report(json).ok());
  (void)report_json(*restored_report(json));
}

std::string unfinished_text(const Json& report) {
  return Json{{"schema", "kvart.unfinished-report.v1"},
              {"key", "k"},
              {"findings", findings_json({})},
              {"sections", {{{"name", "gain"}, {"title", "Gain"}, {"report", report}}}}}
      .dump();
}

TEST(UnfinishedReport, IsReadOrRefusedWithTheFilesName) {
  const Json report = saved_report(sample_report());
  const auto whole = parse_unfinished(unfinished_text(report), "a.unfinished", "k");
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  ASSERT_EQ(whole->sections.size(), 1u);
  EXPECT_EQ(whole->sections[0].title, "Gain");
  EXPECT_EQ(saved_report(whole->sections[0].report), report);
  Json deep = report;
  for (int i = 0; i < 40; ++i) deep["inputs"] = Json{{"in", deep["inputs"]}};
  const std::string right = unfinished_text(report);
  for (const auto& [text, why] : {std::pair(unfinished_text(deep), "nested deeper"),
                                  {right.substr(0, 99), "isn't JSON"},
                                  {std::string("[]"), "not an unfinished report"},
                                  {unfinished_text(Json()), "not a report"}}) {
    const auto refused = parse_unfinished(text, "a.unfinished", "k");
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_THAT(refused.error().message, HasSubstr("a.unfinished: "));
    EXPECT_THAT(refused.error().message, HasSubstr(why));
  }
  EXPECT_THAT(parse_unfinished(right, "a", "other").error().message, HasSubstr("another build"));
}

TEST(UnfinishedReport, WhatItsUnfinishedSectionsFoundIsForgotten) {
  Findings findings;
  findings.gain_context_tokens = 4096;
  findings.policies.resize(1);
  PolicyFindings& policy = findings.policies[0];
  policy.word = "int4";
  policy.kl = 0.006;
  policy.close = true;
  policy.retrieval = Retrieval::kept;
  policy.found = policy.full_found = 3;
  policy.speed_up = policy.speed_up_low = policy.speed_up_high = 1.5;
  policy.sequences_ratio = 3;
  const auto read = [&](const std::vector<const char*>& sections) {
    Json json = Json::parse(unfinished_text(saved_report(sample_report())));
    json["findings"] = findings_json(findings);
    const Json section = json["sections"][0];
    json["sections"] = Json::array();
    for (const char* name : sections) {
      json["sections"].push_back(section);
      json["sections"].back()["name"] = name;
    }
    const auto whole = parse_unfinished(json.dump(), "a.unfinished", "k");
    EXPECT_TRUE(whole.ok());
    return whole->findings;
  };
  const Findings all = read({"gain", "needle", "divergence"});
  EXPECT_EQ(findings_json(all), findings_json(findings));
  const Findings gain = read({"gain"});
  EXPECT_EQ(gain.policies[0].speed_up, 1.5);
  EXPECT_FALSE(gain.policies[0].kl.has_value());
  EXPECT_EQ(gain.policies[0].retrieval, Retrieval::unknown);
  const Findings rest = read({"needle", "divergence"});
  EXPECT_EQ(rest.policies[0].speed_up, 0);
  EXPECT_EQ(rest.gain_context_tokens, 0);
  EXPECT_EQ(rest.policies[0].found, 3);
  EXPECT_EQ(rest.policies[0].kl, 0.006);
}

PolicyFindings found(const std::string& word, double share, double kl, Retrieval retrieval,
                     double speed_up = 0) {
  PolicyFindings policy;
  policy.word = word;
  policy.share = share;
  policy.kl = kl;
  policy.close = kl <= 0.02;
  policy.retrieval = retrieval;
  policy.found = retrieval == Retrieval::destroyed ? 1 : 8;
  policy.full_found = 8;
  policy.speed_up = speed_up;
  policy.speed_up_low = 0.95 * speed_up;
  policy.speed_up_high = 1.05 * speed_up;
  policy.sequences_ratio = 1 / share;
  return policy;
}

TEST(Findings, TheSmallestThatKeepsTheAnswersIsNamed) {
  Findings findings;
  findings.gain_context_tokens = 8192;
  findings.policies = {found("fp8", 0.51, 0.004, Retrieval::kept, 1.3),
                       found("int4", 0.28, 0.006, Retrieval::kept, 2.0),
                       found("int4_g32", 0.28, 0.5, Retrieval::destroyed, 2.0),
                       found("kivi2", 0.19, 0.3, Retrieval::unknown, 2.2)};
  const Choice choice = choose(findings);
  ASSERT_NE(choice.smallest, nullptr);
  EXPECT_EQ(choice.smallest->word, "int4");
  EXPECT_EQ(choice.fastest, nullptr);
  const std::string text = whole_verdict(findings, choice, "f16");
  EXPECT_THAT(text, HasSubstr("Use int4: 28 % of the bytes"));
  EXPECT_THAT(text, HasSubstr("At 8,192 tokens the same memory holds 3.57 times as many sequences, "
                              "and all of them together decode 2.00 times as many tokens a second "
                              "(1.90 to 2.10 in the rounds, measured)."));
  EXPECT_THAT(text, HasSubstr("Don't use int4_g32: retrieval is destroyed."));
  EXPECT_THAT(text, Not(HasSubstr("estimated")));
}

TEST(Findings, AFasterOneThatKeepsTheAnswersIsNamedToo) {
  Findings findings;
  findings.policies = {found("int8", 0.51, 0.003, Retrieval::kept, 1.6),
                       found("int4", 0.28, 0.006, Retrieval::kept, 1.2),
                       found("k5v4", 0.31, 0.5, Retrieval::damaged, 3)};
  const Choice choice = choose(findings);
  ASSERT_NE(choice.fastest, nullptr);
  EXPECT_EQ(choice.fastest->word, "int8");
  EXPECT_THAT(whole_verdict(findings, choice, "f16"),
              HasSubstr("int8 decodes faster, 1.60 times as many tokens a second (1.52 to 1.68 in "
                        "the rounds, measured)"));
  // Not in every round: then it isn't said.
  findings.policies[0].speed_up_low = 1.2;
  EXPECT_EQ(choose(findings).fastest, nullptr);
}

TEST(Findings, EstimatesAreSaidInTheSentenceThatNamesThem) {
  Findings findings;
  findings.policies = {found("int8", 0.51, 0.003, Retrieval::kept, 1.6),
                       found("int4", 0.28, 0.006, Retrieval::kept, 1.2)};
  findings.policies[0].speed_up_estimated = true;
  EXPECT_THAT(whole_verdict(findings, choose(findings), "f16"),
              HasSubstr("int8 decodes faster, 1.60 times as many tokens a second (1.52 to 1.68 in "
                        "the rounds, estimated from steps of fewer sequences)"));
  findings.policies[1].speed_up_estimated = true;
  EXPECT_THAT(whole_verdict(findings, choose(findings), "f16"),
              HasSubstr("1.20 times as many tokens a second (1.14 to 1.26 in the rounds, estimated "
                        "from steps of fewer sequences)."));
}

TEST(Findings, RoundsOnBothSidesOfOneAreNoGainInSpeed) {
  Findings findings;
  findings.policies = {found("int4", 0.28, 0.006, Retrieval::kept, 1.2)};
  EXPECT_THAT(whole_verdict(findings, choose(findings), "f16"), Not(HasSubstr("certain")));
  findings.policies[0].speed_up_low = 0.9;
  EXPECT_THAT(whole_verdict(findings, choose(findings), "f16"),
              HasSubstr("(0.90 to 1.26 in the rounds, measured): a gain in speed isn't certain."));
}

TEST(Findings, NoneThatKeepsTheAnswersMeansFullPrecision) {
  Findings findings;
  findings.policies = {found("int4_g32", 0.28, 0.5, Retrieval::destroyed),
                       found("a", 0.5, 0.03, Retrieval::kept)};
  EXPECT_EQ(choose(findings).smallest, nullptr);
  EXPECT_THAT(whole_verdict(findings, choose(findings), "f16"), HasSubstr("Keep f16"));
  // Nothing is known of their cost.
  findings.policies = {PolicyFindings{}};
  EXPECT_THAT(whole_verdict(findings, choose(findings), "f16"), HasSubstr("wasn't measured"));
}

TEST(Findings, WithoutRetrievalDivergenceDecides) {
  Findings findings;
  findings.policies = {found("int4", 0.28, 0.006, Retrieval::unknown),
                       found("b", 0.2, 0.03, Retrieval::unknown)};
  ASSERT_NE(choose(findings).smallest, nullptr);
  EXPECT_EQ(choose(findings).smallest->word, "int4");
}

TEST(Findings, OnlyThoseThatWereAskedEverythingHaveARetrieval) {
  NeedleResult result;
  result.policies.resize(3);
  for (const size_t policy : {0, 1, 2}) {
    result.policies[policy].policy.word = policy == 1 ? "whole" : "part";
    result.policies[policy].bytes = {25, 100};
    for (int i = 0; i < (policy == 2 ? 5 : 8); ++i) {
      NeedleRecord record;
      record.policy = policy;
      record.question = i;
      record.score = 1;
      result.records.push_back(record);
    }
  }
  Findings findings;
  add_retrieval(result, &findings);
  ASSERT_EQ(findings.policies.size(), 1u);
  EXPECT_EQ(findings.policies[0].word, "whole");
  EXPECT_EQ(findings.policies[0].retrieval, Retrieval::kept);
  EXPECT_EQ(findings.policies[0].found, 8);
}

WholeOptions options_of_f16() {
  WholeOptions options;
  options.caches.policies = *parse_policies({});
  return options;
}

TEST(Summary, IsIncompleteWhereASectionIs) {
  WholeResult result;
  result.sections = {{"gain", "Gain", sample_report()}, {"needle", "Needle", sample_report()}};
  for (const bool cut : {true, false}) {
    result.sections[0].report.incomplete = false;
    result.sections[1].report.incomplete = cut;
    const Report summary = whole_summary(options_of_f16(), result);
    EXPECT_EQ(summary.incomplete, cut);
    EXPECT_EQ(report_json(summary).contains("incomplete"), cut);
  }
  result.failed = {"needle: no"};
  EXPECT_TRUE(whole_summary(options_of_f16(), result).incomplete);
}

TEST(Summary, NothingThatQuantizesIsNoVerdict) {
  WholeResult result;
  result.compares = false;
  const Report summary = whole_summary(options_of_f16(), result);
  EXPECT_THAT(summary.verdict, HasSubstr("nothing that quantizes was compared"));
  EXPECT_TRUE(summary.flag.empty());
  EXPECT_TRUE(report_json(summary)["verdict"]["policy"].is_null());
}

TEST(Findings, ComeBackAsTheyWere) {
  Findings findings;
  findings.gain_context_tokens = 4096;
  findings.policies = {found("int4", 0.28, 0.006, Retrieval::damaged, 1.5)};
  findings.policies[0].speed_up_estimated = true;
  findings.of("new").share = 0.5;
  const Json json = findings_json(findings);
  const auto back = read_findings(json);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(findings_json(*back), json);
  EXPECT_FALSE(back->policies[1].kl.has_value());
  Json damaged = json;
  damaged["policies"][0]["retrieval"] = "maybe";
  EXPECT_FALSE(read_findings(damaged).ok());
  damaged = json;
  damaged["policies"][0].erase("speed_up");
  EXPECT_FALSE(read_findings(damaged).ok());
  EXPECT_FALSE(read_findings(Json::array()).ok());
}

}  // namespace
}  // namespace kvart::tools
