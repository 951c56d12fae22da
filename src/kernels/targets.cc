// SPDX-License-Identifier: Apache-2.0
#include "kernels/targets.h"

#include <hwy/highway.h>

namespace lode::kernels {

std::vector<Target> SupportedTargets() {
  std::vector<Target> targets;
  // Better targets have lower bits.
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    targets.push_back(rest & -rest);
  }
  return targets;
}

std::string TargetName(Target target) {
  return hwy::TargetName(target);
}

ScopedTarget::ScopedTarget(Target target) {
  hwy::SetSupportedTargetsForTest(target);
}

ScopedTarget::~ScopedTarget() {
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace lode::kernels
