// SPDX-License-Identifier: Apache-2.0
// The windows of a sliding-window perplexity.
#ifndef LODE_CLI_PERPLEXITY_H_
#define LODE_CLI_PERPLEXITY_H_

#include <cstdint>
#include <vector>

namespace lode::cli {

// Text tokens [begin, end) are fed; of them [first_scored, end) are scored.
struct PerplexityWindow {
  int64_t begin = 0;
  int64_t first_scored = 0;
  int64_t end = 0;
  bool operator==(const PerplexityWindow&) const = default;
};

// Windows over a text of num_tokens. A window holds `window` tokens, a BOS among them when has_bos.
// Window k starts at token k * stride; the last is the first that reaches the end. Each token is
// scored once, in the first window that holds it; the text's first only behind a BOS.
// Precondition: 1 <= stride <= window - has_bos.
std::vector<PerplexityWindow> PerplexityWindows(int64_t num_tokens, int64_t window, int64_t stride,
                                                bool has_bos);

}  // namespace lode::cli

#endif  // LODE_CLI_PERPLEXITY_H_
