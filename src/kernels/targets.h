// SPDX-License-Identifier: Apache-2.0
// The instruction sets that the kernels are compiled for. Every kernel picks the best one of the
// machine at each call; tests pin it, to check each of them.
#ifndef LODE_KERNELS_TARGETS_H_
#define LODE_KERNELS_TARGETS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lode::kernels {

// One bit per instruction set, as Highway numbers them.
using Target = int64_t;

// Compiled in and supported by this machine, best first.
std::vector<Target> SupportedTargets();
// "AVX2", "SSE4", ...
std::string TargetName(Target target);

// Lets all kernels use `target` only, for the lifetime of the object. For tests; not while other
// threads run kernels.
class ScopedTarget {
 public:
  explicit ScopedTarget(Target target);
  ~ScopedTarget();
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;
};

}  // namespace lode::kernels

#endif  // LODE_KERNELS_TARGETS_H_
