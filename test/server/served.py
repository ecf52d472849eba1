# What tests of `kvart serve` share: a server with a tiny model, and requests to it. First argument
# of every test: the program `kvart`.
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

sys.path.insert(1, str(pathlib.Path(__file__).parents[1] / "tools"))
from cli import KVART, TinyModelCase  # noqa: E402


class Served:
    """`kvart serve` of a model, on a port of its own."""

    def __init__(self, model, *arguments, env=None):
        self.process = subprocess.Popen(
            [KVART, "serve", str(model), "--port", "0", "-t", "1", *map(str, arguments)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})})
        self.lines = []
        self.port = 0
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"serving .* at http://[^ ]*:(\d+) ", line)
            if found:
                self.port = int(found.group(1))
                break
        threading.Thread(target=self._drain, daemon=True).start()
        if not self.port:
            raise RuntimeError("\n".join(self.lines))

    def _drain(self):
        with contextlib.suppress(ValueError):
            self.lines.extend(line.rstrip("\n") for line in self.process.stderr)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def connection(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        """(status, text) of one request; body: what is sent as JSON."""
        connection = self.connection()
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def post(self, path, **body):
        status, text = self.ask("POST", path, body)
        if status != 200:
            raise AssertionError(f"{path}: {status}: {text}")
        return json.loads(text)

    def stream(self, path, **body):
        """The events' data of a stream, [DONE] included."""
        connection = self.connection()
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status == 200, text
        assert text.endswith("\n\n"), text
        events = text[:-2].split("\n\n")
        assert all(event.startswith("data: ") for event in events), text
        return [event[6:] for event in events]

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.stderr.close()


class ServedCase(TinyModelCase):
    """Tests that share one server of the tiny llama."""

    arguments = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = Served(cls.models / "llama.gguf", *cls.arguments)
        cls.addClassCleanup(cls.server.stop)
