// SPDX-License-Identifier: Apache-2.0
// ScopedAttention: an engine's steps go through another attention until the end of a scope.
#ifndef LODE_OFFLINE_SCOPED_ATTENTION_H_
#define LODE_OFFLINE_SCOPED_ATTENTION_H_

#include <memory>
#include <utility>

#include "attention/attention.h"
#include "engine/engine.h"

namespace lode {

class ScopedAttention {
 public:
  // `attention` has seen nothing of the engine's sequence yet.
  ScopedAttention(Engine& engine, std::unique_ptr<Attention> attention)
      : engine_(engine), attention_(std::move(attention)) {
    engine_.UseAttention(attention_.get());
  }
  ~ScopedAttention() { engine_.UseAttention(nullptr); }
  ScopedAttention(const ScopedAttention&) = delete;
  ScopedAttention& operator=(const ScopedAttention&) = delete;

 private:
  Engine& engine_;
  const std::unique_ptr<Attention> attention_;
};

}  // namespace lode

#endif  // LODE_OFFLINE_SCOPED_ATTENTION_H_
