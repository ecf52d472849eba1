"""Writes the token ids that llama.cpp gives for some 2,300 texts to test/model/text/data.

    python test/oracle/tokenizer.py [MODEL_FOLDER]

Needs llama-cpp-python and gguf, and both models of the tests in MODEL_FOLDER. The texts come from a seeded generator, so
a second run writes the same files. tokenizer_texts.txt has a text a line: `p` (plain) or `s` (special tokens parsed), then
its bytes in hex, `hex*n` for a repeated part, parts joined by `+`. tokenizer_NAME.txt has, after a line of end-of-generation
ids, the ids of each text in the same order, `id*n` for a repeated id. gpt2 and llama_bpe are the SmolLM2 vocabulary under
another pre-tokenizer, on every 4th text.

Where llama.cpp, and so Kvart, is known to differ from Hugging Face's tokenizers: Qwen2's text is not brought to NFC first;
an apostrophe before U+017F is no contraction; input that is no UTF-8 (they take none) counts as U+FFFD for each invalid byte.
On all other plain texts written here the two agree.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import llama_cpp

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN2 = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
DATA = Path(__file__).resolve().parent.parent / "model" / "text" / "data"

# A well-formed sequence of a value above U+10FFFF makes llama.cpp abort; Kvart takes it for four
# invalid bytes.
TOO_LARGE = re.compile(rb"(?:\xf4[\x90-\xbf]|[\xf5-\xf7][\x80-\xbf])[\x80-\xbf]{2}", re.DOTALL)

SCRIPTS = [
    (0x41, 0x5A),
    (0x61, 0x7A),
    (0xC0, 0xFF),
    (0x100, 0x17F),
    (0x250, 0x2AF),
    (0x370, 0x3FF),
    (0x400, 0x4FF),
    (0x530, 0x58F),
    (0x5D0, 0x5EA),
    (0x600, 0x6FF),
    (0x700, 0x74F),
    (0x780, 0x7B1),
    (0x7C0, 0x7FF),
    (0x900, 0x97F),
    (0x980, 0x9FF),
    (0xA00, 0xA7F),
    (0xA80, 0xAFF),
    (0xB00, 0xB7F),
    (0xB80, 0xBFF),
    (0xC00, 0xC7F),
    (0xC80, 0xCFF),
    (0xD00, 0xD7F),
    (0xD80, 0xDFF),
    (0xE00, 0xE7F),
    (0xE80, 0xEFF),
    (0xF00, 0xFFF),
    (0x1000, 0x109F),
    (0x10A0, 0x10FF),
    (0x1100, 0x11FF),
    (0x1200, 0x137F),
    (0x13A0, 0x13FF),
    (0x1400, 0x167F),
    (0x1680, 0x169F),
    (0x16A0, 0x16FF),
    (0x1780, 0x17FF),
    (0x1800, 0x18AF),
    (0x1D00, 0x1D7F),
    (0x1E00, 0x1EFF),
    (0x1F00, 0x1FFF),
    (0x2070, 0x209F),
    (0x20A0, 0x20BF),
    (0x2100, 0x214F),
    (0x2150, 0x218B),
    (0x2190, 0x21FF),
    (0x2200, 0x22FF),
    (0x2460, 0x24FF),
    (0x2500, 0x257F),
    (0x2580, 0x259F),
    (0x2600, 0x26FF),
    (0x2700, 0x27BF),
    (0x2800, 0x28FF),
    (0x2C80, 0x2CFF),
    (0x2D30, 0x2D7F),
    (0x3000, 0x303F),
    (0x3040, 0x309F),
    (0x30A0, 0x30FF),
    (0x3100, 0x312F),
    (0x3130, 0x318F),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA000, 0xA48C),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF),
    (0xFB00, 0xFB4F),
    (0xFE30, 0xFE6F),
    (0xFF00, 0xFFEF),
    (0x10000, 0x1007F),
    (0x10300, 0x1032F),
    (0x10400, 0x1044F),
    (0x12000, 0x12399),
    (0x13000, 0x1342E),
    (0x16800, 0x16A38),
    (0x1D100, 0x1D1FF),
    (0x1D400, 0x1D7FF),
    (0x1F300, 0x1F5FF),
    (0x1F600, 0x1F64F),
    (0x1F680, 0x1F6FF),
    (0x1F900, 0x1F9FF),
    (0x20000, 0x2A6DF),
]
# Assigned after Unicode 14, or classed differently by PCRE2.
LATER = [
    0x180E,
    0x1123F,
    0x11F04,
    0x11F50,
    0x1342F,
    0x13441,
    0x1B132,
    0x1D2C0,
    0x1DF25,
    0x1E030,
    0x1E4D0,
    0x1E4F0,
    0x2B739,
    0x2EBF0,
    0x2EE5D,
    0x31350,
    0x323AF,
]
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
NEAR_SPACES = "\x1c\x1d\x1e\x1f\u180e\u200b\u200c\u200d\u2060\ufeff\x00\x08"
DIGITS = "0123456789٠١٢٣७८९໑႓０９²³¹½¾ⅷ①㊿𝟘𝟡〇一"
EMOJI = [
    "🙂",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "🇯🇵🇧🇷",
    "👍🏽",
    "❤️",
    "🏳️‍🌈",
    "1️⃣",
    "🧑🏿‍🚀",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "🫠",
    "☎︎",
    "👨‍❤️‍💋‍👨",
    "🤷🏻‍♀️",
    "🦊",
]
CONTRACTIONS = [
    "I'm",
    "you're",
    "it's",
    "DON'T",
    "we'LL",
    "they'Ve",
    "he'd",
    "o'clock",
    "'s",
    "''s",
    "' s",
    "rock'n'roll",
    "x'ſ",
    "'ſ",
    "'S's",
    "’s",
    "it’s",
    "'RE",
    "'rE9",
    "'m'd'll've",
]
CODE = [
    "def f(x: int) -> int:\n    return x ** 2  # squared\n",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i]*b[i];\n\t}\n",
    "#include <vector>\r\n\r\nint main() { return std::vector<int>{1, 2, 3}.size(); }\r\n",
    "SELECT * FROM \"t\" WHERE id >= 1000 AND name LIKE '%x_' ;--",
    '{"key": [1, 2.5e-10, null, true], "u": "\\u00e9"}',
    '<div class="a b">&nbsp;&#x27;</div><!-- x -->',
    "let f = |x: &'a str| -> Option<u8> { x.as_bytes().get(0).copied() };",
    "\\begin{equation} \\frac{\\partial u}{\\partial t} = \\alpha \\nabla^2 u \\end{equation}",
    "x=$((1<<3)); [[ -n \"${y:-}\" ]] && echo $'a\\tb' || exit 1 2>&1 >/dev/null",
    "https://example.org/a/b?c=d&e=%20f#g user.name+tag@mail.example.com 192.168.0.1:8080",
    "mov eax, dword ptr [rbp - 0x14]\n\tjne .L3\n",
    "return_value = camelCase + snake_case_2 + SCREAMING_CASE42;",
    "$a->{'b'}[0] =~ s/\\s+//g;\n__END__\n",
    "if __name__ == '__main__':\n\n\n    main()\n\n",
    "```python\nprint('hi')\n```\n\n- [x] **bold** _it_ ~~no~~\n> q\n\n| a | b |\n|---|---|\n",
]
PROSE = (
    "The quick brown fox jumps over the lazy dog. Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. "
    "Съешь же ещё этих мягких французских булок. いろはにほへと ちりぬるを 色は匂へど。我能吞下玻璃而不伤身体。 "
    "키스의 고유조건은 입술끼리 만나야 하고. نص حكيم له سر قاطع. דג סקרן שט בים. ऋषियों को सताने वाले. "
    "Příliš žluťoučký kůň; Pijamalı hasta; Tiếng Việt có dấu; ภาษาไทยไม่มีช่องว่าง."
)
# Not </s>: an ordinary token of Qwen2's vocabulary, which llama.cpp takes for a special one by
# its name (Hugging Face's
# tokenizers and Kvart don't).
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<filename>",
    "<gh_stars>",
    "<issue_start>",
    "<issue_comment>",
    "<issue_closed>",
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<jupyter_script>",
    "<empty_output>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "[PAD151665]",
    "<s>",
    "<unk>",
    "<|eot_id|>",
]
INVALID = [
    b"\x80",
    b"\xbf",
    b"\xc0",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xc2",
    b"\xe2\x82",
    b"\xe2",
    b"\xe0\x80\x80",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xed\xa0\xbd\xed\xb8\x80",
    b"\xf0\x9f\x99",
    b"\xf0\x9f",
    b"\xf0\x80\x80\x80",
    b"\xf4\x8f\xbf\xbf",
    b"\xf5",
    b"\xf8",
    b"\xfc\x80\x80\x80\x80\x80",
    b"\xfe",
    b"\xff",
    b"\xff\xfe",
    b"\xef\xbf\xbe",
    b"\xe2\x28\xa1",
    b"\xf0\x28\x8c\x28",
    b"\xc3\x28",
    b"\xe0\x81\x81\xc1\x81",
    b"\xc0\xbc|im_start|\xc0\xbe",
]


def assigned(low, high):
    return [
        chr(c) for c in range(low, high + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")
    ]


def word(rng, letters, longest=8):
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, longest)))


def script_texts(rng):
    for low, high in SCRIPTS:
        letters = assigned(low, high)
        for _ in range(5):
            words = [word(rng, letters) for _ in range(rng.randint(1, 4))]
            yield rng.choice(["", " ", "\n", "'"]) + rng.choice(
                [" ", "  ", ", ", "\n", "", "-"]
            ).join(words)
    everything = [c for low, high in SCRIPTS for c in rng.sample(assigned(low, high), 8)]
    for _ in range(150):
        yield word(rng, everything, 16)
    for c in LATER:
        yield f"a{chr(c)}b {chr(c)}{chr(c)} 1{chr(c)}2 .{chr(c)}. {chr(c)}"
        yield "".join(rng.choice([chr(rng.choice(LATER)), "a", " ", "7", "!"]) for _ in range(10))


def class_texts(rng):
    for _ in range(220):
        yield "".join(
            rng.choice(SPACES + rng.choice(["  \n", NEAR_SPACES, "ab"]))
            for _ in range(rng.randint(1, 14))
        )
    for _ in range(150):
        yield "".join(
            rng.choice(DIGITS + rng.choice(["  ", ".,-", "ab", "\n"]))
            for _ in range(rng.randint(1, 14))
        )
    pool = [
        "a",
        "B",
        "é",
        "日",
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "1",
        "23",
        "½",
        "'",
        "s",
        "'s",
        "!",
        "...",
        "=",
        "🙂",
        "\u0301",
        "\u200d",
        "\x00",
        "_",
        "(",
        ")",
    ]
    for _ in range(400):
        yield "".join(rng.choice(pool) for _ in range(rng.randint(2, 16)))
    for c in CONTRACTIONS:
        yield c
        yield rng.choice(CONTRACTIONS) + rng.choice([" ", "", "\n", "."]) + c
    marks = assigned(0x300, 0x36F)
    for _ in range(40):
        yield "".join(rng.choice("aeoZ1 ") + word(rng, marks, 4) for _ in range(5))
    for _ in range(80):
        yield "".join(
            rng.choice(EMOJI + [" ", "x", "\u200d", "\ufe0f"]) for _ in range(rng.randint(1, 6))
        )
    for symbols in (
        "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
        "€£¥©®™§¶†‡•…–—“”„«»¿¡°±×÷µ",
        "←↑→↓⇒∀∃∈∑∫≈≠≤≥∞√",
    ):
        for _ in range(40):
            yield "".join(rng.choice(symbols + " \n a") for _ in range(rng.randint(1, 12)))


def prose_texts(rng):
    yield ""
    yield PROSE
    yield from CODE
    for text in CODE + [PROSE] * 8:
        for _ in range(6):
            begin = rng.randrange(len(text))
            yield text[begin : begin + rng.randint(1, 80)]
    for _ in range(60):
        yield rng.choice(CODE) + rng.choice(EMOJI) + " " + rng.choice(
            PROSE.split(" ")
        ) + rng.choice(SPACES)


def invalid_texts(rng):
    for byte in range(256):
        yield bytes([byte])
    for part in INVALID:
        yield part
        yield b"ab " + part + b" cd"
        yield part + rng.choice(INVALID) + "é".encode()
    for _ in range(120):
        yield bytes(rng.randrange(256) for _ in range(rng.randint(1, 12)))
    for _ in range(60):
        whole = (rng.choice(EMOJI) + rng.choice(PROSE.split(" "))).encode()
        yield whole[rng.randrange(3) : len(whole) - rng.randrange(3)]


def special_texts(rng):
    for name in SPECIALS:
        yield name
        yield f"a {name}b{name}{name} c\n{name}\n"
        yield name[:-1] + " " + name[1:] + " " + name.upper()
    yield "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi 🙂<|im_end|>\n<|im_start|>assistant\n"
    yield "<|im_<|im_end|>start|><|im_start<|im_start|>|>"
    for _ in range(60):
        yield "".join(
            rng.choice(SPECIALS + [" ", "\n", "x", "<", "|", ">", "12", "é"])
            for _ in range(rng.randint(2, 8))
        )


# Long runs, as lists of (bytes, count).
RUNS = [
    [("a", 5000)],
    [("aaaaaaab", 500)],
    [(" ", 3000)],
    [(" ", 3000), ("x", 1)],
    [("\n", 2000)],
    [("\n ", 999), ("x", 1)],
    [("=", 3000)],
    [("-", 1000), ("\n", 10)],
    [("🙂", 1000)],
    [("ab", 2500)],
    [("7", 2000)],
    [("12 ", 700)],
    [("é", 1500)],
    [("日本", 800)],
    [("\t", 1500), ("y", 2)],
    [("e\u0301", 900)],
    [("\x00", 700)],
    [(" \u3000", 500)],
    [("the ", 1000)],
    [("A", 49)],
    [("A", 48)],
    [("A", 47)],
    [("lorem", 10)],
    [("lorem", 9), ("lor", 1)],
    [("x", 33), (" ", 64), ("y", 65)],
    [("'", 500)],
    [("'s", 400)],
    [("\r\n", 600)],
    [("()", 600)],
    [("ا", 1000)],
    [("👩‍👩‍👧‍👦", 200)],
]


def texts():
    """(special, parts): the parts are (bytes, count)."""
    rng = random.Random(20240611)
    for source in (script_texts, class_texts, prose_texts):
        for text in source(rng):
            yield False, [(text.encode(), 1)]
    for data in invalid_texts(rng):
        yield False, [(TOO_LARGE.sub(b"\xff", data), 1)]
    for text in list(special_texts(rng)):
        yield False, [(text.encode(), 1)]
        yield True, [(text.encode(), 1)]
    for run in RUNS:
        yield False, [(text.encode(), count) for text, count in run]
    for text in [*CODE, PROSE, *EMOJI]:
        yield True, [(text.encode(), 1)]


def written_text(special, parts):
    written = "+".join(part.hex() + (f"*{count}" if count > 1 else "") for part, count in parts)
    return f"{'s' if special else 'p'} {written}"


def written_ids(ids):
    runs = []
    for token in ids:
        if runs and runs[-1][0] == token:
            runs[-1][1] += 1
        else:
            runs.append([token, 1])
    return " ".join(f"{token}*{count}" if count > 1 else str(token) for token, count in runs)


def write_ids(name, model_path, cases):
    model = llama_cpp.Llama(str(model_path), vocab_only=True, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(model.model)
    ends = [t for t in range(model.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, t)]
    lines = [" ".join(map(str, ends))]
    for special, parts in cases:
        data = b"".join(part * count for part, count in parts)
        lines.append(written_ids(model.tokenize(data, add_bos=False, special=special)))
    (DATA / f"tokenizer_{name}.txt").write_text("\n".join(lines) + "\n")


def main():
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvart" / "models"
    models = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    cases = list(texts())
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / "tokenizer_texts.txt").write_text(
        "\n".join(written_text(*case) for case in cases) + "\n"
    )
    write_ids("smollm2", models / SMOLLM2, cases)
    write_ids("qwen2", models / QWEN2, cases)
    with tempfile.TemporaryDirectory() as folder:
        for name, pre in (("gpt2", "gpt-2"), ("llama_bpe", "llama-bpe")):
            changed = Path(folder) / f"{name}.gguf"
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "gguf.scripts.gguf_new_metadata",
                    "--force",
                    "--pre-tokenizer",
                    pre,
                    models / SMOLLM2,
                    changed,
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            write_ids(name, changed, cases[::4])
    print(f"{len(cases)} texts")


if __name__ == "__main__":
    main()
