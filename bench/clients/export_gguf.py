#!/usr/bin/env python3
"""A GGUF file as a Hugging Face folder (weights in f32, tokenizer), read by transformers.

Usage: export_gguf.py MODEL.gguf FOLDER"""

import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    path, folder = sys.argv[1:]
    where = {"pretrained_model_name_or_path": os.path.dirname(os.path.abspath(path)),
             "gguf_file": os.path.basename(path)}
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    read = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # transformers writes no model that it has read from a GGUF file, though its weights are floats.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    written = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    written.load_state_dict(read.state_dict())
    written.save_pretrained(folder)


if __name__ == "__main__":
    main()
