#!/usr/bin/env python3
"""bench/soak.py on a tiny model for some seconds: no wrong answer, no leak, no crash.

Arguments: KVART, a folder with a tiny model, a scratch folder."""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    kvart, model, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    out = os.path.join(folder, "soak.json")
    soak = [sys.executable, os.path.join(ROOT, "bench", "soak.py"), kvart, model, "--seconds", "10",
            "--streams", "16", "--pool-sequences", "1", "--running", "8", "--context", "256",
            "--requests", "16", "--server-options=--max-num-batched-tokens 64 --threads 1",
            "--json", out]
    done = subprocess.run(soak, check=False)
    with open(out, encoding="utf-8") as opened:
        figures = json.load(opened)
    assert done.returncode == 0, figures["faults"]
    assert figures["counts"]["compared"] > 20, "hardly anything was compared"
    assert figures["preemptions"] > 0, "the pool was never full"
    assert figures["idle_processor_share"] < 0.05, "an idle server works"
    assert figures["after"]["open_files"] <= figures["before"]["open_files"] + 2
    print("soak: passed")


if __name__ == "__main__":
    main()
