#!/usr/bin/env python3
"""Logits of the tiny models as transformers computes them: test/model/data/tiny_logits.json.

Usage: tiny_logits.py [FOLDER]   (packages: requirements-tiny.txt)

Makes the models (test/model/tiny/tiny_models.py), loads each folder with transformers in float32
and eager attention, and checks that the gguf package reads from each GGUF file the tensors that the
folder has.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
import transformers

TEST = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TEST / "model" / "tiny"))
import tiny_models  # noqa: E402

TOKENS = 200
POSITIONS = [0, 1, 63, 64, 95, 96, 97, 127, 128, 199]


transformers.utils.logging.disable_progress_bar()


def logits(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return out[POSITIONS].numpy()


def unpermuted(tensor, heads):
    rows, columns = tensor.shape
    pairs = tensor.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def as_floats(tensor):
    if tensor.tensor_type == gguf.GGMLQuantizationType.BF16:
        words = tensor.data.view(numpy.uint16).astype(numpy.uint32) << 16
        return words.view(numpy.float32).reshape(tuple(reversed(tensor.shape.tolist())))
    return tensor.data.astype(numpy.float32)


def check_gguf(path, folder, config):
    """Every tensor of the folder is in the GGUF file, under llama.cpp's name and in its order."""
    reader = gguf.GGUFReader(path)
    found = {tensor.name: as_floats(tensor) for tensor in reader.tensors}
    arch = reader.fields["general.architecture"].contents()
    kind = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    state = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    ).state_dict()
    checked = set()
    for name, value in state.items():
        value = value.numpy()
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if ".experts." in name:  # [experts][rows][columns]; gate and up are one tensor in memory
            layer = "blk." + name.split(".")[2]
            sides = ["gate", "up"] if "gate_up" in name else ["down"]
            targets = [f"{layer}.ffn_{side}_exps.weight" for side in sides]
            got = numpy.concatenate([found[target] for target in targets], axis=1)
            assert numpy.array_equal(got, value), name
            checked.update(targets)
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        got = found[target]
        turned = "attn_q" in target or "attn_k" in target
        if config["model_type"] in tiny_models.PERMUTED and turned:
            heads = config["num_attention_heads" if "attn_q" in target else "num_key_value_heads"]
            got = unpermuted(got, heads)
        if config["model_type"].startswith("gemma") and target.endswith("norm.weight"):
            got = got - 1
        assert numpy.allclose(got, value, atol=1e-6), (name, target)
        checked.add(target)
    print("  GGUF tensors checked:", len(checked), "left:", sorted(set(found) - checked)[:6])


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    subprocess.run([sys.executable, TEST / "model" / "tiny" / "tiny_models.py", folder], check=True)
    rng = random.Random(7)
    tokens = [rng.randrange(tiny_models.VOCAB) for _ in range(TOKENS)]
    expected = {
        "transformers": transformers.__version__,
        "tokens": tokens,
        "positions": POSITIONS,
        "models": {},
    }
    for model, (config, _) in tiny_models.MODELS.items():
        print(model)
        rows = logits(folder / model, tokens)
        print(f"  standard deviation of the logits: {rows.std():.3f}")
        expected["models"][model] = [[float(f"{x:.6g}") for x in row] for row in rows]
        if model not in tiny_models.FOLDER_ONLY:
            check_gguf(folder / f"{model}.gguf", folder / model, config)
    out = TEST / "model" / "data" / "tiny_logits.json"
    with open(out, "w", encoding="utf-8") as file:
        json.dump(expected, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
