#!/usr/bin/env python3
"""Decode attention's table over several whole runs of bench_attention_cpu, for noisy machines.

Usage: attention_rounds.py BENCH_ATTENTION_CPU [--rounds 5] [--isa avx2 amx] [its own options]

A disturbance lasts longer than the benchmark stays at one row, so its medians of passes can't
remove it; medians over runs minutes apart can. With several instruction sets the runs take turns. A
row is the median of its times, a share that of the bytes per second in the median of the reads with
as many threads, of which each run measures two for each head_dim and context. `spread` is the
longest time over the shortest.
"""

import argparse
import collections
import os
import re
import statistics
import subprocess
import sys

ROW = re.compile(r"(\S+) +(\d+) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+) +\d+%")
READS = re.compile(r"reads, (\d+) threads: ([\d.]+) GB/s before these rows, ([\d.]+) after")


class Table:
    """What the runs of one instruction set printed."""

    def __init__(self):
        self.heading = ""
        self.times_us = collections.defaultdict(list)  # of cache, sizes, threads
        self.layer_kilobytes = {}
        self.reads = collections.defaultdict(list)  # GB/s, of threads

    def add(self, output):
        self.heading = output.split("\n", 1)[0]
        for line in output.splitlines():
            if row := ROW.match(line):
                key = (row[1], *map(int, row.groups()[1:5]))
                self.times_us[key].append(float(row[6]))
                self.layer_kilobytes[key] = float(row[6]) * float(row[7])
            elif reads := READS.match(line):
                self.reads[int(reads[1])] += [float(reads[2]), float(reads[3])]

    def print(self, rounds):
        print(f"\n{self.heading}; medians of {rounds} such runs")
        for threads, values in sorted(self.reads.items()):
            print(
                f"reads, {threads} threads: {statistics.median(values):.2f} GB/s "
                f"({min(values):.2f} to {max(values):.2f})"
            )
        print("cache     head_dim  context  group  threads   us/layer    GB/s % of reads  spread")
        for key, times in self.times_us.items():
            cache, head_dim, context, group, threads = key
            time_us = statistics.median(times)
            rate = self.layer_kilobytes[key] / time_us
            share = 100 * rate / statistics.median(self.reads[threads])
            print(
                f"{cache:9} {head_dim:8} {context:8} {group:6} {threads:8} {time_us:10.1f} "
                f"{rate:7.2f} {share:9.0f}% {max(times) / min(times):7.2f}"
            )


def run(bench, options, isa):
    environment = {**os.environ, "KVART_FORCE_ISA": isa} if isa else None
    done = subprocess.run(
        [bench, *options], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        sys.exit(f"{bench} {' '.join(options)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="the executable bench_attention_cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", nargs="+", default=[None], help="default: the machine's best")
    args, options = parser.parse_known_args()
    tables = {isa: Table() for isa in args.isa}
    for number in range(args.rounds):
        for isa, table in tables.items():
            print(f"round {number + 1} of {args.rounds} {isa or ''}", file=sys.stderr)
            table.add(run(args.bench, options, isa))
    print(f"bench_attention_cpu {' '.join(options)}")
    for table in tables.values():
        table.print(args.rounds)


if __name__ == "__main__":
    main()
