// SPDX-License-Identifier: Apache-2.0
// The only file compiled anew for every commit.
#include "cli/build_info.h"

namespace lode::cli {

const char* BuildVersion() {
  return LODE_VERSION;
}
const char* BuildCommit() {
  return LODE_COMMIT;
}
const char* BuildType() {
  return LODE_BUILD_TYPE;
}

}  // namespace lode::cli
