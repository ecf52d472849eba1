#!/usr/bin/env python3
# The status page in a real browser: it fills its figures, chats, and asks for a key. Skipped where
# there is no Chromium. With `--screenshot FILE` behind the program it keeps a picture.
import base64
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

PICTURE = None
if "--screenshot" in sys.argv:
    place = sys.argv.index("--screenshot")
    PICTURE = sys.argv[place + 1]
    del sys.argv[place:place + 2]

from served import Served, ServedCase  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)


class WebSocket:
    """Just enough of one to speak DevTools' protocol."""

    def __init__(self, url):
        host, port, path = re.match(r"ws://([^:/]+):(\d+)(/.*)", url).groups()
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                             "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            self.data += self.socket.recv(4096)
        self.data = self.data.split(b"\r\n\r\n", 1)[1]

    def send(self, text):
        data = text.encode()
        size = len(data)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else (
            struct.pack("!BBH", 0x81, 0xFE, size) if size < 65536 else
            struct.pack("!BBQ", 0x81, 0xFF, size))
        mask = os.urandom(4)
        self.socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def _take(self, size):
        while len(self.data) < size:
            got = self.socket.recv(65536)
            if not got:
                raise ConnectionError("the browser is gone")
            self.data += got
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def receive(self):
        text = b""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                size = struct.unpack("!H", self._take(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self._take(8))[0]
            text += self._take(size)
            if first & 0x80:
                return text.decode()

    def close(self):
        self.socket.close()


class Browser:
    """A headless Chromium with one page."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--window-size=1280,1300", "--remote-debugging-port=0",
             "--remote-allow-origins=*", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = pathlib.Path(self.folder.name, "DevToolsActivePort")
        for _ in range(600):
            if port_file.exists() and port_file.read_text().count("\n"):
                break
            time.sleep(0.1)
        port = port_file.read_text().split("\n")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30) as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page"]
        self.socket = WebSocket(pages[0]["webSocketDebuggerUrl"])
        self.number = 0
        self.errors = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"])
            if message.get("method") == "Log.entryAdded":
                entry = message["params"]["entry"]
                if entry["level"] == "error" and "401" not in entry["text"]:
                    self.errors.append(entry["text"])
            if message.get("id") == self.number:
                return message.get("result", message)

    def value(self, script):
        return self.call("Runtime.evaluate", expression=script)["result"].get("value")

    def wait(self, script, seconds=20):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.value(script)
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"never came: {script}; page: {self.value('document.body.innerText')}")

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=30)
        self.folder.cleanup()


class Page(ServedCase):
    def setUp(self):
        super().setUp()
        self.browser = Browser()
        self.addCleanup(self.browser.close)

    def text(self, name):
        return f"document.getElementById('{name}').textContent"

    def test_figures_and_chat(self):
        page = self.browser
        page.call("Page.navigate", url=self.server.url + "/")
        page.wait(self.text("what") + ".includes('llama')")
        self.server.post("/v1/completions", prompt=[7] * 300, max_tokens=2)
        self.server.post("/v1/completions", prompt=[7] * 300, max_tokens=2)
        page.wait(self.text("hits") + ".includes('%')")
        cache = json.loads(self.server.ask("GET", "/v1/status")[1])["cache"]
        self.assertEqual(page.value(self.text("perToken")), str(round(cache["bytes_per_token"])))
        self.assertEqual(page.value("document.querySelectorAll('#groups tr').length"), 2)
        self.assertEqual(page.value("document.getElementById('keys').style.display"), "none")
        # <b> must stay text.
        page.value("document.getElementById('say').value = '<b>hello</b>';"
                   "document.getElementById('chatform').requestSubmit()")
        page.wait("document.querySelectorAll('#talk p').length == 2 && !busy")
        self.assertIn("<b>hello</b>", page.value(self.text("talk")))
        self.assertEqual(page.value("document.querySelectorAll('#talk b').length"), 0)
        self.assertGreater(page.value("document.querySelector('#talk p:last-child span:last-child')"
                                      ".textContent.length"), 0)
        page.wait("document.querySelectorAll('#chart polyline').length == 2")
        self.assertEqual(page.errors, [])
        if PICTURE:
            for mode in ("light", "dark"):
                page.call("Emulation.setEmulatedMedia",
                          features=[{"name": "prefers-color-scheme", "value": mode}])
                shot = page.call("Page.captureScreenshot")
                path = pathlib.Path(PICTURE)
                path.with_stem(f"{path.stem}_{mode}").write_bytes(base64.b64decode(shot["data"]))

    def test_asks_for_the_key(self):
        server = Served(self.models / "llama.gguf", "--api-key", "open sesame")
        self.addCleanup(server.stop)
        page = self.browser
        page.call("Page.navigate", url=server.url + "/")
        page.wait("document.getElementById('keys').style.display == 'block'")
        page.value("document.getElementById('key').value = 'open sesame';"
                   "document.getElementById('keyform').requestSubmit()")
        page.wait(self.text("what") + ".includes('llama')")
        self.assertEqual(page.errors, [])


if __name__ == "__main__":
    if CHROMIUM is None:
        print("page_test: skipped, there is no Chromium here (Debian: chromium)")
        sys.exit(77)
    unittest.main()
