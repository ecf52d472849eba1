// Transfer-Encoding, of which Beast understands what ends in "chunked" and ignores the rest.
#include "server/framing.h"

#include <boost/beast/core/string.hpp>
#include <string_view>

namespace kvart::server {

namespace {

namespace beast = boost::beast;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

bool is_chunked(std::string_view coding) {
  return beast::iequals({coding.data(), coding.size()}, "chunked");
}

}  // namespace

std::optional<ApiError> check_framing(const beast::http::fields& fields, unsigned version) {
  size_t lines = 0;
  std::string_view codings;
  const auto range = fields.equal_range(beast::http::field::transfer_encoding);
  for (auto line = range.first; line != range.second; ++line, ++lines) {
    codings = trimmed({line->value().data(), line->value().size()});
  }
  if (lines == 0) return std::nullopt;
  if (version < 11) return ApiError{400, "HTTP/1.0 has no Transfer-Encoding"};
  if (lines == 1 && is_chunked(codings)) return std::nullopt;
  // Whatever comes before a last "chunked" would have to be undone here.
  const size_t comma = codings.rfind(',');
  const bool ends_chunked = lines == 1 && comma != std::string_view::npos &&
                            is_chunked(trimmed(codings.substr(comma + 1)));
  return ApiError{ends_chunked ? 501 : 400, "the only Transfer-Encoding here is chunked"};
}

}  // namespace kvart::server
