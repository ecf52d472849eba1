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


def main():
    folder = pathlib.Path(sys.argv[1])
    models = tiny_models.MODELS
    corpus = {
        "gguf": [small_gguf(model) for model in models],
        "safetensors": [small_safetensors()],
        "config": [as_json(config) for config, _ in models.values()],
        "tokenizer": [as_json(tiny_models.tokenizer_json())],
        "http_body": [as_json(body) for body in BODIES],
        "template": [text.encode() for text in TEMPLATES],
    }
    for target, inputs in corpus.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            model_files.write(str(folder / target / f"seed{number}"), data)


main()
