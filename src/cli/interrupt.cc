// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

namespace lode::cli {
namespace {

// The only kind of global a signal handler may write.
volatile std::sig_atomic_t interrupt_seen = 0;

void OnInterrupt(int) {
  interrupt_seen = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupt_seen = 0;
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  ::sigaction(SIGINT, &action, &previous_);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &previous_, nullptr);
}

bool InterruptGuard::interrupted() const {
  return interrupt_seen != 0;
}

}  // namespace lode::cli
