// The page at "/": made from status_page.html when the library is built.
#pragma once

#include <string_view>

namespace kvart::server {

// One HTML document without outside parts.
std::string_view status_page();

}  // namespace kvart::server
