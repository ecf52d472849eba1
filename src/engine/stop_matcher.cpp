// StopMatcher: the last bytes of the text are searched again with every piece.
#include "engine/stop_matcher.h"

#include <algorithm>

namespace kvart {

StopMatcher::StopMatcher(std::span<const std::string> stops) : stops_(stops) {
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

bool StopMatcher::push(std::string_view piece) {
  if (longest_ == 0) {
    dropped_ += piece.size();
    return false;
  }
  tail_ += piece;
  size_t best_at = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const std::string& stop = stops_[i];
    const size_t at = tail_.find(stop);
    if (at == std::string::npos) continue;
    if (at < best_at || (at == best_at && stop.size() > found().size())) {
      best_at = at;
      found_ = i;
    }
  }
  if (best_at != std::string::npos) {
    found_at_ = dropped_ + best_at;
    return true;
  }
  if (tail_.size() >= longest_) {
    const size_t drop = tail_.size() - (longest_ - 1);
    tail_.erase(0, drop);
    dropped_ += drop;
  }
  return false;
}

void StopMatcher::skip(std::string_view piece) {
  dropped_ += tail_.size() + piece.size();
  tail_.clear();
}

size_t StopMatcher::settled() const {
  for (size_t begin = 0; begin < tail_.size(); ++begin) {
    const std::string_view end = std::string_view(tail_).substr(begin);
    const bool may_grow = std::any_of(stops_.begin(), stops_.end(), [&](const std::string& stop) {
      return stop.size() > end.size() && std::string_view(stop).starts_with(end);
    });
    if (may_grow) return dropped_ + begin;
  }
  return size();
}

}  // namespace kvart
