#!/usr/bin/env bash
# Checks the layout of every C++ file with clang-format 14, or with --fix puts it right. Other
# versions of clang-format lay some lines out differently: where 14 isn't there, it says so and
# exits 77 (skipped).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$formatter" ] || ! "$formatter" --version | grep -q 'version 14\.'; then
  echo "format: clang-format 14 is not installed: skipped" >&2
  exit 77
fi
mode=(--dry-run -Werror)
[ "${1:-}" != --fix ] || mode=(-i)
find include src tools bench test -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' |
  sort |
  xargs "$formatter" "${mode[@]}"
