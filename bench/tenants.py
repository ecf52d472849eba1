#!/usr/bin/env python3
"""What one tenant of a server learns about another, and takes from it.

Usage: tenants.py KVART MODEL [--records 1000] [--floods 5] [--context 512] [--pool-sequences 8]
                  [--significance 0.01] [--server-options "..."] [--json FILE]

1. Guessing. Tenant A asks about --records records, each with a secret token in it. Tenant B, who
   knows the rest, asks each once with a guess; half of the guesses are right. B looks at the time
   to the first token and at cached_tokens of its own usage. Do right guesses differ from wrong
   ones? By the test of Kolmogorov and Smirnov on the times, for servers that part the tenants and
   for servers that don't. (Method: "Auditing Prompt Caching in Language Model APIs", 2025.)
2. Flooding. A comes back to one system prompt; in between B sends prompts that never repeat, until
   they would fill a share of the pool's places. How much of A's prompt is still cached?

Exit code 1 if B learns something from a server that parts the tenants, or nothing from one that
doesn't (then the experiment is no good), or if a prefix is lost that had to be there.
"""

import argparse
import json
import math
import os
import random
import statistics
import sys
import time

from server_process import JSON_TYPE, Server, pool_bytes, report_faults

KEY_A, KEY_B = "tenant-a-key", "tenant-b-key"
KEYS = ("--api-key", KEY_A, "--api-key", KEY_B)
PREFIX_TOKENS = 256
SHORT_TOKENS = 72  # a block and a bit
SHARES = (0.25, 0.5, 0.75, 1, 1.5, 3)
SAFE_SHARE = 0.5  # up to there a prefix must be found again


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvart", help="the program kvart")
    parser.add_argument("model", help="a model that it serves")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--floods", type=int, default=5)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--pool-sequences", type=int, default=8)
    parser.add_argument("--policy", default="int4")
    parser.add_argument("--significance", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-options", default="", help="more options for serve, in one word")
    parser.add_argument("--json", help="file for the figures")
    return parser.parse_args()


def memory_bytes(args):
    return pool_bytes(args.kvart, args.model, args.policy, args.context, args.pool_sequences,
                      args.pool_sequences)


def start(args, *options):
    return Server(args.kvart, args.model, [
        "--kv-cache-dtype", args.policy, "--max-model-len", args.context, "--max-num-seqs",
        args.pool_sequences, "--kv-cache-memory-bytes", memory_bytes(args),
        *args.server_options.split(), *options])


class Tenant:
    """Asks with its key on a connection that stays open."""

    def __init__(self, server, key=None, salt=None):
        self.connection = server.connect()
        self.headers = {**JSON_TYPE, **({"Authorization": "Bearer " + key} if key else {})}
        self.more = {"cache_salt": salt} if salt else {}

    def ask(self, prompt, tokens=1):
        """(seconds to the first token, tokens from the cache, text) of a streamed answer."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}, **self.more}
        began = time.perf_counter()
        self.connection.request("POST", "/v1/completions", json.dumps(body), self.headers)
        response = self.connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read()[:300]!r}")
        first_s, text, cached = None, "", 0
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            if first_s is None:
                first_s = time.perf_counter() - began
            event = json.loads(line[6:])
            text += "".join(choice["text"] for choice in event["choices"])
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        return first_s, cached, text

    def close(self):
        self.connection.close()


def ks_p_value(a, b):
    """Of two samples from one distribution: how likely they differ by as much as these. Method:
    the two-sample statistic with Stephens' correction for small samples."""
    a, b = sorted(a), sorted(b)
    most = i = j = 0
    while i < len(a) and j < len(b):
        value = min(a[i], b[j])
        while i < len(a) and a[i] == value:
            i += 1
        while j < len(b) and b[j] == value:
            j += 1
        most = max(most, abs(i / len(a) - j / len(b)))
    effective = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    scaled = (effective + 0.12 + 0.11 / effective) * most
    if scaled < 0.2:  # the sum below converges too slowly there; it is 1
        return 1.0
    terms = ((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * sum(terms)))


def guess(args, options, tenant_a, tenant_b):
    """What B sees of one server."""
    server = start(args, *options)
    rng = random.Random(args.seed)
    try:
        a, b = Tenant(server, *tenant_a), Tenant(server, *tenant_b)
        seen = {True: ([], []), False: ([], [])}
        for _ in range(args.records):
            record = [rng.randrange(10, 200) for _ in range(PREFIX_TOKENS + 8)]
            a.ask(record)
            right = rng.random() < 0.5
            attempt = list(record)
            if not right:
                attempt[5] = 200 + record[5] % 40
            first_s, cached, _ = b.ask(attempt)
            seen[right][0].append(first_s)
            seen[right][1].append(cached)
        a.close()
        b.close()
    finally:
        server.end()
    return {"p_value": ks_p_value(seen[True][0], seen[False][0]),
            "median_right_s": statistics.median(seen[True][0]),
            "median_wrong_s": statistics.median(seen[False][0]),
            "cached_right": max(seen[True][1]), "cached_wrong": max(seen[False][1])}


def guessing(args, faults):
    """All servers: name, options, key and salt of A and of B, whether B may learn."""
    servers = (
        ("a key each", KEYS, (KEY_A,), (KEY_B,), False),
        ("a key each, B knows A's cache_salt", KEYS, (KEY_A, "s"), (KEY_B, "s"), False),
        ("no keys, a cache_salt each", (), (None, "a"), (None, "b"), False),
        ("a key each, --share-prefixes", (*KEYS, "--share-prefixes"), (KEY_A,), (KEY_B,), True),
        ("no keys", (), (None,), (None,), True),
    )
    rows = []
    for name, options, tenant_a, tenant_b, learns in servers:
        row = {"server": name, **guess(args, options, tenant_a, tenant_b)}
        rows.append(row)
        if row["cached_wrong"] != 0 or row["cached_right"] != (PREFIX_TOKENS if learns else 0):
            faults.append(f"{name}: {row['cached_right']} tokens of a right guess came from the "
                          f"cache, {row['cached_wrong']} of a wrong one")
        if learns and row["p_value"] > 1e-6:
            faults.append(f"{name}: a hit can't be seen in the times; the experiment is no good")
        if not learns and row["p_value"] < args.significance:
            faults.append(f"{name}: times of right and wrong guesses differ, "
                          f"p = {row['p_value']:.2g}")
    return rows


def flood(rng, tenant, prompts, tokens):
    for _ in range(prompts):
        tenant.ask([rng.randrange(10, 200) for _ in range(tokens)])


def pool_of(server):
    """Places for sealed blocks, and for blocks in full precision: the open and the first ones."""
    connection = server.connect()
    connection.request("GET", "/v1/status", headers={"Authorization": "Bearer " + KEY_A})
    cache = json.loads(connection.getresponse().read())["cache"]
    connection.close()
    return cache["sealed"]["total"], cache["open"]["total"]


def flooding(args, host_share, faults):
    """Shares of A's prompt that are found again; host_share: host memory, as a share of the pool.
    Long prompts of B use the places of sealed blocks up, short ones those of first blocks."""
    swap = ("--swap-space", f"{host_share * memory_bytes(args) / (1 << 30):.6f}")
    server = start(args, *KEYS, *(swap if host_share else ()))
    rng = random.Random(args.seed)
    rows = []
    try:
        a, b = Tenant(server, KEY_A), Tenant(server, KEY_B)
        system = [rng.randrange(10, 200) for _ in range(PREFIX_TOKENS + 4)]
        _, _, alone = a.ask(system, 8)
        pages, slots = pool_of(server)
        long_tokens = args.context - 8
        for tokens, fill in ((long_tokens, pages / (long_tokens // 64 - 1)), (SHORT_TOKENS, slots)):
            for share in SHARES:
                prompts = round(share * fill)
                found = []
                for _ in range(args.floods):
                    flood(rng, b, prompts, tokens)
                    _, cached, text = a.ask(system, 8)
                    found.append(cached / PREFIX_TOKENS)
                    if text != alone:
                        faults.append(f"another answer after {prompts} prompts of {tokens} tokens")
                rows.append({"share": share, "prompts": prompts, "tokens": tokens,
                             "host_share": host_share, "found": statistics.mean(found)})
                if share <= SAFE_SHARE and min(found) < 1:
                    faults.append(f"a prefix is lost after {prompts} prompts of {tokens} tokens")
        a.close()
        b.close()
    finally:
        server.end()
    return rows


def print_figures(figures):
    print(f"{'server':38} {'from the cache':>22} {'first token, median':>24} {'p':>9}")
    print(f"{'':38} {'right':>11} {'wrong':>10} {'right':>12} {'wrong':>11}")
    for row in figures["guessing"]:
        print(f"{row['server']:38} {row['cached_right']:11} {row['cached_wrong']:10} "
              f"{1e3 * row['median_right_s']:9.2f} ms {1e3 * row['median_wrong_s']:8.2f} ms "
              f"{row['p_value']:9.2g}")
    print(f"\n{'between two requests of A, B sends':38} {'of the places':>14} "
          f"{'host memory':>12} {'of A found again':>17}")
    for row in figures["flooding"]:
        host = f"{row['host_share']} pools" if row["host_share"] else "none"
        print(f"{row['prompts']:5} prompts of {row['tokens']:5} tokens {'':10} {row['share']:14} "
              f"{host:>12} {100 * row['found']:15.0f} %")


def main():
    args = parse_arguments()
    faults = []
    figures = {"guessing": guessing(args, faults) if args.records else [],
               "flooding": [row for host_share in (0, 2) if args.floods
                            for row in flooding(args, host_share, faults)], "faults": faults}
    print(f"kvart serve {os.path.basename(args.model)}, {args.policy}, a pool of "
          f"{args.pool_sequences} sequences of {args.context} tokens; {args.records} guesses\n")
    print_figures(figures)
    return report_faults(figures, args.json)


if __name__ == "__main__":
    sys.exit(main())
