#!/usr/bin/env python3
# `kvart eval` as a user runs it, on tiny models. Argument: the program `kvart`.
import csv
import json
import signal
import subprocess
import time
import unittest

from cli import KVART, TinyModelCase, run

# So many that the whole text takes seconds.
MANY = ("int4", "fp8", "int8", "kivi2", "kivi4", "k6v4", "k5v4", "k4v3")
TIMES = ("test_duration_seconds", "test_timestamp_utc")


class Evaluations(TinyModelCase):
    def evaluate(self, what, *arguments):
        return self.run_json(
            "eval", what, self.models / "llama.gguf", "-t", 1, "--quiet", *arguments
        )

    def test_divergence(self):
        policies = ("--policies", "k=f16,v=f16", "fp8", "int4", "kivi2")
        found, text = self.evaluate(
            "divergence", *policies, "--context", 512, "--tokens", 1024
        )
        rows = {row["policy"]: row for row in found["divergence"]}
        self.assertEqual(list(rows), ["f16", "k=f16,v=f16", "fp8", "int4", "kivi2"])
        same = rows["k=f16,v=f16"]
        self.assertEqual((same["kl_mean"], same["kl_max"]), (0, 0))
        self.assertEqual(same["same_top_percent"], 100)
        self.assertEqual(same["quantized_reads"], 0)
        self.assertEqual(same["perplexity"], rows["f16"]["perplexity"])
        for name in ("fp8", "int4", "kivi2"):
            row = rows[name]
            self.assertGreater(row["quantized_reads"], 0)
            self.assertGreater(row["kl_mean"], 0)
            order = ["kl_median", "kl_p90", "kl_p99", "kl_p999", "kl_max"]
            values = [row[key] for key in order]
            self.assertEqual(values, sorted(values))
        self.assertLess(rows["fp8"]["kl_mean"], rows["kivi2"]["kl_mean"])
        bins = found["positions"]
        self.assertEqual([row["position_first"] for row in bins], [0, 64, 128, 256])
        self.assertEqual(bins[0]["kl_mean_int4"], 0)
        self.assertEqual(sum(row["tokens"] for row in bins), 2 * 511)
        self.assertIn("--kv-cache-dtype", found["verdict"]["flag"])
        self.assertIn("Morris", text)
        again, _ = self.evaluate("divergence", *policies, "--context", 512, "--tokens", 1024)
        self.assertEqual(found, again)
        decoded, _ = self.evaluate(
            "divergence", *policies, "--context", 512, "--tokens", 1024, "--chunk", 1
        )
        self.assertEqual(found["divergence"], decoded["divergence"])

    def test_divergence_refuses_what_says_nothing(self):
        model = self.models / "llama.gguf"
        text = self.write("short.txt", "a" * 100)
        self.refused("eval", "divergence", model, "--text", text, words=["nothing is read"])
        self.refused("eval", "divergence", model, "--context", 64, words=["nothing is read"])
        self.refused("eval", "divergence", model, "--context", "1k", words=["made for 512"])
        self.refused("eval", "divergence", model, "--policies", "int9", words=["int9"])
        self.refused("eval", "divergence", model, "--text", self.folder / "none", words=["none"])
        self.refused("eval", "divergence", model, "--time-budget", 0, words=["--time-budget"])
        self.refused("eval", "divergence", model, "--nonsense", words=["eval divergence"])
        self.refused("eval", words=["eval"])

    def test_needle(self):
        csv_path = self.folder / "out.csv"
        arguments = ("--contexts", 512, "--depths", "30,60", "--policies", "fp8", "int4")
        found, text = self.evaluate("needle", *arguments, "--csv", csv_path)
        cells = found["cells"]
        self.assertEqual(len(cells), 3 * 3)
        for cell in cells:
            self.assertEqual(cell["context_length"], 512)
            self.assertLessEqual(cell["prompt_tokens"], 512)
            self.assertIn("model_response", cell)
            self.assertIn(cell["score"], (0, 1))
            self.assertLess(cell["answer_logprob"], 0)
        prompts = [(cell["question"], cell["needle"]) for cell in cells]
        self.assertEqual(prompts[:3], prompts[3:6])
        self.assertEqual(prompts[:3], prompts[6:])
        self.assertEqual([cell["control"] for cell in cells[:3]], [False, False, True])
        # A model of random weights finds nothing: nothing is held against a policy.
        self.assertIn("f16 itself finds only 0 of 2", text)
        self.assertEqual(found["needle"][1]["retrieval"], "unknown")
        self.assertTrue(all(cell["set_aside"] for cell in cells if not cell["control"]))
        with csv_path.open() as file:
            self.assertEqual([row["policy"] for row in csv.DictReader(file)],
                             ["f16", "fp8", "int4"])
        again, _ = self.evaluate("needle", *arguments)
        for one in (found, again):
            for cell in one["cells"]:
                for key in TIMES:
                    del cell[key]
        self.assertEqual(found, again)

    def test_needle_modes_and_refusals(self):
        for mode in ("single", "multivalue", "vt"):
            found, _ = self.evaluate("needle", "--mode", mode, "--contexts", 512, "--keys", 2,
                                     "--policies", "int4", "--raw")
            self.assertEqual(found["inputs"]["task"], mode)
            self.assertTrue(any(cell["control"] for cell in found["cells"]))
        model = self.models / "llama.gguf"
        needle = ("eval", "needle", model, "--quiet")
        self.refused(*needle, "--mode", "multi", words=["'multi' isn't a mode", "multikey"])
        self.refused(*needle, "--contexts", "1k", words=["made for 512"])
        self.refused(*needle, "--contexts", "x", words=["--contexts", "x"])
        self.refused(*needle, "--depths", "101", words=["--depths", "101"])
        self.refused(*needle, "--depths", "5", "--keys", 3, words=["only one"])
        text = self.write("hay.txt", "One. Two. Three.")
        empty = self.write("empty.txt", "")
        self.refused(*needle, "--contexts", 512, "--keys", 1, "--haystack", empty,
                     words=["empty.txt", "is empty"])
        self.refused(*needle, "--contexts", 512, "--keys", 1, "--haystack", text,
                     words=["hay.txt has 3 sentences"])

    def test_nothing_that_quantizes(self):
        for what, *more in (("divergence", "--context", 300), ("needle", "--contexts", 512,
                                                                "--depths", "30,60")):
            found, text = self.evaluate(what, "--policies", "f16", *more)
            self.assertIn("nothing that quantizes was compared", text)
            self.assertIsNone(found["verdict"]["policy"])
            self.assertEqual(found["verdict"]["policies_that_quantize"], 0)
            self.assertNotIn("flag", found["verdict"])

    def test_what_leaves_no_room_is_named(self):
        model = self.models / "llama.gguf"
        needle = ("eval", "needle", model, "--quiet", "--contexts", 512, "--keys", 1)
        self.refused(*needle, "--reply-tokens", 500, words=["--reply-tokens 500", "give at most"])
        sensitivity = ("eval", "sensitivity", model, "--quiet")
        self.refused(*sensitivity, "--contexts", 200, words=["facts and the question"])
        self.refused(*sensitivity, "--layers", "--layer-tokens", 64, words=["--layer-tokens 64"])
        # Nobody asked for a context of facts: the model has no room for eight, and that is said.
        found, text = self.evaluate("sensitivity", "--context", 300, "--formats", "int4_g32")
        self.assertIn("No facts were asked for", text)
        self.assertNotIn("incomplete", found)

    def test_sensitivity(self):
        found, text = self.evaluate("sensitivity", "--context", 300, "--no-retrieval", "--layers",
                                    "--layer-tokens", 200, "--formats", "int4_g32")
        self.assertEqual([row["side"] for row in found["sides"]], ["K", "V", "both"])
        (ratio,) = found["ratios"]
        self.assertAlmostEqual(ratio["k_to_v"], found["sides"][0]["kl_mean"]
                               / found["sides"][1]["kl_mean"], 6)
        self.assertGreater(len(found["layers_int4_g32"]), 1)
        self.assertIn("K costs", text)
        self.refused("eval", "sensitivity", self.models / "llama.gguf", "--formats", "int4",
                     words=["int4 isn't a format"])

    def test_ended_before_its_time(self):
        path = self.folder / "out.json"
        program = subprocess.Popen(
            [KVART, "eval", "divergence", self.models / "llama.gguf", "-t", "1", "--chunk", "1",
             "--context", "512", "--tokens", "100k", "--policies", *MANY, "--json", path],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1)
        program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 0, errors)
        self.assertIn("Incomplete", out)
        found = json.loads(path.read_text())
        self.assertGreater(found["inputs"]["tokens_scored"], 0)

    def test_time_budget(self):
        done = run("eval", "divergence", self.models / "llama.gguf", "-t", 1, "--chunk", 1,
                   "--context", 512, "--tokens", "100k", "--policies", *MANY,
                   "--time-budget", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Incomplete", done.stdout)


if __name__ == "__main__":
    unittest.main()
