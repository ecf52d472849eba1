# What tests of the command line share: running the program, tiny models. Argument of every test:
# the program `kvart`.
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

KVART = sys.argv.pop(1)
TINY_MODELS = pathlib.Path(__file__).parents[1] / "model/tiny/tiny_models.py"
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def run(*arguments, **options):
    options = {"capture_output": True, "text": True, **options}
    return subprocess.run([KVART, *map(str, arguments)], check=False, timeout=300, **options)


def model_cache():
    folder = os.environ.get("KVART_CACHE_DIR")
    if not folder:
        folder = os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvart"
        )
    return pathlib.Path(folder, "models")


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def run_json(self, *arguments, code=0):
        path = self.folder / "out.json"
        done = run(*arguments, "--json", path)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(path.read_text()), done.stdout

    def refused(self, *arguments, words=(), **options):
        done = run(*arguments, **options)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(done.stdout, "")
        self.assertTrue(done.stderr.splitlines()[-1].startswith("kvart: "), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        return done.stderr


class TinyModelCase(Case):
    # Models of a few thousand random weights: what they say is nonsense.
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.models = pathlib.Path(folder.name)
        subprocess.run([sys.executable, TINY_MODELS, folder.name], check=True, timeout=300)

    def answer(self, *arguments, **options):
        threads = [] if "-t" in arguments else ["-t", "1"]
        return run("run", self.models / "llama.gguf", *threads, *arguments, **options)
