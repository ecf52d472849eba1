#!/usr/bin/env python3
# The page of a report in a real browser, at three widths and in both themes: nothing overlaps,
# nothing is cut, tables sort, themes change. Skipped where there is no Chromium. Argument: the
# program that writes the page of sample reports. With `--pictures FOLDER` behind it pictures are
# kept.
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SAMPLE = sys.argv.pop(1)
PICTURES = None
if "--pictures" in sys.argv:
    place = sys.argv.index("--pictures")
    PICTURES = pathlib.Path(sys.argv[place + 1])
    del sys.argv[place:place + 2]

sys.path.insert(1, str(pathlib.Path(__file__).parents[1]))
from browser import CHROMIUM, Browser  # noqa: E402

WIDTHS = {"phone": 390, "tablet": 820, "desktop": 1280}

# Elements that reach out of the window and aren't in a box that scrolls.
CUT = """(() => {
  const out = [];
  for (const each of document.querySelectorAll("body *")) {
    if (each.closest(".table") && !each.matches(".table")) continue;
    if (each.closest("defs, title, .touch")) continue;
    const box = each.getBoundingClientRect();
    if (box.width && (box.left < -0.5 || box.right > innerWidth + 0.5)) {
      out.push(each.tagName + "." + each.getAttribute("class") + " " +
               each.textContent.slice(0, 40));
    }
  }
  if (document.documentElement.scrollWidth > innerWidth) out.push("the page scrolls sideways");
  return JSON.stringify(out);
})()"""

# Texts of a figure that overlap each other or leave its view box.
CROWDED = """(() => {
  const out = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    if (!svg.getBoundingClientRect().width) continue;
    const view = svg.viewBox.baseVal;
    const boxes = [...svg.querySelectorAll("text")].map(text => [text, text.getBBox()]);
    boxes.forEach(([text, a], i) => {
      if (a.x < -0.5 || a.y < -0.5 || a.x + a.width > view.width + 0.5 ||
          a.y + a.height > view.height + 0.5) out.push("outside: " + text.textContent);
      for (const [other, b] of boxes.slice(i + 1)) {
        // A line of text is higher than its letters.
        const across = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
        const down = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
        if (across > 0.5 && down > 3.5) {
          out.push(text.textContent + " | " + other.textContent);
        }
      }
    });
  }
  return JSON.stringify(out);
})()"""

# Contrast of every text that is seen with what is painted behind it: below 3 it is hard to read.
FAINT = """(() => {
  const out = [];
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c =>
    c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const behind = each => {
    for (let at = each; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return rgb(getComputedStyle(document.body).backgroundColor);
  };
  for (const each of document.querySelectorAll("p, td, th, dd, dt, li, h1, h2, figcaption, text")) {
    if (!each.textContent.trim() || !each.getBoundingClientRect().width) continue;
    const style = getComputedStyle(each);
    const cell = each.closest(".cell");
    const back = cell ? rgb(getComputedStyle(cell.querySelector(".back")).fill) : behind(each);
    const ink = rgb(each.tagName === "text" ? style.fill : style.color);
    const found = ratio(light(ink), light(back));
    if (found < 3) out.push(found.toFixed(1) + " " + each.textContent.slice(0, 30));
  }
  return JSON.stringify([...new Set(out)]);
})()"""


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name, "page.html")
        subprocess.run([SAMPLE, cls.path], check=True, timeout=60)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.browser.set_look(1280, 900, dark=False)
        self.browser.call("Page.navigate", url=self.path.as_uri())
        self.browser.wait("document.readyState == 'complete' && "
                          "document.querySelectorAll('th button').length > 0")

    def found(self, script):
        return json.loads(self.browser.value(script))

    def test_every_width_and_theme(self):
        for name, width in WIDTHS.items():
            for theme in ("light", "dark"):
                with self.subTest(width=width, theme=theme):
                    self.browser.set_look(width, 900, dark=theme == "dark")
                    self.assertEqual(self.found(CUT), [])
                    self.assertEqual(self.found(CROWDED), [])
                    self.assertEqual(self.found(FAINT), [])
                    if PICTURES:
                        self.keep_pictures(f"{name}_{theme}", width)
        self.assertEqual(self.browser.errors, [])

    def keep_pictures(self, name, width):
        height = self.browser.value("document.documentElement.scrollHeight")
        step = 1600
        for i, top in enumerate(range(0, height, step)):
            clip = {"x": 0, "y": top, "width": width, "height": min(step, height - top),
                    "scale": 1}
            self.browser.picture(PICTURES / f"{name}_{i}.png", clip=clip,
                                 captureBeyondViewport=True)

    def test_axes_have_labels(self):
        labels = self.found("""JSON.stringify([...document.querySelectorAll("figure svg")].map(
            svg => svg.querySelectorAll("text.label").length))""")
        self.assertGreater(len(labels), 5)
        self.assertEqual(set(labels), {2})

    def test_tables_sort(self):
        # The table of the gain: numbers by value, falling at the second click; words by letters.
        script = """(() => {
          const table = document.querySelector("table");
          const button = table.querySelectorAll("th button")[%d];
          button.click();
          return JSON.stringify([button.parentElement.ariaSort,
                                 [...table.tBodies[0].rows].map(row => row.cells[%d].innerText)]);
        })()"""
        self.browser.value("window.before = document.querySelector('table tbody').rows.length")
        state, cells = self.found(script % (1, 1))
        numbers = [int(cell.replace(",", "")) for cell in cells]
        self.assertEqual((state, numbers), ("ascending", sorted(numbers)))
        state, cells = self.found(script % (1, 1))
        self.assertEqual(state, "descending")
        self.assertEqual([int(cell.replace(",", "")) for cell in cells], numbers[::-1])
        state, cells = self.found(script % (0, 0))
        self.assertEqual((state, cells), ("ascending", sorted(cells)))
        self.assertEqual(self.browser.value("window.before"), len(cells))

    def test_a_key_sorts_too(self):
        self.browser.value("document.querySelector('th button').focus()")
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter",
                              windowsVirtualKeyCode=13, text="\r")
        self.browser.wait("document.querySelector('th').ariaSort == 'ascending'")

    def test_themes_and_colors(self):
        back = "getComputedStyle(document.body).backgroundColor"
        cell = "getComputedStyle(document.querySelector('.cell .back')).fill"
        light, usual = self.browser.value(back), self.browser.value(cell)
        self.browser.value("document.getElementById('theme-dark').click()")
        self.assertNotEqual(self.browser.value(back), light)
        self.browser.value("document.getElementById('safe-colors').click()")
        self.assertNotEqual(self.browser.value(cell), usual)
        self.assertEqual(self.found(FAINT), [])
        # The choice stays, and goes.
        self.browser.call("Page.reload")
        self.browser.wait("document.readyState == 'complete'")
        self.assertNotEqual(self.browser.value(back), light)
        self.browser.value("document.getElementById('theme-auto').click()")
        self.browser.value("document.getElementById('safe-colors').click()")
        self.assertEqual((self.browser.value(back), self.browser.value(cell)), (light, usual))

    def test_data_is_inside(self):
        data = self.found("document.getElementById('kvart-data').textContent")
        self.assertEqual(data["schema"], "kvart.report.v1")
        self.assertEqual([report["schema"] for report in data["reports"]],
                         ["kvart.gain.v1", "kvart.eval-divergence.v1", "kvart.eval-needle.v1",
                          "kvart.eval-sensitivity.v1"])
        self.assertEqual(self.browser.value(
            "performance.getEntriesByType('resource').length"), 0)


if __name__ == "__main__":
    if CHROMIUM is None:
        print("report_page_look_test: skipped, there is no Chromium here (Debian: chromium)")
        sys.exit(77)
    unittest.main()
