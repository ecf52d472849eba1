#!/usr/bin/env python3
"""Clients that vanish, idle, crawl or never read: what the others notice, and what is left of them.

Usage: connections.py KVART MODEL [--vanish 500] [--rounds 3] [--idle 10000] [--slow 50]
                      [--context 512] [--running 8] [--server-options "..."] [--json FILE]

1. --vanish clients ask and are gone after a random number of tokens or a random time, streaming or
   not, by a reset, a close or half of one: some are still queued, some in their prompt, some in
   their answer. Measured: how long until nothing runs and no block is held, then the processor,
   memory and open files of the server.
2. --idle connections that have asked once and stay: how long /health and an answer take meanwhile;
   with as many connections allowed, with the default, and with few open files.
3. --slow clients each that send a header and a body at a byte a second, or ask for a stream that
   they never read: when they are cut off, and how long others take meanwhile. 0: left out; the
   limits are those of the program, so this takes a bit more than a minute.

Exit code 1 if anything is wrong.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import selectors
import socket
import struct
import sys
import time

from server_process import Server, percentile, pool_bytes, report_faults, whole

IDLE_LIMIT_S = 1.0
HEALTH_LIMIT_S = 0.05
MEMORY_LIMIT_BYTES = 32 << 20
ANSWER = {"prompt": [7, 8, 9] * 10, "max_tokens": 16, "ignore_eos": True, "temperature": 0}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvart", help="the program kvart")
    parser.add_argument("model", help="a model that it serves")
    parser.add_argument("--vanish", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=10000)
    parser.add_argument("--slow", type=int, default=50)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--running", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="int4")
    parser.add_argument("--server-options", default="", help="more options for serve, in one word")
    parser.add_argument("--json", help="file for the figures")
    return parser.parse_args()


def start(args, *options, open_files=None):
    memory = pool_bytes(args.kvart, args.model, args.policy, args.context, args.running,
                        args.running)
    return Server(args.kvart, args.model, [
        "--kv-cache-dtype", args.policy, "--max-model-len", args.context, "--max-num-seqs",
        args.running, "--kv-cache-memory-bytes", memory, *args.server_options.split(), *options],
        open_files)


def request_bytes(body):
    text = json.dumps(body).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            + str(len(text)).encode() + b"\r\n\r\n" + text)


def connect(port, receive_bytes=None):
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(60)
    client.connect(("127.0.0.1", port))
    return client


class Ghost:
    """A client that will be gone."""

    def __init__(self, rng, server, context):
        self.how = rng.choice(["reset", "close", "half"])
        self.streams = rng.random() < 0.5
        self.events = 0
        self.events_max = rng.randrange(0, context // 8) if self.streams else 1 << 30
        self.until = time.monotonic() + rng.uniform(0, 3)
        length = rng.choice([8, context // 4, context * 3 // 4])
        prompt = [rng.randrange(200) for _ in range(length)]
        self.socket = connect(server.port)
        self.socket.sendall(request_bytes({"prompt": prompt, "max_tokens": context // 4 - 8,
                                           "ignore_eos": True, "stream": self.streams}))
        self.socket.setblocking(False)
        self.answered = False

    def read(self):
        """False: there is nothing more to read."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        except ConnectionError:
            data = b""
        self.events += data.count(b"data: {")
        self.answered |= b"data: [DONE]" in data or (not self.streams and bool(data))
        return bool(data) and not self.answered

    def vanish(self):
        if self.how == "half":  # says that nothing follows, and stays
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
            return
        if self.how == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def vanish_all(ghosts):
    """How many had an answer, a part of one, nothing."""
    selector = selectors.DefaultSelector()
    for ghost in ghosts:
        selector.register(ghost.socket, selectors.EVENT_READ, ghost)
    left = set(ghosts)
    while left:
        done = []
        for key, _ in selector.select(0.005):
            if not key.data.read() or key.data.events >= key.data.events_max:
                done.append(key.data)
        now = time.monotonic()
        done += [ghost for ghost in left if now >= ghost.until]
        for ghost in set(done) & left:
            selector.unregister(ghost.socket)
            ghost.vanish()
            left.discard(ghost)
    selector.close()
    whole_answers = sum(ghost.answered for ghost in ghosts)
    parts = sum(not ghost.answered and ghost.events > 0 for ghost in ghosts)
    return whole_answers, parts, len(ghosts) - whole_answers - parts


def is_idle(status):
    blocks = (status["cache"]["sealed"], status["cache"]["open"])
    return (status["running"] + status["waiting"] == 0
            and all(b["referenced"] == 0 and b["free"] + b["cached"] == b["total"] for b in blocks))


def wait_idle(server, limit_s=60):
    began = time.monotonic()
    while not is_idle(server.status()):
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(0.01)
    return time.monotonic() - began


def vanish(args, faults):
    server = start(args)
    try:
        alone = whole(server, ANSWER)
        rng = random.Random(args.seed)
        rounds = []
        for _ in range(args.rounds):
            before = server.status()
            ghosts = [Ghost(rng, server, args.context) for _ in range(args.vanish)]
            counts = vanish_all(ghosts)
            idle_s = wait_idle(server)
            processor_s = server.processor_s()
            time.sleep(2)
            after = server.status()
            rounds.append({
                "whole": counts[0], "in_part": counts[1], "nothing": counts[2], "idle_s": idle_s,
                "tokens": after["generation_tokens"] - before["generation_tokens"],
                "cancelled": after["finished"]["cancelled"] - before["finished"]["cancelled"],
                "idle_processor_share": (server.processor_s() - processor_s) / 2,
                "resident_bytes": server.resident_bytes(), "open_files": server.open_files()})
            for ghost in ghosts:
                ghost.socket.close()
            if idle_s is None or idle_s > IDLE_LIMIT_S:
                faults.append(f"idle again only after {idle_s} s")
        if whole(server, ANSWER) != alone:
            faults.append("another answer than before")
        if rounds[-1]["open_files"] > rounds[0]["open_files"] + 2:
            faults.append("open files are left over")
        if rounds[-1]["resident_bytes"] > rounds[0]["resident_bytes"] + MEMORY_LIMIT_BYTES:
            faults.append("memory is left over")
        server.reset_prefix_cache()
        whole(server, {**ANSWER, "max_tokens": 1})  # the cache is emptied at the next step
        wait_idle(server)
        cache = server.status()["cache"]
        held = {kind: cache[kind]["total"] - cache[kind]["free"] for kind in ("sealed", "open")}
        if any(held.values()):
            faults.append(f"blocks that nobody has: {held}")
        return rounds
    finally:
        if server.end() != 0:
            faults.append("exit code of the server")


def health_s(server, count):
    times = []
    for _ in range(count):
        began = time.monotonic()
        if server.get("/health")[0] != 200:
            return [float("inf")]
        times.append(time.monotonic() - began)
    return sorted(times)


def answer_s(server):
    began = time.monotonic()
    text = whole(server, ANSWER)
    return time.monotonic() - began, text


def stay(port, count):
    """Connections that have asked once."""
    clients = []
    for _ in range(count):
        client = connect(port)
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        clients.append(client)
        if b" 200 " not in client.recv(4096):
            raise OSError("/health: no answer on a connection of many")
    return clients


def idle(args, faults):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = args.idle if hard == resource.RLIM_INFINITY else min(args.idle, hard - 200)
    rows = []
    for name, options, files in (
            (f"--max-connections {most + 100}", ("--max-connections", most + 100), None),
            ("by default", (), None), ("256 open files", (), 256)):
        server = start(args, *options, open_files=files)
        try:
            alone_s, alone = answer_s(server)
            memory = server.resident_bytes()
            clients = stay(server.port, most)
            open_now = server.status()["connections"]
            health = health_s(server, 300)
            meanwhile_s, text = answer_s(server)
            row = {"server": name, "clients": most, "connections": open_now,
                   "bytes_each": (server.resident_bytes() - memory) / max(1, open_now),
                   "health_median_s": health[len(health) // 2],
                   "health_p99_s": percentile(health, 0.99), "answer_alone_s": alone_s,
                   "answer_s": meanwhile_s}
            for client in clients:
                client.close()
            row["answer_after_s"], after = answer_s(server)
            rows.append(row)
            if not alone == text == after:
                faults.append(f"{name}: another answer among idle connections")
            if row["health_p99_s"] > HEALTH_LIMIT_S:
                faults.append(f"{name}: /health took {row['health_p99_s']:.3f} s")
        finally:
            if server.end() != 0:
                faults.append(f"{name}: exit code of the server")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return rows


class Crawler:
    """Sends a byte a second, or reads nothing; notes when the server has had enough."""

    def __init__(self, port, kind, context):
        self.kind, self.ended_s, self.said = kind, None, b""
        self.began = time.monotonic()
        self.socket = connect(port, 4096 if kind == "never reads" else None)
        if kind == "body":
            self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                b"Content-Length: 5000\r\n\r\n")
        if kind == "never reads":
            self.socket.sendall(request_bytes({
                "prompt": [5] * 8, "max_tokens": context - 16, "ignore_eos": True, "stream": True,
                "logprobs": 20}))
        self.socket.setblocking(False)

    def tick(self):
        if self.ended_s is not None or self.kind == "never reads":
            return
        try:
            self.said += self.socket.recv(4096)
            self.ended_s = time.monotonic() - self.began
        except BlockingIOError:
            with contextlib.suppress(OSError):
                self.socket.send(b"G" if self.kind == "header" else b" ")
        except OSError:
            self.ended_s = time.monotonic() - self.began


def slow(args, faults):
    """What 70 seconds with slow clients are like."""
    server = start(args)
    try:
        alone = whole(server, ANSWER)
        before = server.status()["finished"]["cancelled"]
        began = time.monotonic()
        clients = [Crawler(server.port, kind, args.context)
                   for kind in ("header", "body", "never reads") for _ in range(args.slow)]
        cut_s, health, answers = None, [], []
        while time.monotonic() - began < 70:
            for client in clients:
                client.tick()
            health += health_s(server, 10)
            seconds, text = answer_s(server)
            answers.append(seconds)
            if text != alone:
                faults.append("another answer among slow clients")
            cancelled = server.status()["finished"]["cancelled"] - before
            if cut_s is None and cancelled >= args.slow:
                cut_s = time.monotonic() - began
            time.sleep(1)
        figures = {"health_p99_s": percentile(sorted(health), 0.99), "answer_max_s": max(answers),
                   "never_reads_cancelled_s": cut_s}
        for kind in ("header", "body"):
            ends = [client.ended_s for client in clients if client.kind == kind]
            refused = sum(b" 408 " in client.said for client in clients if client.kind == kind)
            figures[kind + "_s"] = None if None in ends else (min(ends), max(ends))
            if None in ends or refused != args.slow:
                faults.append(f"{kind} at a byte a second: {refused} of {args.slow} got 408")
        if cut_s is None:
            faults.append("streams that nobody reads still run")
        if wait_idle(server) is None:
            faults.append("slow clients hold blocks for ever")
        if figures["health_p99_s"] > HEALTH_LIMIT_S:
            faults.append(f"slow clients: /health took {figures['health_p99_s']:.3f} s")
        return figures
    finally:
        if server.end() != 0:
            faults.append("exit code of the server")


def print_figures(figures):
    print(f"{'vanished with an answer, a part, nothing':42} {'idle again':>11} {'tokens':>8} "
          f"{'processor':>10} {'memory MB':>10} {'files':>6}")
    for row in figures["vanish"]:
        print(f"{row['whole']:12} {row['in_part']:14} {row['nothing']:14} {row['idle_s']:11.2f} s "
              f"{row['tokens']:8} {100 * row['idle_processor_share']:8.1f} % "
              f"{row['resident_bytes'] / 1e6:10.1f} {row['open_files']:6}")
    print(f"\n{'idle connections':26} {'held':>6} {'bytes each':>11} {'/health 50 %':>13} "
          f"{'99 %':>9} {'an answer':>10} {'alone':>9}")
    for row in figures["idle"]:
        print(f"{row['clients']:6} {row['server']:19} {row['connections']:6} "
              f"{row['bytes_each']:11.0f} {1e3 * row['health_median_s']:10.2f} ms "
              f"{1e3 * row['health_p99_s']:6.2f} ms {row['answer_s']:8.3f} s "
              f"{row['answer_alone_s']:7.3f} s")
    if figures["slow"]:
        row = figures["slow"]
        print("\nslow clients")
        for kind in ("header", "body"):
            ends = row[kind + "_s"]
            print(f"{kind + ' at a byte a second':42} " + (
                f"408 after {ends[0]:.1f} to {ends[1]:.1f} s" if ends else "not all cut off"))
        cut = row["never_reads_cancelled_s"]
        print(f"{'streams that nobody reads':42} "
              + (f"cancelled after {cut:.1f} s" if cut else "still run"))
        print(f"{'/health meanwhile, 99 %':42} {1e3 * row['health_p99_s']:.2f} ms")
        print(f"{'an answer meanwhile, the slowest':42} {row['answer_max_s']:.2f} s")


def main():
    args = parse_arguments()
    faults = []
    figures = {"vanish": vanish(args, faults), "idle": idle(args, faults),
               "slow": slow(args, faults) if args.slow else None, "faults": faults}
    print(f"kvart serve {os.path.basename(args.model)}, {args.policy}, {args.running} sequences of "
          f"{args.context} tokens\n")
    print_figures(figures)
    return report_faults(figures, args.json)


if __name__ == "__main__":
    sys.exit(main())
