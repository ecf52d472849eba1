#!/usr/bin/env python3
"""Instructions that a decode step of attention runs for each cached value, counted by callgrind.

Usage: instructions.py BENCH_ATTENTION_CPU [--policies f16 int8 int4] [--groups 1 4 8]
                       [--head-dim 128] [--context 4096]

Needs valgrind. The benchmark runs with one more pass over one layer's cache and with several more;
the difference is what those passes took, so that filling the cache and starting cancel. A value is
a number of K or of V that the step reads. The floor is the products alone, for each query head: of
16-bit integers a multiplication of pairs and an addition for 16 values, of floats a fused
multiply-add for 8. Counts don't depend on what else the machine does.
"""

import argparse
import re
import subprocess
import sys

KV_HEADS = 2
PASSES = 4  # more in the longer run than in the shorter
POLICIES = ["f16", "fp8", "int8", "k8v8", "k6v4", "int4", "kivi2"]
FLOOR_PER_HEAD = 2 / 16  # and in floats 1 / 8, the same


def count(args, policy, group, runs):
    """Instructions of the whole benchmark with `runs` timed passes."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", args.bench]
    command += ["--policies", policy, "--groups", str(group), "--runs", str(runs)]
    command += ["--head-dims", str(args.head_dim), "--contexts", str(args.context)]
    # One layer: less than two caches of two bits and more fit into the megabyte.
    command += ["--kv-heads", str(KV_HEADS), "--threads", "1", "--megabytes", "1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit("valgrind is not installed (Debian package valgrind)")
    collected = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
    if done.returncode != 0 or collected is None:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return int(collected.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="the executable bench_attention_cpu")
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--context", type=int, default=4096)
    args = parser.parse_args()
    values = 2 * KV_HEADS * args.head_dim * args.context
    if values * 2 / 8 <= 500_000:
        sys.exit("--context: so few values that two layers fit into the benchmark's megabyte")
    print(
        f"instructions for each cached value: head_dim {args.head_dim}, {args.context} tokens, "
        f"{KV_HEADS} KV heads, one query token, from the difference of {PASSES} passes"
    )
    print(f"{'cache':9}" + "".join(f"{f'G = {group}':>10}" for group in args.groups))
    floors = "".join(f"{FLOOR_PER_HEAD * group:10.3f}" for group in args.groups)
    print(f"{'floor':9}{floors}")
    for policy in args.policies:
        row = ""
        for group in args.groups:
            longer = count(args, policy, group, 1 + PASSES)
            row += f"{(longer - count(args, policy, group, 1)) / (PASSES * values):10.3f}"
        print(f"{policy:9}{row}")
        sys.stdout.flush()


main()
