// SPDX-License-Identifier: Apache-2.0
// The one table from StatusCode to the process's exit code (docs/cli.md).
#ifndef LODE_CLI_EXIT_CODE_H_
#define LODE_CLI_EXIT_CODE_H_

#include "base/status.h"

namespace lode::cli {

constexpr int ExitCode(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInternal:
      return 1;
    case StatusCode::kInvalidArgument:
      return 2;  // as shells and most tools do for wrong usage
    case StatusCode::kNotFound:
      return 3;
    case StatusCode::kCorruption:
      return 4;
    case StatusCode::kUnsupported:
      return 5;
    case StatusCode::kResourceExhausted:
      return 6;
    case StatusCode::kIo:
      return 7;
    case StatusCode::kCancelled:
      return 130;  // as a process ended by Ctrl+C
  }
  return 1;
}

}  // namespace lode::cli

#endif  // LODE_CLI_EXIT_CODE_H_
