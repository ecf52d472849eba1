#!/usr/bin/env python3
"""How many sequences a server really runs at a time, against what `kvart plan` says, and what that
gains.

Usage: capacity.py KVART MODEL [--policies f16 fp8 int8 int4] [--context 1536] [--f16-sequences 3]
                   [--prompts 12] [--output-tokens 32] [--again] [--json FILE]

Every policy gets the same --kv-cache-memory-bytes: what --f16-sequences sequences of --context
tokens take in 16 bits. `kvart bench-serve` then sends more requests at a time than any policy can
hold, each as long as the context with its answer. Printed: sequences planned and seen, tokens/s of
output. Exit code 1 if a policy ran another number than planned. Longer answers show more of the
gain; but then a sequence more may run until the others have grown, and is preempted.

--again sends the same prompts a second time: what a cache that holds them all saves, as when
conversations go on or documents are asked about again.
"""

import argparse
import json
import os
import sys

from server_process import Server, kvart_json, pool_bytes


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvart", help="the program kvart")
    parser.add_argument("model", help="a model that it serves")
    parser.add_argument("--policies", nargs="+", default=["f16", "fp8", "int8", "int4"])
    parser.add_argument("--context", type=int, default=1536)
    parser.add_argument("--f16-sequences", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=12, help="all at a time")
    parser.add_argument("--again", action="store_true", help="the same prompts a second time")
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--json", help="file for the figures")
    return parser.parse_args()


def planned_sequences(args, policy, memory):
    plan = kvart_json(args.kvart, [
        "plan", args.model, "--kv-memory", memory, "--context", args.context,
        "--max-num-seqs", args.prompts, "--policies", policy,
        "--bandwidth", "1GB/s"])  # times don't matter here
    return next(row["sequences_that_fit"] for row in plan["plan"]
                if row["policy"] == policy and row["figures"] == "exact")


def measure(args, policy, memory):
    """What bench-serve says, of each time that the prompts are sent: its prompts have one seed."""
    server = Server(args.kvart, args.model, [
        "--kv-cache-dtype", policy, "--max-model-len", args.context,
        "--kv-cache-memory-bytes", memory, "--max-num-seqs", args.prompts])
    try:
        return [kvart_json(args.kvart, [
            "bench-serve", "--base-url", f"http://127.0.0.1:{server.port}",
            "--num-prompts", args.prompts, "--max-concurrency", args.prompts,
            "--random-input-len", args.context - args.output_tokens,
            "--random-output-len", args.output_tokens]) for _ in range(2 if args.again else 1)]
    finally:
        server.end()


def print_head(args, memory):
    print(f"{os.path.basename(args.model)}, {memory / 1e6:.1f} MB for the cache, {args.prompts} "
          f"sequences of {args.context} tokens, {args.output_tokens} of them the answer\n")
    again = f"{'again, cached':>15} {'tokens/s':>9} {'times f16':>10}" if args.again else ""
    print(f"{'cache':8} {'planned':>8} {'ran':>5} {'output tokens/s':>16} {'times f16':>10} "
          f"{'preemptions':>12} " + again)


def print_row(policy, planned, passes, first_passes):
    times = [one["output_throughput"] / first["output_throughput"]
             for one, first in zip(passes, first_passes)]
    line = (f"{policy:8} {planned:8} {passes[0]['max_running_sequences']:5.0f} "
            f"{passes[0]['output_throughput']:16.1f} {times[0]:10.2f} "
            f"{passes[0]['preemptions']:12.0f} ")
    if len(passes) > 1:
        cached = passes[1]["cached_input_tokens"] / passes[1]["total_input_tokens"]
        line += f"{100 * cached:13.0f} % {passes[1]['output_throughput']:9.1f} {times[1]:10.2f}"
    print(line.rstrip(), flush=True)


def main():
    args = parse_arguments()
    memory = pool_bytes(args.kvart, args.model, "f16", args.context, args.f16_sequences,
                        args.prompts)
    print_head(args, memory)
    figures = []
    for policy in args.policies:
        planned = planned_sequences(args, policy, memory)
        passes = measure(args, policy, memory)
        figures.append({"policy": policy, "planned": planned, "memory_bytes": memory,
                        "passes": passes})
        print_row(policy, planned, passes, figures[0]["passes"])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)
    return int(any(min(row["planned"], args.prompts) != row["passes"][0]["max_running_sequences"]
                   for row in figures))


if __name__ == "__main__":
    sys.exit(main())
