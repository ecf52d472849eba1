// Where a request's body ends.
#pragma once

#include <boost/beast/http/fields.hpp>
#include <optional>

#include "server/api_error.h"

namespace kvart::server {

// Transfer-Encoding must be "chunked" and nothing else, in HTTP/1.1: what another program in front
// of this one takes for the end of a body must be its end here too, or the rest of one client's
// body is another one's request (RFC 9112, 6.1 and 6.3). The connection can't be used after a
// fault. version: 10 or 11. Lengths are checked by the parser.
std::optional<ApiError> check_framing(const boost::beast::http::fields& fields, unsigned version);

}  // namespace kvart::server
