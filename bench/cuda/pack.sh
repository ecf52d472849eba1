#!/usr/bin/env bash
# Gathers what run.sh needs on another machine. Arguments: a build folder with the tests and the
# benchmark of the GPU built, and the folder to make.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$1
to=$2
mkdir -p "$to/lib" "$to/data/format"
for program in test/cuda_formats_test test/cuda_attention_test bench/bench_attention_cuda; do
  [ -x "$build/$program" ] && cp "$build/$program" "$to/"
done
cp -r "$here/../../test/format/golden" "$to/data/format/"
cp "$here/run.sh" "$here/attention_torch.py" "$to/"
# Libraries that the other machine may lack; the C and C++ runtimes are older here than there.
ldd "$to"/cuda_attention_test | awk '/fmt|xxhash/ {print $3}' | xargs -I{} cp -L {} "$to/lib/"
du -sh "$to"
