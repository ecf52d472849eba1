// What a command answers: facts, tables, notes and a verdict; printed, and written to files that
// are asked for.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvart/result.h"
#include "table.h"

namespace CLI {
class App;
}

namespace kvart::tools {

struct OutputFiles {
  std::string json;
  std::string csv;
};

// Adds --json and --csv.
void add_output_options(CLI::App& command, OutputFiles* files);

struct Report {
  std::string command;                   // its name: part of the schema's id
  std::vector<std::string> facts;        // lines above the tables
  nlohmann::ordered_json inputs;         // what the figures were computed from
  std::vector<Table> tables;             // the first one is the CSV
  std::vector<std::string> notes;        // lines below the tables
  std::string verdict;                   // the last line
  nlohmann::ordered_json verdict_facts;  // the same for programs
  std::string flag;                      // the exact flag to use; empty: none
};

// Prints the report to stdout and writes the files. input: the file that the report is about, which
// no output may replace; may be empty. Error: a file that can't be written.
Status publish(const Report& report, const OutputFiles& files, const std::string& input);

// Prints "kvart: MESSAGE" to stderr and gives the exit code for it.
int fail(const Error& error);

}  // namespace kvart::tools
