#!/usr/bin/env python3
# The status page in a real browser: it fills its figures, chats, and asks for a key. Skipped where
# there is no Chromium. With `--screenshot FILE` behind the program it keeps a picture.
import base64
import json
import pathlib
import sys
import unittest

PICTURE = None
if "--screenshot" in sys.argv:
    place = sys.argv.index("--screenshot")
    PICTURE = sys.argv[place + 1]
    del sys.argv[place:place + 2]

sys.path.insert(1, str(pathlib.Path(__file__).parents[1]))
from browser import CHROMIUM, Browser  # noqa: E402
from served import Served, ServedCase  # noqa: E402


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
