#!/usr/bin/env bash
# The demonstration of `make demo`: an answer from a model on a 4-bit cache, then everything that
# quantizing its cache gains and costs on this machine, on one page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kvart=build/release/tools/kvart
model=$(python3 scripts/fetch_model.py smollm2)

show() {
  printf '\n$ %s\n' "$(printf '%q ' "$@")"
  "$@"
}

# Long enough an answer that blocks of 64 tokens fill and are quantized while it is written.
show "$kvart" run "$model" -p \
  "Explain how rain forms, step by step, from the ocean to the cloud to the ground." \
  --kv-cache-dtype int4 --max-tokens 240 --repetition-penalty 1.1
show "$kvart" report "$model" --html build/kvart-report.html --json build/kvart-report.json
printf '\nOpen build/kvart-report.html in a browser. Another model: %s report MODEL\n' "$kvart"
