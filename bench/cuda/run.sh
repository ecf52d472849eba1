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

counters() {  # POLICY KERNEL ARGUMENTS...
  local policy=$1 kernel=$2
  shift 2
  part "counters $policy $kernel" 30 ncu --clock-control none --kernel-name "regex:$kernel" \
    --launch-skip 1 --launch-count 1 --section SpeedOfLight --section ComputeWorkloadAnalysis \
    --section WarpStateStats --section LaunchStats \
    --metrics "regex:smsp__average_warps_issue_stalled_.*_per_issue_active" \
    ./bench_attention_cuda "$@"
}

all() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm --format=csv
  part formats 30 ./cuda_formats_test --gtest_brief=1
  part attention 120 ./cuda_attention_test --gtest_brief=1
  if [ -x ./bench_attention_cuda ]; then
    part bench 100 ./bench_attention_cuda
    part seal 30 ./bench_attention_cuda --seal
    part prefill 30 ./bench_attention_cuda --prefill --policies f16 fp8 int8 int4 k6v4 kivi4
  fi
  if python3 -c 'import torch' 2>/dev/null; then
    part torch 60 python3 attention_torch.py
  fi
  if [ -x ./bench_attention_cuda ] && command -v ncu >/dev/null; then
    for policy in int4 fp8 k6v4; do
      counters "$policy" decode --policies "$policy" --shapes 0
    done
    counters int4 prefill --policies int4 --prefill
  fi
  if command -v compute-sanitizer >/dev/null; then
    checked memcheck cuda_formats_test '*GoldenBytes'
    checked memcheck cuda_attention_test '*Graphs*:*Copied*:*Together*'
    checked racecheck cuda_attention_test '*Graphs*'
    checked racecheck cuda_attention_test '*Together*'
    checked initcheck cuda_formats_test '*GoldenBytes'
  else
    echo "compute-sanitizer is not there: memory not checked"
  fi
  if command -v cuobjdump >/dev/null; then
    # Registers and stack of each kernel; then its instructions, by kind.
    cuobjdump --dump-resource-usage ./cuda_attention_test 2>/dev/null | grep -A1 'Function.*cuda' |
      sed 's/^ *//'
    cuobjdump --dump-sass ./bench_attention_cuda 2>/dev/null | awk '
      /Function :/ { name = $3 }
      /^ *\/\*[0-9a-f]{4,5}\*\// {
        op = $2 ~ /^@/ ? $3 : $2
        sub(/[.;].*/, "", op)
        ++count[name, op]
        ++all[name]
      }
      END {
        for (key in count) {
          split(key, part, SUBSEP)
          if (count[key] >= 20) kinds[part[1]] = kinds[part[1]] " " part[2] " " count[key]
        }
        for (name in all) print "SASS", name, all[name] ":" kinds[name]
      }' | grep -E 'decode.*128|prefill'
  fi
}

all 2>&1 | tee "$result"
