#!/usr/bin/env python3
"""How many sequences a server really runs at a time, against what `kvart plan` says, and what that
gains.

Usage: capacity.py KVART MODEL [--policies f16 fp8 int8 int4] [--context 1536] [--f16-sequences 3]
                   [--output-tokens 32] [--json FILE]

Every policy gets the same --kv-cache-memory-bytes: what --f16-sequences sequences of --context
tokens take in 16 bits. `kvart bench-serve` then sends more requests at a time than any policy can
hold, each as long as the context with its answer. Printed: sequences planned and seen, tokens/s of
output. Exit code 1 if a policy ran another number than planned. Longer answers show more of the
gain; but then a sequence more may run until the others have grown, and is preempted.
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
    parser.add_argument("--running", type=int, default=12, help="--max-num-seqs for all")
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--json", help="file for the figures")
    return parser.parse_args()


def planned_sequences(args, policy, memory):
    plan = kvart_json(args.kvart, [
        "plan", args.model, "--kv-memory", memory, "--context", args.context,
        "--max-num-seqs", args.running, "--policies", policy,
        "--bandwidth", "1GB/s"])  # times don't matter here
    return next(row["sequences_that_fit"] for row in plan["plan"]
                if row["policy"] == policy and row["figures"] == "exact")


def measure(args, policy, memory):
    server = Server(args.kvart, args.model, [
        "--kv-cache-dtype", policy, "--max-model-len", args.context,
        "--kv-cache-memory-bytes", memory, "--max-num-seqs", args.running])
    try:
        return kvart_json(args.kvart, [
            "bench-serve", "--base-url", f"http://127.0.0.1:{server.port}",
            "--num-prompts", args.running, "--max-concurrency", args.running,
            "--random-input-len", args.context - args.output_tokens,
            "--random-output-len", args.output_tokens])
    finally:
        server.end()


def main():
    args = parse_arguments()
    memory = pool_bytes(args.kvart, args.model, "f16", args.context, args.f16_sequences,
                        args.running)
    print(f"{os.path.basename(args.model)}, {memory / 1e6:.1f} MB for the cache, sequences of "
          f"{args.context} tokens, {args.output_tokens} of them the answer\n")
    print(f"{'cache':8} {'planned':>8} {'ran':>5} {'output tokens/s':>16} {'times f16':>10} "
          f"{'preemptions':>12}")
    figures = []
    for policy in args.policies:
        planned = planned_sequences(args, policy, memory)
        result = measure(args, policy, memory)
        figures.append({"policy": policy, "planned": planned, "memory_bytes": memory, **result})
        ratio = result["output_throughput"] / figures[0]["output_throughput"]
        print(f"{policy:8} {planned:8} {result['max_running_sequences']:5.0f} "
              f"{result['output_throughput']:16.1f} {ratio:10.2f} {result['preemptions']:12.0f}",
              flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)
    return int(any(row["planned"] != row["max_running_sequences"] for row in figures))


if __name__ == "__main__":
    sys.exit(main())
