#!/usr/bin/env bash
# Runs every fuzz target for a time, with what it finds kept as a corpus: `fuzz.sh [SECONDS]`. Ends
# with 1 if one of them found a fault; the input that shows it is named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-3600}
jobs=${JOBS:-$(nproc)}
bash scripts/setup.sh test
cmake --preset asan --log-level=WARNING
cmake --build --preset asan --parallel "$jobs"
export seconds
find build/asan/fuzz -maxdepth 1 -name '*_fuzz' -type f -printf '%f\n' |
  xargs -P "$jobs" -I{} bash -c '
    name=$(basename {} _fuzz)
    mkdir -p "build/fuzz/$name"
    build/asan/fuzz/{} -max_total_time="$seconds" -max_len=65536 -timeout=20 -rss_limit_mb=2048 \
      -artifact_prefix="build/fuzz/$name-" "build/fuzz/$name" "build/asan/fuzz/corpus/$name" \
      > "build/fuzz/$name.log" 2>&1 && result=fine || result="A FAULT: build/fuzz/$name.log"
    tail -n 1 "build/fuzz/$name.log"
    echo "$name: $result"
    [ "$result" = fine ]'
