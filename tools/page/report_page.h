// Reports as one HTML file that needs nothing from outside: what they come to at the top, each
// figure with its numbers as a table beneath, and all data as JSON inside.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/report.h"

namespace kvart::tools {

struct PageSection {
  std::string title;
  const Report* report = nullptr;
};

struct PageInput {
  std::string title;                                       // what was asked
  std::string verdict;                                     // the answer, in a sentence or two
  std::string flag;                                        // the exact flag to use; empty: none
  std::vector<std::pair<std::string, std::string>> facts;  // beneath the verdict: name, value
  std::string command;                                     // that repeats it
  std::vector<PageSection> sections;
};

// Machine, version, date: what every page says of how it came about.
std::vector<std::pair<std::string, std::string>> page_facts();

// The page of one command.
PageInput page_of(const Report& report);

// All reports as one: what the page has inside, and what a joined report's --json is.
nlohmann::ordered_json page_json(const PageInput& input);

std::string page_html(const PageInput& input);

}  // namespace kvart::tools
