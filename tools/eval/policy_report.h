// What the reports of the evaluations have in common: a policy's first columns, values with their
// intervals as columns and as lines, and the beginning of a verdict.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/running.h"
#include "tools/eval/statistics.h"
#include "tools/report.h"

namespace kvart::tools {

// 0.00354; "-" where it isn't finite.
Cell small_number(double value);
// "0.001 to 0.002", as a list in the JSON; "-" where there is none.
Cell interval_cell(const std::optional<Interval>& interval);
Cell interval_cell(const std::optional<Interval>& interval, int decimals);
// Of shares, in percent.
Cell percent_interval_cell(const Interval& shares, int decimals);

// The policy, its bytes per token, and their share of 16 bits.
std::vector<Column> policy_columns();
std::vector<Cell> policy_cells(const std::string& word, const PolicyBytes& bytes);
void append_cells(std::vector<Cell>* row, std::vector<Cell> cells);

// A column for a value and one for its interval, and a cell for each.
void add_value_columns(Table* table, const std::string& key, const std::string& title);
void add_value_cells(std::vector<Cell>* row, Cell value, const std::optional<Interval>& interval);
Point point_of(double x, double y, const std::optional<Interval>& interval);

// Columns `prefix`_POLICY and a line for each policy.
void add_policy_series(const std::vector<std::string>& words, std::string_view prefix, Table* table,
                       LineChart* chart);

// What a verdict names, in all evaluations alike.
struct DestroyedPolicy {
  std::string word;
  std::string how;  // in brackets behind it
};
// The fact `destroyed`.
void set_destroyed(const std::vector<DestroyedPolicy>& destroyed, Report* report);
// Sets the flag, and the facts `policy`, `share_of_f16` and `destroyed`.
void begin_verdict(const std::string& word, const PolicyBytes& bytes,
                   const std::vector<DestroyedPolicy>& destroyed, Report* report);
// " Destroyed: int4_g32 (1 of 8)."; empty where none is. limit: behind "Destroyed".
std::string destroyed_text(const std::vector<DestroyedPolicy>& destroyed, const std::string& limit);

// The note of what is in every divergence and isn't the cache's.
void add_floor_note(Report* report);
// The note of what was ended early.
void add_incomplete_note(Report* report);

}  // namespace kvart::tools
