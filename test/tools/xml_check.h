// Just enough of XML to find out whether markup is well-formed and lies within its view box.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace kvart::tools {

// What is wrong with `xml`; empty: every element is closed in order, attributes are in quotes and
// no character that must be escaped stands alone.
inline std::string xml_fault(std::string_view xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] != '<') {
      if (xml[at] == '>') return fmt::format("'>' at {}", at);
      if (xml[at] == '&') {
        const size_t end = xml.find(';', at);
        if (end == std::string_view::npos || end > at + 6) return fmt::format("'&' at {}", at);
      }
      ++at;
      continue;
    }
    const size_t end = xml.find('>', at);
    if (end == std::string_view::npos) return fmt::format("'<' at {}", at);
    std::string_view tag = xml.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "closes " + std::string(tag);
      open.pop_back();
      continue;
    }
    size_t quotes = 0;
    for (const char c : tag) quotes += c == '"' ? 1 : 0;
    if (quotes % 2 != 0 || tag.find('<') != std::string_view::npos) return std::string(tag);
    if (tag.ends_with('/')) continue;
    open.emplace_back(tag.substr(0, tag.find(' ')));
  }
  return open.empty() ? "" : open.back() + " stays open";
}

inline std::vector<double> numbers_in(std::string_view text) {
  std::vector<double> found;
  const std::string copy(text);
  for (const char* at = copy.c_str(); *at != '\0';) {
    char* end = nullptr;
    const double number = std::strtod(at, &end);
    if (end == at) {
      ++at;
      continue;
    }
    found.push_back(number);
    at = end;
  }
  return found;
}

inline std::string attribute(std::string_view tag, const std::string& name) {
  const size_t at = tag.find(" " + name + "=\"");
  if (at == std::string_view::npos) return "";
  const size_t begin = at + name.size() + 3;
  return std::string(tag.substr(begin, tag.find('"', begin) - begin));
}

// The first shape or text whose coordinates leave the view box; empty: there is none. Paths that
// have relative parts (round marks, and what is only touched) count with their first point.
inline std::string outside_of_view(std::string_view svg) {
  const auto view = numbers_in(attribute(svg.substr(0, svg.find('>')), "viewBox"));
  if (view.size() != 4) return "no view box";
  const auto is_outside = [&](double x, double y) {
    return x < 0 || x > view[2] || y < 0 || y > view[3];
  };
  for (size_t at = svg.find('<', 1); at != std::string_view::npos; at = svg.find('<', at + 1)) {
    const std::string_view tag = svg.substr(at, svg.find('>', at) - at + 1);
    const auto value = [&](const char* name) {
      return std::strtod(attribute(tag, name).c_str(), nullptr);
    };
    bool outside = false;
    if (tag.starts_with("<text")) {
      outside = is_outside(value("x"), value("y"));
    } else if (tag.starts_with("<line")) {
      outside = is_outside(value("x1"), value("y1")) || is_outside(value("x2"), value("y2"));
    } else if (tag.starts_with("<rect") && !attribute(tag, "x").empty()) {
      outside = is_outside(value("x"), value("y")) ||
                is_outside(value("x") + value("width"), value("y") + value("height"));
    } else if (tag.starts_with("<path")) {
      const std::string d = attribute(tag, "d");
      const auto points = numbers_in(d.substr(0, d.find('a')));
      const bool touch = attribute(tag, "class") == "touch";
      for (size_t i = 0; i + 1 < points.size() && !touch; i += 2) {
        outside = outside || is_outside(points[i], points[i + 1]);
      }
    }
    if (outside) return std::string(tag);
  }
  return "";
}

}  // namespace kvart::tools
