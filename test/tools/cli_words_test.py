#!/usr/bin/env python3
# What the command line says: wrong words are named with what to do, verdicts say what the figures
# do. Argument: the program `kvart`.
import json
import os
import unittest

from cli import LLAMA, Case, TinyModelCase, run


class WrongWords(Case):
    def test_commands_and_options(self):
        self.refused("byte", "X", words=["'byte' isn't a command", "did you mean bytes?"])
        self.refused("bogus", words=["'bogus'", "run, serve, plan, bytes, formats", "--help"])
        self.refused(words=["no command is given"])
        self.refused("bytes", words=["required", "kvart bytes --help"])
        self.refused("bytes", "Llama-3-8B", "--jsn", "x", words=["--jsn", "did you mean --json?"])
        self.refused("bytes", "Llama-3-8B", "more", words=["'more' is one word too many"])
        self.refused("bytes", "Llama-3-8B", "--json", words=["--json", "--help"])

    def test_numbers(self):
        plan = ("plan", "Llama-3-8B", "--gpu", "H100")
        for option, values in {
            "--utilization": ("nan", "inf", "0", "-1", "1.5", "1e999", "0x1", ""),
            "--gpus-per-node": ("0", "-1", "08x", "99999999999999999999", "1.5"),
            "--batch": ("0", "nan", "010x", "1e3"),
            "--max-num-seqs": ("0", "-1", "nan", "1073741825"),
            "--context": ("0", "-5", "nan", "inf", "1e30", "8k,,16k", ",", ""),
            "--load": ("nan", "-1", "inf", ""),
            "--bandwidth": ("nan", "inf", "0", ""),
            "--weights": ("nan", "1e300", "-1", ""),
        }.items():
            for value in values:
                text = self.refused(*plan, option, value, words=[option])
                self.assertLess(len(text), 260, text)
        for option, values in {
            "-n": ("0", "-1", "0x10", "99999999999", "nan"),
            "--context": ("0", "3G", "nan"),
            "--chunk": ("0", "65537"),
            "--threads": ("0", "1025", "two"),
            "--seed": ("-1", "18446744073709551616", "1.5"),
            "--temperature": ("nan", "inf", "-0.1", "101"),
            "--top-k": ("-1", "nan", "2147483648"),
            "--top-p": ("0", "1.01", "nan"),
            "--min-p": ("-0.5", "2"),
            "--repetition-penalty": ("0", "nan", "inf"),
            "--forced": ("-1",),
        }.items():
            for value in values:
                text = self.refused("run", "none.gguf", "-p", "x", option, value, words=[value])
                self.assertIn("--", text)
                self.assertLess(len(text), 260, text)
        self.refused("run", "none.gguf", "-p", "x", "--top-k", "-1", words=["--top-k: '-1'"])
        self.refused("formats", "--head-dim", "7", words=["--head-dim", "multiple of 16"])

    def test_a_leading_zero_is_no_octal(self):
        found, _ = self.run_json("plan", "Llama-3-8B", "--batch", "010")
        self.assertEqual(found["inputs"]["batch"], 10)

    def test_empty_words(self):
        for option in ("--gpu", "--load", "--kv-memory", "--json", "--csv", "--weights"):
            self.refused("plan", "Llama-3-8B", "--batch", 1, option, "", words=[option, "is empty"])
        self.refused("run", "", "-p", "x", words=["model", "is empty"])
        self.refused("bytes", "", words=["model", "is empty"])

    def test_units_in_any_case_and_words_in_the_right_one(self):
        for size in ("80gb", "80GB", "80Gb", "80000mb"):
            found, _ = self.run_json("plan", "Llama-3-8B", "--kv-memory", size)
            self.assertEqual(found["inputs"]["kv_budget_bytes"], 80e9)
        self.refused("bytes", "Llama-3-8B", "--kv-cache-dtype", "INT4", words=["use int4"])
        self.refused("bytes", "Llama-3-8B", "--kv-cache-dtype", "", words=["--kv-cache-dtype"])
        text = self.refused("plan", "Llama-3-8B", "--gpu", "A100", words=["A100-40GB or A100-80GB"])
        self.assertNotIn("H100", text)

    def test_models_without_weights_and_devices(self):
        config = {**LLAMA, "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 192,
                  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
                  "vocab_size": 300, "rms_norm_eps": 1e-5}
        path = self.write("config.json", json.dumps(config))
        run_it = ("run", "--model-shape", path, "-p", "hi", "-n", "3", "--raw", "--ignore-eos")
        done = run(*run_it)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("run", path, "--load-format", "dummy", *run_it[3:])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.refused("run", "-p", "hi", words=["MODEL", "--model-shape"])
        self.refused("run", path, *run_it[1:], words=["--model-shape"])
        self.refused("gain", "gemma-2-2b", "--load-format", "dummy",
                     words=["Gemma-2-2B", "windows", "config.json"])
        self.refused("gain", "--model-shape", "no-such", words=["no-such", "Llama-3-8B"])
        self.refused("run", path, "-p", "hi", "--device", "gpu", words=["--device", "cuda"])
        self.refused("run", path, "-p", "hi", "--load-format", "none", words=["--load-format"])

    def test_options_that_contradict(self):
        self.refused("run", "m.gguf", "-p", "x", "--forced", 3, words=["--forced", "--token-ids"])
        self.refused("run", "m.gguf", "-f", "x", "--token-ids", "y", words=["--token-ids"])
        self.refused("run", "m.gguf", "-p", "x", "-f", "y", words=["--file"])
        self.refused("run", "m.gguf", "-p", "x", "--system", "s", "--raw", words=["--raw"])
        for option in (["--text", "t"], ["--layers"], ["--tokens", "128"], ["-t", "1"]):
            self.refused("formats", *option, words=["requires model"])
        self.refused("formats", "m.gguf", "--head-dim", "128", words=["--head-dim"])
        self.refused("plan", "Llama-3-8B", "--kv-memory", "1GB", "--gpu-memory", "2GB")


class Verdicts(Case):
    def text(self, *arguments, code=0):
        found, text = self.run_json(*arguments, code=code)
        return found["verdict"], text

    def test_nothing_compared(self):
        verdict, text = self.text(
            "plan", "Llama-3-8B", "--gpu", "H100", "--context", "32k", "--policies", "f16", "f16"
        )
        self.assertFalse(verdict["worth_it"])
        self.assertIn("nothing was compared", verdict["text"])
        self.assertNotIn("weights", verdict["text"])
        self.assertEqual(text.count("| f16 |"), 2)  # naive and exact
        verdict, _ = self.text("bytes", "Llama-3-8B", "--kv-cache-dtype", "f16")
        self.assertIn("Nothing was compared", verdict["text"])

    def test_policies_once(self):
        found, _ = self.run_json("bytes", "Llama-3-8B", "--policies", "int4", "fp8", "int4")
        self.assertEqual([row["policy"] for row in found["policies"]], ["f16", "int4", "fp8"])

    def test_a_load_that_one_node_carries(self):
        plan = ("plan", "Llama-3-8B", "--gpu", "H100", "--context", "32k", "--load")
        verdict, text = self.text(*plan, 10)
        self.assertFalse(verdict["worth_it"])
        self.assertIn("f16 carries the load on 1 node already", verdict["text"])
        self.assertNotIn("1 nodes", text)
        verdict, _ = self.text(*plan, 51)
        self.assertTrue(verdict["worth_it"])
        self.assertIn("with f16, 2 with", verdict["text"])

    def test_batches_and_counts(self):
        plan = ("plan", "Llama-3-8B", "--gpu", "H200", "--batch", "24", "--context", "32k")
        verdict, text = self.text(*plan)
        self.assertIn("at batch 24", verdict["text"])
        self.assertNotIn("instead of", verdict["text"])
        _, text = self.text("plan", "gemma-3-270m", "--gpu", "L4")
        self.assertIn("x 1 KV head x", text)
        self.assertIn("1 KV head of", text)
        self.assertNotIn("1 KV heads", text)
        verdict, _ = self.text("plan", "Llama-3-8B", "--kv-memory", "1GB", "--context", "128k",
                               "--batch", "1", code=2)
        self.assertIn("1 sequence of", verdict["text"])

    def test_short_sequences_are_larger(self):
        verdict, _ = self.text(
            "bytes", "Llama-3-8B", "--context", "64", "--kv-cache-dtype", "fp8"
        )
        self.assertNotIn("smaller", verdict["text"])
        self.assertIn("more bytes than 16 bits", verdict["text"])

    def test_a_folder_with_the_name_of_a_shape(self):
        folder = self.folder / "Llama-3-8B"
        folder.mkdir()
        done = run("bytes", "Llama-3-8B", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the built-in shape Llama-3-8B is used", done.stdout)
        (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 3}))
        done = run("bytes", "Llama-3-8B", cwd=self.folder)
        self.assertIn("3 layers", done.stdout)
        self.assertIn("not the built-in shape", done.stdout)


class Models(TinyModelCase):
    def setUp(self):
        super().setUp()
        self.model = self.models / "llama.gguf"

    def test_token_ids(self):
        for text, word in {
            "1 2 99999999999999999999 4": "word 3, '99999999999999999999'",
            "1 -2": "word 2, '-2'",
            "1 2x": "word 2, '2x'",
            "1.5": "'1.5'",
            "1,2": "'1,2'",
            "0x1": "'0x1'",
        }.items():
            ids = self.write("ids.txt", text)
            self.refused("run", self.model, "--token-ids", ids, words=["ids.txt", word])
        ids = self.write("ids.txt", "1 2 100000")
        self.refused("run", self.model, "--token-ids", ids, words=["100000", "vocabulary"])
        ids = self.write("ids.txt", " \n")
        self.refused("run", self.model, "--token-ids", ids, words=["holds no token ids"])
        ids = self.write("ids.txt", "1 2 3")
        self.refused("run", self.model, "--token-ids", ids, "--forced", 3, words=["--forced 3"])
        self.refused("run", self.model, "--token-ids", ids, "--forced", 9, words=["--forced 9"])
        found, _ = self.run_json("run", self.model, "--token-ids", ids, "--forced", 2)
        self.assertEqual((found["prompt_ids"], found["completion_ids"]), ([1], [2, 3]))

    def test_a_cache_filled_with_copies(self):
        ids = self.write("ids.txt", " ".join(str(3 + i % 200) for i in range(210)))
        run_ids = ["run", self.model, "--token-ids", ids, "--forced"]
        found, _ = self.run_json(*run_ids, 10, "--depth", 200)
        real, _ = self.run_json(*run_ids, 10)
        for name in ("filled_tokens", "kv_used_bytes", "completion_ids"):
            self.assertEqual(found[name], real[name], name)
        longer = self.write("longer.txt", " ".join(str(3 + i % 200) for i in range(402)))
        found, _ = self.run_json(*run_ids, 10, "--depth", 392)
        real, _ = self.run_json("run", self.model, "--token-ids", longer, "--forced", 10)
        self.assertEqual(found["filled_tokens"], 192)
        self.assertEqual(found["kv_used_bytes"], real["kv_used_bytes"])
        self.refused(*run_ids, 10, "--depth", 199, words=["--depth 199", "200 tokens"])
        self.refused(*run_ids, 0, "--depth", 392, words=["--depth 392", "--forced"])
        # Of the option, not of the prompt, which is shorter.
        for depth, more, words in ((600, [], ["give less"]),
                                   (392, ["--context", 300], ["300", "raise --context"])):
            done = run(*run_ids, 10, "--depth", depth, *more)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertNotIn("the prompt has", done.stderr)
            for word in (f"--depth {depth}: the context has", *words):
                self.assertIn(word, done.stderr)
        # 8 tokens in the open block aren't enough for the 63 of that length.
        self.refused(*run_ids, 10, "--depth", 383, words=["--depth 383"])

    # The figures, and what is said beside the answer.
    def run_said(self, *arguments):
        path = self.folder / "said.json"
        done = run(*arguments, "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(path.read_text()), done.stderr

    def test_the_end_of_the_context(self):
        # The answer ends there, says so and is a success; longer prompts are refused with both
        # figures. Contexts that end in a block, with one and just behind one.
        ids = self.write("ids.txt", " ".join(str(3 + i % 200) for i in range(50)))
        run_ids = ["run", self.model, "--token-ids", ids, "--ignore-eos", "-n", 90]
        for context in (51, 63, 64, 65, 100, 128):
            for dtype in ("int4", "int8", "f16"):
                found, text = self.run_said(
                    *run_ids, "--context", context, "--kv-cache-dtype", dtype
                )
                self.assertEqual(found["finish_reason"], "length")
                self.assertEqual(found["completion_tokens"], context - 50)
                self.assertIn(f"where the context of {context} tokens does: raise", text)
        found, text = self.run_said(*run_ids, "--context", 140)
        self.assertEqual((found["finish_reason"], found["completion_tokens"]), ("length", 90))
        self.assertNotIn("where the context", text)
        for context in (1, 49, 50):
            done = run(*run_ids, "--context", context)
            self.assertEqual((done.returncode, done.stdout), (2, ""))  # does not fit
            self.assertIn(f"the prompt has 50 tokens, the context {context}: shorten", done.stderr)

    def test_the_end_of_the_models_context(self):
        most = json.loads((self.models / "llama" / "config.json").read_text())[
            "max_position_embeddings"
        ]
        ids = self.write("ids.txt", " ".join(str(3 + i % 200) for i in range(most - 7)))
        run_ids = ["run", self.model, "--token-ids", ids, "--ignore-eos", "-n", 50]
        found, text = self.run_said(*run_ids)
        self.assertEqual((found["finish_reason"], found["completion_tokens"]), ("length", 7))
        self.assertIn(f"the context of {most} tokens does: the model was made for no more", text)
        self.refused(*run_ids, "--context", most + 1, words=[f"made for {most}"])

    def test_no_prompt(self):
        empty = self.write("empty.txt", "")
        self.refused("run", self.model, words=["-p", "-f"])
        self.refused("run", self.model, "-p", "", words=["-p", "-f"])
        self.refused("run", self.model, "-f", "/dev/null", words=["/dev/null", "is empty"])
        self.refused("run", self.model, "-f", empty, words=["empty.txt"])
        self.refused("run", self.model, "--raw", words=["-p"])
        with open(os.devnull, encoding="utf-8") as nothing:
            self.refused("run", self.model, "-f", "-", stdin=nothing, words=["is empty"])

    def test_files_that_are_not_text(self):
        self.refused("run", self.model, "-f", self.folder, words=[str(self.folder), "text file"])
        self.refused("formats", self.model, "--text", self.folder, words=["text file"])
        self.refused("run", self.model, "-f", self.folder / "no", words=["No such file"])
        self.refused("run", self.model, "-f", "/dev/zero", words=["/dev/zero", "256 MiB"])
        short = self.write("short.txt", "few")
        self.refused("formats", self.model, "--text", short, words=["short.txt", "at least 64"])

    def test_a_path_that_is_not_utf8(self):
        path = os.fsencode(self.folder) + b"/\xff.gguf"
        with open(path, "wb") as stream:
            stream.write(self.model.read_bytes())
        out = self.folder / "out.json"
        for command in (["run", path, "-p", "x", "-n", "2"], ["inspect", path], ["bytes", path]):
            done = run(*map(os.fsdecode, command), "--json", out, errors="replace")
            self.assertEqual(done.returncode, 0, done.stderr)
            text = out.read_text(encoding="utf-8")
            self.assertTrue(json.loads(text))
            if command[0] != "bytes":  # has the model's own name
                self.assertIn("\ufffd", text)

    def test_templates_name_their_file(self):
        folder = self.folder / "model"
        folder.mkdir()
        for path in (self.models / "llama").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")
        text = self.refused_run(folder, "-p", "x")
        self.assertIn(str(folder), text)
        self.assertIn("no such role", text)
        done = run("run", folder, "-p", "x", "-n", "1", "--raw")
        self.assertEqual(done.returncode, 0, done.stderr)

    def refused_run(self, *arguments):
        done = run("run", *arguments)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return done.stderr

    def test_threads(self):
        done = self.answer("-p", "x", "-n", "2", "-t", "1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("-t 1000:", done.stderr)
        cores = sorted(os.sched_getaffinity(0))
        found, _ = self.run_json("run", self.model, "-p", "x", "-n", 1)
        self.assertLessEqual(found["threads"], len(cores))
        out = self.folder / "one.json"
        run("run", self.model, "-p", "x", "-n", 1, "--json", out,
            preexec_fn=lambda: os.sched_setaffinity(0, cores[:1]))
        self.assertEqual(json.loads(out.read_text())["threads"], 1)

    def test_one_token(self):
        done = self.answer("-p", "x", "-n", "1")
        self.assertIn("answer       1 token", done.stderr)
        self.assertNotIn(" 1 tokens", done.stderr)
        self.assertNotIn(" 0.0 tokens/s", done.stderr)

    def test_run_help(self):
        text = run("run", "--help").stdout
        for word in ("--json FILE", "above 0 to 1", "0 to 100", "8k", "folder"):
            self.assertIn(word, text)

    def test_formats_of_a_model(self):
        text = self.write("text.txt", "some words of a text " * 40)
        found, out = self.run_json("formats", self.model, "--text", text, "--tokens", 200, "-t", 1)
        self.assertEqual(found["inputs"]["text"], str(text))
        self.assertEqual(found["inputs"]["tokens"], 192)
        self.assertIn("--kv-cache-dtype", found["verdict"]["flag"])
        self.assertIn(found["verdict"]["flag"], out)
        presets = {row["name"]: row["error_percent"] for row in found["presets"]}
        self.assertLess(presets["k8v8"], presets["int4"])

    def test_inspect_gguf_and_folder(self):
        found, text = self.run_json("inspect", self.model, "--keys")
        facts = {row["name"]: row["value"] for row in found["model"]}
        self.assertEqual(facts["architecture"], "llama")
        self.assertEqual((facts["layers"], facts["hidden"], facts["vocabulary"]), (4, 64, 288))
        self.assertTrue(found["verdict"]["runs"], text)
        keys = {row["key"]: row["value"] for row in found["keys"]}
        self.assertEqual(keys["llama.block_count"], "4")
        self.assertIn("288 values: ", keys["tokenizer.ggml.tokens"])
        self.assertEqual(found["parts"][0]["file_bytes"], self.model.stat().st_size)
        self.assertEqual(
            sum(row["tensors"] for row in found["tensor_types"]), found["parts"][0]["tensors"]
        )
        cost, _ = self.run_json("bytes", self.model, "--kv-cache-dtype", "int4")
        for row in cost["policies"]:
            same = next(r for r in found["cache"] if r["policy"] == row["policy"])
            self.assertEqual(same["bytes_per_token"], row["bytes_per_token"])
            self.assertEqual(same["bytes_per_sequence"], row["bytes_per_sequence"])
        folder, _ = self.run_json("inspect", self.models / "llama")
        self.assertEqual(folder["cache"], found["cache"])
        self.assertTrue(folder["verdict"]["runs"])
        self.assertNotIn("keys", folder)
        windows, _ = self.run_json("inspect", self.models / "gemma2")
        facts = {row["name"]: row["value"] for row in windows["model"]}
        self.assertIn("see 96 tokens", facts["windows"])

    def test_inspect_what_does_not_run(self):
        config = self.write("config.json", json.dumps(LLAMA))
        found, _ = self.run_json("inspect", config)
        self.assertFalse(found["verdict"]["runs"])
        self.assertTrue(found["verdict"]["counted"])
        self.write("config.json", json.dumps(LLAMA | {"model_type": "deepseek_v3"}))
        found, text = self.run_json("inspect", self.folder)
        self.assertFalse(found["verdict"]["counted"])
        self.assertIn("Neither counted nor run", text)
        self.refused("inspect", self.folder / "none", words=["no such file"])
        damaged = self.folder / "damaged.gguf"
        damaged.write_bytes(self.model.read_bytes()[:1000])
        self.refused("inspect", damaged, words=["damaged.gguf"])


if __name__ == "__main__":
    unittest.main()
