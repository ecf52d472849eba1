#!/usr/bin/env python3
# `kvart report` as a user runs it, on a tiny model. Argument: the program `kvart`.
import json
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from cli import KVART, TinyModelCase, run

SECTIONS = ["bytes", "gain", "plan", "eval-needle", "eval-divergence", "keys",
            "eval-sensitivity"]


class Report(TinyModelCase):
    def command(self, *arguments):
        model = self.models / "llama.gguf"
        return ["report", model, "-t", 1, "-q", "--time-budget", 30, "--kv-memory", "4MB",
                "--policies", "int8", "int4", "--html", self.folder / "page.html", *arguments]

    def page(self):
        html = (self.folder / "page.html").read_text(encoding="utf-8")
        data = re.search(r'id="kvart-data">(.*?)</script>', html, re.S).group(1)
        return html, json.loads(data)

    def test_one_page_with_all_sections(self):
        done = run(*self.command("--json", self.folder / "r.json"))
        out = done.stdout
        self.assertEqual(done.returncode, 0, done.stderr)
        html, data = self.page()
        self.assertEqual(data, json.loads((self.folder / "r.json").read_text(encoding="utf-8")))
        self.assertEqual(data["schema"], "kvart.report.v1")
        names = [report["schema"].split(".")[1] for report in data["reports"]]
        self.assertEqual(names[0], "report")
        failed = [note for note in data["reports"][0]["notes"] if note.startswith("Not measured")]
        # Random weights find no facts; everything else can be measured of them.
        for name in SECTIONS:
            if name not in names:
                self.assertIn(name.split("-")[-1], " ".join(failed), out)
        self.assertIn("gain", names)
        self.assertIn("eval-divergence", names)
        for row in data["reports"][0]["summary"]:
            self.assertIn(row["policy"], ("int8", "int4"))
            self.assertGreater(row["kld_mean"], 0)
        self.assertIn(data["verdict"]["text"], out)
        self.assertIn("The page: ", out)
        builds = {report["hashes"]["build"] for report in data["reports"]}
        self.assertEqual(builds, {data["facts"]["Build"]})
        self.assertNotRegex(html, r'(src|href)="https?:')
        self.assertFalse((self.folder / "page.html.unfinished").exists())

    def test_nothing_that_quantizes(self):
        command = self.command("--json", self.folder / "r.json")
        at = command.index("--policies")
        command[at + 1 : at + 3] = ["f16"]
        done = run(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        _, data = self.page()
        self.assertIn("nothing that quantizes was compared", data["verdict"]["text"])
        self.assertIn(data["verdict"]["text"], done.stdout)
        self.assertIsNone(data["reports"][0]["verdict"]["policy"])
        self.assertNotIn("flag", data["verdict"])
        self.assertNotIn("flag", data["reports"][0]["verdict"])

    def interrupted(self):
        # After the first section that takes time: its report is in the file. What remains takes a
        # tiny model a fifth of a second, so a run may be over before the signal: then another one.
        unfinished = self.folder / "page.html.unfinished"
        words = [str(word) for word in (KVART, *self.command())]
        for _ in range(20):
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                while process.poll() is None:
                    if unfinished.exists() and '"gain"' in unfinished.read_text(encoding="utf-8"):
                        process.send_signal(signal.SIGINT)
                        break
                    time.sleep(0.002)
                _, errors = process.communicate(timeout=100)
            if process.returncode != 0:
                return process.returncode, errors.decode()
            self.assertFalse(unfinished.exists())  # nothing is missing
        return 0, "20 runs ended before they were interrupted"

    def test_goes_on_where_it_was_interrupted(self):
        code, errors = self.interrupted()
        self.assertEqual(code, 1, errors)
        self.assertIn("--resume", errors)
        _, first = self.page()
        self.assertTrue(first["incomplete"])
        gain = next(one for one in first["reports"] if one["schema"] == "kvart.gain.v1")
        done = run(*self.command("--resume"))
        self.assertEqual(done.returncode, 0, done.stderr)
        _, second = self.page()
        # What was measured before stands there to the last digit.
        self.assertIn(gain, second["reports"])
        self.assertGreater(len(second["reports"]), len(first["reports"]))
        self.assertFalse((self.folder / "page.html.unfinished").exists())

    def test_another_build_does_not_go_on(self):
        code, errors = self.interrupted()
        self.assertEqual(code, 1, errors)
        other = self.folder / "kvart"
        shutil.copy(KVART, other)
        with open(other, "ab") as file:
            file.write(b"x")  # behind its end: it runs as before
        words = [str(word) for word in (other, *self.command("--resume"))]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 1)
        self.assertIn("another build", done.stderr)

    def test_what_cannot_be_gone_on_with_is_refused(self):
        unfinished = pathlib.Path(self.folder / "page.html.unfinished")
        for text in ("", "{", "[]", '{"schema": 3}',
                     '{"schema": "kvart.unfinished-report.v1", "key": "0"}'):
            unfinished.write_text(text, encoding="utf-8")
            self.refused(*self.command("--resume"), words=["page.html.unfinished", "--resume"])

    def test_wrong_words(self):
        model = self.models / "llama.gguf"
        self.refused("report", model, "--time-budget", "5", words=["--time-budget", "20"])
        self.refused("report", model, "--policies", "int9", words=["int9"])
        self.refused("report", model, "--html", self.folder / "no" / "page.html", words=["no"])
        self.refused("report", model, "--html", model, words=["llama.gguf"])
        html = self.folder / "page.html"
        unfinished = self.folder / "page.html.unfinished"
        self.refused("report", model, "--html", html, "--json", unfinished, words=["unfinished"])

    def test_what_cannot_be_gone_on_with_still_ends(self):
        # No file can be made beside the page: its name would be too long.
        name = self.folder / ("p" * 246 + ".html")
        done = run("report", self.models / "llama.gguf", "-t", 1, "-q", "--time-budget", 30,
                   "--kv-memory", "4MB", "--policies", "int4", "--html", name)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("unfinished", done.stderr)
        self.assertTrue(name.exists())


if __name__ == "__main__":
    unittest.main()
