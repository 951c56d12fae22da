#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the kernels and their tests for 64-bit Arm and runs them in qemu: with plain NEON and
# with the dot product instructions. Takes minutes; not part of the suite.
# Needs: g++-aarch64-linux-gnu qemu-user libhwy-dev libgtest-dev (for /usr/src/googletest).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/aarch64}
gtest=/usr/src/googletest
mkdir -p "$build/include"
ln -sfn /usr/include/hwy "$build/include/hwy" # not all of /usr/include, which is the host's

# Highway's library is not packaged for Arm; with a single target these two are all that is missing.
cat > "$build/hwy_targets.cc" <<'EOF'
#include <hwy/highway.h>
namespace hwy {
int64_t SupportedTargets() { return HWY_TARGETS; }
void SetSupportedTargetsForTest(int64_t) {}
}  // namespace hwy
EOF

tests=$(cd src/kernels && ls ./*_test.cc | xargs -n 1 basename -s .cc)
sources="src/base/check.cc src/tensor/dtype.cc $build/hwy_targets.cc
  $(ls src/kernels/*.cc | grep -v _test.cc)
  $gtest/googletest/src/gtest-all.cc $gtest/googlemock/src/gmock-all.cc
  $gtest/googletest/src/gtest_main.cc"

includes="-Isrc -isystem $build/include -I$gtest/googletest/include -I$gtest/googlemock/include
  -I$gtest/googletest -I$gtest/googlemock"

compile() { # MARCH OUT_FOLDER
  mkdir -p "$2"
  export flags="-march=$1 -std=c++20 -O1 -ffp-contract=off -DHWY_COMPILE_ONLY_STATIC $includes"
  for source in $sources src/kernels/*_test.cc; do
    echo "$source $2/$(basename "$source" .cc).o"
  done | tr '\n' ' ' | xargs -P 2 -n 2 sh -c 'aarch64-linux-gnu-g++ $flags -c "$0" -o "$1"'
}

for march in armv8-a+crypto armv8.2-a+dotprod+crypto; do
  echo "== $march"
  compile "$march" "$build/$march"
  for test in $tests; do
    objects=$(ls "$build/$march"/*.o | grep -v -e _test.o)
    # shellcheck disable=SC2086
    aarch64-linux-gnu-g++ -static "$build/$march/$test.o" $objects -lpthread \
      -o "$build/$march/$test"
    qemu-aarch64 -cpu max "$build/$march/$test" --gtest_brief=1
  done
done
