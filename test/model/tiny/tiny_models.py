#!/usr/bin/env python3
"""Tiny models of every family, with seeded random weights: Hugging Face folders and GGUF files.

Usage: tiny_models.py FOLDER

Writes FOLDER/<name>/{config.json,model.safetensors,tokenizer.json,...} and FOLDER/<name>.gguf. The
standard library alone is used, so that tests can make them anywhere; the values come from
random.Random, whose sequence doesn't change between versions of Python. What the models answer was
computed from the same folders by transformers: test/oracle/tiny_logits.py.
"""

import math
import os
import random
import sys

from model_files import ARRAY, F32_VALUE, STRING, U32
from model_files import gguf, safetensors, to_bytes, unpack, write, write_json

VOCAB = 288
HIDDEN = 64
FFN = 96
LAYERS = 4
EXPERTS = 8


def base(model_type, architecture, **more):
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
        **more,
    }


GEMMA = {
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "sliding_window": 96,
}

PHI_FACTORS = 6  # frequencies: 3/4 of a head of 16, halved

# name -> (config, type of the stored matrices)
MODELS = {
    "llama": (
        base(
            "llama",
            "LlamaForCausalLM",
            rope_theta=500000.0,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        "BF16",
    ),
    "llama_linear": (
        base(
            "llama",
            "LlamaForCausalLM",
            head_dim=32,
            tie_word_embeddings=True,
            rope_scaling={"type": "linear", "factor": 2.5},
        ),
        "F16",
    ),
    "llama_dynamic": (
        base(
            "llama",
            "LlamaForCausalLM",
            num_key_value_heads=4,
            max_position_embeddings=128,
            rope_scaling={"rope_type": "dynamic", "factor": 2.0},
        ),
        "F32",
    ),
    "mistral": (
        base("mistral", "MistralForCausalLM", num_key_value_heads=1, sliding_window=96),
        "BF16",
    ),
    "qwen2": (
        base(
            "qwen2",
            "Qwen2ForCausalLM",
            max_position_embeddings=256,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        "BF16",
    ),
    "qwen3": (
        base("qwen3", "Qwen3ForCausalLM", head_dim=32, rope_theta=1000000.0, rms_norm_eps=1e-6),
        "F16",
    ),
    "qwen3_moe": (
        base(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            head_dim=32,
            num_experts=EXPERTS,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        "F32",
    ),
    "gemma2": (
        base(
            "gemma2",
            "Gemma2ForCausalLM",
            **GEMMA,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=30.0,
        ),
        "BF16",
    ),
    "gemma3": (
        base(
            "gemma3_text",
            "Gemma3ForCausalLM",
            **GEMMA,
            num_hidden_layers=7,
            sliding_window_pattern=6,
            rope_theta=1000000.0,
            rope_local_base_freq=10000.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        "F16",
    ),
    "phi3": (
        base(
            "phi3",
            "Phi3ForCausalLM",
            partial_rotary_factor=0.75,
            max_position_embeddings=512,
            original_max_position_embeddings=128,
            rope_scaling={
                "type": "longrope",
                "short_factor": [1.0 + 0.05 * i for i in range(PHI_FACTORS)],
                "long_factor": [1.0 + 0.6 * i for i in range(PHI_FACTORS)],
            },
        ),
        "BF16",
    ),
    "smollm3": (
        base(
            "smollm3",
            "SmolLM3ForCausalLM",
            tie_word_embeddings=True,
            no_rope_layer_interval=4,
            no_rope_layers=[1, 1, 1, 0],
            rope_theta=2000000.0,
        ),
        "BF16",
    ),
}
FOLDER_ONLY = {"llama_dynamic"}  # GGUF has no word for this scaling
PERMUTED = {"llama", "mistral", "smollm3"}  # whose GGUF files hold Q and K rows pair by pair


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def shapes(config):
    """[(name, shape)] of a checkpoint, in its order."""
    kind = config["model_type"]
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    q_size = config["num_attention_heads"] * head_dim(config)
    kv_size = config["num_key_value_heads"] * head_dim(config)
    out = [("model.embed_tokens.weight", (VOCAB, hidden))]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        out.append((p + "input_layernorm.weight", (hidden,)))
        if kind == "phi3":
            out.append((p + "self_attn.qkv_proj.weight", (q_size + 2 * kv_size, hidden)))
        else:
            for side, rows in (("q", q_size), ("k", kv_size), ("v", kv_size)):
                out.append((f"{p}self_attn.{side}_proj.weight", (rows, hidden)))
                if kind == "qwen2":
                    out.append((f"{p}self_attn.{side}_proj.bias", (rows,)))
        if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            out.append((p + "self_attn.q_norm.weight", (head_dim(config),)))
            out.append((p + "self_attn.k_norm.weight", (head_dim(config),)))
        out.append((p + "self_attn.o_proj.weight", (hidden, q_size)))
        out.append((p + "post_attention_layernorm.weight", (hidden,)))
        if kind in ("gemma2", "gemma3_text"):
            out.append((p + "pre_feedforward_layernorm.weight", (hidden,)))
            out.append((p + "post_feedforward_layernorm.weight", (hidden,)))
        if kind == "phi3":
            out.append((p + "mlp.gate_up_proj.weight", (2 * ffn, hidden)))
            out.append((p + "mlp.down_proj.weight", (hidden, ffn)))
        elif kind == "qwen3_moe":
            small = config["moe_intermediate_size"]
            out.append((p + "mlp.gate.weight", (EXPERTS, hidden)))
            for expert in range(EXPERTS):
                e = f"{p}mlp.experts.{expert}."
                out.append((e + "gate_proj.weight", (small, hidden)))
                out.append((e + "up_proj.weight", (small, hidden)))
                out.append((e + "down_proj.weight", (hidden, small)))
        else:
            out.append((p + "mlp.gate_proj.weight", (ffn, hidden)))
            out.append((p + "mlp.up_proj.weight", (ffn, hidden)))
            out.append((p + "mlp.down_proj.weight", (hidden, ffn)))
    out.append(("model.norm.weight", (hidden,)))
    if not config["tie_word_embeddings"]:
        out.append(("lm_head.weight", (VOCAB, hidden)))
    return out


def values(model, config, name, shape):
    """The tensor's values: spread so that activations stay near 1."""
    count = math.prod(shape)
    rng = random.Random(f"kvart {model} {name}")
    if len(shape) == 1:
        if name.endswith("bias"):
            return [rng.uniform(-0.5, 0.5) for _ in range(count)]
        middle = 0.0 if config["model_type"].startswith("gemma") else 1.0
        return [middle + rng.uniform(-0.3, 0.3) for _ in range(count)]
    reach = 1.5 if "embed" in name else math.sqrt(3.0 / shape[1])
    if "q_proj" in name or "k_proj" in name or "qkv_proj" in name:
        reach *= 1.5
    if "mlp.gate.weight" in name:
        reach *= 3
    return [rng.uniform(-reach, reach) for _ in range(count)]


def byte_alphabet():
    """The printable character that stands for each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>"]
MERGES = ["t h", "th e", "i n", "a n", "e r", "o u", "\u0120 t", "\u0120t h", "\u0120th e"]


def vocabulary():
    alphabet = byte_alphabet()
    tokens = [alphabet[b] for b in range(256)] + SPECIAL
    tokens += [merge.replace(" ", "") for merge in MERGES]
    return tokens + [f"<|unused_{i}|>" for i in range(VOCAB - len(tokens))]


def tokenizer_json():
    tokens = vocabulary()
    specials = SPECIAL + [t for t in tokens if t.startswith("<|unused")]
    added = [
        {
            "id": tokens.index(text),
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text in specials
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {t: i for i, t in enumerate(tokens) if t not in specials},
            "merges": MERGES,
        },
    }


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role + ': ' + message.content }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_folder(folder, model):
    config, kind = MODELS[model]
    os.makedirs(folder, exist_ok=True)
    tensors = []
    for name, shape in shapes(config):
        data = to_bytes(values(model, config, name, shape), kind)
        tensors.append((name, shape, kind, data))
    write(os.path.join(folder, "model.safetensors"), safetensors(tensors))
    dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[kind]
    write_json(os.path.join(folder, "config.json"), {**config, "torch_dtype": dtype})
    write_json(os.path.join(folder, "tokenizer.json"), tokenizer_json())
    write_json(
        os.path.join(folder, "tokenizer_config.json"),
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
            "pad_token": SPECIAL[2],
            "add_bos_token": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    write_json(
        os.path.join(folder, "generation_config.json"), {"bos_token_id": 256, "eos_token_id": 257}
    )
    return tensors


# GGUF

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(kind, name):
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    stem, suffix = rest.rsplit(".", 1)
    if stem == "post_attention_layernorm":
        target = "post_attention_norm" if kind.startswith("gemma") else "ffn_norm"
    else:
        target = LAYER_NAMES[stem]
    return f"blk.{layer}.{target}.{suffix}"


def permuted(data, shape, heads):
    """Rows of each head from halves to pairs: 0, d/2, 1, d/2 + 1, ..."""
    row_bytes = len(data) // shape[0]
    rows = [data[i * row_bytes : (i + 1) * row_bytes] for i in range(shape[0])]
    size = shape[0] // heads
    out = []
    for head in range(heads):
        for i in range(size // 2):
            out += [rows[head * size + i], rows[head * size + size // 2 + i]]
    return b"".join(out)


def llama3_factors(config):
    scaling = config["rope_scaling"]
    size = head_dim(config)
    low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
    high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
    factors = []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / size)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(scaling["factor"])
        else:
            smooth = (
                scaling["original_max_position_embeddings"] / wavelength
                - scaling["low_freq_factor"]
            ) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return factors


ARCHITECTURES = {
    "mistral": "llama",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}


def metadata(model):
    """[(key, type, value)]"""
    config = MODELS[model][0]
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    a = arch + "."
    size = head_dim(config)
    keys = [
        ("general.architecture", STRING, arch),
        ("general.name", STRING, "tiny " + model),
        (a + "block_count", U32, config["num_hidden_layers"]),
        (a + "context_length", U32, config["max_position_embeddings"]),
        (a + "embedding_length", U32, config["hidden_size"]),
        (a + "feed_forward_length", U32, config["intermediate_size"]),
        (a + "attention.head_count", U32, config["num_attention_heads"]),
        (a + "attention.head_count_kv", U32, config["num_key_value_heads"]),
        (a + "attention.layer_norm_rms_epsilon", F32_VALUE, config["rms_norm_eps"]),
        (a + "attention.key_length", U32, size),
        (a + "attention.value_length", U32, size),
        (a + "rope.freq_base", F32_VALUE, config["rope_theta"]),
        (a + "vocab_size", U32, VOCAB),
    ]
    if not config["model_type"].startswith("gemma"):
        rotated = int(size * config.get("partial_rotary_factor", 1))
        keys.append((a + "rope.dimension_count", U32, rotated))
    if config.get("sliding_window"):
        keys.append((a + "attention.sliding_window", U32, config["sliding_window"]))
    for key, name in (
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        if key in config:
            keys.append((a + name, F32_VALUE, config[key]))
    if config["model_type"] == "qwen3_moe":
        keys.append((a + "expert_count", U32, EXPERTS))
        keys.append((a + "expert_used_count", U32, config["num_experts_per_tok"]))
        keys.append((a + "expert_feed_forward_length", U32, config["moe_intermediate_size"]))
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        keys.append((a + "rope.scaling.type", STRING, kind))
        keys.append((a + "rope.scaling.factor", F32_VALUE, scaling["factor"]))
    if kind == "yarn":
        length = scaling["original_max_position_embeddings"]
        keys.append((a + "rope.scaling.original_context_length", U32, length))
    if kind == "longrope":
        length = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / length
        keys.append((a + "rope.scaling.original_context_length", U32, length))
        attention = math.sqrt(1 + math.log(factor) / math.log(length))
        keys.append((a + "rope.scaling.attn_factor", F32_VALUE, attention))
    tokens = vocabulary()
    types = [3 if t.startswith("<|") else 1 for t in tokens]
    keys += [
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (5, types)),
        ("tokenizer.ggml.merges", ARRAY, (STRING, MERGES)),
        ("tokenizer.ggml.bos_token_id", U32, 256),
        ("tokenizer.ggml.eos_token_id", U32, 257),
        ("tokenizer.chat_template", STRING, CHAT_TEMPLATE),
    ]
    return keys


def gguf_tensors(model, tensors):
    """The folder's tensors under GGUF's names, permuted, stacked and with added ones."""
    config, kind = MODELS[model]
    model_type = config["model_type"]
    out = []
    experts = {}
    for name, shape, stored, data in tensors:
        if ".experts." in name:
            _, _, layer, _, _, _, side, _ = name.split(".")
            target = f"blk.{layer}.ffn_{side.removesuffix('_proj')}_exps.weight"
            experts.setdefault(target, []).append((shape, data))
            continue
        if len(shape) == 1 or name.endswith("mlp.gate.weight"):
            numbers = unpack(data, stored)
            if model_type.startswith("gemma"):
                numbers = [1 + n for n in numbers]
            data, stored = to_bytes(numbers, "F32"), "F32"
        if model_type in PERMUTED and (".q_proj.w" in name or ".k_proj.w" in name):
            side = "num_attention_heads" if ".q_proj" in name else "num_key_value_heads"
            data = permuted(data, shape, config[side])
        out.append((gguf_name(model_type, name), shape, stored, data))
    for target, parts in experts.items():
        shape = (len(parts), *parts[0][0])
        out.append((target, shape, kind, b"".join(data for _, data in parts)))
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        factors = llama3_factors(config)
        out.append(("rope_freqs.weight", (len(factors),), "F32", to_bytes(factors, "F32")))
    if scaling.get("type") == "longrope":
        for length in ("long", "short"):
            factors = scaling[length + "_factor"]
            name = f"rope_factors_{length}.weight"
            out.append((name, (len(factors),), "F32", to_bytes(factors, "F32")))
    return out


def main():
    folder = sys.argv[1]
    for model in sys.argv[2:] or MODELS:
        tensors = write_folder(os.path.join(folder, model), model)
        if model in FOLDER_ONLY:
            continue
        data = gguf(metadata(model), gguf_tensors(model, tensors))
        write(os.path.join(folder, model + ".gguf"), data)


if __name__ == "__main__":
    main()
