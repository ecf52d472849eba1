#!/usr/bin/env python3
# Files and streams: what a command writes never costs what it reads, and lost streams are survived.
# Argument: the program `kvart`.
import json
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import threading
import time
import unittest

from cli import KVART, LLAMA, Case, TinyModelCase, run


class Outputs(Case):
    def setUp(self):
        super().setUp()
        self.config = self.write("config.json", json.dumps(LLAMA))

    def test_inputs_are_no_outputs(self):
        other = self.folder / "hard.json"
        os.link(self.config, other)
        soft = self.folder / "soft.json"
        soft.symlink_to("config.json")
        shard = self.write("model.safetensors", "x")
        for output in (self.config, self.folder / "." / "config.json", other, soft, shard):
            for command in (["bytes"], ["plan", "--gpu", "H100"], ["inspect"]):
                for model in (self.folder, self.config):
                    for option in ("--json", "--csv"):
                        self.refused(*command, model, option, output, words=["another output"])
        self.assertEqual(json.loads(self.config.read_text()), LLAMA)
        self.assertEqual(shard.read_text(), "x")
        done = run("bytes", self.folder, "--json", self.folder / "new.json")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_one_file_for_two_outputs(self):
        out = self.folder / "x"
        self.refused("bytes", self.config, "--csv", out, "--json", out, words=["two files"])
        link = self.folder / "link"
        link.symlink_to("x")
        self.refused("bytes", self.config, "--csv", out, "--json", link, words=["two files"])
        done = run("bytes", self.config, "--csv", os.devnull, "--json", os.devnull)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_links_and_modes_stay(self):
        target = self.write("target.json", "old")
        target.chmod(0o640)
        link = self.folder / "link.json"
        link.symlink_to("target.json")
        self.assertEqual(run("formats", "--json", link).returncode, 0)
        self.assertTrue(link.is_symlink())
        self.assertEqual(json.loads(target.read_text())["schema"], "kvart.formats.v1")
        self.assertEqual(stat.S_IMODE(target.stat().st_mode), 0o640)
        dangling = self.folder / "dangling.json"
        dangling.symlink_to("made.json")
        self.assertEqual(run("formats", "--json", dangling).returncode, 0)
        self.assertTrue(dangling.is_symlink())
        self.assertTrue(json.loads((self.folder / "made.json").read_text()))

    def test_pipes_are_written_to(self):
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        read = []
        reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
        reader.start()
        self.assertEqual(run("formats", "--json", fifo).returncode, 0)
        reader.join()
        self.assertTrue(stat.S_ISFIFO(fifo.stat().st_mode))
        self.assertEqual(json.loads(read[0])["schema"], "kvart.formats.v1")
        ours, theirs = os.pipe()
        done = run("formats", "--csv", f"/dev/fd/{theirs}", pass_fds=[theirs])
        os.close(theirs)
        with os.fdopen(ours) as stream:
            self.assertIn("code_bits", stream.readline())
        self.assertEqual(done.returncode, 0)

    def test_stdout_as_a_file(self):
        with (self.folder / "all.txt").open("w") as stream:
            run("formats", "--csv", "/dev/stdout", capture_output=False, stdout=stream)
        text = (self.folder / "all.txt").read_text()
        self.assertTrue(text.startswith("name,code_bits"))
        self.assertIn("Use a preset", text)

    def test_what_cannot_be_written(self):
        self.refused("formats", "--json", self.folder / "none" / "x.json", words=["none"])
        self.refused("formats", "--json", self.folder, words=["is a folder"])
        self.refused("formats", "--json", "-", words=["/dev/stdout"])
        full = run("formats", "--json", "/dev/full")
        self.assertEqual(full.returncode, 1)
        self.assertIn("/dev/full", full.stderr)

    def test_a_file_that_gets_too_large_leaves_nothing(self):
        out = self.write("out.json", "old")
        before = sorted(self.folder.iterdir())

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        done = run("formats", "--json", out, preexec_fn=limit)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("out.json", done.stderr)
        self.assertEqual(out.read_text(), "old")
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_ended_at_any_moment(self):
        out = self.folder / "out.json"
        for number in (signal.SIGTERM, signal.SIGINT):
            for i in range(15):
                with subprocess.Popen(
                    [KVART, "formats", "--json", out], stdout=subprocess.DEVNULL
                ) as process:
                    time.sleep(0.002 * i)
                    process.send_signal(number)
                left = {path.name for path in self.folder.iterdir()}
                self.assertLessEqual(left, {"config.json", "out.json"})
                if out.exists():
                    json.loads(out.read_text())
                    out.unlink()


class Streams(TinyModelCase):
    def run_without(self, stream, *arguments):
        done = run(
            *arguments,
            capture_output=False,
            stdout=subprocess.DEVNULL if stream != 1 else None,
            stderr=subprocess.DEVNULL if stream != 2 else None,
            preexec_fn=lambda: os.close(stream),
        )
        return done.returncode

    def run_full(self, name, *arguments):
        with open("/dev/full", "w", encoding="utf-8") as full:
            other = "stderr" if name == "stdout" else "stdout"
            return run(
                *arguments, capture_output=False, **{name: full, other: subprocess.PIPE}
            )

    def test_lost_stderr_changes_nothing(self):
        out = self.folder / "out.json"
        model = self.models / "llama.gguf"
        for command in (
            ["run", model, "-p", "hello", "-n", "4", "-t", "1"],
            ["formats", model, "--tokens", "64", "-t", "1"],
            ["bytes", model, "--kv-cache-dtype", "q8_0"],
            ["plan", model, "--gpu", "L4"],
        ):
            self.assertEqual(self.run_without(2, *command, "--json", out), 0, command)
            self.assertTrue(json.loads(out.read_text()))
            out.unlink()
            self.assertEqual(self.run_full("stderr", *command, "--json", out).returncode, 0)
            self.assertTrue(json.loads(out.read_text()))
            out.unlink()
        self.assertEqual(self.run_without(2, "run", "none.gguf", "-p", "x"), 1)
        self.assertEqual(self.run_full("stderr", "nonsense").returncode, 1)

    def test_lost_stdout_is_an_error(self):
        out = self.folder / "out.json"
        model = self.models / "llama.gguf"
        for command in (
            ["--help"],
            ["run", "--help"],
            ["--version"],
            ["run", model, "-p", "hello", "-n", "4"],
            ["formats"],
            ["bytes", model],
        ):
            done = self.run_full("stdout", *command)
            self.assertEqual(done.returncode, 1, command)
            self.assertIn("kvart: stdout: can't be written", done.stderr)
            self.assertEqual(self.run_without(1, *command), 1)
        self.run_full("stdout", "run", model, "-p", "hello", "-n", "4", "--json", out)
        self.assertEqual(json.loads(out.read_text())["completion_tokens"], 4)

    def test_no_file_takes_a_closed_stream(self):
        out = self.folder / "out.json"
        self.assertEqual(self.run_without(1, "formats", "--json", out), 1)
        self.assertEqual(json.loads(out.read_text())["schema"], "kvart.formats.v1")

    def test_quiet_is_quiet(self):
        done = self.answer("-p", "hello", "-n", "4", "-q", "--kv-cache-dtype", "q8_0")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = self.answer("-p", "hello", "-n", "4", "-q", "-t", "1024")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_run_never_damages_what_it_reads(self):
        for name in ("llama.gguf", "llama"):
            model = self.models / name
            files = [model] if model.is_file() else sorted(model.iterdir())
            before = [path.read_bytes() for path in files]
            for path in files:
                text = self.refused("run", model, "-p", "x", "--json", path)
                self.assertNotIn("loading", text)
            self.assertEqual([path.read_bytes() for path in files], before)
        prompt = self.write("prompt.txt", "hello")
        ids = self.write("ids.txt", "1 2 3")
        model = self.models / "llama.gguf"
        self.refused("run", model, "-f", prompt, "--json", prompt, words=["another output"])
        self.refused("run", model, "--token-ids", ids, "--json", ids, words=["another output"])
        self.refused("formats", model, "--text", prompt, "--json", prompt, words=["prompt.txt"])
        self.refused("formats", model, "--csv", model, words=["another output"])
        with prompt.open() as stream:
            self.refused("run", model, "-f", "-", "--json", prompt, stdin=stream, words=["stdin"])
        self.assertEqual((prompt.read_text(), ids.read_text()), ("hello", "1 2 3"))
        for command in (["bytes"], ["plan", "--gpu", "H100"], ["inspect"], ["formats"]):
            for path in (model, self.models / "llama" / "model.safetensors"):
                before = path.read_bytes()
                read = model if path == model else path.parent
                self.refused(*command, read, "--json", path, words=["another output"])
                self.assertEqual(path.read_bytes(), before)
        text = self.refused("run", model, "-p", "x", "--json", self.folder / "none" / "x")
        self.assertNotIn("loading", text)


class DamagedModels(TinyModelCase):
    # However much of a file is missing: an error that names it, exit code 1, never a signal.
    def test_a_file_that_was_cut(self):
        for name in ("llama.gguf", "llama/model.safetensors"):
            whole = (self.models / name).read_bytes()
            folder = self.folder / "cut"
            if "/" in name:
                shutil.copytree((self.models / name).parent, folder)
            else:
                folder.mkdir()
            path = folder / name.split("/")[-1]
            model = folder if "/" in name else path
            for size in (0, 1, 7, 8, 23, 100, len(whole) // 3, len(whole) - 1):
                path.write_bytes(whole[:size])
                text = self.refused("run", model, "-p", "x", "-n", "1", words=[path.name])
                self.assertLess(len(text.splitlines()[-1]), 1000)
                self.refused("inspect", model, words=[path.name])
                if model == path:
                    self.refused("bytes", model, words=[path.name])
                    self.refused("plan", model, "--gpu", "H100", words=[path.name])
            shutil.rmtree(folder)

    # Names in a file can't steer the terminal.
    def test_names_with_escape_sequences(self):
        def text(value):
            return struct.pack("<Q", len(value)) + value

        key = b"\x1b]0;owned\x07\xff\n"
        entry = text(key) + struct.pack("<I", 8) + text(b"\x1b[2J" + key)
        path = self.folder / "escape.gguf"
        architecture = text(b"general.architecture") + struct.pack("<I", 8) + text(b"\x1b[31mx")
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry + architecture)
        for command in (["run", path, "-p", "x"], ["bytes", path], ["inspect", path, "--keys"]):
            done = run(*command)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            printed = done.stdout + done.stderr
            self.assertNotRegex(printed, "[\x00-\x09\x0b-\x1f\x7f]")
            self.assertIn("\\x1B", printed)


if __name__ == "__main__":
    unittest.main()
