#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how far lode's logits on a real GGUF model are from transformers' in f32.

  python3 scripts/verify_real.py --model qwen.gguf --model gemma.gguf [--peer] [--json OUT.json]

Per model and text (first 512 tokens): KL(reference || candidate) per token, mean and largest,
in nats, and the share of positions whose most probable token is the same. The reference is
transformers on weights dequantised by the gguf package (scripts/golden/reference.py); its log-
probabilities are kept in a cache folder, since a run takes minutes. Candidates are lode's exact
path (f32 activations and cache), its fast paths, and with --peer llama.cpp from llama-cpp-
python on the same ids.

Bounds: f32 path mean KL <= 1e-4; int8 path mean KL <= 0.01 and top-1 >= 98 %. The exit code tells
whether all lode rows keep theirs.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

from golden import real, reference

ROOT = Path(__file__).resolve().parent.parent
DUMP = ROOT / "build/release/tests/golden/lode_dump_logits"
# label, activations, KV type, attention, largest mean KL, least top-1
LODE_PATHS = [
    ("lode f32, f32 KV, flash", "f32", "f32", "flash", 1e-4, 0.99),
    ("lode f32, f32 KV, eager", "f32", "f32", "eager", 1e-4, 0.99),
    ("lode int8, f16 KV, flash", "int8", "f16", "flash", 0.01, 0.98),
    ("lode int8, int8 KV, flash", "int8", "int8", "flash", 0.01, 0.98),
]
PEER_PATHS = [("llama.cpp, f16 KV, flash", 1), ("llama.cpp, q8_0 KV, flash", 8)]  # ggml type ids


def default_texts() -> dict:
    """A page of prose and a page of code, both free to use and on every machine."""
    return {"prose": ROOT / "tests/data/texts/moby_dick_opening.txt",
            "code": Path(sysconfig.get_paths()["stdlib"]) / "heapq.py"}


def reference_log_probs(model: Path, ids: list, cache: Path, loaded: dict) -> np.ndarray:
    """The reference's log-probabilities [ids, vocab] f32, computed once per model and ids."""
    key = reference.sha256(model)[:16] + "_" + \
        hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()[:16]
    path = cache / f"{key}.npy"
    if not path.exists():
        if model not in loaded:
            loaded.clear()  # one dequantised model in memory at a time
            loaded[model] = reference.load_gguf(model)
        cache.mkdir(parents=True, exist_ok=True)
        np.save(path, reference.log_probs_of(loaded[model], ids))
    return np.load(path, mmap_mode="r")


def compare(log_probs: np.ndarray, logits: np.ndarray) -> dict:
    """KL per token and top-1 agreement of candidate logits [ids, vocab]."""
    divergences, agree = [], 0
    for row, candidate in zip(log_probs, logits, strict=True):
        log_p = np.asarray(row, np.float64)
        log_q = candidate.astype(np.float64)
        log_q -= log_q.max()
        log_q -= np.log(np.exp(log_q).sum())
        divergences.append(float(np.sum(np.exp(log_p) * (log_p - log_q))))
        agree += int(np.argmax(log_p) == np.argmax(log_q))
    return {"mean_kl": float(np.mean(divergences)), "max_kl": float(np.max(divergences)),
            "top1": agree / len(divergences)}


def lode_logits(dump: Path, model: Path, ids: list, threads: int, chunk: int, path) -> np.ndarray:
    _, activations, kv_dtype, attention, _, _ = path
    with tempfile.TemporaryDirectory() as scratch:
        ids_file, out = Path(scratch) / "ids", Path(scratch) / "logits"
        np.array(ids, "<i4").tofile(ids_file)
        subprocess.run([dump, model, ids_file, out, activations, kv_dtype, attention, str(threads),
                        str(chunk)], check=True)
        return np.fromfile(out, "<f4").reshape(len(ids), -1)


def peer_logits(model: Path, ids: list, threads: int, kv_type: int) -> np.ndarray:
    import llama_cpp
    peer = llama_cpp.Llama(str(model), n_ctx=len(ids) + 8, n_batch=512, logits_all=True,
                           n_threads=threads, n_threads_batch=threads, flash_attn=True,
                           type_k=kv_type, type_v=kv_type, verbose=False)
    peer.eval(ids)
    return np.array(peer.scores[:len(ids)], np.float32)


def verify(args, model: Path, loaded: dict) -> list:
    rows = []
    for text_name, text_path in args.texts.items():
        ids = real.tokenize(model, text_path.read_text(encoding="utf-8"))[:args.tokens]
        log_probs = reference_log_probs(model, ids, args.cache, loaded)
        candidates = []
        if args.dump.exists():
            candidates += [(path[0], path[4:], lambda path=path: lode_logits(
                args.dump, model, ids, args.threads, args.chunk, path)) for path in LODE_PATHS]
        if args.peer:
            candidates += [(label, None, lambda kv=kv: peer_logits(model, ids, args.threads, kv))
                           for label, kv in PEER_PATHS]
        for label, bounds, run in candidates:
            row = {"model": model.name, "text": text_name, "tokens": len(ids), "path": label,
                   **compare(log_probs, run())}
            row["ok"] = bounds is None or (row["mean_kl"] <= bounds[0] and row["top1"] >= bounds[1])
            rows.append(row)
            print(f"| {model.name} | {text_name} | {len(ids)} | {label} | {row['mean_kl']:.2e} | "
                  f"{row['max_kl']:.2e} | {100 * row['top1']:.1f} % | "
                  f"{'' if bounds is None else 'yes' if row['ok'] else 'NO'} |", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", type=Path, required=True, metavar="FILE.gguf")
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE",
                        help="default: a page of prose and a page of code")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=128, help="tokens a step of lode")
    parser.add_argument("--dump", type=Path, default=DUMP, help="the lode_dump_logits binary")
    parser.add_argument("--peer", action="store_true", help="measure llama.cpp too")
    parser.add_argument("--cache", type=Path,
                        default=Path.home() / ".cache/lodestone/reference")
    parser.add_argument("--json", type=Path, help="write the rows and versions here")
    args = parser.parse_args()
    args.texts = {name: Path(path) for name, _, path in (text.partition("=") for text in args.text)}
    args.texts = args.texts or default_texts()
    print("| model | text | tokens | path | mean KL | largest KL | top-1 | within bound |")
    print("|---|---|---|---|---|---|---|---|")
    rows, loaded = [], {}
    for model in args.model:
        rows += verify(args, model, loaded)
    if args.json:
        args.json.write_text(json.dumps({"versions": reference.versions(), "rows": rows}, indent=1)
                             + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
