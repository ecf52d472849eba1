#!/usr/bin/env python3
# Runs the command line as a user does. Argument: the program `kvart`.
import csv
import json
import unittest

from cli import LLAMA, Case, model_cache, run


class CommandLine(Case):
    def plan(self, *arguments, code=0):
        found, text = self.run_json("plan", *arguments, code=code)
        rows = {
            (row["context_tokens"], row["policy"], row["figures"]): row for row in found["plan"]
        }
        return found, rows, text

    def test_help_and_version(self):
        self.assertEqual(run("--version").returncode, 0)
        for command in ("plan", "bytes", "formats", "run", "inspect", "gain"):
            done = run(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("--json", done.stdout)
        self.assertEqual(run().returncode, 1)
        self.refused("nonsense", words=["'nonsense' isn't a command", "plan"])

    def test_formats(self):
        found, text = self.run_json("formats")
        formats = {row["name"]: row for row in found["formats"]}
        expected = {
            "f16": 256,
            "fp8_e4m3": 130,
            "int8": 130,
            "int4_g32": 72,
            "int6_c64": 104,
            "int4_c64": 72,
            "int2_c64": 40,
            "int4_c32": 80,
            "int2_a32": 48,
        }
        for name, size in expected.items():
            self.assertEqual(formats[name]["bytes_per_token"], size, name)
            self.assertEqual(formats[name]["effective_bits"], size / 16, name)
        presets = {row["name"]: row for row in found["presets"]}
        self.assertEqual(presets["int4"]["bytes_per_token"], 144)
        self.assertAlmostEqual(presets["int4"]["ratio_to_f16"], 3.5556, 3)
        self.assertIn("q8_0", {row["word"] for row in found["aliases"]})
        self.assertIn("--kv-cache-dtype", text)
        self.refused("formats", "--head-dim", 40, words=["--head-dim: 40"])

    def test_bytes_exact_beside_naive(self):
        found, text = self.run_json(
            "bytes", "Llama-3-8B", "--kv-cache-dtype", "int4", "fp8", "--context", "32k"
        )
        rows = {row["policy"]: row for row in found["policies"]}
        self.assertEqual(list(rows), ["f16", "int4", "fp8"])
        self.assertEqual(rows["f16"]["bytes_per_token"], 131072)
        int4 = rows["int4"]
        self.assertEqual(int4["bytes_per_token"], 131072 * 144 / 512)
        self.assertEqual(
            int4["code_bytes_per_token"]
            + int4["scale_bytes_per_token"]
            + int4["padding_bytes_per_token"],
            int4["bytes_per_token"],
        )
        self.assertEqual(int4["naive_ratio"], 4)
        self.assertAlmostEqual(int4["exact_ratio_per_token"], 3.5556, 3)
        self.assertEqual(int4["effective_bits"], 4.5)
        block = 131072 * 64
        self.assertEqual(int4["open_and_sink_bytes_per_sequence"], 2 * block)
        self.assertEqual(int4["bytes_per_sequence"], 511 * block * 9 / 32 + 2 * block)
        self.assertIn("4x", text)
        self.assertIn("3.56x", text)
        self.assertEqual(found["verdict"]["flag"], "--kv-cache-dtype int4")

    def test_bytes_all_presets_and_short_context(self):
        found, _ = self.run_json("bytes", "SmolLM2-135M")
        self.assertGreater(len(found["policies"]), 10)
        found, text = self.run_json("bytes", "SmolLM2-135M", "--context", "64")
        self.assertFalse(found["verdict"]["worth_it"])
        self.assertIn("Not worth it here", text)

    def test_bytes_windows(self):
        found, _ = self.run_json("bytes", "gemma-3-270m", "--kv-cache-dtype", "fp8")
        groups = [row for row in found["groups"] if row["policy"] == "f16"]
        self.assertEqual([row["layers"] for row in groups], [3, 15])
        self.assertEqual(groups[1]["window_tokens"], 512)
        # 512 tokens touch at most 9 blocks; a full-precision block has
        # 15 layers x 1 head x 256 x 4 B x 64
        self.assertLessEqual(
            groups[1]["sealed_blocks"] * groups[1]["page_bytes"], 9 * 15 * 256 * 4 * 64
        )
        self.assertEqual(groups[0]["step_blocks"], 0)
        # 511 of 512 tokens fill 7 blocks besides the one that the first fills
        self.assertEqual(groups[1]["step_blocks"], 7)
        self.assertEqual(groups[1]["step_bytes"], 7 * groups[1]["page_bytes"])

    def test_plan_llama3_on_h100(self):
        found, rows, text = self.plan(
            "Llama-3-8B", "--gpu", "H100", "--kv-memory", "60GB", "--context", "32k"
        )
        f16, fp8, int4 = (rows[32768, name, "naive"] for name in ("f16", "fp8", "int4"))
        self.assertEqual(f16["bytes_per_sequence"], 131072 * 32768)
        self.assertEqual((f16["batch"], fp8["batch"], int4["batch"]), (13, 27, 55))
        self.assertAlmostEqual(f16["kv_bytes_per_step"] / 1e9, 55.8, 1)
        self.assertAlmostEqual(f16["step_bytes"] / 1e9, 71.8, 1)
        self.assertAlmostEqual(f16["step_ms_estimated"], 21.4, 1)
        self.assertAlmostEqual(fp8["step_ms_estimated"], 22.1, 1)
        self.assertAlmostEqual(fp8["speed_up_estimated"], 2.01, 1)
        exact = rows[32768, "int4", "exact"]
        self.assertEqual(exact["sequences_that_fit"], 49)
        self.assertIn("--kv-cache-dtype int4", found["verdict"]["flag"])
        self.assertIn("131,072 B per token", text)
        self.assertIn("21.4", text)

    def test_plan_contexts_of_one_batch(self):
        _, rows, _ = self.plan(
            "Llama-3-8B", "--batch", 32, "--context", "1k,8k,32k", "--policies", "fp8"
        )
        gains = [
            rows[context, "fp8", "naive"]["speed_up_estimated"] for context in (1024, 8192, 32768)
        ]
        for gain, expected in zip(gains, (1.12, 1.52, 1.81)):
            self.assertAlmostEqual(gain, expected, 2)
        self.assertIsNone(rows[1024, "fp8", "exact"]["step_ms_estimated"])

    def test_plan_says_when_it_is_not_worth_it(self):
        found, _, text = self.plan("Llama-3-8B", "--gpu", "H100", "--batch", 1, "--context", "1k")
        self.assertFalse(found["verdict"]["worth_it"])
        self.assertEqual(found["verdict"]["flag"], "--kv-cache-dtype f16")
        self.assertIn("not worth it here", text)

    def test_plan_nodes(self):
        _, rows, text = self.plan(
            "Llama-3-8B", "--gpu", "H100", "--kv-memory", "60GB", "--context", "32k", "--load", 1000
        )
        self.assertEqual(rows[32768, "f16", "exact"]["nodes_for_load"], 77)
        self.assertEqual(rows[32768, "int4", "exact"]["nodes_for_load"], 21)
        self.assertIn("The load needs 77 nodes with f16, 21 with int4", text)

    def test_plan_with_slots_for_short_sequences(self):
        plan = ("Llama-3-8B", "--gpu", "H100", "--kv-memory", "60GB", "--context", "32k")
        _, plain, text = self.plan(*plan)
        self.assertNotIn("more slots", text)
        found, rows, text = self.plan(*plan, "--max-num-seqs", 256)
        self.assertEqual(found["inputs"]["max_num_seqs"], 256)
        self.assertIn("Up to 256 sequences may run at the same time", text)
        self.assertIsNone(rows[32768, "int4", "naive"]["more_slots_bytes"])
        slot = 64 * 131072
        for policy, slots in (("f16", 1), ("int4", 2)):
            before, after = plain[32768, policy, "exact"], rows[32768, policy, "exact"]
            sequences = after["sequences_that_fit"]
            self.assertLessEqual(sequences, before["sequences_that_fit"])
            more = (256 - sequences) * slots * slot
            self.assertEqual(after["more_slots_bytes"], more)
            self.assertLessEqual(sequences * after["bytes_per_sequence"] + more, 60e9)
            self.assertEqual(before["bytes_per_sequence"], after["bytes_per_sequence"])
        _, rows, _ = self.plan(*plan, "--max-num-seqs", 1)
        self.assertEqual(rows[32768, "int4", "exact"]["more_slots_bytes"], 0)
        plan = ("Llama-3-8B", "--kv-memory", "4GB", "--context", "32k", "--policies", "int4")
        self.plan(*plan, "--max-num-seqs", 10)
        _, _, text = self.plan(*plan, "--max-num-seqs", 256, code=2)
        self.assertIn("A lower --max-num-seqs", text)

    def test_plan_that_does_not_fit(self):
        found, _, text = self.plan(
            "Llama-3-8B", "--gpu", "H100", "--kv-memory", "1GB", "--context", "128k", code=2
        )
        self.assertFalse(found["verdict"]["fits"])
        self.assertIn("Does not fit", text)
        flags = found["verdict"]["flag"].split()
        again = run("plan", "Llama-3-8B", "--gpu", "H100", "--kv-memory", "1GB", *flags)
        self.assertEqual(again.returncode, 0, again.stderr)
        done = run("plan", "Llama-3-70B", "--gpu", "L4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--gpus-per-node", done.stderr)

    def test_plan_where_full_precision_does_not_fit(self):
        found, _, text = self.plan(
            "Llama-3-8B", "--kv-memory", "2GB", "--context", "32k", "--bandwidth", "300GB/s"
        )
        self.assertIn("f16 doesn't fit", text)
        self.assertEqual(found["verdict"]["flag"], "--kv-cache-dtype int4")

    def test_model_of_a_folder(self):
        config = self.folder / "config.json"
        config.write_text(json.dumps(LLAMA))
        for model in (self.folder, config):
            found, _ = self.run_json("bytes", model, "--kv-cache-dtype", "int4")
            self.assertEqual(found["policies"][0]["bytes_per_token"], 131072)
        config.write_text(json.dumps(LLAMA | {"quantization_config": {"bits": 4}}))
        self.refused("plan", self.folder, "--gpu", "L4", words=["--weights"])
        config.write_text(json.dumps(LLAMA | {"model_type": "deepseek_v3"}))
        self.refused("bytes", self.folder, words=["deepseek_v3", "latent"])
        config.write_text(json.dumps(LLAMA | {"num_key_value_heads": 7}))
        self.refused("bytes", self.folder, words=["num_key_value_heads is 7"])

    def test_real_model(self):
        path = model_cache() / "SmolLM2-135M-Instruct.Q4_1.gguf"
        if not path.exists():
            self.skipTest(f"{path.name} is not in the model cache")
        found, _ = self.run_json("bytes", path, "--kv-cache-dtype", "int4")
        self.assertEqual(found["policies"][0]["bytes_per_token"], 23040)
        found, _, _ = self.plan(path, "--gpu", "L4")
        self.assertEqual(found["inputs"]["weight_bytes"], 96576768)

    def test_csv(self):
        path = self.folder / "out.csv"
        self.assertEqual(run("plan", "Llama-3-8B", "--gpu", "H100", "--csv", path).returncode, 0)
        with path.open() as stream:
            rows = list(csv.DictReader(stream))
        self.assertEqual({row["figures"] for row in rows}, {"naive", "exact"})
        self.assertEqual(list(self.folder.iterdir()), [path])

    def test_wrong_words(self):
        self.refused("bytes", "Llama-9-8B", words=["Llama-3-8B", "GGUF"])
        self.refused("bytes", self.folder / "none.gguf", words=["none.gguf"])
        self.refused("bytes", "Llama-3-8B", "--kv-cache-dtype", "int5", words=["int4", "k6v4"])
        self.refused("bytes", "Llama-3-8B", "--kv-cache-dtype", "fp8_e5m2", words=["fp8"])
        self.refused("bytes", "Llama-3-8B", "--context", "-5", words=["--context"])
        self.refused("bytes", "Llama-3-8B", "--kv-cache-dtype", "0-40:fp8", words=["fp8"])
        self.refused("plan", "Llama-3-8B", words=["--gpu"])
        self.refused("plan", "Llama-3-8B", "--gpu", "H999", words=["H100"])
        self.refused(
            "plan", "Llama-3-8B", "--gpu", "H100", "--gpus-per-node", 3, words=["8 KV heads"]
        )
        self.refused("plan", "Llama-3-8B", "--kv-memory", "60XB", words=["--kv-memory", "GiB"])
        self.refused(
            "plan", "Llama-3-8B", "--kv-memory", "60GB", "--load", "5tok/s", words=["--bandwidth"]
        )
        self.refused("plan", "Llama-3-8B", "--kv-memory", "60GB", "--batch", 0)

    def test_alias_says_what_runs_instead(self):
        done = run("bytes", "Llama-3-8B", "--kv-cache-dtype", "q8_0")
        self.assertEqual(done.returncode, 0)
        self.assertIn("q8_0", done.stderr)


if __name__ == "__main__":
    unittest.main()
