// Cells, columns and sentences that several evaluations write.
#include "tools/eval/policy_report.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "tools/units.h"

namespace kvart::tools {
namespace {

nlohmann::ordered_json interval_json(const Interval& interval) {
  return nlohmann::ordered_json::array({interval.low, interval.high});
}

}  // namespace

Cell small_number(double value) {
  if (!std::isfinite(value)) return missing_cell();
  return {fmt::format("{:.3g}", value), value};
}

Cell interval_cell(const std::optional<Interval>& interval) {
  if (!interval) return missing_cell();
  return {fmt::format("{:.3g} to {:.3g}", interval->low, interval->high), interval_json(*interval)};
}

Cell interval_cell(const std::optional<Interval>& interval, int decimals) {
  if (!interval) return missing_cell();
  return {fmt::format("{:.{}f} to {:.{}f}", interval->low, decimals, interval->high, decimals),
          interval_json(*interval)};
}

Cell percent_interval_cell(const Interval& shares, int decimals) {
  return interval_cell(Interval{100 * shares.low, 100 * shares.high}, decimals);
}

std::vector<Column> policy_columns() {
  return {{"policy", "policy", false},
          {"bytes_per_token", "B per\ntoken"},
          {"share_of_f16", "of\n16 bits"}};
}

std::vector<Cell> policy_cells(const std::string& word, const PolicyBytes& bytes) {
  return {text_cell(word),
          {with_commas(static_cast<uint64_t>(bytes.bytes_per_token)), bytes.bytes_per_token},
          {percent_text(bytes.share(), 0), bytes.share()}};
}

void append_cells(std::vector<Cell>* row, std::vector<Cell> cells) {
  row->insert(row->end(), std::make_move_iterator(cells.begin()),
              std::make_move_iterator(cells.end()));
}

void add_value_columns(Table* table, const std::string& key, const std::string& title) {
  table->columns.push_back({key, title});
  table->columns.push_back({key + "_interval", "95 %\ninterval"});
}

void add_value_cells(std::vector<Cell>* row, Cell value, const std::optional<Interval>& interval) {
  row->push_back(std::move(value));
  row->push_back(interval_cell(interval));
}

Point point_of(double x, double y, const std::optional<Interval>& interval) {
  Point point;
  point.x = x;
  point.y = y;
  if (interval) {
    point.low = interval->low;
    point.high = interval->high;
  }
  return point;
}

void add_policy_series(const std::vector<std::string>& words, std::string_view prefix, Table* table,
                       LineChart* chart) {
  for (const std::string& word : words) {
    add_value_columns(table, fmt::format("{}_{}", prefix, word), word);
    chart->lines.push_back({word, {}});
  }
}

void set_destroyed(const std::vector<DestroyedPolicy>& destroyed, Report* report) {
  report->verdict_facts["destroyed"] = nlohmann::ordered_json::array();
  for (const DestroyedPolicy& one : destroyed) {
    report->verdict_facts["destroyed"].push_back(one.word);
  }
}

void begin_verdict(const std::string& word, const PolicyBytes& bytes,
                   const std::vector<DestroyedPolicy>& destroyed, Report* report) {
  report->flag = policy_flag(word);
  report->verdict_facts["policy"] = word;
  report->verdict_facts["share_of_f16"] = bytes.share();
  set_destroyed(destroyed, report);
}

std::string destroyed_text(const std::vector<DestroyedPolicy>& destroyed,
                           const std::string& limit) {
  std::string text;
  for (const DestroyedPolicy& one : destroyed) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", one.word, one.how);
  }
  return text.empty() ? "" : fmt::format(" Destroyed{}: {}.", limit, text);
}

void add_floor_note(Report* report) {
  report->notes.push_back(
      fmt::format("Packed weights round activations to 8 bits, so that the smallest change of the "
                  "cache changes roundings behind it: with such weights every divergence has a "
                  "floor, about that of {}.",
                  closest_preset()));
}

void add_incomplete_note(Report* report) {
  if (report->incomplete) {
    report->notes.emplace_back("Incomplete: it was ended before its time.");
  }
}

}  // namespace kvart::tools
