// SPDX-License-Identifier: Apache-2.0
// Where a verb's text comes from: -p TEXT, -f FILE ("-": stdin), or piped stdin.
#ifndef LODE_CLI_TEXT_INPUT_H_
#define LODE_CLI_TEXT_INPUT_H_

#include <optional>
#include <string>

#include "base/status.h"
#include "cli/args.h"
#include "cli/console.h"

namespace lode::cli {

struct TextOptions {
  std::string prompt;      // -p
  std::string file;        // -f
  void AddTo(Args& args);  // declares -p and -f
};

// All bytes of a file, pipe or device; "-" is stdin. NotFound, Io.
Result<std::string> ReadText(const std::string& path);

struct TextInput {
  std::optional<std::string> prompt;  // of -p
  std::optional<std::string> file;    // of -f, or of piped stdin when neither -p nor -f is given
};
// Reads what the options name. Both stay empty when nothing is given and stdin is a terminal.
Result<TextInput> ReadTextInput(const Console& console, const Args& args,
                                const TextOptions& options);

}  // namespace lode::cli

#endif  // LODE_CLI_TEXT_INPUT_H_
