// What a command answers: facts, tables, notes and a verdict; printed, and written to the files
// that are asked for.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "files.h"
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

struct Outputs {
  std::optional<OutputFile> json;
  std::optional<OutputFile> csv;
};

// To be called before the work. inputs: everything that the command reads. Error: a file that can't
// be written, that is an input, or that is given twice.
Result<Outputs> find_outputs(const OutputFiles& files, const std::vector<std::string>& inputs);

// Text that isn't UTF-8 (a path may be anything) has its wrong bytes replaced.
std::string json_text(const nlohmann::ordered_json& json);

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

// Writes the files and prints the report to stdout. Error: what can't be written; the others are.
Status publish(const Report& report, const Outputs& outputs);

// Prints "kvart: MESSAGE" to stderr and gives the exit code for it.
int fail(const Error& error);

}  // namespace kvart::tools
