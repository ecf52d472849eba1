#!/usr/bin/env python3
"""Kvart and llama.cpp side by side on this machine, in one run: tokens/s of prefill and decode.

Usage: compare_llama_cpp.py KVART MODEL.gguf [--threads 2] [--depths 1 512 2048 4096 8000]
                            [--caches f16 int8 int4] [--rounds 5]

Needs llama-cpp-python (test/oracle/requirements.txt). Both engines get the same file, the same
random tokens and the same threads; llama.cpp runs with flash attention and its own cache type of
the same width. At each depth: the rate of taking the prompt of so many tokens, and of 32 tokens
decoded after it. Rounds alternate between the engines and the medians are compared, since absolute
times on a shared machine mean little. --json keeps every round's figures.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time

import llama_cpp

CACHES = {
    "f16": ("f16", llama_cpp.GGML_TYPE_F16),
    "fp8": ("q8_0", llama_cpp.GGML_TYPE_Q8_0),
    "int8": ("q8_0", llama_cpp.GGML_TYPE_Q8_0),
    "k8v8": ("q8_0", llama_cpp.GGML_TYPE_Q8_0),
    "k6v4": ("q5_0", llama_cpp.GGML_TYPE_Q5_0),
    "int4": ("q4_0", llama_cpp.GGML_TYPE_Q4_0),
}
DECODED = 32


def llama_run(args, kind, tokens):
    """[(prefill tokens/s, decode tokens/s)] at each depth, in one pass over the deepest prompt."""
    llm = llama_cpp.Llama(
        args.model,
        n_ctx=args.depths[-1] + DECODED * (len(args.depths) + 1),
        n_threads=args.threads,
        n_threads_batch=args.threads,
        n_batch=512,
        n_ubatch=512,
        flash_attn=True,
        type_k=kind,
        type_v=kind,
        verbose=False,
    )
    rates = []
    taken = 0
    prefill = 0.0
    for depth in args.depths:
        start = time.perf_counter()
        llm.eval(tokens[taken:depth])
        prefill += time.perf_counter() - start
        start = time.perf_counter()
        for token in tokens[depth : depth + DECODED]:
            llm.eval([token])
        decode = time.perf_counter() - start
        llm.n_tokens = depth  # the next prompt tokens take the place of the decoded ones
        taken = depth
        rates.append((depth / prefill, DECODED / decode))
    llm.close()
    return rates


def kvart_run(args, cache, depth, tokens):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as out, tempfile.NamedTemporaryFile(
        "w", suffix=".ids"
    ) as ids:
        ids.write(" ".join(map(str, tokens[: depth + DECODED])))
        ids.flush()
        subprocess.run(
            [
                args.kvart,
                "run",
                args.model,
                "--token-ids",
                ids.name,
                "--forced",
                str(DECODED),
                "-q",
                "--kv-cache-dtype",
                cache,
                "-t",
                str(args.threads),
                "--json",
                out.name,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with open(out.name, encoding="utf-8") as file:
            figures = json.load(file)
    return depth / figures["prefill_s"], DECODED / figures["decode_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvart")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 512, 2048, 4096, 8000])
    parser.add_argument("--caches", nargs="+", choices=CACHES, default=["f16", "int8", "int4"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="file for every round's figures")
    args = parser.parse_args()
    args.depths = sorted(args.depths)
    rng = random.Random(1)
    tokens = [rng.randrange(100, 40000) for _ in range(args.depths[-1] + DECODED + 1)]
    print(f"tokens/s, medians of {args.rounds}, {args.threads} threads")
    print(f"{'':22}{'Kvart':>12}{'llama.cpp':>12}{'ratio':>8}")
    kept = {}
    for cache in args.caches:
        other, kind = CACHES[cache]
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append([kvart_run(args, cache, depth, tokens) for depth in args.depths])
            theirs.append(llama_run(args, kind, tokens))
        kept[cache] = {"kvart": ours, "llama.cpp": theirs}
        for index, what in enumerate(("prefill", "decode")):
            for place, depth in enumerate(args.depths):
                a = statistics.median(run[place][index] for run in ours)
                b = statistics.median(run[place][index] for run in theirs)
                name = f"{what} {depth}"
                if what == "decode" or depth > 1:
                    print(f"{name:14}{cache:>8}{a:12.1f}{b:12.1f}{a / b:8.2f}   against {other}")
        sys.stdout.flush()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"depths": args.depths, "caches": kept}, file)


main()
