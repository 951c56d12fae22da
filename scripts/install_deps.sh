# SPDX-License-Identifier: Apache-2.0
# Sourced: install_deps SET... installs with apt-get what the sets need and this machine lacks.
#
#   build   compiler, CMake, libraries, GoogleTest, cargo, pip: the product and its tests
#   check   clang-format and git: scripts/check.sh --fast
#   slow    clang with libFuzzer, clang-tidy, aarch64 cross compiler: scripts/check.sh --slow
#
# When nothing is missing nothing is run: that takes well under a second. Programs are looked up by
# name (a newer one of your own is fine), libraries by Debian package. Root calls apt-get directly,
# others through sudo. LODE_SKIP_INSTALL=1 turns all of it off.
# docs/dependencies.md says what each library is for.

# Lines "command package": the package is installed when the command is not found.
DEPS_BUILD_PROGRAMS="g++ g++
cmake cmake
ninja ninja-build
pkg-config pkg-config
python3 python3
ccache ccache
mold mold"
DEPS_BUILD_LIBRARIES="ca-certificates libc6-dev libhwy-dev libfmt-dev nlohmann-json3-dev
libsimdjson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libeigen3-dev libssl-dev
libcurl4-openssl-dev libgtest-dev libgmock-dev"
DEPS_CHECK_PROGRAMS="clang-format-19 clang-format-19
git git"
DEPS_SLOW_PROGRAMS="clang++-19 clang-19
clang-tidy-19 clang-tidy-19
aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
qemu-aarch64 qemu-user"
DEPS_SLOW_LIBRARIES="libclang-rt-19-dev"

# The chat-template crate needs a recent cargo: Debian 12's `cargo` is 0.66, its `cargo-web` recent.
DEPS_CARGO_MINIMUM=1.85

# cargo_is_recent PROGRAM: true when it exists and is at least DEPS_CARGO_MINIMUM.
cargo_is_recent() {
  local version
  version=$("$1" --version 2>/dev/null | awk '{ print $2 }')
  [ -n "$version" ] &&
    printf '%s\n%s\n' "$DEPS_CARGO_MINIMUM" "$version" | sort --version-sort --check=quiet
}

# missing_packages SET...: prints the packages to install, one a line.
missing_packages() {
  local set programs libraries program package installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p')
  for set in "$@"; do
    programs=DEPS_${set^^}_PROGRAMS
    libraries=DEPS_${set^^}_LIBRARIES
    while read -r program package; do
      [ -z "$program" ] || command -v "$program" >/dev/null || echo "$package"
    done <<<"${!programs:-}"
    for package in ${!libraries:-}; do
      grep -qx -- "$package" <<<"$installed" || echo "$package"
    done
    if [ "$set" = build ]; then
      python3 -c "import pip" >/dev/null 2>&1 || echo python3-pip
      cargo_is_recent cargo || cargo_is_recent /usr/bin/cargo || echo cargo-web
    fi
  done
}

# apt_install PACKAGE...: quiet unless it fails.
apt_install() {
  local as_root=() log code=0
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Neither root nor sudo. Have root do this, then start again:" >&2
      echo "  apt-get update && apt-get install -y --no-install-recommends $*" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  log=$(mktemp)
  # A foreign repository that is out of reach fails `update` but need not matter: install decides.
  "${as_root[@]}" apt-get -o Acquire::Retries=3 update >"$log" 2>&1 </dev/null || true
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y \
    --no-install-recommends "$@" >>"$log" 2>&1 </dev/null || code=$?
  [ "$code" -eq 0 ] || tail -n 40 "$log" >&2
  rm -f "$log"
  return "$code"
}

install_deps() {
  if [ "${LODE_SKIP_INSTALL:-0}" = 1 ]; then
    echo "    LODE_SKIP_INSTALL=1: nothing is looked for or installed" >&2
    return 0
  fi
  if ! command -v dpkg-query >/dev/null; then
    echo "This script installs Debian packages, and this machine has no dpkg. Install what" >&2
    echo "docs/dependencies.md lists, set LODE_SKIP_INSTALL=1 and start again." >&2
    return 1
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "    nothing is missing" >&2
  else
    echo "    apt-get install ${missing[*]}" >&2
    apt_install "${missing[@]}"
  fi
  # An old cargo earlier in PATH must not hide the recent one.
  if ! cargo_is_recent cargo && cargo_is_recent /usr/bin/cargo; then
    export PATH="/usr/bin:$PATH"
  fi
}
