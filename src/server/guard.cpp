// Checks of keys, hosts and origins.
#include "server/guard.h"

#include <algorithm>

namespace kvart::server {

namespace {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

// Without ":PORT"; "[::1]:80" gives "::1".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(1, end - 1);
  }
  const size_t colon = host.rfind(':');
  const bool address = colon != std::string_view::npos && host.find(':') != colon;  // IPv6
  return colon == std::string_view::npos || address ? host : host.substr(0, colon);
}

// 127.0.0.0/8, written in full.
bool is_loopback_v4(std::string_view host) {
  return host.starts_with("127.") && std::count(host.begin(), host.end(), '.') == 3 &&
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace

bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i] ^ other);
  }
  return difference == 0;
}

std::optional<size_t> find_key(const std::vector<std::string>& keys,
                               std::string_view authorization) {
  constexpr std::string_view scheme = "bearer ";
  if (authorization.size() < scheme.size() ||
      lower_case(authorization.substr(0, scheme.size())) != scheme) {
    return std::nullopt;
  }
  authorization.remove_prefix(scheme.size());
  std::optional<size_t> found;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (same_secret(authorization, keys[i])) found = i;
  }
  return found;
}

bool is_loopback(std::string_view host) {
  const std::string name = lower_case(without_port(host));
  return name == "localhost" || name == "::1" || is_loopback_v4(name);
}

bool names_this_machine(std::string_view host_header, std::string_view own_host) {
  return host_header.empty() || is_loopback(host_header) ||
         lower_case(without_port(host_header)) == lower_case(own_host);
}

std::optional<std::string> allowed_origin(const std::vector<std::string>& allowed,
                                          std::string_view origin) {
  if (origin.empty()) return std::nullopt;
  for (const std::string& one : allowed) {
    if (one == "*" || one == origin) return one;
  }
  return std::nullopt;
}

std::string allowed_headers(std::string_view wanted) {
  constexpr std::string_view name_characters =
      "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string names;
  while (!wanted.empty()) {
    const size_t end = std::min(wanted.find(','), wanted.size());
    std::string_view name = wanted.substr(0, end);
    wanted.remove_prefix(std::min(end + 1, wanted.size()));
    const size_t begin = name.find_first_not_of(" \t");
    if (begin == std::string_view::npos) continue;
    name = name.substr(begin, name.find_last_not_of(" \t") + 1 - begin);
    if (name.find_first_not_of(name_characters) != std::string_view::npos) {
      names.clear();
      break;
    }
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names.empty() ? "Authorization, Content-Type" : names;
}

bool is_own_origin(std::string_view origin, std::string_view host_header) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme)) {
      return lower_case(origin.substr(scheme.size())) == lower_case(host_header);
    }
  }
  return false;
}

std::optional<std::string_view> path_of(std::string_view target) {
  if (!target.starts_with('/')) return std::nullopt;
  return target.substr(0, target.find('?'));
}

}  // namespace kvart::server
