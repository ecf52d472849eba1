#!/usr/bin/env python3
# The comparison with llama.cpp's forks against programs made here: what it asks of them and prints.
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import compare_llama_cpp  # noqa: E402
import peers  # noqa: E402

# 100 tokens/s of prefill; decoding takes 0.01 s a token and 0.01 s more every 1,000 tokens.
KVART = """#!{python}
import json, sys
a = sys.argv
ids = len(open(a[a.index("--token-ids") + 1]).read().split())
decoded = int(a[a.index("--forced") + 1])
depth = ids - decoded
with open(a[a.index("--json") + 1], "w") as file:
    json.dump({{"prefill_s": depth / 100, "decode_s": decoded * (0.01 + depth * 1e-5)}}, file)
"""
# Twice the time, and chatter around the rows.
SWEEP = """#!{python}
import sys
a = sys.argv
decoded = int(a[a.index("-n") + 1])
assert a[a.index("-ctk") + 1] == a[a.index("-ctv") + 1] and "-rtr" in a
print("loading")
for n in range(0, int(a[a.index("-c") + 1]), 512):
    seconds = 2 * decoded * (0.01 + n * 1e-5)
    print('{{"pp": 512, "tg": %d, "n_kv": %d, "t_pp": 10.24, "t_tg": %f }}' % (decoded, n, seconds),
          file=sys.stderr)
"""


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.kvart = self.program("kvart", KVART)
        self.sweep = self.program("llama-sweep-bench", SWEEP)
        self.model = self.program("model.gguf", "")

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text.format(python=sys.executable))
        path.chmod(0o755)
        return str(path)

    def compare(self, *arguments):
        """stdout and stderr of the script, and what it exits with."""
        out, err, status = io.StringIO(), io.StringIO(), None
        words = ["compare_llama_cpp.py", self.kvart, self.model, *arguments]
        with mock.patch.object(sys, "argv", words), mock.patch.dict(
            sys.modules, {"llama_cpp": None}
        ), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                compare_llama_cpp.main()
            except SystemExit as error:
                status = error.code
        return out.getvalue(), err.getvalue(), status

    def test_a_fork_without_llama_cpp(self):
        kept = self.folder / "kept.json"
        out, err, status = self.compare(
            "--sweep-bench", self.sweep, "--sweep-name", "fork", "--sweep-options=-rtr",
            "--depths", "1", "512", "1000", "--caches", "f16", "int4", "--rounds", "2",
            "--json", str(kept))
        self.assertIsNone(status)
        self.assertIn("llama-cpp-python", err)
        rows = [line.split() for line in out.splitlines()]
        self.assertIn("prefill 512 int4 / q4_0 100.0 50.0 2.00".split(), rows)
        self.assertIn("prefill 1000 f16 / f16 100.0 50.0 2.00".split(), rows)
        self.assertIn("decode 1000 int4 / q4_0 50.0 25.0 2.00".split(), rows)
        self.assertIn("int4 1: 100 % (1.00) 512: 66 % (1.00) 1000: 50 % (1.00)".split(), rows)
        self.assertEqual(len(json.loads(kept.read_text())["caches"]["f16"]["fork"]), 2)

    def test_nothing_to_compare_with(self):
        out, _, status = self.compare()
        self.assertIn("--sweep-bench", status)
        self.assertEqual(out, "")

        out, _, status = self.compare("--without-llama-cpp", "--caches", "int4")
        self.assertIn("each other", status)
        self.assertEqual(out, "")

    def test_caches_with_each_other(self):
        out, err, status = self.compare("--without-llama-cpp", "--depths", "1", "1000",
                                        "--caches", "f16", "int4", "--rounds", "1")
        self.assertIsNone(status)
        self.assertEqual(err, "")
        rows = [line.split() for line in out.splitlines()]
        self.assertIn("decode 1000 int4 50.0".split(), rows)
        self.assertIn("int4 1: 100 % (1.00) 1000: 50 % (1.00)".split(), rows)

    def test_paths_that_lead_nowhere(self):
        _, err, status = self.compare("--sweep-bench", str(self.folder / "none"))
        self.assertEqual(status, 2)
        self.assertIn("no file", err)

    def test_a_program_that_fails(self):
        self.program("llama-sweep-bench", "#!{python}\nprint('no such cache')\nraise SystemExit(3)")
        with self.assertRaisesRegex(RuntimeError, "3\nno such cache"):
            self.compare("--sweep-bench", self.sweep, "--depths", "1")

    def test_rates_between_rows(self):
        rows = [{"n_kv": 512 * n, "t_pp": 1 + n, "t_tg": 1 + n, "tg": 8} for n in range(3)]
        self.assertEqual(peers.rates_between(rows, 512), (512, 4))
        self.assertEqual(peers.rates_between(rows, 768), (768 / 2, 8 / 2.5))


if __name__ == "__main__":
    unittest.main()
