#!/usr/bin/env python3
# Runs clang-tidy with .clang-tidy over the library's sources, several at a time; a file that is
# compiled once for each instruction set is read as the scalar one. Argument: a build folder.
# Exits 77 (skipped) where clang-tidy isn't installed.
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("src/", "tools/", "bench/")


def commands(build):
    """The compile commands of our sources, one for each file."""
    chosen = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT) or "_avx" in entry["command"].split(" -c ")[0]:
            continue
        if path.suffix != ".cu" and path.relative_to(ROOT).as_posix().startswith(FOLDERS):
            chosen[str(path)] = entry
    return chosen


def main():
    tidy = shutil.which("clang-tidy")
    if not tidy:
        print("clang-tidy is not installed: skipped")
        return 77
    chosen = commands(pathlib.Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as database:
        listed = json.dumps(list(chosen.values()))
        pathlib.Path(database, "compile_commands.json").write_text(listed)

        def check(path):
            command = [tidy, "--quiet", "-p", database]
            command += ["--extra-arg=-Wno-unknown-warning-option", path]
            return path, subprocess.run(command, check=False, capture_output=True, text=True)

        failed = 0
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for path, done in pool.map(check, chosen):
                if done.returncode != 0:
                    failed += 1
                    print(f"{path}:\n{done.stdout}{done.stderr}")
    print(f"clang-tidy: {len(chosen)} files, {failed} with findings")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
