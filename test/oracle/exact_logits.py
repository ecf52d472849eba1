#!/usr/bin/env python3
"""How far llama.cpp's logits, kept by logits.py, are from exact arithmetic (float64, dequantized weights, no cache format).

Usage: exact_logits.py MODEL.gguf EXPECTATIONS.json [OUT.json]
Prints the distance for each prompt; with OUT.json, writes the exact logits of the same ids in the same form, so that the
test of Kvart's logits can show whose rounding is whose.
"""

import json
import sys

import gguf
import numpy as np


class Model:
    """A llama, qwen2 or gemma3 decoder in float64."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda key: reader.fields[key].contents()
        self.arch = field("general.architecture")
        self.layers = field(f"{self.arch}.block_count")
        self.q_heads = field(f"{self.arch}.attention.head_count")
        self.kv_heads = field(f"{self.arch}.attention.head_count_kv")
        self.theta = field(f"{self.arch}.rope.freq_base")
        self.eps = field(f"{self.arch}.attention.layer_norm_rms_epsilon")
        self.tensors = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
            for t in reader.tensors
        }
        self.head_dim = self.tensors["blk.0.attn_q.weight"].shape[0] // self.q_heads
        self.gemma = self.arch == "gemma3"
        # gemma3: all layers but every sixth have a window, and angles of their own.
        self.window = field("gemma3.attention.sliding_window") if self.gemma else None

    def is_windowed(self, layer):
        return self.gemma and (layer + 1) % 6 != 0

    def linear(self, x, name):
        y = x @ self.tensors[name + ".weight"].T
        bias = self.tensors.get(name + ".bias")
        return y if bias is None else y + bias

    def norm(self, x, name):
        return (
            x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.tensors[name + ".weight"]
        )

    def rope(self, x, theta):
        """x: [tokens][heads][head_dim]; adjacent pairs for llama files, halves for the others."""
        half = self.head_dim // 2
        angle = np.arange(len(x))[:, None] * theta ** (-np.arange(half) * 2.0 / self.head_dim)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out = np.empty_like(x)
        if self.arch == "llama":
            a, b = x[..., 0::2], x[..., 1::2]
            out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
        else:
            a, b = x[..., :half], x[..., half:]
            out[..., :half], out[..., half:] = a * cos - b * sin, a * sin + b * cos
        return out

    def attention(self, x, layer):
        prefix = f"blk.{layer}."
        heads = lambda name: self.linear(x, prefix + name).reshape(len(x), -1, self.head_dim)
        q, k, v = heads("attn_q"), heads("attn_k"), heads("attn_v")
        if self.gemma:
            q, k = self.norm(q, prefix + "attn_q_norm"), self.norm(k, prefix + "attn_k_norm")
        theta = 10000.0 if self.is_windowed(layer) else self.theta
        q, k = self.rope(q, theta), self.rope(k, theta)
        mask = np.triu(np.full((len(x), len(x)), -np.inf), 1)
        if self.is_windowed(layer):
            mask += np.tril(np.full((len(x), len(x)), -np.inf), -self.window)
        out = np.empty_like(q)
        for h in range(self.q_heads):
            kv = h // (self.q_heads // self.kv_heads)
            s = q[:, h] @ k[:, kv].T / np.sqrt(self.head_dim) + mask
            p = np.exp(s - s.max(-1, keepdims=True))
            out[:, h] = p / p.sum(-1, keepdims=True) @ v[:, kv]
        return self.linear(out.reshape(len(x), -1), prefix + "attn_output")

    def activation(self, x):
        if self.gemma:
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x / (1 + np.exp(-x))

    def logits(self, ids):
        x = self.tensors["token_embd.weight"][ids]
        if self.gemma:
            x = x * np.sqrt(x.shape[1])
        for i in range(self.layers):
            p = f"blk.{i}."
            y = self.attention(self.norm(x, p + "attn_norm"), i)
            x = x + (self.norm(y, p + "post_attention_norm") if self.gemma else y)
            h = self.norm(x, p + "ffn_norm")
            gate = self.linear(h, p + "ffn_gate")
            y = self.linear(self.activation(gate) * self.linear(h, p + "ffn_up"), p + "ffn_down")
            x = x + (self.norm(y, p + "post_ffw_norm") if self.gemma else y)
        out = "output" if "output.weight" in self.tensors else "token_embd"
        return self.norm(x, "output_norm") @ self.tensors[out + ".weight"].T


def main():
    model = Model(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        document = json.load(file)
    for case in document["cases"]:
        ids = case["prompt"] + case["continuation"]
        logits = model.logits(ids)[len(case["prompt"]) - 1 : -1]
        differences = []
        for row, kept in zip(logits, case["logits"]):
            differences += [value - row[int(i)] for i, value in kept.items()]
            for i in kept:
                kept[i] = round(float(row[int(i)]), 4)
        d = np.array(differences)
        print(
            f"llama.cpp against exact: largest {np.abs(d).max():.3f}, rms {np.sqrt((d * d).mean()):.4f}"
        )
    if len(sys.argv) > 3:
        document["oracle"] = "float64, dequantized weights"
        with open(sys.argv[3], "w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
            file.write("\n")


main()
