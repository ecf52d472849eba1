#!/usr/bin/env python3
"""`kvart serve` as a child process, and requests to it: what the benches of serving share."""

import http.client
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

JSON_TYPE = {"Content-Type": "application/json"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def kvart_json(kvart, words):
    """What a command of kvart writes with --json."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out.json")
        done = subprocess.run([kvart, *map(str, words), "--json", path],
                              stdout=subprocess.DEVNULL, check=False)
        if done.returncode not in (0, 2):
            sys.exit(f"{' '.join(done.args)}: exit code {done.returncode}")
        with open(path, encoding="utf-8") as opened:
            return json.load(opened)


def pool_bytes(kvart, model, policy, context, sequences, running):
    """Memory for so many whole sequences, and for the open blocks of all that may run at a time."""
    rows = kvart_json(kvart, ["bytes", model, "--context", context, "--policies", policy])
    row = next(row for row in rows["policies"] if row["policy"] == policy)
    return (sequences * row["bytes_per_sequence"]
            + max(0, running - sequences) * row["open_and_sink_bytes_per_sequence"])


def report_faults(figures, json_path):
    """Prints figures["faults"], writes all figures where a path is given; gives the exit code."""
    for fault in figures["faults"]:
        print(f"fault: {fault}")
    if json_path:
        with open(json_path, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)
    return 1 if figures["faults"] else 0


class Server:
    """`kvart serve` as a child process; open_files: how many it may have, if not as many as we."""

    def __init__(self, kvart, model, options, open_files=None):
        self.port = free_port()
        self.command = [kvart, "serve", model, "--port", str(self.port), *map(str, options)]
        self.started = time.monotonic()
        limit = open_files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                           (open_files, open_files)))
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL, preexec_fn=limit)
        self.ready_s = self.wait_until_ready()

    def wait_until_ready(self, limit_s=300):
        while time.monotonic() - self.started < limit_s:
            if self.process.poll() is not None:
                sys.exit(f"the server ended: {' '.join(self.command)}")
            try:
                if self.get("/health")[0] == 200:
                    return time.monotonic() - self.started
            except OSError:
                time.sleep(0.05)
        sys.exit("the server doesn't get ready")

    def connect(self, timeout=600):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def get(self, path):
        connection = self.connect(60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path, body):
        connection = self.connect(60)
        try:
            connection.request("POST", path, json.dumps(body), JSON_TYPE)
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                sys.exit(f"{path}: status {response.status}: {text[:300]!r}")
            return json.loads(text)
        finally:
            connection.close()

    def reset_prefix_cache(self):
        connection = self.connect(60)
        try:
            connection.request("POST", "/reset_prefix_cache")
            connection.getresponse().read()
        finally:
            connection.close()

    def metrics(self):
        values = {}
        for line in self.get("/metrics")[1].decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def status(self):
        return json.loads(self.get("/v1/status")[1])

    def metric(self, name):
        """The sum over all labels."""
        return sum(value for key, value in self.metrics().items() if key.split("{")[0] == name)

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def processor_s(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(timeout=120)


def stream(server, body, stop_after=None, pause_s=0.0):
    """Text of a streamed completion and the time to its first token; (None, None) if cut off."""
    connection = server.connect()
    began = time.monotonic()
    first = None
    text = []
    try:
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}),
                           JSON_TYPE)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read()[:300]!r}")
        for events in range(1 << 30):
            line = response.readline()
            if not line:
                raise ValueError("the stream ended without [DONE]")
            line = line.strip()
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]":
                return "".join(text), first
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(f"error in the stream: {event}")
            if first is None:
                first = time.monotonic() - began
            text += [choice["text"] for choice in event["choices"]]
            if stop_after is not None and events >= stop_after:
                # Reset, not closed: what a client that crashes leaves behind.
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                           struct.pack("ii", 1, 0))
                return None, None
            if pause_s:
                time.sleep(pause_s)
    finally:
        connection.close()


def whole(server, body):
    connection = server.connect()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body),
                           JSON_TYPE)
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise ValueError(f"status {response.status}: {answer}")
        return answer["choices"][0]["text"]
    finally:
        connection.close()


def refused(server, payload):
    """The status of a body that can't be answered."""
    connection = server.connect(120)
    try:
        connection.request("POST", "/v1/completions", payload,
                           JSON_TYPE)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
