// The page of reports: whole, escaped, and with all its data inside.
#include "tools/page/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sample_reports.h"
#include "tools/machine.h"

namespace kvart::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What stands in the page's script of data, as a browser reads it.
std::string data_of(const std::string& html) {
  const std::string head = R"(<script type="application/json" id="kvart-data">)";
  const size_t begin = html.find(head) + head.size();
  return html.substr(begin, html.find("</script>", begin) - begin);
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ReportPage, HasVerdictFactsFiguresAndTables) {
  const auto reports = sample_reports();
  const std::string html = page_html(sample_page(reports));
  for (const char* part :
       {"decodes up to", "<code>--kv-cache-dtype int4</code>", "<dt>CPU</dt>", "<dt>Cores</dt>",
        "<dt>Build</dt>", "<dt>Instruction set</dt>", "<dt>Date</dt>", "kvart report SmolLM2",
        "What it gains", "Found against depth"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  size_t tables = 0;
  for (const Report& report : reports) tables += report.tables.size();
  EXPECT_EQ(count_of(html, "<table>"), tables);
  // A figure's table comes after it.
  EXPECT_LT(html.find("Decode at full concurrency"), html.find("Measured by steps"));
}

TEST(ReportPage, NeedsNothingFromOutside) {
  const auto reports = sample_reports();
  const std::string html = page_html(sample_page(reports));
  for (const char* word : {" src=", "@import", "url(http", "<link rel=\"stylesheet", "fetch("}) {
    EXPECT_THAT(html, Not(HasSubstr(word)));
  }
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

TEST(ReportPage, DataComesBackAsItWas) {
  const auto reports = sample_reports();
  const PageInput input = sample_page(reports);
  const auto data = nlohmann::ordered_json::parse(data_of(page_html(input)));
  EXPECT_EQ(data, page_json(input));
  EXPECT_EQ(data["reports"][0], report_json(reports[0]));
  EXPECT_EQ(data["reports"][0]["row_keys"]["gain"].dump(), R"(["policy","context_tokens"])");
  EXPECT_EQ(data["incomplete"], true);
}

TEST(ReportPage, HostileTextStaysText) {
  const std::string bad = "</script><script>alert(1)</script><!-- & \"x\" 'y' \xFF";
  Report report;
  report.command = "gain";
  report.facts = report.notes = {bad};
  report.inputs["model"] = bad;
  report.hashes["model"] = bad;
  report.tables = {{bad, bad, {{bad, bad, false}}, {{text_cell(bad)}}}};
  report.figures = {{LineChart{bad, bad, bad, false, false, true, {{bad, {{1, 1}}}}}, bad}};
  report.verdict = report.flag = bad;
  PageInput input{bad, bad, bad, {{bad, bad}}, bad, {{bad, &report}, {bad, &report}}};
  const std::string html = page_html(input);
  EXPECT_EQ(count_of(html, "<script"), 2u);  // the data and the page's own
  EXPECT_EQ(count_of(html, "</script>"), 2u);
  EXPECT_EQ(count_of(html, "alert(1)</"), 0u);
  EXPECT_EQ(count_of(html, "<!--"), 0u);
  const auto data = nlohmann::ordered_json::parse(data_of(html));
  const std::string kept = data["verdict"]["text"].get<std::string>();
  EXPECT_EQ(kept.substr(0, kept.size() - 3), bad.substr(0, bad.size() - 1));
}

TEST(ReportPage, IncompleteIsSaid) {
  Report report = sample_gain();
  EXPECT_THAT(page_html(page_of(report)), Not(HasSubstr("Incomplete")));
  report.incomplete = true;
  EXPECT_THAT(page_html(page_of(report)), HasSubstr("Incomplete"));
  EXPECT_EQ(report_json(report)["incomplete"], true);
}

TEST(ReportPage, IncompleteSectionsAreAListOfLinks) {
  const Report whole = sample_gain();
  Report cut = sample_gain();
  cut.incomplete = true;
  PageInput input{"t", "v", "", {}, "", {{"One: a, b", &whole}, {"Two: c, d", &cut}}};
  const std::string html = page_html(input);
  EXPECT_THAT(html, HasSubstr(R"(<li><a href="#section-2">Two: c, d</a></li>)"));
  EXPECT_THAT(html, Not(HasSubstr(R"(<li><a href="#section-1">)")));
  EXPECT_EQ(count_of(html, "Incomplete:"), 2u);  // at the top and in the section
  EXPECT_THAT(html, HasSubstr(R"(<div class="warn">)"));
  input.sections[1].report = &whole;
  EXPECT_THAT(page_html(input), Not(HasSubstr("Incomplete")));
}

TEST(ReportPage, KeysAreTheFewestColumnsThatTellRowsApart) {
  Table table{"t", "", {{"a", ""}, {"b", ""}, {"c", ""}}, {}};
  EXPECT_EQ(key_columns(table), 1u);
  table.rows = {{integer_cell(1), integer_cell(1), integer_cell(5)},
                {integer_cell(1), integer_cell(2), integer_cell(5)}};
  EXPECT_EQ(key_columns(table), 2u);
  table.keys = 3;
  EXPECT_EQ(key_columns(table), 3u);
}

TEST(Machine, IsNamedAndWordsAreQuoted) {
  const Machine machine = this_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory_bytes, uint64_t{1} << 24);
  EXPECT_THAT(command_line(), HasSubstr("kvart"));
  EXPECT_EQ(shell_word("model.gguf"), "model.gguf");
  EXPECT_EQ(shell_word("k=int4,v=int4"), "k=int4,v=int4");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(date_utc().size(), std::string("2026-01-31 12:05 UTC").size());
}

}  // namespace
}  // namespace kvart::tools
