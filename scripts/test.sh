#!/usr/bin/env bash
# Everything that must hold before a change goes in: the unit tests in a build by clang with the
# address and undefined-behaviour sanitizers, then every test in a release build by gcc, neither
# with a warning. ctest's summary comes last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=${JOBS:-$(nproc)}
step() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

step "packages and model"
bash scripts/setup.sh test
if ! python3 scripts/fetch_model.py smollm2; then
  # On a developer's machine without network the tests that need the model skip; a CI run must not
  # pass that way.
  [ "${CI:-}" != true ] || exit 1
fi

# What openai_client_test needs; it skips where this can't be had.
bash scripts/python_packages.sh test/server/requirements.txt build/python ||
  echo "test: going on without the packages of test/server/requirements.txt" >&2

step "release build, gcc"
cmake --preset release --log-level=WARNING
cmake --build --preset release --parallel "$jobs"

step "unit tests under sanitizers, built by clang"
cmake --preset asan --log-level=WARNING
cmake --build --preset asan --parallel "$jobs"
ctest --preset asan --parallel "$jobs"

step "all tests"
mkdir -p build
ctest --preset release --parallel "$jobs" 2>&1 | tee build/ctest.log
printf '\n'
grep 'tests passed' build/ctest.log
