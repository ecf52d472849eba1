# A headless Chromium for the tests of pages, spoken to without any package.
import base64
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

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

    def set_look(self, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture(self, path, **more):
        shot = self.call("Page.captureScreenshot", **more)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=30)
        self.folder.cleanup()
