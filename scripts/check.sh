#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The checks of this repository, by how long they take.
#
#   scripts/check.sh --fast   format, layers, sizes, life of a token: seconds; the commit hook
#   scripts/check.sh          and the release build with -Werror, tests, asan and ubsan: minutes
#   scripts/check.sh --slow   and tsan, slow tests, a minute per fuzz target, clang-tidy, aarch64
#
# --fast needs only python3 and git; clang-format-19 is used when it is installed. Exit code: 0 only
# when all passed. --fast runs all its checks before it fails, so one run shows every problem.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/common.sh"
source "$root/scripts/install_deps.sh"
cd "$root"

FUZZ_SECONDS=${LODE_FUZZ_SECONDS:-60}

check_format() {
  command -v clang-format-19 >/dev/null || return 0
  git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' '*.cpp' |
    while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
    xargs -0 --no-run-if-empty clang-format-19 --dry-run --Werror
}

check_shell() { # every shell script parses
  local file code=0
  while IFS= read -r file; do
    bash -n "$file" || code=1
  done < <(grep -lE '^#!.*\b(bash|sh)$' -r scripts .ci; ls scripts/*.sh)
  return "$code"
}

fast_checks() { # silent but for what is wrong
  local check output failed=()
  command -v clang-format-19 >/dev/null ||
    echo "check: clang-format-19 is not installed, so the format is not checked" >&2
  for check in check_format check_shell scripts/check_layers.py scripts/check_sizes.py \
    scripts/check_token_path.py scripts/checks_test.py; do
    if ! output=$("$check" 2>&1); then
      failed+=("${check#scripts/}")
      printf '%s\n' "$output" >&2
    fi
  done
  [ "${#failed[@]}" -eq 0 ] || { echo "check: failed: ${failed[*]}" >&2; return 1; }
}

build_and_test() { # build_and_test PRESET CTEST_ARGUMENTS...
  local preset=$1
  shift
  step "configure ($preset)" configure_preset "$preset"
  step "build ($preset)" cmake --build "build/$preset"
  step "test ($preset)" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error "$@"
}

slow_tests() ( # the real models for these alone: the sanitizers take half an hour over them
  fetch_models
  ctest --test-dir build/release -L slow --output-on-failure --no-tests=error
)

run_fuzzers() { # what a run finds stays in build/fuzz/corpus and seeds the next one
  local target name found=0
  for target in build/fuzz/tests/fuzz/*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    found=1
    name=$(basename "$target")
    mkdir -p "build/fuzz/corpus/$name"
    echo "    $name" >&2
    "$target" -max_total_time="$FUZZ_SECONDS" -rss_limit_mb=2048 "build/fuzz/corpus/$name" 2>&1 |
      tail -n 20
  done
  [ "$found" -eq 1 ] || { echo "no fuzz target was built" >&2; return 1; }
}

run_clang_tidy() {
  git ls-files -z -- 'src/*.cc' | grep -zv '_test\.cc$' |
    xargs -0 -n 4 -P 2 clang-tidy-19 -p build/release --quiet --warnings-as-errors='*' \
      --extra-arg=-Wno-unknown-warning-option  # of GCC's own warnings
}

case "${1:-}" in
  --fast)
    fast_checks
    ;;
  "" | --slow)
    step "install missing packages" install_deps build check $([ "${1:-}" != --slow ] || echo slow)
    step "format, layers, sizes, life of a token" fast_checks
    step "release build and tests" scripts/test
    build_and_test asan -LE slow --parallel 2
    if [ "${1:-}" = --slow ]; then
      step "slow tests (release)" slow_tests
      build_and_test tsan -LE slow --parallel 2
      step "configure (fuzz)" configure_preset fuzz
      step "build (fuzz)" cmake --build build/fuzz
      step "fuzz, $FUZZ_SECONDS s per target" run_fuzzers
      step "clang-tidy" run_clang_tidy
      step "compile the kernels for aarch64" scripts/check_aarch64.sh
    fi
    print_steps
    ;;
  *)
    echo "usage: scripts/check.sh [--fast | --slow]" >&2
    exit 2
    ;;
esac
