#!/usr/bin/env bash
# The demonstration of `make demo`: an answer from a model on a 4-bit cache, then what that cache
# costs and holds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kvart=build/release/tools/kvart
model=$(python3 scripts/fetch_model.py smollm2)

show() {
  printf '\n$ %s\n' "$(printf '%q ' "$@")"
  "$@"
}

show "$kvart" run "$model" -p "Explain in two sentences what a key-value cache is." \
  --kv-cache-dtype int4 --max-tokens 80
show "$kvart" bytes --model llama-3-8b
show "$kvart" plan --model llama-3-8b --kv-cache-dtype int4 --context 32768 --memory 60GB
