// What a command answers: facts, tables, notes and a verdict; printed, and written to the files
// that are asked for.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "files.h"
#include "kvart/result.h"
#include "page/figure.h"
#include "table.h"

namespace CLI {
class App;
}

namespace kvart::tools {

struct OutputFiles {
  std::string json;
  std::string csv;
  std::string html{};
};

// Adds --json and --csv.
void add_output_options(CLI::App& command, OutputFiles* files);
// Adds --html, for a command that draws.
void add_page_options(CLI::App& command, OutputFiles* files);

struct Outputs {
  std::optional<OutputFile> json;
  std::optional<OutputFile> csv;
  std::optional<OutputFile> html;
};

// To be called before the work. inputs: everything that the command reads. Error: a file that can't
// be written, that is an input, or that is given twice.
Result<Outputs> find_outputs(const OutputFiles& files, const std::vector<std::string>& inputs);

// Text that isn't UTF-8 (a path may be anything) has its wrong bytes replaced.
std::string json_text(const nlohmann::ordered_json& json);

// A picture, and the table that has its numbers.
struct FigureOfTable {
  Figure figure;
  std::string table;  // key of one of the report's tables
};

struct Report {
  std::string command;                   // its name: part of the schema's id
  std::vector<std::string> facts;        // lines above the tables
  nlohmann::ordered_json inputs;         // what the figures were computed from
  nlohmann::ordered_json hashes;         // of model, prompts, options: what must be equal in a
                                         // report that this one is compared with; may be null
  std::vector<Table> tables;             // the first one is the CSV
  std::vector<Table> records;            // too long to print: in the JSON only
  std::vector<FigureOfTable> figures;    // for the page
  bool incomplete = false;               // it was interrupted, or its time was over
  std::vector<std::string> notes;        // lines below the tables
  std::string verdict;                   // the last line
  nlohmann::ordered_json verdict_facts;  // the same for programs
  std::string flag;                      // the exact flag to use; empty: none
};

// What --json writes. `row_keys` names the columns that say what a row of each table is about.
nlohmann::ordered_json report_json(const Report& report);

// Writes the files and prints the report to stdout. Error: what can't be written; the others are.
Status publish(const Report& report, const Outputs& outputs);

// The verdict where none of the policies quantizes: nothing can be recommended.
void set_nothing_compared(Report* report);

// Prints "kvart: MESSAGE" to stderr and gives the exit code for it.
int fail(const Error& error);

}  // namespace kvart::tools
