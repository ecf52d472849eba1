// Fuzz target of the reports that `kvart compare` reads: any text ends in a result or an error;
// what was accepted is equal to itself, and two, with a 0 byte between, differ alike both ways.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tools/compare/difference.h"
#include "tools/compare/gate.h"
#include "tools/compare/report_file.h"

namespace {

using namespace kvart::tools;

void use_alone(const ReportFile& file) {
  KVART_CHECK(!file.reports.empty());
  KVART_CHECK(obstacles(file, file).empty());
  KVART_CHECK(pairs_of(file, file).size() == file.reports.size());
  const Comparison comparison = compare_reports(file, file);
  KVART_CHECK(comparison.differences.empty());
  for (const TableMatch& match : comparison.tables) {
    KVART_CHECK(match.only_a.empty() && match.only_b.empty() && match.different == 0);
  }
  for (const GateOptions& options : {GateOptions{0.01, {}, {}}, {{}, 0.5, {}}, {1.0, 0.0, {"q"}}}) {
    const auto rows = run_gates(file, options);
    KVART_CHECK(rows.ok() || !rows.error().message.empty());
  }
}

void use_both(const ReportFile& a, const ReportFile& b) {
  const size_t reasons = obstacles(a, b).size();
  KVART_CHECK(reasons == obstacles(b, a).size());
  const Comparison there = compare_reports(a, b);
  const Comparison back = compare_reports(b, a);
  KVART_CHECK(reasons > 0 || there.differences.size() == back.differences.size());
  for (const ValueDifference& one : there.differences) {
    (void)one.difference();
    (void)one.ratio();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find('\0');
  const auto a = parse_reports(text.substr(0, end), "a.json");
  if (!a.ok()) {
    KVART_CHECK(!a.error().message.empty());
    return 0;
  }
  use_alone(*a);
  if (end == std::string_view::npos) return 0;
  const auto b = parse_reports(text.substr(end + 1), "b.json");
  if (b.ok()) use_both(*a, *b);
  return 0;
}
