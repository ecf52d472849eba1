// Who may ask: keys, the Host that a browser names, and the web pages that it comes from.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvart::server {

// The time that it takes tells nothing but the lengths.
bool same_secret(std::string_view a, std::string_view b);

// Which of `keys` an Authorization header ("Bearer KEY") carries.
std::optional<size_t> find_key(const std::vector<std::string>& keys,
                               std::string_view authorization);

// Whether the server listens for this machine alone: then a page of somebody else whose name was
// made to lead here (DNS rebinding) shows in the Host header.
bool is_loopback(std::string_view host);

// A Host header ("NAME:PORT") that means this machine. Empty: a program that sends none; browsers
// always do.
bool names_this_machine(std::string_view host_header, std::string_view own_host);

// What Access-Control-Allow-Origin says to a page of `origin`; nothing: it may not ask.
std::optional<std::string> allowed_origin(const std::vector<std::string>& allowed,
                                          std::string_view origin);

// What Access-Control-Allow-Headers says to a page that may ask: the names that its
// Access-Control-Request-Headers gives, since clients send headers of their own (x-stainless-os),
// and "*" would not stand for Authorization. What isn't a list of names: the usual two.
std::string allowed_headers(std::string_view wanted);

// The page comes from this server itself.
bool is_own_origin(std::string_view origin, std::string_view host_header);

// The path of a request's target, without what follows a '?'. Nothing where it isn't a path.
std::optional<std::string_view> path_of(std::string_view target);

}  // namespace kvart::server
