// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_filter.h"

#include <algorithm>
#include <utility>

namespace lode {
namespace {

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t HeldLength(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

StopFilter::StopFilter(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (!stop.empty()) stops_.push_back(stop);
  }
}

std::string StopFilter::Push(std::string_view text) {
  if (stopped_) return "";
  held_.append(text);
  size_t first_stop = std::string::npos;
  size_t hold = 0;
  for (const std::string& stop : stops_) {
    first_stop = std::min(first_stop, held_.find(stop));
    hold = std::max(hold, HeldLength(held_, stop));
  }
  if (first_stop != std::string::npos) {
    stopped_ = true;
    held_.resize(first_stop);
    return std::exchange(held_, "");
  }
  std::string shown = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return shown;
}

std::string StopFilter::Finish() {
  return std::exchange(held_, "");
}

}  // namespace lode
