#!/usr/bin/env python3
"""Kvart and llama.cpp side by side on this machine, in one run: tokens/s of prefill and decode.

Usage: compare_llama_cpp.py KVART MODEL.gguf [--threads 2] [--prefill 512] [--depths 0 4096]

Needs llama-cpp-python (test/oracle/requirements.txt). Both engines get the same file, the same
random tokens and the same threads; llama.cpp runs with flash attention and its own cache type of
the same width. Rounds alternate between the engines and the medians are compared, since absolute
times on a shared machine mean little.
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

CACHES = [("f16", "f16", llama_cpp.GGML_TYPE_F16), ("int8", "q8_0", llama_cpp.GGML_TYPE_Q8_0)]
DECODED = 32


def llama_run(args, kind, depth, tokens):
    """Seconds to take `tokens[:depth]` and seconds per token after it."""
    llm = llama_cpp.Llama(
        args.model,
        n_ctx=depth + DECODED + 64,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        n_batch=512,
        n_ubatch=512,
        flash_attn=True,
        type_k=kind,
        type_v=kind,
        verbose=False,
    )
    start = time.perf_counter()
    llm.eval(tokens[:depth])
    prefill = time.perf_counter() - start
    start = time.perf_counter()
    for token in tokens[depth : depth + DECODED]:
        llm.eval([token])
    decode = (time.perf_counter() - start) / DECODED
    llm.close()
    return prefill, decode


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
    return figures["prefill_s"], figures["decode_s"] / DECODED


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvart")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(1)
    tokens = [
        rng.randrange(100, 40000) for _ in range(max(args.depths + [args.prefill]) + DECODED + 1)
    ]
    print(
        f"{'':22}{'Kvart':>12}{'llama.cpp':>12}{'ratio':>8}   (tokens/s, median of {args.rounds})"
    )
    for cache, other, kind in CACHES:
        for what, depth in [("prefill", args.prefill)] + [
            ("decode", max(d, 1)) for d in args.depths
        ]:
            ours, theirs = [], []
            for _ in range(args.rounds):
                index = 0 if what == "prefill" else 1
                ours.append(kvart_run(args, cache, depth, tokens)[index])
                theirs.append(llama_run(args, kind, depth, tokens)[index])
            count = depth if what == "prefill" else 1
            a, b = count / statistics.median(ours), count / statistics.median(theirs)
            row = f"{what + ' ' + str(depth):14}{cache:>8}{a:12.1f}{b:12.1f}{a / b:8.2f}"
            print(f"{row}   against {other}")
            sys.stdout.flush()


main()
