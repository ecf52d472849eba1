#!/usr/bin/env python3
"""Greedy tokens and logits of llama.cpp (llama-cpp-python, f16 cache), kept as expectations for test/model.

Usage: logits.py MODEL.gguf OUT.json
The file holds, for each prompt, its ids, the greedy continuation's ids, and for each position of the continuation the
largest logits and those of a few other ids. A position's logits come from one token at a time, after the prompt in one batch.
"""

import json
import random
import sys

import llama_cpp
import numpy

PROMPTS = [
    "Why is the sky blue? Answer in three sentences.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "List the planets of the solar system, each with one fact.",
]
TOKENS = 220
LARGEST = 12
OTHERS = 12


def chat(llm, text):
    """The prompt's ids in the model's own chat format, without a system message of ours."""
    if llm.metadata["general.architecture"] == "gemma3":
        rendered = f"<bos><start_of_turn>user\n{text}<end_of_turn>\n<start_of_turn>model\n"
    else:
        rendered = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        )
    return llm.tokenize(rendered.encode(), add_bos=False, special=True)


def continuation(llm, prompt, rng):
    llm.reset()
    llm.eval(prompt)
    ids, positions = [], []
    for _ in range(TOKENS):
        logits = numpy.array(llm.scores[llm.n_tokens - 1], dtype=numpy.float64)
        order = numpy.argsort(-logits)[:LARGEST].tolist()
        others = [rng.randrange(len(logits)) for _ in range(OTHERS)]
        positions.append({str(i): round(float(logits[i]), 4) for i in order + others})
        ids.append(order[0])
        llm.eval([order[0]])
    return {"prompt": prompt, "continuation": ids, "logits": positions}


def main():
    model, out = sys.argv[1:]
    llm = llama_cpp.Llama(
        model, n_ctx=2048, n_threads=2, n_batch=512, logits_all=True, verbose=False
    )
    rng = random.Random(1)
    cases = []
    prompts = list(PROMPTS)
    if llm.metadata["general.architecture"] == "gemma3":  # longer than its window
        facts = [f"Fact {i}: the square of {i} is {i * i}." for i in range(1, 50)]
        prompts[2] = " ".join(facts) + " Which of these facts is the most surprising?"
    for text in prompts:
        cases.append(continuation(llm, chat(llm, text), rng))
        print(
            len(cases),
            repr(llm.detokenize(cases[-1]["continuation"][:40]).decode(errors="replace")),
            file=sys.stderr,
        )
    document = {
        "oracle": f"llama-cpp-python {llama_cpp.__version__}",
        "model": model.rsplit("/", 1)[-1],
        "cases": cases,
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
        file.write("\n")


main()
