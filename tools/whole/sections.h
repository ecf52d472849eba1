// The parts of a whole report: each measures, or computes, one report of its own.
#pragma once

#include <span>
#include <string_view>

#include "findings.h"
#include "kvart/model.h"
#include "tools/report.h"
#include "tools/watch.h"
#include "whole_report.h"

namespace kvart::tools {

struct SectionInput {
  const Model& model;
  const WholeOptions& options;
  Findings& findings;  // what the section adds to
  // Of the sections before, where they were measured: bytes per second of memory (0: not known).
  double read_bytes_per_s = 0;
};

struct SectionKind {
  std::string_view name;
  std::string_view title;
  double share;  // of the time; 0: it takes next to none
  Result<Report> (*run)(SectionInput& input, Watch& watch);
  void (*forget)(Findings& findings);  // what it added; null: it adds nothing
};

std::span<const SectionKind> section_kinds();

}  // namespace kvart::tools
