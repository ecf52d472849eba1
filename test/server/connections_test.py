#!/usr/bin/env python3
"""bench/connections.py on a tiny model: 500 clients vanish, 10,000 idle, files run out
(lifetime_test has slow clients). Arguments: KVART, a folder with a tiny model, a scratch folder."""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def is_time(fault):
    """Whether it is about how long something took: that depends on what else the machine does."""
    return "/health took" in fault or "idle again only after" in fault


def main():
    kvart, model, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    out = os.path.join(folder, "connections.json")
    subprocess.run([sys.executable, os.path.join(ROOT, "bench", "connections.py"), kvart, model,
                    "--rounds", "2", "--slow", "0", "--json", out,
                    "--server-options=--max-num-batched-tokens 64 --threads 1"], check=False)
    with open(out, encoding="utf-8") as opened:
        figures = json.load(opened)
    assert not [fault for fault in figures["faults"] if not is_time(fault)], figures["faults"]
    for row in figures["vanish"]:
        assert row["idle_s"] is not None and row["idle_s"] < 10, row
        assert min(row["in_part"], row["nothing"], row["cancelled"]) > 10, "hardly any vanished"
        assert row["idle_processor_share"] < 0.1, "an idle server works"
    for row in figures["idle"]:
        assert row["health_p99_s"] < 5, row
        limit = {"by default": 4096, "256 open files": 192}.get(row["server"], row["clients"])
        assert 0 < row["connections"] <= limit + 1, row
    assert figures["idle"][0]["connections"] >= figures["idle"][0]["clients"], "not all were held"
    print("connections: passed")


if __name__ == "__main__":
    main()
