#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden data of tests/golden: tiny models of every family with transformers' logits.

  python3 scripts/make_golden.py            writes everything under tests/data
  python3 scripts/make_golden.py --check    makes everything anew elsewhere and compares the logits
                                            with the committed ones (they may differ by rounding)
  python3 scripts/make_golden.py --real qwen=FILE.gguf --real gemma=FILE.gguf
                                            also writes tests/data/real/NAME.json from real models

Layout: tests/data/tiny-NAME/ is a Hugging Face folder with golden.json and golden.f32 beside it;
tests/data/rope-variants/NAME.json holds another config for one of these folders ("base") and its
golden, NAME.f32 its logits; tests/data/tiny-gguf/ holds GGUF files of the same weights.
A golden is: token ids, the positions whose logits are stored, their logits as little-endian f32
[positions, vocab_size], and the versions, seed and command that made them.

Needs: torch, transformers, tokenizers, safetensors, gguf (requirements-dev.txt).
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from golden import families, real, reference, tiny_gguf, tiny_tokenizers

ROOT = Path(__file__).resolve().parent.parent
NUM_TOKENS = 96  # beyond every sliding window and every original context of the tiny models
# Both ends, the borders of cache blocks (32) and of the sliding windows (16, 20, 24), and others.
POSITIONS = [0, 1, 2, 3, 7, 15, 16, 17, 19, 20, 23, 24, 25, 31, 32, 33, 47, 48, 63, 64, 65, 80, 94,
             95]

LONG_NUM_TOKENS = 2048  # of variants named NAME-long
LONG_POSITIONS = [0, 511, 1023, 1024, 1535, 2000, 2046, 2047]


def token_ids_for(vocab_size: int, count: int = NUM_TOKENS) -> list:
    ids = np.random.default_rng(families.SEED).integers(3, vocab_size, count)
    return [int(i) for i in ids]


def write_golden(stem: Path, folder: Path, extra: dict) -> None:
    """Runs the reference on the folder; writes stem.json and stem.f32."""
    model = reference.load_folder(folder)
    is_long = stem.name.endswith("-long")
    positions = LONG_POSITIONS if is_long else POSITIONS
    ids = token_ids_for(model.config.vocab_size, LONG_NUM_TOKENS if is_long else NUM_TOKENS)
    logits = reference.logits_of(model, ids)
    kept = np.ascontiguousarray(logits[positions], dtype="<f4")
    kept.tofile(stem.with_suffix(".f32"))
    families.write_json(stem.with_suffix(".json"), {
        **extra,
        "seed": families.SEED,
        "versions": reference.versions(),
        "reference": "transformers, float32, eager attention, one pass over all tokens",
        "vocab_size": model.config.vocab_size,
        "logit_range": [float(logits.min()), float(logits.max())],
        "token_ids": ids,
        "positions": positions,
        "logits_file": stem.name + ".f32",
    })


def link_variant(base: Path, config: dict, folder: Path) -> None:
    """A folder that is `base` under another config.json."""
    folder.mkdir(parents=True)
    for file in base.iterdir():
        if file.name not in ("config.json", "golden.json", "golden.f32"):
            shutil.copy(file, folder / file.name)
    families.write_json(folder / "config.json", config)


def make_all(data: Path) -> None:
    text = (ROOT / "tests/data/texts/moby_dick_opening.txt").read_text(encoding="utf-8")
    for name, spec in families.FAMILIES.items():
        folder = data / name
        families.make_checkpoint(folder, name)
        tiny_tokenizers.make_tokenizer(folder, name, spec["config"]["vocab_size"], text)
        write_golden(folder / "golden", folder, {"name": name})
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name}: {size / 1024:.0f} KiB")
    variants = data / "rope-variants"
    variants.mkdir(exist_ok=True)
    for name, (base, _) in families.VARIANTS.items():
        config = families.variant_config(name)
        with tempfile.TemporaryDirectory() as scratch:
            link_variant(data / base, config, Path(scratch) / "model")
            write_golden(variants / name, Path(scratch) / "model",
                         {"name": name, "base": base, "config": config})
        print(f"{name}: on {base}")
    tiny_gguf.make_files(data / "tiny-gguf", data, token_ids_for, POSITIONS)


def check(committed: Path) -> int:
    """Compares a fresh run's logits with the committed ones; returns the number of mismatches."""
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        make_all(Path(scratch))
        for fresh in sorted(Path(scratch).rglob("*.f32")):
            old = committed / fresh.relative_to(scratch)
            a, b = np.fromfile(fresh, "<f4"), np.fromfile(old, "<f4")
            same = a.shape == b.shape
            difference = float(np.abs(a - b).max() / np.ptp(b)) if same else float("inf")
            failures += difference > 1e-5
            print(f"{fresh.relative_to(scratch)}: max difference / range {difference:.2e}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--real", action="append", default=[], metavar="NAME=FILE.gguf",
                        help="write tests/data/real/NAME.json from this file (only that)")
    args = parser.parse_args()
    data = ROOT / "tests/data"
    if args.check:
        return 1 if check(data) else 0
    for item in args.real:
        name, _, path = item.partition("=")
        real.write_compact(data / "real" / f"{name}.json", Path(path),
                           data / "texts/moby_dick_opening.txt")
    if not args.real:
        make_all(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
