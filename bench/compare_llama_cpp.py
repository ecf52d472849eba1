#!/usr/bin/env python3
"""Kvart and llama.cpp side by side on this machine, in one run: tokens/s of prefill and decode.

Usage: compare_llama_cpp.py KVART MODEL.gguf [--threads 2] [--depths 1 512 2048 4096 8000]
                            [--caches f16 int8 int4] [--rounds 5]
                            [--sweep-bench PATH/llama-sweep-bench --sweep-name NAME]

llama.cpp is llama-cpp-python (test/oracle/requirements.txt). --sweep-bench adds a fork of llama.cpp
by its llama-sweep-bench; with --without-llama-cpp alone Kvart's caches are compared with each
other. All get the same file and the same threads, random tokens in steps of 512, flash attention,
and the cache type of the same width; the peers' threads spin shortly before they sleep unless
GOMP_SPINCOUNT is set. At each depth: the rate of taking the prompt of so many tokens, and of
--decoded tokens after it. A round runs every cache and program once, one after the other; the
medians of rounds are compared, since absolute times on a shared machine mean little; what other
programs took of the processors meanwhile is printed. --json keeps every round's figures.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time

import peers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvart", help="the program kvart")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 512, 2048, 4096, 8000])
    parser.add_argument(
        "--caches", nargs="+", choices=peers.CACHES, default=["f16", "int8", "int4"]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decoded", type=int, default=32, help="tokens decoded at each depth")
    parser.add_argument(
        "--prefill-max",
        type=int,
        default=1 << 30,
        help="deeper, llama.cpp's cache is filled by copying cells and only decoding is measured",
    )
    parser.add_argument(
        "--kvart-prefill-max",
        type=int,
        default=1 << 30,
        help="deeper, Kvart's cache is filled by copying blocks and only decoding is measured",
    )
    parser.add_argument("--without-llama-cpp", action="store_true")
    parser.add_argument("--sweep-bench", metavar="PATH", help="a fork's llama-sweep-bench")
    parser.add_argument("--sweep-name", default="sweep-bench", help="what to call the fork")
    parser.add_argument("--sweep-options", default="", help="more options for it, in one word")
    parser.add_argument(
        "--sweep-max", type=int, default=1 << 30, help="it isn't measured at greater depths"
    )
    parser.add_argument("--json", help="file for every round's figures")
    args = parser.parse_args()
    args.depths = sorted(set(args.depths))
    if args.depths[0] < 1 or min(args.rounds, args.decoded, args.threads) < 1:
        parser.error("depths, rounds, decoded tokens and threads are at least 1")
    if args.kvart_prefill_max < 512 or args.sweep_max < args.depths[0]:
        parser.error("--kvart-prefill-max is at least 512, --sweep-max the first depth")
    for path in (args.kvart, args.model, args.sweep_bench):
        if path and not os.path.isfile(path):
            parser.error(f"no file {path}")
    return args


def programs_of(args):
    """Kvart and the peers that are here."""
    # Threads that spin for long where they wait for one another are many times slower as soon as
    # any other program runs. Spinning not at all is slower where none does.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    programs = [
        peers.Kvart(args.kvart, args.model, args.threads, args.decoded, args.kvart_prefill_max)
    ]
    if not args.without_llama_cpp:
        try:
            programs.append(
                peers.LlamaCpp(args.model, args.threads, args.decoded, args.prefill_max)
            )
        except ImportError as error:
            print(
                f"without llama.cpp: {error}. Run this by a Python that has llama-cpp-python "
                "(pip install -r test/oracle/requirements.txt).",
                file=sys.stderr,
            )
    if args.sweep_bench:
        programs.append(
            peers.SweepBench(
                args.sweep_bench,
                args.sweep_name,
                args.model,
                args.threads,
                args.decoded,
                args.sweep_options,
                args.sweep_max,
            )
        )
    if len(programs) == 1 and not (args.without_llama_cpp and len(args.caches) > 1):
        sys.exit(
            "nothing to compare with: give --sweep-bench, install llama-cpp-python, or compare "
            "Kvart's caches with each other by --without-llama-cpp"
        )
    return programs


class OtherWork:
    """The share of the processors that went to other programs since this was made, 0 to 1."""

    def __init__(self):
        self.began = self.now()

    def share(self):
        elapsed_s, busy_s = (now - then for now, then in zip(self.now(), self.began))
        return max(0.0, busy_s / elapsed_s / os.cpu_count())

    @staticmethod
    def now():
        """(time, seconds of all processors without ours); ours count once a program has ended."""
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        busy_s = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # idle, waiting
        return time.monotonic(), busy_s - sum(os.times()[:4])


def median_of(runs, depth, what):
    rates = [run[depth][what] for run in runs if run[depth][what] is not None]
    return statistics.median(rates) if rates else None


def cell(rate, kvart=None):
    """A rate, and Kvart's in multiples of it."""
    text = f"{rate:12.1f}" if rate is not None else f"{'-':>12}"
    if kvart is not None:
        text += f"{kvart / rate:7.2f}" if rate is not None else f"{'':7}"
    return text


def print_rates(args, names, kept):
    print(f"\n{'':15}{'cache':14}{'Kvart':>12}", end="")
    print("".join(f"{name:>12}{'ratio':>7}" for name in names[1:]))
    for cache in args.caches:
        label = f"{cache} / {peers.CACHES[cache]}" if names[1:] else cache
        for what, word in enumerate(("prefill", "decode")):
            for depth in args.depths:
                if what == 0 and depth < 64:
                    continue
                ours, *others = (median_of(kept[cache][name], depth, what) for name in names)
                cells = cell(ours) + "".join(cell(rate, ours) for rate in others)
                print(f"{word:8}{depth:<7}{label:14}{cells}")


def print_shares(args, names, kept):
    """How each program's decoding keeps up: against its shallowest depth, and against f16."""
    for name in names:
        print(f"\n{name}'s decoding: % of its rate at {args.depths[0]}", end="")
        print(" (times its rate with f16)" if "f16" in args.caches else "")
        for cache in args.caches:
            shown = f"{cache if name == 'Kvart' else peers.CACHES[cache]:8}"
            start = median_of(kept[cache][name], args.depths[0], 1)
            for depth in args.depths:
                rate = median_of(kept[cache][name], depth, 1)
                if rate is None:
                    continue
                shown += f"{depth:9}: {100 * rate / start:4.0f} %"
                if "f16" in args.caches:
                    shown += f" ({rate / median_of(kept['f16'][name], depth, 1):.2f})"
            print(shown)


def main():
    args = parse_arguments()
    programs = programs_of(args)
    names = [program.name for program in programs]
    rng = random.Random(1)
    tokens = [rng.randrange(100, 40000) for _ in range(args.depths[-1] + args.decoded + 1)]
    kept = {cache: {name: [] for name in names} for cache in args.caches}
    begun = time.monotonic()
    for number in range(1, args.rounds + 1):
        for cache in args.caches:
            for program in programs:
                other_work = OtherWork()
                kept[cache][program.name].append(program.rates(cache, tokens, args.depths))
                print(
                    f"{(time.monotonic() - begun) / 60:5.1f} min: round {number}, {cache}, "
                    f"{program.name}; other work took {100 * other_work.share():.0f} % of the "
                    "processors",
                    flush=True,
                )
                if args.json:
                    with open(args.json, "w", encoding="utf-8") as file:
                        json.dump({"depths": args.depths, "caches": kept}, file)
    versions = [program.version for program in programs if hasattr(program, "version")]
    print(
        f"{os.path.basename(args.model)}: tokens/s, medians of {args.rounds} rounds, "
        f"{args.threads} threads, {args.decoded} tokens decoded at each depth",
        *versions,
        sep="; ",
    )
    print_rates(args, names, kept)
    print_shares(args, names, kept)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
