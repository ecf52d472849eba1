// Both directions, part by part. Reading goes through a Reader, which remembers whether something
// was missing or of another type: then the whole report is refused.
#include "saved_report.h"

namespace kvart::tools {
namespace {

using Json = nlohmann::ordered_json;

class Reader {
 public:
  [[nodiscard]] bool ok() const { return ok_; }

  const Json& member(const Json& json, const char* key) {
    static const Json nothing;
    if (json.is_object()) {
      const auto found = json.find(key);
      if (found != json.end()) return *found;
    }
    ok_ = false;
    return nothing;
  }
  // A list; an empty one for anything else.
  const Json& list(const Json& json, const char* key) {
    static const Json nothing = Json::array();
    const Json& value = member(json, key);
    if (value.is_array()) return value;
    ok_ = false;
    return nothing;
  }
  std::string text(const Json& json) {
    if (json.is_string()) return json.get<std::string>();
    ok_ = false;
    return {};
  }
  std::string text(const Json& json, const char* key) { return text(member(json, key)); }
  double number(const Json& json) {
    if (json.is_number()) return json.get<double>();
    ok_ = false;
    return 0;
  }
  double number(const Json& json, const char* key) { return number(member(json, key)); }
  // null: none.
  std::optional<double> maybe(const Json& json, const char* key) {
    const Json& value = member(json, key);
    if (value.is_null()) return std::nullopt;
    return number(value);
  }
  bool flag(const Json& json, const char* key) {
    const Json& value = member(json, key);
    if (value.is_boolean()) return value.get<bool>();
    ok_ = false;
    return false;
  }
  std::vector<std::string> texts(const Json& json, const char* key) {
    std::vector<std::string> out;
    for (const Json& value : list(json, key)) out.push_back(text(value));
    return out;
  }
  // What a command keeps there is its own: an object, or nothing.
  Json own(const Json& json, const char* key) {
    const Json& value = member(json, key);
    if (!value.is_object() && !value.is_null()) ok_ = false;
    return value;
  }
  void fail() { ok_ = false; }

 private:
  bool ok_ = true;
};

Json maybe_json(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

Json table_json(const Table& table) {
  Json json{{"key", table.key}, {"title", table.title}, {"keys", table.keys}};
  json["columns"] = Json::array();
  for (const Column& column : table.columns) {
    json["columns"].push_back(
        {{"key", column.key}, {"title", column.title}, {"right", column.right}});
  }
  json["rows"] = Json::array();
  for (const auto& row : table.rows) {
    Json cells = Json::array();
    for (const Cell& cell : row) cells.push_back({{"text", cell.text}, {"value", cell.value}});
    json["rows"].push_back(std::move(cells));
  }
  return json;
}

Table read_table(Reader& reader, const Json& json) {
  Table table;
  table.key = reader.text(json, "key");
  table.title = reader.text(json, "title");
  const Json& keys = reader.member(json, "keys");
  if (keys.is_number_unsigned()) table.keys = keys.get<size_t>();
  for (const Json& column : reader.list(json, "columns")) {
    table.columns.push_back(
        {reader.text(column, "key"), reader.text(column, "title"), reader.flag(column, "right")});
  }
  if (!keys.is_number_unsigned() || table.keys > table.columns.size() || table.columns.empty()) {
    reader.fail();
  }
  for (const Json& row : reader.list(json, "rows")) {
    std::vector<Cell> cells;
    if (!row.is_array() || row.size() != table.columns.size()) reader.fail();
    for (const Json& cell : row) {
      cells.push_back({reader.text(cell, "text"), reader.member(cell, "value")});
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Json tables_json(const std::vector<Table>& tables) {
  Json json = Json::array();
  for (const Table& table : tables) json.push_back(table_json(table));
  return json;
}

std::vector<Table> read_tables(Reader& reader, const Json& json, const char* key) {
  std::vector<Table> tables;
  for (const Json& table : reader.list(json, key)) tables.push_back(read_table(reader, table));
  return tables;
}

Json head_json(const char* kind, const std::string& title, const std::string& x_label,
               const std::string& y_label) {
  return {{"kind", kind}, {"title", title}, {"x_label", x_label}, {"y_label", y_label}};
}

template <class Chart>
void read_head(Reader& reader, const Json& json, Chart& chart) {
  chart.title = reader.text(json, "title");
  chart.x_label = reader.text(json, "x_label");
  chart.y_label = reader.text(json, "y_label");
}

Json figure_json(const LineChart& chart) {
  Json json = head_json("lines", chart.title, chart.x_label, chart.y_label);
  json["x_log"] = chart.x_log;
  json["y_log"] = chart.y_log;
  json["y_from_zero"] = chart.y_from_zero;
  json["lines"] = Json::array();
  for (const Line& line : chart.lines) {
    Json points = Json::array();
    for (const Point& point : line.points) {
      points.push_back({{"x", point.x},
                        {"y", point.y},
                        {"low", maybe_json(point.low)},
                        {"high", maybe_json(point.high)},
                        {"estimated", point.estimated}});
    }
    json["lines"].push_back({{"name", line.name},
                             {"computed", line.computed},
                             {"pair_of", line.pair_of},
                             {"points", std::move(points)}});
  }
  return json;
}

LineChart read_lines(Reader& reader, const Json& json) {
  LineChart chart;
  read_head(reader, json, chart);
  chart.x_log = reader.flag(json, "x_log");
  chart.y_log = reader.flag(json, "y_log");
  chart.y_from_zero = reader.flag(json, "y_from_zero");
  for (const Json& from : reader.list(json, "lines")) {
    Line line;
    line.name = reader.text(from, "name");
    line.computed = reader.flag(from, "computed");
    line.pair_of = reader.text(from, "pair_of");
    for (const Json& point : reader.list(from, "points")) {
      line.points.push_back({reader.number(point, "x"), reader.number(point, "y"),
                             reader.maybe(point, "low"), reader.maybe(point, "high"),
                             reader.flag(point, "estimated")});
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

Json figure_json(const HeatMap& map) {
  Json json = head_json("heat", map.title, map.x_label, map.y_label);
  json["columns"] = map.columns;
  json["rows"] = map.rows;
  json["worst"] = map.worst;
  json["best"] = map.best;
  json["cells"] = Json::array();
  for (const auto& row : map.cells) {
    Json cells = Json::array();
    for (const HeatCell& cell : row) {
      cells.push_back(
          {{"value", maybe_json(cell.value)}, {"text", cell.text}, {"set_aside", cell.set_aside}});
    }
    json["cells"].push_back(std::move(cells));
  }
  return json;
}

HeatMap read_heat(Reader& reader, const Json& json) {
  HeatMap map;
  read_head(reader, json, map);
  map.columns = reader.texts(json, "columns");
  map.rows = reader.texts(json, "rows");
  map.worst = reader.number(json, "worst");
  map.best = reader.number(json, "best");
  for (const Json& row : reader.list(json, "cells")) {
    std::vector<HeatCell> cells;
    if (!row.is_array() || row.size() != map.columns.size()) reader.fail();
    for (const Json& cell : row) {
      cells.push_back(
          {reader.maybe(cell, "value"), reader.text(cell, "text"), reader.flag(cell, "set_aside")});
    }
    map.cells.push_back(std::move(cells));
  }
  if (map.cells.size() != map.rows.size()) reader.fail();
  return map;
}

Json figure_json(const BarChart& chart) {
  Json json = head_json("bars", chart.title, chart.x_label, chart.y_label);
  json["y_log"] = chart.y_log;
  json["groups"] = chart.groups;
  json["names"] = chart.names;
  json["bars"] = Json::array();
  for (const auto& group : chart.bars) {
    Json bars = Json::array();
    for (const Bar& bar : group) {
      bars.push_back(
          {{"value", bar.value}, {"low", maybe_json(bar.low)}, {"high", maybe_json(bar.high)}});
    }
    json["bars"].push_back(std::move(bars));
  }
  return json;
}

BarChart read_bars(Reader& reader, const Json& json) {
  BarChart chart;
  read_head(reader, json, chart);
  chart.y_log = reader.flag(json, "y_log");
  chart.groups = reader.texts(json, "groups");
  chart.names = reader.texts(json, "names");
  for (const Json& group : reader.list(json, "bars")) {
    std::vector<Bar> bars;
    if (!group.is_array() || group.size() != chart.names.size()) reader.fail();
    for (const Json& bar : group) {
      bars.push_back(
          {reader.number(bar, "value"), reader.maybe(bar, "low"), reader.maybe(bar, "high")});
    }
    chart.bars.push_back(std::move(bars));
  }
  if (chart.bars.size() != chart.groups.size()) reader.fail();
  return chart;
}

Figure read_figure(Reader& reader, const Json& json) {
  const std::string kind = reader.text(json, "kind");
  if (kind == "lines") return read_lines(reader, json);
  if (kind == "heat") return read_heat(reader, json);
  if (kind != "bars") reader.fail();
  return read_bars(reader, json);
}

}  // namespace

Json saved_report(const Report& report) {
  Json json{{"command", report.command}, {"facts", report.facts},
            {"inputs", report.inputs},   {"hashes", report.hashes},
            {"notes", report.notes},     {"verdict", report.verdict},
            {"flag", report.flag},       {"incomplete", report.incomplete}};
  json["verdict_facts"] = report.verdict_facts;
  json["tables"] = tables_json(report.tables);
  json["records"] = tables_json(report.records);
  json["figures"] = Json::array();
  for (const FigureOfTable& figure : report.figures) {
    Json one = std::visit([](const auto& chart) { return figure_json(chart); }, figure.figure);
    json["figures"].push_back({{"table", figure.table}, {"figure", std::move(one)}});
  }
  return json;
}

Result<Report> restored_report(const Json& json) {
  Reader reader;
  Report report;
  report.command = reader.text(json, "command");
  report.facts = reader.texts(json, "facts");
  report.inputs = reader.own(json, "inputs");
  report.hashes = reader.own(json, "hashes");
  report.tables = read_tables(reader, json, "tables");
  report.records = read_tables(reader, json, "records");
  for (const Json& figure : reader.list(json, "figures")) {
    report.figures.push_back(
        {read_figure(reader, reader.member(figure, "figure")), reader.text(figure, "table")});
  }
  report.incomplete = reader.flag(json, "incomplete");
  report.notes = reader.texts(json, "notes");
  report.verdict = reader.text(json, "verdict");
  report.verdict_facts = reader.own(json, "verdict_facts");
  report.flag = reader.text(json, "flag");
  if (!reader.ok()) return Error{ErrorCode::invalid_data, "not a report that was saved"};
  return report;
}

}  // namespace kvart::tools
