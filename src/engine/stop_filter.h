// SPDX-License-Identifier: Apache-2.0
// StopFilter: passes generated text on as soon as no stop string can begin in it any more. A stop
// string may lie across any number of token borders; neither it nor anything after it is ever
// passed on.
#ifndef LODE_ENGINE_STOP_FILTER_H_
#define LODE_ENGINE_STOP_FILTER_H_

#include <string>
#include <string_view>
#include <vector>

namespace lode {

class StopFilter {
 public:
  // Empty stop strings are ignored.
  explicit StopFilter(const std::vector<std::string>& stops);

  // Takes the next piece; returns the text that may be shown now. Nothing is returned after a stop.
  std::string Push(std::string_view text);
  // The text held back, when generation ended otherwise.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // always a proper prefix of some stop string after Push
  bool stopped_ = false;
};

}  // namespace lode

#endif  // LODE_ENGINE_STOP_FILTER_H_
