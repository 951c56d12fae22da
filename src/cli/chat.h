// SPDX-License-Identifier: Apache-2.0
// The interactive chat of `lode run`: messages, slash commands, several lines, Ctrl+C.
#ifndef LODE_CLI_CHAT_H_
#define LODE_CLI_CHAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/console.h"
#include "engine/engine.h"

namespace lode::cli {

struct ChatOptions {
  std::string system;  // empty: none
  SamplingParams sampling;
  int64_t max_tokens = 0;
  std::vector<std::string> stop;
  bool quiet = false;
};

// Talks until /exit or Ctrl+D. Needs a terminal on stdin and a chat template. A failed answer is
// shown and the chat goes on; only a failing stdout ends it with an error.
Status Chat(Console& console, Engine& engine, const ChatOptions& options);

}  // namespace lode::cli

#endif  // LODE_CLI_CHAT_H_
