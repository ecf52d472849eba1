// Fuzz target of the file that `kvart report --resume` goes on from: any text ends in a result or
// an error; what was accepted is saved as it was, and its page can be drawn.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tools/page/report_page.h"
#include "tools/whole/saved_report.h"
#include "tools/whole/whole_report.h"

namespace {

using namespace kvart::tools;

constexpr const char* key = "0";  // as the corpus has it

void use(const WholeResult& result) {
  WholeOptions options;
  options.model = "model";
  options.caches.policies.push_back({"f16", {}});
  const Report summary = whole_summary(options, result);
  PageInput page;
  page.sections.push_back({"Summary", &summary});
  for (const WholeSection& section : result.sections) {
    const auto saved = saved_report(section.report);
    const auto again = restored_report(saved);
    KVART_CHECK(again.ok() && saved_report(*again) == saved);
    for (const Table& table : section.report.tables) {
      (void)text_table(table, true);
      (void)csv_table(table);
    }
    page.sections.push_back({section.title, &section.report});
  }
  KVART_CHECK(!page_html(page).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto result = parse_unfinished(text, "a.unfinished", key);
  if (result.ok()) {
    use(*result);
  } else {
    KVART_CHECK(!result.error().message.empty());
  }
  return 0;
}
