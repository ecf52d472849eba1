#!/usr/bin/env python3
"""A server under load and faults: many streams on a pool that holds few of them.

Usage: soak.py KVART MODEL [--seconds 600] [--streams 64] [--pool-sequences 8] [--running 16]
               [--context 1024] [--policy int4] [--server-options "..."] [--json FILE]

Starts `kvart serve MODEL` on loopback with memory for --pool-sequences sequences of --context
tokens. First every request of a fixed list runs alone: what it answers then is the right answer.
Then --streams clients run them again and again for --seconds, half of them vanishing in mid-stream;
some read slowly, send bodies that are damaged, or prompts that never fit. At the end: answers that
differ from those alone, blocks that are still referenced, memory of the process before and after,
time to first token, and how long the server takes to serve again after kill -9. Exit code 1 if
anything is wrong. Every child process is ended by its id.
"""

import argparse
import collections
import http.client
import json
import os
import random
import signal
import statistics
import sys
import threading
import time

from server_process import Server, percentile, pool_bytes, refused, stream, whole

WORDS = (
    "river stone window silver garden engine winter letter music candle forest bridge "
    "paper ocean mirror copper ladder harvest signal meadow"
).split()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvart", help="the program kvart")
    parser.add_argument("model", help="a model that it serves")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--pool-sequences", type=int, default=8)
    parser.add_argument("--running", type=int, default=16, help="sequences in a step, at most")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--policy", default="int4")
    parser.add_argument("--requests", type=int, default=32, help="different requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-options", default="", help="more options for serve, in one word")
    parser.add_argument("--json", help="file for the figures")
    return parser.parse_args()


def make_requests(server, count, context, seed):
    """Requests of all lengths; every other one has the same beginning, as chats of one system
    prompt do; some as text, some as tokens."""
    rng = random.Random(seed)

    def text_of(tokens):
        words = " ".join(rng.choices(WORDS, k=tokens))
        ids = server.post("/tokenize", {"prompt": words, "add_special_tokens": False})["tokens"]
        return ids[:tokens]

    system = text_of(context // 3)
    requests = []
    for i in range(count):
        ids = text_of(rng.choice([5, 40, context // 8, context // 4]))
        if i % 2:
            ids = system + ids
        prompt = ids if i % 3 else server.post("/detokenize", {"tokens": ids})["prompt"]
        requests.append({"prompt": prompt, "max_tokens": rng.choice([8, 32, 64]),
                         "ignore_eos": True, "temperature": rng.choice([0, 0.9]), "seed": i})
    return requests


def damaged(rng, body):
    text = bytearray(json.dumps(body).encode())
    kind = rng.randrange(5)
    if kind == 0:
        return bytes(text[: rng.randrange(1, len(text) - 1)])
    if kind == 1:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))
    if kind == 2:
        return b"[" * 100000
    if kind == 3:
        return json.dumps({**body, "max_tokens": rng.choice([-1, "5", 1.5, 1 << 62])})
    return json.dumps({**body, "temperature": rng.choice([-1, "hot", 1e300])})


class Client(threading.Thread):
    """One of the streams: random requests until the time is over."""

    def __init__(self, number, server, requests, right, until, context):
        super().__init__(daemon=True)
        self.rng = random.Random(number)
        self.server, self.requests, self.right = server, requests, right
        self.until, self.context = until, context
        self.counts = collections.Counter()
        self.first_token_s = []
        self.faults = []

    def run(self):
        while time.monotonic() < self.until:
            try:
                self.one()
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.faults.append(f"{type(error).__name__}: {error}")

    def one(self):
        index = self.rng.randrange(len(self.requests))
        body = self.requests[index]
        kind = self.rng.random()
        if kind < 0.5:
            self.counts["vanished"] += 1
            text, _ = stream(self.server, body, stop_after=self.rng.randrange(0, 12))
            if text is not None:
                self.compare(index, text)
        elif kind < 0.55:
            self.counts["damaged"] += 1
            status = refused(self.server, damaged(self.rng, body))
            if not 400 <= status < 500:
                self.faults.append(f"a damaged body got status {status}")
        elif kind < 0.58:
            self.counts["too long"] += 1
            prompt = "word " * (self.context * self.rng.choice([2, 20]))
            status = refused(self.server, json.dumps({**body, "prompt": prompt}))
            if status not in (400, 413):
                self.faults.append(f"a prompt that never fits got status {status}")
        elif kind < 0.62:
            self.counts["slow"] += 1
            self.compare(index, stream(self.server, body, pause_s=0.2)[0])
        elif kind < 0.7:
            self.counts["whole"] += 1
            self.compare(index, whole(self.server, body))
        else:
            self.counts["streamed"] += 1
            text, first = stream(self.server, body)
            self.first_token_s.append(first)
            self.compare(index, text)

    def compare(self, index, text):
        self.counts["compared"] += 1
        if text != self.right[index]:
            self.counts["wrong"] += 1
            self.faults.append(f"request {index}: {text!r} instead of {self.right[index]!r}")


def start(args, memory):
    return Server(args.kvart, args.model, [
        "--kv-cache-dtype", args.policy, "--max-model-len", args.context,
        "--kv-cache-memory-bytes", memory, "--max-num-seqs", args.running,
        *args.server_options.split()])


def wait_idle(server, limit_s=60):
    """Seconds until nothing runs or waits, and no block is held."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        values = server.metrics()
        busy = sum(value for key, value in values.items()
                   if key.split("{")[0] in ("vllm:num_requests_running",
                                            "vllm:num_requests_waiting")
                   or (key.startswith("kvart:kv_blocks{") and 'state="referenced"' in key))
        if busy == 0:
            return time.monotonic() - began
        time.sleep(0.05)
    return None


def soak(args, server, requests, right):
    for body in requests[:4]:  # what the first requests allocate is not a leak
        whole(server, body)
    before = {"resident_bytes": server.resident_bytes(), "open_files": server.open_files()}
    until = time.monotonic() + args.seconds
    clients = [Client(args.seed * 1000 + i, server, requests, right, until, args.context)
               for i in range(args.streams)]
    for client in clients:
        client.start()
    health_s = []
    half_way = None
    while time.monotonic() < until:
        began = time.monotonic()
        if half_way is None and until - began < args.seconds / 2:
            half_way = server.resident_bytes()
        if server.get("/health")[0] != 200:
            clients[0].faults.append("/health failed")
        health_s.append(time.monotonic() - began)
        print(f"\r{until - time.monotonic():6.0f} s left, "
              f"{sum(c.counts['compared'] for c in clients)} answers compared, "
              f"{sum(c.counts['wrong'] for c in clients)} wrong", end="", file=sys.stderr)
        time.sleep(1)
    for client in clients:
        client.join(timeout=300)
    print(file=sys.stderr)
    counts = sum((client.counts for client in clients), collections.Counter())
    faults = [fault for client in clients for fault in client.faults]
    stuck = sum(client.is_alive() for client in clients)
    if stuck:
        faults.append(f"{stuck} clients still wait for an answer")
    first = sorted(s for client in clients for s in client.first_token_s)
    idle_s = wait_idle(server)
    if idle_s is None:
        faults.append("a minute after the last client, requests run or blocks are held")
    time.sleep(1)
    idle_from = server.processor_s()
    time.sleep(5)
    return {"counts": dict(counts), "faults": faults, "first_token_s": first,
            "health_s": sorted(health_s), "idle_after_s": idle_s, "before": before,
            "half_way_resident_bytes": half_way,
            "after": {"resident_bytes": server.resident_bytes(),
                      "open_files": server.open_files()},
            "idle_processor_share": (server.processor_s() - idle_from) / 5,
            "preemptions": server.metric("vllm:num_preemptions_total"),
            "generation_tokens": server.metric("vllm:generation_tokens_total"),
            "prefix_hits_tokens": server.metric("vllm:prefix_cache_hits_total")}


def print_figures(figures):
    first, health = figures["first_token_s"], figures["health_s"]
    mb = 1e6
    rows = [
        ("answers compared with the request alone", figures["counts"].get("compared", 0)),
        ("wrong answers", figures["counts"].get("wrong", 0)),
        *((f"clients: {kind}", count) for kind, count in sorted(figures["counts"].items())
          if kind not in ("compared", "wrong")),
        ("other faults", len(figures["faults"]) - figures["counts"].get("wrong", 0)),
        ("preemptions", int(figures["preemptions"])),
        ("tokens generated", int(figures["generation_tokens"])),
        ("prompt tokens from the prefix cache", int(figures["prefix_hits_tokens"])),
        ("time to first token, median", f"{statistics.median(first or [float('nan')]):.2f} s"),
        ("time to first token, 99th percentile", f"{percentile(first, 0.99):.2f} s"),
        ("/health, 99th percentile", f"{1e3 * percentile(health, 0.99):.1f} ms"),
        ("idle again after the last client",
         "never" if figures["idle_after_s"] is None else f"{figures['idle_after_s']:.2f} s"),
        ("processor when idle", f"{100 * figures['idle_processor_share']:.1f} %"),
        ("resident memory before, half-way, after",
         f"{figures['before']['resident_bytes'] / mb:.1f}, "
         f"{figures['half_way_resident_bytes'] / mb:.1f}, "
         f"{figures['after']['resident_bytes'] / mb:.1f} MB"),
        ("open files before, after",
         f"{figures['before']['open_files']}, {figures['after']['open_files']}"),
        ("first start, start after kill -9",
         f"{figures['start_s']:.2f}, {figures['restart_s']:.2f} s"),
    ]
    for name, value in rows:
        print(f"{name:42} {value}")
    for fault in figures["faults"][:20]:
        print(f"fault: {fault[:300]}")


def main():
    args = parse_arguments()
    memory = pool_bytes(args.kvart, args.model, args.policy, args.context, args.pool_sequences,
                        args.running)
    server = start(args, memory)
    try:
        requests = make_requests(server, args.requests, args.context, args.seed)
        start_s = server.ready_s
        print(f"{len(requests)} requests alone", file=sys.stderr)
        right = [whole(server, body) for body in requests]
        figures = soak(args, server, requests, right)
        again = [whole(server, body) for body in requests]
        if again != right:
            figures["faults"].append("answers after the load differ from those before")
        server.end(signal.SIGKILL)
        server = start(args, memory)
        figures.update(start_s=start_s, restart_s=server.ready_s)
        if whole(server, requests[0]) != right[0]:
            figures["faults"].append("another answer after kill -9")
    finally:
        code = server.end()
    if code != 0:
        figures["faults"].append(f"exit code {code} after SIGTERM")
    print(f"kvart serve {os.path.basename(args.model)}: {args.streams} streams for "
          f"{args.seconds:.0f} s, {args.policy}, a pool of {memory / 1e6:.1f} MB for "
          f"{args.pool_sequences} sequences of {args.context} tokens\n")
    print_figures(figures)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)
    return 1 if figures["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
