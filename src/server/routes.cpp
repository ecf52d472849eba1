// Paths and what they mean.
#include "server/routes.h"

#include <array>

namespace kvart::server {

namespace {

// path, action, GET, POST, open
constexpr std::array<Route, 14> table = {{
    {"/", Action::page, true, false, true},
    {"/health", Action::health, true, false, true},
    {"/ping", Action::health, true, true, true},
    {"/version", Action::version, true, false, false},
    {"/v1/models", Action::models, true, false, false},
    {"/v1/models/*", Action::model, true, false, false},
    {"/metrics", Action::metrics, true, false, false},
    {"/v1/status", Action::status, true, false, false},
    {"/v1/completions", Action::completion, false, true, false},
    {"/v1/chat/completions", Action::chat, false, true, false},
    {"/tokenize", Action::tokenize, false, true, false},
    {"/detokenize", Action::detokenize, false, true, false},
    {"/tokenizer_info", Action::tokenizer_info, true, false, false},
    {"/reset_prefix_cache", Action::reset_prefix_cache, false, true, false},
}};

}  // namespace

std::span<const Route> routes() {
  return table;
}

const Route* find_route(std::string_view path) {
  for (const Route& route : table) {
    if (route.path == path) return &route;
    const std::string_view stem = route.path.substr(0, route.path.size() - 1);
    if (route.path.ends_with('*') && path.starts_with(stem) && path.size() > stem.size()) {
      return &route;
    }
  }
  return nullptr;
}

std::string allowed_methods(const Route& route) {
  std::string methods = route.get ? "GET, HEAD" : "";
  if (route.post) methods += methods.empty() ? "POST" : ", POST";
  return methods;
}

}  // namespace kvart::server
