// sample_page FILE: writes the page of the sample reports, for a browser's test and for looking.
#include <cstdio>
#include <fstream>

#include "sample_reports.h"

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  const auto reports = kvart::tools::sample_reports();
  std::ofstream file(argv[1], std::ios::binary);
  file << kvart::tools::page_html(kvart::tools::sample_page(reports));
  return file.good() ? 0 : 1;
}
