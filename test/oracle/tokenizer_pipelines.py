"""Trains small vocabularies, one for each way in which a tokenizer is put together, and writes the token ids that other
implementations give with them to test/model/text/data/pipelines.

    python test/oracle/tokenizer_pipelines.py [MODEL_FOLDER]

Needs tokenizers, sentencepiece, llama-cpp-python and gguf; for Gemma's ids also its GGUF file in MODEL_FOLDER (else that file
is left as it is). The texts are those of tokenizer_texts.txt. Everything is seeded: a second run writes the same files.

NAME.json is a tokenizer.json, NAME.gguf a file with a vocabulary only. NAME.txt has in its first line which texts it covers
(`step offset`), then their ids, `id*n` for a repeated one, or `-` for a text that the other implementation takes in another
way: bytes that are no UTF-8 (tokenizers and sentencepiece take none), or U+2581, which Hugging Face's decoders lose.
presets.txt has blocks of that kind, each after the line `# NAME`: the vocabulary of bytes.json under GGUF's pre-tokenizer NAME.
"""

import codecs
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import tokenizer as texts_of

DATA = texts_of.DATA / "pipelines"
GEMMA = "gemma-3-270m-q4_k_m.gguf"

SPECIALS = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"]
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
GPT4O = (
    CASED % (("(?i:'s|'t|'re|'ve|'m|'ll|'d)?",) * 2)
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
# Those of GGUF's names whose pattern llama.cpp only approximates: the models' own.
OWN_PATTERNS = {"tekken": TEKKEN, "gpt-4o": GPT4O, "llama4": GPT4O}
PRESETS = """a.x-4.0 bailingmoe bloom chameleon chatglm-bpe codeshell command-r dbrx deepseek-coder deepseek-llm
deepseek-r1-qwen deepseek-v3 default exaone exaone4 falcon falcon3 glm4 gpt-2 gpt-4o gpt3-finnish grok-2 hunyuan-dense jais
jais-2 laguna llama-bpe llama3 llama4 mellum2 minerva-7b minicpm5 mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact
seed-coder smaug-bpe smollm spark2_5 stablelm2 starcoder tekken ufakzeka viking youtu""".split()

NO_UTF8 = re.compile(rb"[\xc0\xc1]|\xe0[\x80-\x9f]|\xf0[\x80-\x8f]|\xed[\xa0-\xbf]", re.DOTALL)
codecs.register_error("each_byte", lambda error: ("\ufffd" * (error.end - error.start), error.end))


def corpus():
    """Short lines of prose, code, digits and spaces in many scripts."""
    rng = random.Random(7)
    words = [
        w for w in texts_of.PROSE.split(" ") if w
    ] + "the of and to in is that for it was on are with".split()
    lines = []
    for _ in range(900):
        line = rng.choice(["", " ", "  "]) + rng.choice([" ", " ", "  "]).join(
            rng.choice(words) for _ in range(rng.randint(2, 9))
        )
        lines.append(line + rng.choice(["", ".", "!\n", " 12 345", "'s", "...", "\n\n", " x1"]))
    for _ in range(200):
        lines.append(rng.choice(texts_of.CODE))
        lines.append(
            "".join(rng.choice(texts_of.CONTRACTIONS) + rng.choice([" ", "\n"]) for _ in range(4))
        )
        lines.append("".join(rng.choice(texts_of.EMOJI + texts_of.CONTRACTIONS) for _ in range(3)))
        lines.append(
            rng.choice("0123456789") * 3
            + str(rng.randrange(10**6))
            + " " * rng.randint(1, 5)
            + "end\n" * rng.randint(0, 3)
        )
    return lines


def cases(step, offset):
    return list(texts_of.texts())[offset::step]


def bytes_of(parts):
    return b"".join(part * count for part, count in parts)


def as_string(data):
    """The text as Kvart repairs it; None where Python would repair it in another way."""
    return None if NO_UTF8.search(data) else data.decode(errors="each_byte")


def write(name, step, offset, ids):
    lines = [f"{step} {offset}"] + [
        "-" if one is None else texts_of.written_ids(one) for one in ids
    ]
    (DATA / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return sum(one is not None for one in ids)


def hugging_face_ids(tok, step, offset):
    result = []
    for special, parts in cases(step, offset):
        text = as_string(bytes_of(parts))
        tok.encode_special_tokens = not special
        if text is None or made_by_model(tok, special, text):
            result.append(None)
        else:
            result.append(tok.encode(text, add_special_tokens=False).ids)
    return result


def made_by_model(tok, special, text):
    """Special tokens are pieces of a unigram model too, so that it makes them of plain text; Kvart never does."""
    normal = tok.normalizer.normalize_str(text) if tok.normalizer else text
    names = [
        name
        for name in SPECIALS
        if name in normal and (not special or name not in text or name == "<unk>")
    ]
    return isinstance(tok.model, models.Unigram) and bool(names)


def trained(tok, trainer):
    tok.train_from_iterator(corpus(), trainer)
    return tok


def byte_bpe(pre, size=700, normalizer=None, specials=SPECIALS, **options):
    """Merges are learned across words, so that each cut of the pre-tokenizer shows in the ids."""
    tok = Tokenizer(models.BPE(**options))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if normalizer:
        tok.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained(
        tok,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    return tok


def own_split(*patterns, behaviour="isolated", invert=False):
    return [pre_tokenizers.Split(Regex(p), behaviour, invert) for p in patterns]


def bytes_after(*steps):
    return pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def byte_level_tokenizers():
    byte_level = pre_tokenizers.ByteLevel
    yield "bytes", byte_bpe(byte_level(add_prefix_space=False))
    yield "bytes_prefix", byte_bpe(byte_level(add_prefix_space=True))
    llama3 = byte_bpe(bytes_after(*own_split(LLAMA3)), ignore_merges=True)
    llama3.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)]),
        ]
    )
    yield "llama3", llama3
    qwen = byte_bpe(bytes_after(*own_split(QWEN2)), normalizer=normalizers.NFC())
    qwen.add_tokens(
        [AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)]
    )
    yield "qwen2", qwen
    yield "deepseek3", byte_bpe(bytes_after(*own_split(*DEEPSEEK3)))
    yield "gpt4o", byte_bpe(bytes_after(*own_split(GPT4O)))
    falcon = [
        pre_tokenizers.Punctuation("contiguous"),
        byte_level(add_prefix_space=False),
        pre_tokenizers.Digits(False),
    ]
    yield "falcon", byte_bpe(pre_tokenizers.Sequence(falcon + own_split("[0-9][0-9][0-9]")))
    yield "starcoder", byte_bpe(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level(add_prefix_space=False)])
    )
    yield "bounds", byte_bpe(bytes_after(*own_split(r"\b\w+|\d+$|^\s|\W(?=\u0061)|[\w.]+-")))
    # Not all bytes have a token.
    few = Tokenizer(models.BPE(unk_token="<unk>"))
    few.pre_tokenizer = byte_level(add_prefix_space=False)
    few.decoder = decoders.ByteLevel()
    ascii_only = [line for line in corpus() if line.isascii()]
    few.train_from_iterator(
        ascii_only,
        trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIALS, show_progress=False),
    )
    yield "bytes_few", few
    for behaviour in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        steps = own_split(r"\s|[\p{P}\p{S}]", behaviour=behaviour)
        yield f"split_{behaviour}", byte_bpe(bytes_after(*steps), size=500)
    yield "split_invert", byte_bpe(
        bytes_after(*own_split(r"\p{L}+|\p{N}{1,2}", behaviour="removed", invert=True)), size=500
    )
    yield "added", added_flags()


def added_flags():
    """Every flag of an added token, with a normalizer that changes letters."""
    tok = byte_bpe(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        size=500,
        normalizer=normalizers.Lowercase(),
        specials=["<s>"],
    )
    tok.add_special_tokens(
        [AddedToken("<|im_end|>", lstrip=True), AddedToken("<|im_start|>", rstrip=True)]
    )
    tok.add_special_tokens([AddedToken("<|endoftext|>", normalized=True), "</s>", "<unk>"])
    tok.add_tokens(
        [
            AddedToken("<TOOL_CALL>", normalized=True),
            AddedToken("am", single_word=True, normalized=False),
        ]
    )
    tok.add_tokens(
        [
            AddedToken("The", single_word=True, normalized=True, lstrip=True),
            AddedToken("12", rstrip=True),
        ]
    )
    tok.add_tokens(
        [
            AddedToken("日本", lstrip=True, rstrip=True, normalized=False),
            AddedToken("::", normalized=False),
        ]
    )
    return tok


def sentencepiece_like_decoder(strip=True):
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def character_bpe(normalizer, pre, decoder, byte_fallback=True, size=900, **options):
    specials = SPECIALS + (BYTE_TOKENS if byte_fallback else [])
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, **options))
    if normalizer:
        tok.normalizer = normalizer
    if pre:
        tok.pre_tokenizer = pre
    trained(
        tok,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=specials, limit_alphabet=200, show_progress=False
        ),
    )
    document = json.loads(tok.to_str())
    # The bytes' tokens are the model's own, not added ones.
    document["added_tokens"] = [
        t for t in document["added_tokens"] if t["content"] not in BYTE_TOKENS
    ]
    tok = Tokenizer.from_str(json.dumps(document))
    tok.decoder = decoder
    return tok


def character_tokenizers():
    llama2 = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok = character_bpe(llama2, None, sentencepiece_like_decoder(), fuse_unk=True)
    tok.post_processor = processors.TemplateProcessing(
        "<s> $A", "<s> $A <s> $B", [("<s>", tok.token_to_id("<s>"))]
    )
    yield "llama2", tok
    spaces = pre_tokenizers.Split(" ", "merged_with_previous")
    yield "gemma", character_bpe(
        normalizers.Replace(" ", "▁"), spaces, sentencepiece_like_decoder(False), fuse_unk=True
    )
    for scheme in ("always", "first", "never"):
        metaspace = pre_tokenizers.Metaspace("▁", scheme, split=scheme != "never")
        decoder = decoders.Metaspace("▁", scheme)
        yield f"metaspace_{scheme}", character_bpe(
            None, metaspace, decoder, byte_fallback=False, size=600, fuse_unk=scheme == "first"
        )
    words = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")]
    )
    yield "words", character_bpe(
        normalizers.NFKD(), words, decoders.Fuse(), byte_fallback=False, size=500
    )
    strip = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.Strip()])
    yield "whitespace", character_bpe(
        strip, pre_tokenizers.Whitespace(), decoders.Fuse(), byte_fallback=False, size=500
    )


def rules_map():
    """A small map of characters, compiled by SentencePiece from rules."""
    rules = [
        ("\u3000", " "),
        ("\u00a0", " "),
        ("\t", " "),
        ("ﬁ", "fi"),
        ("Å", "A"),
        ("e\u0301", "é"),
        ("a\u0301b", "xx"),
        ("½", "1/2"),
    ]
    rules += [(chr(0xFF01 + i), chr(0x21 + i)) for i in range(0x5E)] + [
        ("\u200d", ""),
        ("①", "1"),
        ("…", "..."),
    ]
    lines = ["\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) for rule in rules]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        return sentencepiece_model("unigram", 600, normalization_rule_tsv=file.name)


def sentencepiece_model(kind, size, **options):
    model = io.BytesIO()
    lines = [line.replace("\n", " ") for line in corpus()]
    settings = dict(
        byte_fallback=True,
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    )
    settings |= options
    if "normalization_rule_tsv" in settings:
        del settings["normalization_rule_name"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        num_threads=1,
        character_coverage=0.98,
        minloglevel=2,
        hard_vocab_limit=False,
        **settings,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def unigram_tokenizers():
    proto = rules_map()
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    tok = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tok.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    tok.decoder = sentencepiece_like_decoder()
    tok.add_special_tokens(["<s>", "</s>"])
    tok.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tok.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 2)])
    yield "unigram_map", tok
    plain = Tokenizer(models.Unigram())
    plain.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip(True, False)]
    )
    plain.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace("▁", "first"), pre_tokenizers.Digits(True)]
    )
    plain.decoder = decoders.Metaspace("▁", "first")
    trainer = trainers.UnigramTrainer(
        vocab_size=600, unk_token="<unk>", special_tokens=SPECIALS, show_progress=False
    )
    yield "unigram", trained(plain, trainer)


def gguf_of(path, model, tokens, types, scores=None, merges=None, pre=None, charsmap=None, **flags):
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores:
        writer.add_token_scores(scores)
    if merges is not None:
        writer.add_token_merges(merges)
    if charsmap:
        writer.add_precompiled_charsmap(charsmap)
    for key, value in flags.items():
        if isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{key}", value)
        else:
            writer.add_uint32(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def gguf_of_json(path, name, model, pre=None):
    document = json.loads((DATA / f"{name}.json").read_text())
    vocab = sorted(document["model"]["vocab"].items(), key=lambda item: item[1])
    special = {t["content"] for t in document["added_tokens"]}
    types = [3 if t in special else 6 if t in BYTE_TOKENS else 1 for t, _ in vocab]
    merges = [" ".join(m) for m in document["model"]["merges"]]
    gguf_of(
        path,
        model,
        [t for t, _ in vocab],
        types,
        merges=merges,
        pre=pre,
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
    )


def llama_ids(path, step, offset, skip_broken=False):
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    result = []
    for special, parts in cases(step, offset):
        data = bytes_of(parts)
        broken = skip_broken and data.decode(errors="replace").encode() != data
        result.append(None if broken else model.tokenize(data, add_bos=False, special=special))
    return result


def write_presets():
    blocks, count = [], 0
    tok = Tokenizer.from_file(str(DATA / "bytes.json"))
    for i, name in enumerate(PRESETS):
        step, offset = 16, i % 16
        if name in OWN_PATTERNS:
            tok.pre_tokenizer = bytes_after(*own_split(OWN_PATTERNS[name]))
            tok.model.ignore_merges = name == "tekken"
            ids = hugging_face_ids(tok, step, offset)
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "vocabulary.gguf"
                gguf_of_json(path, "bytes", "gpt2", name)
                ids = llama_ids(path, step, offset)
        count += sum(one is not None for one in ids)
        lines = ["-" if one is None else texts_of.written_ids(one) for one in ids]
        blocks.append("\n".join([f"# {name}", f"{step} {offset}", *lines]))
    (DATA / "presets.txt").write_text("\n".join(blocks) + "\n")
    return count


def sentencepiece_files():
    """Name, the model, the GGUF's kind of tokenizer."""
    yield "spm_bpe", sentencepiece_model("bpe", 700), "llama"
    yield "spm_bpe_unknown", sentencepiece_model(
        "bpe", 500, byte_fallback=False, add_dummy_prefix=False
    ), "llama"
    yield "spm_unigram", sentencepiece_model(
        "unigram", 700, byte_fallback=False, remove_extra_whitespaces=True
    ), "t5"
    proto = rules_map()
    proto.normalizer_spec.remove_extra_whitespaces = True
    yield "spm_unigram_map", proto, "t5"


def write_sentencepiece():
    count = 0
    for i, (name, proto, kind) in enumerate(sentencepiece_files()):
        spec = proto.normalizer_spec
        path = DATA / f"{name}.gguf"
        gguf_of(
            path,
            kind,
            [p.piece for p in proto.pieces],
            [p.type for p in proto.pieces],
            scores=[p.score for p in proto.pieces],
            charsmap=spec.precompiled_charsmap,
            bos_token_id=1,
            eos_token_id=2,
            unknown_token_id=0,
            add_space_prefix=spec.add_dummy_prefix,
            remove_extra_whitespaces=spec.remove_extra_whitespaces,
        )
        own = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        ids = []
        for special, parts in cases(4, i):
            text = as_string(bytes_of(parts))
            ids.append(None if special or text is None or "\x00" in text else own.encode(text))
        # llama.cpp aborts where a character has neither a token nor bytes.
        # Nor has it bytes for unigram models.
        lacking = name in ("spm_bpe_unknown", "spm_unigram_map")
        others = [None] * len(ids) if lacking else llama_ids(path, 4, i, skip_broken=True)
        differ = sum(a is not None and b is not None and a != b for a, b in zip(ids, others))
        print(f"{name}: llama.cpp differs from sentencepiece in {differ} texts of {len(ids)}")
        ids = [
            b if special and b is not None else a
            for (special, _), a, b in zip(cases(4, i), ids, others)
        ]
        count += write(name, 4, i, ids)
    return count


def main():
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvart" / "models"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    DATA.mkdir(parents=True, exist_ok=True)
    count = 0
    for make in (byte_level_tokenizers, character_tokenizers, unigram_tokenizers):
        for i, (name, tok) in enumerate(make()):
            (DATA / f"{name}.json").write_text(tok.to_str(pretty=False) + "\n")
            count += write(
                name,
                12,
                i % 12,
                hugging_face_ids(Tokenizer.from_file(str(DATA / f"{name}.json")), 12, i % 12),
            )
    count += write_presets()
    count += write_sentencepiece()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "vocabulary.gguf"
        gguf_of_json(path, "gemma", "gemma4")
        count += write("gemma4", 12, 3, llama_ids(path, 12, 3, skip_broken=True))
    if (folder / GEMMA).exists():
        count += write("gemma3", 2, 0, llama_ids(folder / GEMMA, 2, 0, skip_broken=True))
    print(f"{count} pairs of a text and its ids")


if __name__ == "__main__":
    main()
