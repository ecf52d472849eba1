#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that are missing: `setup.sh build`, or `setup.sh test` for
# the tests' as well. Does nothing, and asks for nothing, where all are there.
set -euo pipefail

packages=(
  g++ cmake ninja-build make pkg-config python3 ca-certificates
  libpcre2-dev libutf8proc-dev libxxhash-dev nlohmann-json3-dev libcli11-dev libfmt-dev
  libboost-dev libgtest-dev libgmock-dev
)
# Without these a test skips.
optional=()
case "${1:-build}" in
  build) ;;
  test)
    packages+=(clang clang-tidy clang-format-14 binutils)
    # Ubuntu's package is an empty one that wants another installer.
    if grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then optional+=(chromium); fi
    ;;
  *)
    echo "usage: setup.sh [build|test]" >&2
    exit 1
    ;;
esac

# The model is fetched with pip: from the interpreter if it has it, else from a virtual environment
# of its own.
if ! { python3 -m pip --version || python3 -c 'import ensurepip'; } >/dev/null 2>&1; then
  packages+=(python3-venv)
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: not a Debian system; make sure that these (or their like) are installed:" >&2
  echo "  ${packages[*]}" >&2
  exit 0
fi

missing_of() {
  local package state
  for package in "$@"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || echo "$package"
  done
}

# One root shell for both steps, so that a password is asked for once.
install_packages() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: as root, run: apt-get install $*" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "setup: installing $*" >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c '
    options="-o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -qq"
    apt-get $options update && apt-get $options -y --no-install-recommends install "$@"
  ' sh "$@" >&2 || {
    echo "setup: could not install: $*; is the network there?" >&2
    return 1
  }
}

mapfile -t missing < <(missing_of "${packages[@]}")
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
mapfile -t missing < <(missing_of "${optional[@]}")
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}" || {
  echo "setup: going on without ${missing[*]}: the tests that need it skip" >&2
}
