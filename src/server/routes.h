// The table of what the server answers.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvart::server {

enum class Action {
  page,
  health,
  version,
  models,
  model,
  metrics,
  status,
  completion,
  chat,
  tokenize,
  detokenize,
  tokenizer_info,
  reset_prefix_cache,
};

struct Route {
  std::string_view path;  // one that ends in "*" stands for all that begin so
  Action action;
  bool get = false;
  bool post = false;
  bool open = false;  // needs no key: tells nothing about requests
};

std::span<const Route> routes();

// The route of exactly that path, or null. Nothing is normalized: no doubled or encoded slash, dot
// or letter leads anywhere.
const Route* find_route(std::string_view path);

// "GET, HEAD, POST"
std::string allowed_methods(const Route& route);

}  // namespace kvart::server
