#!/usr/bin/env python3
"""bench/tenants.py on a tiny model: guesses tell nothing where tenants are parted, and a flood of
half the pool loses no prefix. Arguments: KVART, a folder with a tiny model, a
scratch folder."""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    kvart, model, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    out = os.path.join(folder, "tenants.json")
    # A right server fails one time in a hundred thousand: the times are compared by chance.
    done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "tenants.py"), kvart, model,
                           "--records", "200", "--floods", "2", "--significance", "1e-5",
                           "--server-options=--threads 1", "--json", out], check=False)
    with open(out, encoding="utf-8") as opened:
        figures = json.load(opened)
    assert done.returncode == 0, figures["faults"]
    for row in figures["flooding"]:
        if row["share"] >= 3 and not row["host_share"]:
            assert row["found"] == 0, "a flood of three pools lost nothing"
    print("tenants: passed")


if __name__ == "__main__":
    main()
