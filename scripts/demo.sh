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
show "$kvart" bytes Llama-3-8B
show "$kvart" plan Llama-3-8B --gpu H100 --kv-memory 60GB --context 32k
