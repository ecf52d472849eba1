#!/usr/bin/env python3
"""Small tasks for lm-eval, made from nothing but a seed: no data set is fetched.

Usage: make_tasks.py FOLDER [--seed 1] [--count 40]

Writes FOLDER/*.yaml and FOLDER/*.jsonl; lm-eval runs in FOLDER with --include_path FOLDER.
kvart_sequences: the next word of a sequence, of four (likelihoods). kvart_pairs: the number that
belongs to a word of a list (generated). kvart_lines: whole texts (rolling likelihoods).
"""

import argparse
import json
import pathlib
import random
import shutil

SEQUENCES = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "January February March April May June July August September October November December",
    "one two three four five six seven eight nine ten eleven twelve",
    "A B C D E F G H I J K L M N O P",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
    "10 20 30 40 50 60 70 80 90 100",
)
WORDS = "river stone window silver garden engine winter letter music candle forest bridge".split()


def sequence(rng):
    words = rng.choice(SEQUENCES).split()
    length = rng.randrange(3, len(words))
    start = rng.randrange(len(words) - length)
    right = words[start + length]
    choices = rng.sample([word for word in words if word != right], 3) + [right]
    rng.shuffle(choices)
    return {"text": ", ".join(words[start:start + length]) + ",", "choices": choices,
            "answer": choices.index(right)}


def pairs(rng):
    words = rng.sample(WORDS, 6)
    numbers = {word: str(rng.randrange(100, 1000)) for word in words}
    text = "".join(f"{word}: {number}\n" for word, number in numbers.items())
    shown, asked = rng.sample(words, 2)
    text += f"\nWhich number has {shown}? {numbers[shown]}\nWhich number has {asked}?"
    return {"text": text, "answer": numbers[asked]}


def line(rng):
    sentences = (f"The {rng.choice(WORDS)} is behind the {rng.choice(WORDS)}, and the "
                 f"{rng.choice(WORDS)} has {rng.randrange(2, 10)} of them."
                 for _ in range(rng.randrange(2, 5)))
    return {"text": " ".join(sentences)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40, help="documents of each task")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    for name, make in (("sequences", sequence), ("pairs", pairs), ("lines", line)):
        with open(args.folder / f"kvart_{name}.jsonl", "w", encoding="utf-8") as out:
            for _ in range(args.count):
                out.write(json.dumps(make(rng)) + "\n")
    for task in (pathlib.Path(__file__).parent / "tasks").glob("*.yaml"):
        shutil.copy(task, args.folder)


if __name__ == "__main__":
    main()
