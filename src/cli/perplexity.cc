// SPDX-License-Identifier: Apache-2.0
#include "cli/perplexity.h"

#include <algorithm>

#include "base/check.h"

namespace lode::cli {

std::vector<PerplexityWindow> PerplexityWindows(int64_t num_tokens, int64_t window, int64_t stride,
                                                bool has_bos) {
  const int64_t body = window - (has_bos ? 1 : 0);
  LODE_CHECK(stride >= 1 && stride <= body);
  std::vector<PerplexityWindow> windows;
  int64_t scored = has_bos ? 0 : 1;
  for (int64_t begin = 0; begin < num_tokens; begin += stride) {
    const int64_t end = std::min(begin + body, num_tokens);
    windows.push_back({begin, scored, end});
    if (end == num_tokens) break;
    scored = end;
  }
  return windows;
}

}  // namespace lode::cli
