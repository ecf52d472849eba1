#!/usr/bin/env python3
# `kvart compare`: differences, refusals and gates with their exit codes; --html of commands.
# Argument: the program `kvart`.
import copy
import json
import shutil
import subprocess
import unittest

from cli import KVART, LLAMA, Case, run

DIVERGENCE = {
    "schema": "kvart.eval-divergence.v1",
    "version": "0.1.0",
    "hashes": {"model": "8d1c", "text": "77ab"},
    "row_keys": {"divergence": ["policy"]},
    "divergence": [
        {"policy": "f16", "kl_mean": None, "perplexity": 17.0},
        {"policy": "int4", "kl_mean": 0.0037, "perplexity": 17.1},
        {"policy": "int4_g32", "kl_mean": 0.126, "perplexity": 18.2},
    ],
}
NEEDLE = {
    "schema": "kvart.eval-needle.v1",
    "version": "0.1.0",
    "hashes": {"model": "8d1c", "prompts": "11"},
    "row_keys": {"needle": ["policy"]},
    "needle": [
        {"policy": "f16", "found": 8, "asked": 8},
        {"policy": "int4", "found": 8, "asked": 8},
        {"policy": "int4_g32", "found": 2, "asked": 8},
    ],
}
JOINED = {"schema": "kvart.report.v1", "reports": [DIVERGENCE, NEEDLE]}


class Compare(Case):
    def report(self, name, base, **changes):
        made = copy.deepcopy(base)
        made.update(changes)
        return self.write(name, json.dumps(made))

    def setUp(self):
        super().setUp()
        self.a = self.report("a.json", JOINED)

    def test_equal_files(self):
        found, text = self.run_json("compare", self.a, self.a)
        self.assertEqual(found["schema"], "kvart.compare.v1")
        self.assertEqual(found["differences"], [])
        self.assertEqual(found["verdict"]["values_that_differ"], 0)
        self.assertIn("0 of 12 values differ", text)

    def test_differences(self):
        other = copy.deepcopy(JOINED)
        other["reports"][0]["divergence"][1]["kl_mean"] = 0.0074
        other["reports"][0]["divergence"].reverse()
        b = self.write("b.json", json.dumps(other))
        found, text = self.run_json("compare", self.a, b)
        self.assertEqual(len(found["differences"]), 1)
        row = found["differences"][0]
        self.assertEqual((row["table"], row["row"], row["column"]),
                         ("eval-divergence.divergence", "int4", "kl_mean"))
        self.assertAlmostEqual(row["difference"], 0.0037)
        self.assertAlmostEqual(row["ratio"], 2)
        self.assertIn("1 of 12 values differ", text)

    def test_rows_that_one_has_alone_are_in_the_verdict(self):
        a = self.report("d.json", DIVERGENCE)
        b = self.report("e.json", DIVERGENCE, divergence=DIVERGENCE["divergence"][:1])
        found, _ = self.run_json("compare", a, b)
        self.assertEqual(found["verdict"]["text"], "0 of 2 values differ; 2 rows are in A alone.")
        self.assertEqual((found["verdict"]["rows_only_a"], found["verdict"]["rows_only_b"]), (2, 0))
        found, _ = self.run_json("compare", b, a, "--max-kld", "1")
        self.assertIn("; 2 rows are in B alone; B keeps", found["verdict"]["text"])

    def test_text_of_a_file_cannot_steer_a_terminal(self):
        evil = "int4\x1b[2J\n\x7f\u009b1m"
        shown = r"int4\x1B[2J\x0A\x7F\xC2\x9B1m"
        rows = [dict(row, policy=evil) for row in DIVERGENCE["divergence"][1:2]]
        a = self.report("a1.json", DIVERGENCE, divergence=rows)
        b = self.report("b1.json", DIVERGENCE, divergence=[])
        c = self.report("c1.json", DIVERGENCE, schema="kvart.e\x1b[1m.v1")
        d = self.report("d1.json", DIVERGENCE, hashes={"model\x1b[1m": evil})
        for arguments in ((a, b), (b, a), (a, a, "--max-kld", "0"), (a, a, "--max-kld", "0",
                          "--policy", "x"), (a, c), (c, d), (a, d), (a, d, "--force")):
            done = run("compare", *arguments)
            for text in (done.stdout, done.stderr):
                self.assertNotRegex(text, r"[\x00-\x09\x0b-\x1f\x7f\x80-\x9f]")
        done = run("compare", a, b)
        self.assertIn(shown, done.stdout)
        done = run("compare", a, a, "--max-kld", "0", "--policy", "x")
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn(shown, done.stderr)
        # A program that reads the JSON gets what is in the file.
        found, _ = self.run_json("compare", a, a, "--max-kld", "1")
        self.assertEqual(found["gates"][0]["policy"], evil)

    def test_other_hashes_and_schemas_are_refused(self):
        a = self.report("d.json", DIVERGENCE)
        b = self.report("e.json", DIVERGENCE, hashes={"model": "ffff", "text": "77ab"})
        self.refused("compare", a, b, words=["not the same model", "8d1c and ffff", "--force"])
        done = run("compare", a, b, "--force")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Compared all the same", done.stdout)
        needle = self.report("n.json", NEEDLE)
        for more in ([], ["--force"]):
            self.refused("compare", a, needle, *more,
                         words=["nothing to compare", "kvart.eval-needle.v1"])
        self.refused("compare", self.a, a, words=["only", "a.json", "kvart.eval-needle.v1"])
        self.assertEqual(run("compare", self.a, a, "--force").returncode, 0)

    def test_other_builds_are_said_and_no_obstacle(self):
        unknown, text = self.run_json("compare", self.a, self.a)
        self.assertFalse(unknown["verdict"]["same_build"])
        self.assertEqual(text.count("isn't known"), 1)
        hashes = [dict(DIVERGENCE["hashes"], build=build) for build in ("0a0a", "0b0b")]
        a, b = [self.report(f"{i}.json", DIVERGENCE, hashes=one) for i, one in enumerate(hashes)]
        same, text = self.run_json("compare", a, a)
        self.assertTrue(same["verdict"]["same_build"])
        self.assertNotIn("build", text)
        other, text = self.run_json("compare", a, b)
        self.assertFalse(other["verdict"]["same_build"])
        self.assertIn("different builds of Kvart: A by 0a0a, B by 0b0b", text)

    def test_other_cache_memory_is_said(self):
        a, b = [self.report(f"{memory}.json", DIVERGENCE, inputs={"kv_memory_bytes": memory})
                for memory in (10**9, 2 * 10**9)]
        unknown = self.report("no.json", DIVERGENCE)
        for left, right, times in ((a, b, 1), (a, a, 0), (unknown, b, 0)):
            done = run("compare", left, right)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("give both the same --kv-memory"), times)
        self.assertIn("A was measured with 1.00 GB of cache memory, B with 2.00 GB",
                      run("compare", a, b).stdout)

    def test_the_build_is_that_of_the_program_that_ran(self):
        config = self.write("config.json", json.dumps(LLAMA))
        other = self.folder / "kvart"
        shutil.copy(KVART, other)
        with open(other, "ab") as file:
            file.write(b"x")  # behind its end: it runs as before
        builds = []
        for program in (KVART, KVART, other):
            path = self.folder / "b.json"
            done = subprocess.run([program, "bytes", config, "--json", path], check=False,
                                  capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            builds.append(json.loads(path.read_text())["hashes"]["build"])
        self.assertRegex(builds[0], "^[0-9a-f]{16}$")
        self.assertEqual(builds[0], builds[1])
        self.assertNotEqual(builds[0], builds[2])

    def test_gates(self):
        for gates, code, words in (
            (["--max-kld", "0.2"], 0, ["keeps every limit (2 checked)"]),
            (["--max-kld", "0.126"], 0, ["keeps every limit"]),
            (["--max-kld", "0.01"], 2, ["FAILED", "int4_g32 0.126 is beyond --max-kld 0.01"]),
            (["--max-kld", "0.01", "--policy", "int4"], 0, ["(1 checked)"]),
            (["--max-kld", "0"], 2, ["int4 0.0037", "int4_g32"]),
            (["--min-needle", "0.25"], 0, ["keeps every limit"]),
            (["--min-needle", "1"], 2, ["int4_g32 0.25 is beyond --min-needle 1"]),
            (["--min-needle", "1", "--max-kld", "0.01", "--policy", "int4"], 0, ["(2"]),
        ):
            found, text = self.run_json("compare", self.a, self.a, *gates, code=code)
            self.assertEqual(found["verdict"]["passed"], code == 0)
            for word in words:
                self.assertIn(word, text)

    def test_gates_that_cannot_be_held(self):
        d = self.report("d.json", DIVERGENCE)
        alone = self.report("alone.json", DIVERGENCE, divergence=DIVERGENCE["divergence"][:1])
        self.refused("compare", alone, alone, "--max-kld", "1", words=["alone.json", "--max-kld"])
        self.refused("compare", d, d, "--min-needle", "0.5", words=["kvart eval needle", "d.json"])
        self.refused("compare", d, d, "--max-kld", "1", "--policy", "int9",
                     words=["int9 wasn't measured", "f16, int4, int4_g32"])
        self.refused("compare", d, d, "--policy", "int4", words=["--policy"])
        self.refused("compare", d, d, "--max-kld", "nan", words=["--max-kld"])
        self.refused("compare", d, d, "--min-needle", "1.5", words=["--min-needle"])
        cut = self.report("cut.json", DIVERGENCE, incomplete=True)
        self.refused("compare", d, cut, "--max-kld", "1", words=["incomplete", "--force"])
        self.assertEqual(run("compare", d, cut).returncode, 0)
        self.assertEqual(run("compare", d, cut, "--max-kld", "1", "--force").returncode, 0)
        rows = copy.deepcopy(DIVERGENCE["divergence"])
        rows[1]["kl_mean"] = None
        holes = self.report("holes.json", DIVERGENCE, divergence=rows)
        done = run("compare", d, holes, "--max-kld", "1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("int4 has no value for --max-kld", done.stdout)

    def test_wrong_files(self):
        self.refused("compare", self.a, self.folder / "none.json", words=["none.json"])
        self.refused("compare", self.a, self.folder, words=[str(self.folder)])
        self.refused("compare", self.write("x.json", "{"), self.a, words=["x.json", "isn't JSON"])
        self.refused("compare", self.write("y.json", "[" * 100000), self.a, words=["32 levels"])
        self.refused("compare", self.a, self.a, "--json", self.a, words=["a.json"])
        self.assertEqual(json.loads(self.a.read_text()), JOINED)

    def test_what_commands_write_is_comparable(self):
        config = self.write("config.json", json.dumps(LLAMA))
        for command in (["bytes", config], ["plan", config, "--gpu", "H100"], ["formats"]):
            one, two = self.folder / "one.json", self.folder / "two.json"
            self.assertEqual(run(*command, "--json", one).returncode, 0)
            more = [] if command[0] == "formats" else ["--context", "4k"]
            self.assertEqual(run(*command, *more, "--json", two).returncode, 0)
            found, _ = self.run_json("compare", one, one)
            self.assertEqual(found["differences"], [])
            self.assertGreater(found["verdict"]["values"], 10)
            self.assertTrue(all(row["rows"] > 0 for row in found["tables"]))
            self.assertEqual(run("compare", one, two).returncode, 0)

    def test_the_page(self):
        page = self.folder / "page.html"
        done = run("compare", self.a, self.a, "--max-kld", "0.2", "--html", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        text = page.read_text()
        for part in ("<!DOCTYPE html>", "Divergence from full precision", "Facts found",
                     "kvart.compare.v1", "--max-kld 0.2"):
            self.assertIn(part, text)
        self.refused("compare", self.a, self.a, "--html", self.a, words=["a.json"])
        self.refused("compare", self.a, self.a, "--html", page, "--json", page, words=["two files"])


if __name__ == "__main__":
    unittest.main()
