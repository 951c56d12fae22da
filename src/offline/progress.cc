// SPDX-License-Identifier: Apache-2.0
#include "offline/progress.h"

#include <algorithm>

namespace lode {

Status Progress::Append(Engine& engine, std::span<const TokenId> tokens) {
  const auto chunk = static_cast<size_t>(engine.options().prefill_chunk);
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min(chunk, tokens.size()));
    LODE_RETURN_IF_ERROR(engine.Append({part.begin(), part.end()}));
    LODE_RETURN_IF_ERROR(MoveTo(done_ + static_cast<int64_t>(part.size())));
    tokens = tokens.subspan(part.size());
  }
  return OkStatus();
}

Status Progress::MoveTo(int64_t done) {
  done_ = std::min(done, total_);
  if (callback_ && !callback_(done_, total_)) return CancelledError("interrupted");
  return OkStatus();
}

}  // namespace lode
