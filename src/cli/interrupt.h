// SPDX-License-Identifier: Apache-2.0
// InterruptGuard: while it lives, the first Ctrl+C sets a flag instead of ending the process; the
// second one ends it as usual, so that nobody is ever trapped. One guard at a time.
#ifndef LODE_CLI_INTERRUPT_H_
#define LODE_CLI_INTERRUPT_H_

#include <csignal>

namespace lode::cli {

class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;

 private:
  struct sigaction previous_ = {};
};

}  // namespace lode::cli

#endif  // LODE_CLI_INTERRUPT_H_
