// The parts of a page, from top to bottom.
#include "report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "assets.h"
#include "figure_svg.h"
#include "kvart/cores.h"
#include "svg.h"
#include "tools/hash.h"
#include "tools/machine.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

constexpr double wide_px = 900;
constexpr double narrow_px = 400;
// What a browser may load for the page: nothing, whatever text is in it.
constexpr std::string_view content_policy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'";
constexpr std::string_view incomplete_text =
    "Incomplete: it was interrupted, its time was over, or this model doesn't allow it. What is "
    "missing isn't shown.";
constexpr size_t long_text = 48;  // characters that a cell keeps on one line

std::string element(std::string_view name, std::string_view style, std::string_view text) {
  return fmt::format(R"(<{0} class="{1}">{2}</{0}>)", name, style, escaped(text));
}

// JSON that can stand in a script: no "</script>" or "<!--" ends it or changes what it means.
std::string embedded_json(const nlohmann::ordered_json& json) {
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string out;
  for (const char c : text) out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

std::string table_cell(const Cell& cell, bool right) {
  std::string attributes;
  if (cell.value.is_null()) {
    attributes = " data-none";
  } else if (cell.value.is_number()) {
    attributes = fmt::format(R"( data-v="{}")", cell.value.dump());
  }
  const bool is_long = cell.text.size() > long_text;
  if (is_long || !right) {
    attributes += fmt::format(R"( class="{}{}")", right ? "" : "left", is_long ? " long" : "");
  }
  return "<td" + attributes + ">" + escaped(cell.text) + "</td>";
}

// tabindex: a box that scrolls can be reached and scrolled by keyboard.
std::string table_html(const Table& table) {
  const std::string name = table.title.empty() ? table.key : table.title;
  std::string out = fmt::format(R"(<div class="table" tabindex="0" role="region" aria-label="{}">)",
                                escaped(name));
  out += "<table>";
  if (!table.title.empty()) out += "<caption>" + escaped(table.title) + "</caption>";
  out += "<thead><tr>";
  for (const Column& column : table.columns) {
    out += fmt::format(R"(<th scope="col"{}>{}</th>)", column.right ? "" : R"( class="left")",
                       escaped(column.title));
  }
  out += "</tr></thead><tbody>";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (size_t c = 0; c < row.size() && c < table.columns.size(); ++c) {
      out += table_cell(row[c], table.columns[c].right);
    }
    out += "</tr>";
  }
  return out + "</tbody></table></div>\n";
}

// Figures of one kind and table stand beside each other; lines need the whole width.
size_t end_of_row(const std::vector<FigureOfTable>& figures, size_t begin) {
  const FigureOfTable& first = figures[begin];
  size_t end = begin + 1;
  while (end < figures.size() && figures[end].table == first.table &&
         figures[end].figure.index() == first.figure.index() &&
         !std::holds_alternative<LineChart>(first.figure)) {
    ++end;
  }
  return end;
}

// Writes the sections; figures get numbers, and names their colours, in order of appearance.
class SectionWriter {
 public:
  std::string section(const PageSection& section, size_t number, bool alone);

 private:
  std::string figures(const Report& report, size_t begin, size_t end);
  std::string figure(const Figure& figure, bool full_width);

  SeriesColors colors_;
  int figure_number_ = 0;
};

// A figure that has the page's width is there twice, so that its text is readable on a phone too.
std::string SectionWriter::figure(const Figure& figure, bool full_width) {
  std::string out = "<figure><figcaption>" + escaped(title_of(figure)) + "</figcaption>";
  const auto add = [&](double width_px, std::string_view style) {
    const std::string id = fmt::format("{}-{}", ++figure_number_, style);
    out += fmt::format(R"(<div class="{}">)", style);
    out += figure_svg(figure, {width_px, id, &colors_}) + "</div>";
  };
  if (full_width) {
    add(wide_px, "wide");
    add(narrow_px, "narrow");
  } else {
    add(narrow_px, "half");
  }
  return out + "</figure>\n";
}

std::string SectionWriter::figures(const Report& report, size_t begin, size_t end) {
  const bool one = end - begin == 1;
  std::string out = fmt::format(R"(<div class="figures{}">)", one ? " one" : "");
  for (size_t i = begin; i < end; ++i) out += figure(report.figures[i].figure, one);
  return out + "</div>\n";
}

std::string SectionWriter::section(const PageSection& section, size_t number, bool alone) {
  const Report& report = *section.report;
  std::string out = fmt::format(R"(<section id="section-{}">)", number);
  if (!alone) {
    out += "<h2>" + escaped(section.title) + "</h2>\n";
    if (!report.verdict.empty()) out += element("p", "lead", report.verdict);
  }
  if (report.incomplete && !alone) out += element("p", "warn", incomplete_text);
  for (const std::string& fact : report.facts) out += element("p", "about", fact);
  std::set<std::string> shown;
  for (size_t begin = 0; begin < report.figures.size();) {
    const size_t end = end_of_row(report.figures, begin);
    out += figures(report, begin, end);
    const std::string& key = report.figures[begin].table;
    begin = end;
    if (begin < report.figures.size() && report.figures[begin].table == key) continue;
    for (const Table& table : report.tables) {
      if (table.key == key && shown.insert(key).second) out += table_html(table);
    }
  }
  for (const Table& table : report.tables) {
    if (shown.count(table.key) == 0) out += table_html(table);
  }
  if (!report.notes.empty()) {
    out += R"(<ul class="notes">)";
    for (const std::string& note : report.notes) out += "<li>" + escaped(note) + "</li>";
    out += "</ul>";
  }
  return out + "</section>\n";
}

bool has_heat_map(const PageInput& input) {
  for (const PageSection& section : input.sections) {
    for (const FigureOfTable& one : section.report->figures) {
      if (std::holds_alternative<HeatMap>(one.figure)) return true;
    }
  }
  return false;
}

std::string head(const PageInput& input) {
  return fmt::format(
      R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{}">
<meta name="generator" content="Kvart {}">
<title>{}</title>
<link rel="icon" href="data:,">
<style>
{}</style>
</head>
)",
      content_policy, KVART_VERSION, escaped(input.title), report_page_css());
}

std::string bar(bool heat_map) {
  std::string out = R"(<header class="page bar"><div class="mark">Kvart<span>.</span></div>)";
  if (heat_map) {
    out += R"(<label class="option"><input type="checkbox" id="safe-colors">)"
           "Colour-blind safe heat maps</label>";
  }
  out += R"(<div class="themes" role="radiogroup" aria-label="Theme">)";
  for (const auto& [id, name] : {std::pair("auto", "Auto"), {"light", "Light"}, {"dark", "Dark"}}) {
    out += fmt::format(
        R"(<label><input type="radio" name="theme" id="theme-{}"{}><span>{}</span></label>)", id,
        std::string_view(id) == "auto" ? " checked" : "", name);
  }
  return out + "</div></header>\n";
}

// Which sections are incomplete, as links to them; empty: none is.
std::string incomplete_html(const PageInput& input) {
  std::string list;
  for (size_t i = 0; i < input.sections.size(); ++i) {
    if (!input.sections[i].report->incomplete) continue;
    list += fmt::format(R"(<li><a href="#section-{}">{}</a></li>)", i + 1,
                        escaped(input.sections[i].title));
  }
  if (list.empty()) return "";
  if (input.sections.size() == 1) return element("p", "warn", incomplete_text);
  return fmt::format(R"(<div class="warn">{}<ul>{}</ul></div>)", escaped(incomplete_text), list);
}

std::string answer(const PageInput& input) {
  std::string out = R"(<div class="answer">)";
  out += "<h1>" + escaped(input.title) + "</h1>\n";
  out += element("p", "verdict", input.verdict);
  if (!input.flag.empty()) {
    out += R"(<div class="flag"><code>)" + escaped(input.flag) + "</code></div>\n";
  }
  out += incomplete_html(input);
  out += R"(<dl class="facts">)";
  const auto fact = [&](const std::string& name, const std::string& value, bool code) {
    out +=
        fmt::format("<div{}><dt>{}</dt><dd>{}</dd></div>", code ? R"( class="wide")" : "",
                    escaped(name), code ? "<code>" + escaped(value) + "</code>" : escaped(value));
  };
  for (const auto& [name, value] : input.facts) fact(name, value, false);
  if (!input.command.empty()) fact("Repeat it", input.command, true);
  out += "</dl></div>\n";
  if (input.sections.size() < 2) return out;
  out += R"(<nav class="contents" aria-label="Contents">)";
  for (size_t i = 0; i < input.sections.size(); ++i) {
    out += fmt::format(R"(<a href="#section-{}">{}</a>)", i + 1, escaped(input.sections[i].title));
  }
  return out + "</nav>\n";
}

// A name, or an object that has one.
std::string model_of(const nlohmann::ordered_json& inputs) {
  if (!inputs.is_object()) return "";
  nlohmann::ordered_json model = inputs.value("model", nlohmann::ordered_json());
  if (model.is_object()) model = model.value("name", nlohmann::ordered_json());
  return model.is_string() ? model.get<std::string>() : "";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> page_facts() {
  const Machine machine = this_machine();
  std::vector<std::pair<std::string, std::string>> facts;
  if (!machine.cpu.empty()) facts.emplace_back("CPU", machine.cpu);
  facts.emplace_back("Cores", std::to_string(machine.cores));
  const auto instructions = instruction_set();
  if (instructions.ok()) facts.emplace_back("Instruction set", *instructions);
  facts.emplace_back("Memory", gigabytes(static_cast<double>(machine.memory_bytes)));
  facts.emplace_back("Kvart", KVART_VERSION);
  if (!build_hash().empty()) facts.emplace_back("Build", build_hash());
  facts.emplace_back("Date", date_utc());
  return facts;
}

PageInput page_of(const Report& report) {
  PageInput input;
  input.title = "kvart " + report.command;
  std::replace(input.title.begin(), input.title.end(), '-', ' ');
  const std::string model = model_of(report.inputs);
  if (!model.empty()) input.title += ": " + model;
  input.verdict = report.verdict;
  input.flag = report.flag;
  input.facts = page_facts();
  input.command = command_line();
  input.sections = {{input.title, &report}};
  return input;
}

nlohmann::ordered_json page_json(const PageInput& input) {
  nlohmann::ordered_json json;
  json["schema"] = "kvart.report.v1";
  json["version"] = KVART_VERSION;
  json["title"] = input.title;
  json["command"] = input.command;
  for (const auto& [name, value] : input.facts) json["facts"][name] = value;
  json["incomplete"] = std::any_of(input.sections.begin(), input.sections.end(),
                                   [](const auto& section) { return section.report->incomplete; });
  json["verdict"]["text"] = input.verdict;
  if (!input.flag.empty()) json["verdict"]["flag"] = input.flag;
  json["reports"] = nlohmann::ordered_json::array();
  for (const PageSection& section : input.sections) {
    json["reports"].push_back(report_json(*section.report));
  }
  return json;
}

std::string page_html(const PageInput& input) {
  std::string out = head(input) + "<body>\n" + bar(has_heat_map(input));
  out += R"(<main class="page">)" + answer(input);
  SectionWriter writer;
  const bool alone = input.sections.size() == 1;
  for (size_t i = 0; i < input.sections.size(); ++i) {
    out += writer.section(input.sections[i], i + 1, alone);
  }
  out += "</main>\n";
  out += fmt::format(
      R"(<footer class="page foot"><span>Made by Kvart {}. All numbers are in this file.</span>)"
      "</footer>\n",
      KVART_VERSION);
  out += R"(<script type="application/json" id="kvart-data">)";
  out += embedded_json(page_json(input)) + "</script>\n<script>\n";
  out += report_page_js();
  return out + "</script>\n</body>\n</html>\n";
}

}  // namespace kvart::tools
