#!/usr/bin/env python3
# `kvart gain` as a user runs it, on tiny models. Argument: the program `kvart`.
import csv
import json
import pathlib
import signal
import subprocess
import time
import unittest

from cli import KVART, TinyModelCase, run


class Gain(TinyModelCase):
    def gain(self, *arguments, model="llama.gguf", code=0):
        found, text = self.run_json(
            "gain", self.models / model, "-t", 1, "-q", "--kv-memory", "4MB", *arguments, code=code
        )
        rows = {(row["context_tokens"], row["policy"]): row for row in found["gain"]}
        return found, rows, text

    def test_table_and_verdict(self):
        csv_path = self.folder / "gain.csv"
        found, rows, text = self.gain(
            "--context", "256,320", "--policies", "int8", "int4", "--csv", csv_path
        )
        self.assertEqual(found["schema"], "kvart.gain.v1")
        policies = ("f16", "int8", "int4")
        self.assertEqual(list(rows), [(c, p) for c in (256, 320) for p in policies])
        for (context, policy), row in rows.items():
            self.assertGreater(row["sequences"], 0)
            self.assertEqual(row["sequences"], row["sequences_planned"])
            self.assertAlmostEqual(
                row["tokens_per_s"] * row["decode_step_ms"] / 1e3,
                row["sequences"],
                delta=0.2 * row["sequences"],  # medians of an even number of rounds
            )
            for key in ("tokens_per_s_batch_1", "prefill_tokens_per_s", "speed_up_batch_1"):
                self.assertGreater(row[key], 0, key)
            self.assertFalse(row["estimated"])
            if policy == "f16":
                self.assertEqual(row["speed_up"], 1)
                self.assertEqual(row["predicted_speed_up"], 1)
            else:
                self.assertGreater(row["predicted_speed_up"], 1)
                self.assertGreater(row["sequences"], rows[context, "f16"]["sequences"])
        for row in found["gain_spread"]:
            self.assertLessEqual(row["speed_up_low"], row["speed_up_high"])
            self.assertGreaterEqual(row["rounds"], 1)
            self.assertTrue(row["one_more_refused"])
        inputs = found["inputs"]
        self.assertEqual(inputs["context_tokens"], [256, 320])
        self.assertEqual(inputs["kv_memory_bytes"], 4000000)
        self.assertGreater(inputs["read_bytes_per_s"], 1e8)
        self.assertGreater(inputs["weight_bytes"], 0)
        self.assertIn("instruction_set", inputs)
        self.assertIn("--kv-cache-dtype", found["verdict"]["flag"])
        self.assertEqual(text.splitlines()[-1], found["verdict"]["text"])
        with open(csv_path, newline="", encoding="utf-8") as file:
            self.assertEqual(len(list(csv.DictReader(file))), 6)

    def test_default_policies_and_cut_contexts(self):
        found, rows, text = self.gain("--time-budget", 20)
        order = ["f16", "fp8", "int8", "k6v4", "k5v4", "int4"]
        self.assertEqual(found["inputs"]["policies"], order)
        contexts = {context for context, _ in rows}
        self.assertEqual(len(contexts), 1)  # all four are cut to the model's
        self.assertIn("32,768 tokens are cut to", text)

    def test_estimates_are_marked(self):
        _, rows, text = self.gain(
            "--context", "256", "--policies", "int4", "--max-batch", 4
        )
        self.assertTrue(all(row["estimated"] for row in rows.values()))
        self.assertIn("~", text)
        self.assertIn("extrapolated", text)

    def test_windows(self):
        _, rows, _ = self.gain(
            "--context", "320", "--policies", "int4", model="gemma3.gguf"
        )
        self.assertGreater(rows[320, "int4"]["sequences"], rows[320, "f16"]["sequences"])

    def test_what_does_not_fit_and_what_is_wrong(self):
        model = self.models / "llama.gguf"
        done = run("gain", model, "--kv-memory", "10kB", "--context", "256")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--kv-memory", done.stderr)
        self.refused("gain", model, "--context", "64", words=["64", "too short"])
        self.refused("gain", model, "--context", "x", words=["--context"])
        self.refused("gain", model, "--kv-memory", "4XB", words=["--kv-memory", "XB"])
        self.refused("gain", model, "--policies", "int44", words=["int44"])
        self.refused("gain", model, "--time-budget", "0", words=["--time-budget"])
        self.refused("gain", self.folder / "no.gguf", words=["no.gguf"])

    def test_nothing_that_quantizes(self):
        found, rows, text = self.gain("--context", "256", "--policies", "f16")
        self.assertEqual(list(rows), [(256, "f16")])
        self.assertIsNone(found["verdict"]["worth_it"])
        self.assertEqual(found["verdict"]["policies_that_quantize"], 0)
        self.assertNotIn("flag", found["verdict"])
        self.assertIn("nothing that quantizes was compared", text)

    def test_what_was_free_is_no_option(self):
        found, _, _ = self.gain("--context", "256", "--policies", "int4")
        self.assertTrue(found["inputs"]["kv_memory_given"])
        self.assertIn("kv memory 4000000", found["hashes"]["options"])

    def catches_sigint(self, pid):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("SigCgt:"):
                return int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1
        return False

    # The exit code, stderr, and the file that was written, if any.
    def interrupted(self, after_s):
        path = self.folder / "out.json"
        command = [KVART, "gain", self.models / "llama.gguf", "-t", "1", "--time-budget", "200"]
        command += ["--kv-memory", "64MB", "--json", path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            # Before it catches the signal, that would end it.
            while not self.catches_sigint(process.pid):
                time.sleep(0.02)
            time.sleep(after_s)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return process.returncode, errors.decode(), found

    def test_interrupted_before_anything_was_measured(self):
        code, errors, found = self.interrupted(0)
        self.assertEqual(code, 1, errors)
        self.assertIn("Nothing was measured: it was interrupted", errors)
        self.assertIsNone(found)

    def test_interrupted_with_what_there_is(self):
        for after_s in (0.5, 1, 2, 4, 8, 16, 32):
            code, errors, found = self.interrupted(after_s)
            if code == 0:
                self.assertTrue(any(row["tokens_per_s"] for row in found["gain"]))
                self.assertIn("text", found["verdict"])
                return
            self.assertIn("Nothing was measured", errors)
        self.fail("nothing was measured in half a minute")


if __name__ == "__main__":
    unittest.main()
