#!/usr/bin/env bash
# Runs the GPU's tests and benchmark on a machine that has the GPU but not this tree: from a folder
# made by pack.sh. Writes everything to one file: $OUT/cuda.txt, or cuda.txt in the folder.
# Each part has a time limit, so that a hanging kernel costs no more than that.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
result=${OUT:-.}/cuda.txt
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export KVART_TEST_DATA=$PWD/data

part() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  printf '\n== %s: %s\n' "$name" "$*"
  timeout "$limit" "$@"
  code=$?
  printf '== %s: exit %d, %d s\n' "$name" "$code" $((SECONDS - begin))
}

checked() {  # TOOL TEST FILTER
  part "$1" 60 compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20 \
    "./$2" --gtest_brief=1 "--gtest_filter=$3"
}

all() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm --format=csv
  part formats 30 ./cuda_formats_test --gtest_brief=1
  part attention 120 ./cuda_attention_test --gtest_brief=1
  if [ -x ./bench_attention_cuda ]; then
    part bench 120 ./bench_attention_cuda \
      --policies f16 fp8 int8 int4 k8v8 k8v4 k6v4 k5v4 k5v3 k4v3 k4v2
  fi
  if python3 -c 'import torch' 2>/dev/null; then
    part torch 60 python3 attention_torch.py
  fi
  if [ -x ./bench_attention_cuda ] && command -v ncu >/dev/null; then
    for policy in int4 fp8; do
      part "counters $policy" 40 ncu --clock-control none --kernel-name regex:decode \
        --launch-skip 2 --launch-count 1 --section SpeedOfLight --section Occupancy \
        --section ComputeWorkloadAnalysis --section WarpStateStats --section LaunchStats \
        ./bench_attention_cuda --policies "$policy" --shapes 0
    done
  fi
  if command -v compute-sanitizer >/dev/null; then
    checked memcheck cuda_formats_test '*GoldenBytes'
    checked memcheck cuda_attention_test '*Graphs*:*Copied*:*Types*'
    checked racecheck cuda_attention_test '*Graphs*'
    checked initcheck cuda_formats_test '*GoldenBytes'
  else
    echo "compute-sanitizer is not there: memory not checked"
  fi
  if command -v cuobjdump >/dev/null; then
    # Registers and stack of each kernel.
    cuobjdump --dump-resource-usage ./cuda_attention_test 2>/dev/null | grep -A1 'Function.*cuda' |
      sed 's/^ *//'
  fi
}

all 2>&1 | tee "$result"
