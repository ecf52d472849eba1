#!/usr/bin/env python3
"""Frequencies of rotary positions as transformers computes them: test/model/data/rope.json.

Usage: rope.py   (packages: requirements-tiny.txt)

For each config and length of a sequence: the frequencies (radians per token) and what cosines and
sines are multiplied by.
"""

import json
import pathlib
import tempfile

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

BASE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}

LONG = [1.0 + 0.5 * i for i in range(32)]
SHORT = [1.0 + 0.01 * i for i in range(32)]
LENGTHS = [4096, 8192, 8193, 20000, 131072]

SCALINGS = {
    "none": None,
    "linear": {"rope_type": "linear", "factor": 3.5},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn_betas": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "attention_factor": 1.5,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.707,
        "mscale_all_dim": 1.2,
    },
    "yarn_untruncated": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 16.0,
        "original_max_position_embeddings": 8192,
        "short_factor": SHORT,
        "long_factor": LONG,
    },
    "longrope_attention": {
        "rope_type": "longrope",
        "factor": 16.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 1.25,
        "short_factor": SHORT,
        "long_factor": LONG,
    },
}


def main():
    cases = []
    for name, scaling in SCALINGS.items():
        config = {**BASE}
        if scaling:
            config["rope_scaling"] = scaling
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            loaded = transformers.AutoConfig.from_pretrained(folder)
        kind = scaling["rope_type"] if scaling else "default"
        for length in LENGTHS:
            if kind == "default":
                theta = config["rope_theta"]
                frequencies, magnitude = [theta ** (-i / 64) for i in range(0, 64, 2)], 1.0
            else:
                inv, magnitude = ROPE_INIT_FUNCTIONS[kind](loaded, device="cpu", seq_len=length)
                frequencies = inv.double().tolist()
            cases.append(
                {
                    "name": name,
                    "config": config,
                    "length": length,
                    "frequencies": [float(f"{f:.9g}") for f in frequencies],
                    "magnitude": float(f"{magnitude:.9g}"),
                }
            )
    out = pathlib.Path(__file__).parents[1] / "model" / "data" / "rope.json"
    out.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    print(len(cases), "cases")


main()
