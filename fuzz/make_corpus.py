#!/usr/bin/env python3
"""Small right inputs for each fuzz target, made by the writers of the tests.

Usage: make_corpus.py FOLDER
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "test" / "model" / "tiny"))
import model_files  # noqa: E402
import tiny_models  # noqa: E402

KINDS = ("F32", "F16", "BF16")


def small_gguf(model):
    """The model's metadata and a few small tensors."""
    tensors = [
        (f"blk.0.t{i}", (2, 32), kind, model_files.to_bytes([0.5] * 64, kind))
        for i, kind in enumerate(KINDS)
    ]
    return model_files.gguf(tiny_models.metadata(model), tensors)


def small_safetensors():
    tensors = [
        (f"model.layers.0.t{i}", (2, 3), kind, model_files.to_bytes([0.5] * 6, kind))
        for i, kind in enumerate(KINDS)
    ]
    return model_files.safetensors(tensors)


def as_json(value):
    return json.dumps(value).encode()


TEMPLATES = (
    tiny_models.CHAT_TEMPLATE,
    "{% set ns = namespace(x=0) %}{% for m in messages %}{% set ns.x = ns.x + loop.index %}"
    "{{ m['role'] | upper ~ ns.x }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% macro f(a, b=2) %}{{ a * b }}{% endmacro %}{{ f(3) }}{{ [1, 2, 3][::-1] | tojson }}"
    "{{ 'x' if messages else 'y' }}{{ messages[0].content.split(' ') | first | trim }}",
    "{% macro g(t) %}{{ t }}{{ caller(1, b=varargs | length) }}{{ kwargs }}{% endmacro %}"
    "{% call(a, b=2) g('x', 3, c=4) %}{{ a ~ b }}{% for x in [1, [2]] if x recursive %}"
    "{{ loop.depth }}{{ x if x is number else loop(x) }}{% else %}-{% endfor %}{% endcall %}",
)

BODIES = (
    {"prompt": "hi", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1,
     "stop": ["a", "b"], "stop_token_ids": [1], "logit_bias": {"5": -1.5}, "logprobs": 3,
     "echo": True, "n": 2, "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": [[1, 2], [3]], "cache_salt": "x", "prompt_logprobs": 1, "min_tokens": 1},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                  {"role": "tool", "content": "1", "tool_call_id": "a"}],
     "tools": [{"type": "function", "function": {"name": "f"}}], "logprobs": True,
     "top_logprobs": 2, "chat_template_kwargs": {"enable_thinking": False},
     "response_format": {"type": "text"}},
)

DIVERGENCE = {
    "schema": "kvart.eval-divergence.v1", "version": "0.1.0",
    "hashes": {"model": "8d1c", "prompts": "77ab", "build": "0f0e"},
    "row_keys": {"divergence": ["policy"], "positions": ["position_first", "position_last"]},
    "divergence": [{"policy": "f16", "kl_mean": None}, {"policy": "q", "kl_mean": 0.004}],
    "positions": [{"position_first": 0, "position_last": 63, "kl_mean_q": 0.002}],
    "verdict": {"text": "Use q."},
}
NEEDLE = {
    "schema": "kvart.eval-needle.v1", "version": "0.1.0", "incomplete": True,
    "row_keys": {"needle": ["policy"]},
    "needle": [{"policy": "f16", "found": 8, "asked": 8}, {"policy": "q", "found": 2, "asked": 8}],
}
JOINED = {"schema": "kvart.report.v1", "reports": [DIVERGENCE, NEEDLE]}

FIGURES = (
    {"kind": "lines", "title": "t", "x_label": "x", "y_label": "y", "x_log": True, "y_log": False,
     "y_from_zero": True, "lines": [
         {"name": "q", "computed": False, "pair_of": "", "points": [
             {"x": 1024, "y": 2.5, "low": 2, "high": 3, "estimated": True},
             {"x": 4096, "y": 0, "low": None, "high": None, "estimated": False}]},
         {"name": "q predicted", "computed": True, "pair_of": "q", "points": []}]},
    {"kind": "heat", "title": "t", "x_label": "x", "y_label": "y", "columns": ["1k", "2k"],
     "rows": ["50"], "worst": 0, "best": 1,
     "cells": [[{"value": 0.5, "text": "0.5", "set_aside": True},
                {"value": None, "text": "", "set_aside": False}]]},
    {"kind": "bars", "title": "t", "x_label": "x", "y_label": "y", "y_log": True,
     "groups": ["0", "1", "2", "3"], "names": ["K"],
     "bars": [[{"value": 0.5, "low": 0.4, "high": 0.6}]] * 4},
)
TABLE = {
    "key": "main", "title": "a title", "keys": 1,
    "columns": [{"key": "policy", "title": "policy", "right": False},
                {"key": "kl", "title": "KL\nmean", "right": True}],
    "rows": [[{"text": "q", "value": "q"}, {"text": "0.5", "value": 0.5}]],
}
FOUND = {
    "policy": "q", "share_of_f16": 0.28, "kld_mean": 0.004, "close": True, "retrieval": "kept",
    "found": 8, "f16_found": 8, "sequences_ratio": 3.5, "speed_up": 1.4, "speed_up_low": 1.3,
    "speed_up_high": 1.5, "speed_up_estimated": True,
}


def unfinished(figures):
    report = {
        "command": "gain", "facts": ["a fact"], "inputs": {"model": "m"}, "hashes": {"model": "a"},
        "notes": ["a note"], "verdict": "Use q.", "flag": "--kv-cache-dtype q",
        "incomplete": False, "verdict_facts": {"policy": "q"},
        "tables": [TABLE], "records": [TABLE],
        "figures": [{"table": "main", "figure": figure} for figure in figures],
    }
    return {
        "schema": "kvart.unfinished-report.v1", "key": "0",
        "findings": {"gain_context_tokens": 8192, "policies": [FOUND, dict(FOUND, kld_mean=None)]},
        "sections": [{"name": "gain", "title": "What it gains", "report": report}],
    }


def main():
    folder = pathlib.Path(sys.argv[1])
    models = tiny_models.MODELS
    corpus = {
        "gguf": [small_gguf(model) for model in models],
        "safetensors": [small_safetensors()],
        "config": [as_json(config) for config, _ in models.values()],
        "tokenizer": [as_json(tiny_models.tokenizer_json())],
        "report": [as_json(DIVERGENCE), as_json(JOINED), as_json(JOINED) + b"\0" + as_json(JOINED)],
        "unfinished": [as_json(unfinished(figures)) for figures in ([], *zip(FIGURES), FIGURES)],
        "http_body": [as_json(body) for body in BODIES],
        "template": [text.encode() for text in TEMPLATES],
    }
    for target, inputs in corpus.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            model_files.write(str(folder / target / f"seed{number}"), data)


main()
