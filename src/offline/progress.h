// SPDX-License-Identifier: Apache-2.0
// Progress: how far a long measurement is, told to whoever waits for it, who may stop it.
#ifndef LODE_OFFLINE_PROGRESS_H_
#define LODE_OFFLINE_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "engine/engine.h"

namespace lode {

// Called with work done and in all, in tokens. Return false to stop: then Cancelled.
using ProgressCallback = std::function<bool(int64_t done, int64_t total)>;

class Progress {
 public:
  // total: tokens of the whole measurement. An empty callback is never called.
  Progress(ProgressCallback callback, int64_t total)
      : callback_(std::move(callback)), total_(total) {}

  // Extends the engine's sequence by these tokens, a prefill chunk at a time. Errors: those of
  // Engine::Append; Cancelled.
  Status Append(Engine& engine, std::span<const TokenId> tokens);
  // So much is done, whatever was counted until now. Cancelled.
  Status MoveTo(int64_t done);

 private:
  ProgressCallback callback_;
  int64_t total_;
  int64_t done_ = 0;
};

}  // namespace lode

#endif  // LODE_OFFLINE_PROGRESS_H_
