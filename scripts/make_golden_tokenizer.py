#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of src/tokenizer: for every line of a corpus the ids that Hugging Face's
`tokenizers` gives, as one 64-bit hash per line.

  make_golden_tokenizer.py                 goldens of the small vocabularies, committed corpus
  make_golden_tokenizer.py --qwen F --gemma F   also those of real models' GGUF files
  make_golden_tokenizer.py --corpus        first writes the corpus and trains the small vocabularies

tests/data/tokenizer/ holds corpus.txt (one text per line; \\n, \\r and \\\\ are escaped), NAME.json
(small vocabularies with the published pre-tokenizers; training breaks ties differently from run to
run, so they are data, not derived), NAME.fnv (8 bytes per line, little endian) and versions.txt. A
hash is FNV-1a over the ids as 32-bit integers: those with control tokens left as text, then -1,
then those with control tokens parsed. BOS and EOS are not included.
"""

import argparse
import json
import pathlib
import random
import struct
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "tokenizer"

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<bos>", "<start_of_turn>"]
USER_DEFINED = ["<tool_call>", "</tool_call>", "\n\n"]

# ---------------------------------------------------------------------------------------- corpus

RANGES = {  # letters and marks of 14 scripts
    "latin": [(0x61, 0x7A), (0xC0, 0x17F), (0x1E00, 0x1EFF)],
    "greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "cyrillic": [(0x400, 0x52F)],
    "armenian": [(0x531, 0x58A)],
    "hebrew": [(0x5B0, 0x5F4)],
    "arabic": [(0x610, 0x6FF)],
    "devanagari": [(0x900, 0x97F)],
    "bengali": [(0x980, 0x9FE)],
    "tamil": [(0xB82, 0xBFA)],
    "thai": [(0xE01, 0xE5B)],
    "georgian": [(0x10A0, 0x10FF)],
    "hangul": [(0xAC00, 0xD7A3)],
    "jamo": [(0x1100, 0x11FF)],
    "kana": [(0x3041, 0x30FF)],
    "han": [(0x4E00, 0x5FFF), (0x20000, 0x20100)],
}
ENGLISH = (
    """
the of and to in is that it was for on are as with his they at be this from I have or by one had
not but what all were when we there can an your which their said if do will each about how up out
them then she many some so these would other into has more her two like him see time could no make
than first been its who now people my made over did down only way find use may water long little
very after words called just where most know get through back much before go good new write our
used me man too any day same right look think also around another came come work three word must
because does part even place well such here take why things help put years different away again
off went old number great tell men say small every found still between name should home big give
air line set own under read last never us left end along while might next sound below saw
something thought both few those always looked show large often together asked house don't it's
we've I'll you're he'd I'm can't WON'T O'Neill
""".split()
)
ACCENTED = (
    """naïve café résumé über Straße señor façade coöperate Øresund Łódź Đặng Nguyễn tiếng Việt
crème brûlée jalapeño Zürich ångström Čapek İstanbul ǅ ﬁn ſo K Å""".split()
)
HAND = [
    "नमस्ते दुनिया, यह एक परीक्षा है।",
    "สวัสดีชาวโลก นี่คือการทดสอบ",
    "안녕하세요 세계",
    "각각 가",
    "こんにちは世界。カタカナもあります。",
    "你好，世界！这是一个测试。",
    "Привет, мир! Как дела?",
    "שלום עולם",
    "مرحبا بالعالم، كيف الحال؟",
    "Γειά σου Κόσμε",
    "1234567",
    "12 345 678,90 ½ Ⅻ ٣٤٥ १२३",
    "3.14159e-10",
    "'s 'S 'll 'LL 'ſ don't DON'T y'all'd've",
    "  leading",
    "trailing  ",
    "a  b   c    d",
    "\t\ttabs\tin\t",
    "line\nline\n\nline\n\n\nline",
    "\r\n\r\nwin\r\n",
    " \n \n x",
    "a\u00a0b\u2003c\u3000d\u180ee\u200bf\u0085g",
    "👩‍🔬👨‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪",
    "e\u0301e\u0323\u0301 q\u0301\u0323",
    "\u0301 alone",
    "ﷺ㎏①",
    "Ω≈ç√∫˜µ≤≥÷",
    "x\u0000y\u0001z\u001f",
    "\ufeffbom",
    "\U000f0000\U0010ffff",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<tool_call>\n{}\n</tool_call>",
    "<|im_end",
    "|im_end|>",
    "<s>a</s> <s>",
    "<bos><start_of_turn>user",
    "▁under▁",
    "unreachableword unreachableword",
    "https://example.org/a?b=c&d=%20#e",
    "a@b.co",
    "---===+++",
    "```python\ndef f(x):\n    return x\n```",
    "\\n \\t \\\\",
    '{"a": [1, 2.5e3, null]}',
    "",
    " ",
    "\n",
]
CODE = [
    "def {a}({b}, {c}=None):\n    return {b}[{n}:] + {c}.{a}()",
    "for (int {a} = {n}; {a} < {b}; ++{a}) {{",
    "#include <{a}/{b}.h>",
    "SELECT {a}, COUNT(*) FROM {b} WHERE {c} >= {n};",
    "const {a} = ({b}) => {b}?.{c} ?? {n};",
    '    if {a} != "{b}" && {c} > 0x{n:x} {{ // {a}',
    "<div class=\"{a}\" id='{b}'>{c}&nbsp;{n}</div>",
    "$ {a} --{b}={n} | grep -E '^{c}[0-9]+$'",
    "\\frac{{{a}}}{{{b}}} \\leq {n}^{{{c}}}",
    "{a}::{b}<{c}>(*this)->{a}_[{n}];",
]


def letters(ranges):
    found = []
    for low, high in ranges:
        found += [chr(c) for c in range(low, high + 1) if unicodedata.category(chr(c))[0] in "LM"]
    return found


def make_corpus(rng):
    lines = list(HAND)
    for text in HAND:
        for form in ("NFC", "NFD"):
            lines.append(unicodedata.normalize(form, text))
    lines += [c * n for c in "ZA .\n-\t漢1é" for n in (2, 3, 31, 32, 47, 48, 49, 63, 64, 65, 300)]
    alphabets = {name: letters(ranges) for name, ranges in RANGES.items()}

    def word(name):
        return "".join(rng.choice(alphabets[name]) for _ in range(rng.randint(1, 9)))

    def sentence(name):
        gaps = [
            "",
            " ",
            " ",
            " ",
            "  ",
            ", ",
            ". ",
            "\u3000",
            "-",
            "'",
            "\n",
            "\t",
            "!\n\n",
            " (",
            ") ",
        ]
        return "".join(word(name) + rng.choice(gaps) for _ in range(rng.randint(1, 9)))

    def english():
        words = [rng.choice(ENGLISH) for _ in range(rng.randint(3, 25))]
        if rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), rng.choice(ACCENTED))
        if rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), str(rng.randrange(10 ** rng.randint(1, 12))))
        text = " ".join(words)
        return (text[0].upper() + text[1:] if rng.random() < 0.5 else text) + rng.choice(".?!,;:\n")

    def emoji():
        pool = [chr(c) for c in range(0x1F300, 0x1F64F)]
        pool += ["\u200d", "\ufe0f", "\U0001f3fd", "❤", "☀", " ", "ok"]
        return "".join(rng.choice(pool) for _ in range(rng.randint(1, 12)))

    def code():
        a, b, c = (
            rng.choice(ENGLISH).strip("'").lower() + rng.choice(["", "_x", "Id", "42"])
            for _ in range(3)
        )
        return rng.choice(CODE).format(a=a, b=b, c=c, n=rng.randrange(10 ** rng.randint(1, 9)))

    def noise():
        text = ""
        while len(text) < 12:
            point = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x11000)])
            if unicodedata.category(chr(point)) not in ("Cs", "Cn"):
                text += chr(point)
        return text

    makers = [english] * 6 + [code] * 4 + [emoji, noise]
    makers += [lambda name=name: sentence(name) for name in RANGES]
    while len(lines) < 10000:
        text = rng.choice(makers)()
        lines.append(unicodedata.normalize(rng.choice(["NFC", "NFC", "NFD"]), text))
    return lines


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def unescape(line):
    out, i = [], 0
    while i < len(line):
        if line[i] == "\\":
            out.append({"n": "\n", "r": "\r", "\\": "\\"}[line[i + 1]])
            i += 1
        else:
            out.append(line[i])
        i += 1
    return "".join(out)


# ---------------------------------------------------------------------------- small vocabularies


def add_tokens(tokenizer):
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in USER_DEFINED])


def train_byte_level(lines, normalizer, steps, use_regex, extra_word=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    splits = [pre_tokenizers.Split(Regex(step), "isolated") for step in steps]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    steps = [*splits, byte_level]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if splits else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1800, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(lines, trainer)
    if extra_word:  # in the vocabulary, but no merge leads to it
        spec = json.loads(tokenizer.to_str())
        spec["model"]["vocab"][extra_word] = len(spec["model"]["vocab"])
        spec["model"]["ignore_merges"] = True
        tokenizer = Tokenizer.from_str(json.dumps(spec))
    add_tokens(tokenizer)
    return tokenizer


def generate_merges(vocab, scores):
    """transformers' conversion of scores to merges (tokenization_utils_base.generate_merges)."""
    merges = []
    for merge, score in scores.items():
        local = []
        for i in range(1, len(merge)):
            left, right = merge[:i], merge[i:]
            if left in vocab and right in vocab:
                local.append((left, right, score))
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [(left, right) for left, right, _ in merges]


def sentencepiece(vocab, merges, gemma):
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    replace = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if gemma:
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def train_sentencepiece(lines, gemma):
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("[^▁]+|▁+[^▁]*"), "isolated")
    trained.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=1800, limit_alphabet=300, show_progress=False)
    )
    pieces = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    texts = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + [text for text, _ in pieces]
    vocab = {text: i for i, text in enumerate(texts)}
    merges = generate_merges(vocab, {text: -float(i) for text, i in vocab.items()})
    tokenizer = sentencepiece(vocab, merges, gemma)
    tokenizer.add_tokens([AddedToken("<unk>", normalized=False, special=True)])
    add_tokens(tokenizer)
    return tokenizer


def train_all(lines):
    return {
        "gpt2": train_byte_level(lines, None, [], True),
        "qwen2": train_byte_level(lines, normalizers.NFC(), [QWEN2], False),
        "llama3": train_byte_level(lines, None, [LLAMA3], False, "Ġunreachableword"),
        "deepseek3": train_byte_level(lines, None, DEEPSEEK3, False),
        "llama2": train_sentencepiece(lines, gemma=False),
        "gemma": train_sentencepiece(lines, gemma=True),
    }


# ---------------------------------------------------------------------------------- real models


def gguf_arrays(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    return [
        fields[key].contents() if key in fields else None
        for key in (
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.token_type",
            "tokenizer.ggml.merges",
            "tokenizer.ggml.scores",
        )
    ]


def add_gguf_tokens(tokenizer, tokens, types):
    tokenizer.add_tokens(
        [
            AddedToken(text, normalized=False, special=kind == 3)
            for text, kind in zip(tokens, types)
            if kind in (3, 4)
        ]
    )
    return tokenizer


def qwen_from_gguf(path):
    tokens, types, merges, _ = gguf_arrays(path)
    vocab = {text: i for i, text in enumerate(tokens) if types[i] == 1}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return add_gguf_tokens(tokenizer, tokens, types)


def gemma_from_gguf(path):
    tokens, types, _, scores = gguf_arrays(path)
    # Converters write user-defined runs of U+2581 as spaces.
    tokens = [
        text.replace(" ", "▁") if types[i] == 4 and not text.strip(" ") else text
        for i, text in enumerate(tokens)
    ]
    vocab = {text: i for i, text in enumerate(tokens)}
    tokenizer = sentencepiece(vocab, generate_merges(vocab, dict(zip(tokens, scores))), gemma=True)
    return add_gguf_tokens(tokenizer, tokens, types)


# -------------------------------------------------------------------------------------- goldens


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def write_golden(name, tokenizer, lines):
    tokenizer.encode_special_tokens = True
    plain = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    tokenizer.encode_special_tokens = False
    parsed = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    with open(DATA / f"{name}.fnv", "wb") as out:
        for a, b in zip(plain, parsed):
            ids = [*a, -1, *b]
            out.write(struct.pack("<Q", fnv1a(struct.pack(f"<{len(ids)}i", *ids))))
    print(f"{name}: {sum(map(len, plain))} ids in {len(lines)} lines")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", action="store_true", help="write the corpus and the small vocabularies anew"
    )
    parser.add_argument("--qwen", help="GGUF file of a Qwen2 model")
    parser.add_argument("--gemma", help="GGUF file of a Gemma 3 model")
    args = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    if args.corpus:
        lines = make_corpus(random.Random(3))
        (DATA / "corpus.txt").write_bytes("".join(escape(line) + "\n" for line in lines).encode())
        for name, tokenizer in train_all(lines).items():
            (DATA / f"{name}.json").write_text(tokenizer.to_str(), encoding="utf-8")
    text = (DATA / "corpus.txt").read_bytes().decode("utf-8")
    lines = [unescape(line) for line in text.split("\n")[:-1]]
    for path in sorted(DATA.glob("*.json")):
        write_golden(path.stem, Tokenizer.from_file(str(path)), lines)
    if args.qwen:
        write_golden("real_qwen", qwen_from_gguf(args.qwen), lines)
    if args.gemma:
        write_golden("real_gemma", gemma_from_gguf(args.gemma), lines)
    (DATA / "versions.txt").write_text(
        f"python {sys.version.split()[0]}, tokenizers {tokenizers.__version__}, "
        f"Unicode {unicodedata.unidata_version}\n"
    )


if __name__ == "__main__":
    main()
