// The style sheet and the script of a page: made from report_page.css and .js when it is built.
#pragma once

#include <string_view>

namespace kvart::tools {

std::string_view report_page_css();
std::string_view report_page_js();

}  // namespace kvart::tools
