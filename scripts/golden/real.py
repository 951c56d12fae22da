# SPDX-License-Identifier: Apache-2.0
"""Compact goldens of real models: the reference's best log-probabilities on a page of text.

From the 32 best log-probabilities of a position and the mass left over, a test gets a lower bound
of KL(reference || ours) (the rest counts as one event; merging events never raises a KL divergence)
without storing a whole vocabulary per token.
"""

import json
from pathlib import Path

import numpy as np

from . import reference

NUM_TOKENS = 128
TOP = 32


def tokenize(path: Path, text: str, add_bos: bool = True) -> list:
    """Ids by llama.cpp's tokenizer; add_bos puts a BOS in front where the model asks for it."""
    import llama_cpp
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return model.tokenize(text.encode("utf-8"), add_bos=add_bos, special=False)


def write_compact(out: Path, model_path: Path, text_path: Path) -> None:
    ids = tokenize(model_path, text_path.read_text(encoding="utf-8"))[:NUM_TOKENS]
    log_probs = reference.log_probs_of(reference.load_gguf(model_path), ids)
    top = np.argsort(-log_probs, axis=1, kind="stable")[:, :TOP]
    out.parent.mkdir(parents=True, exist_ok=True)
    golden = {
        "model": model_path.name,
        "sha256": reference.sha256(model_path),
        "versions": reference.versions(),
        "reference": "weights dequantised by gguf, transformers, float32, eager attention",
        "text": text_path.name,
        "token_ids": [int(i) for i in ids],
        "top_ids": top.tolist(),
        "top_log_probs": [[round(float(log_probs[t, i]), 5) for i in row]
                          for t, row in enumerate(top)],
    }
    out.write_text(json.dumps(golden, separators=(",", ":")).replace('],[', '],\n[') + "\n",
                   encoding="utf-8")
    print(f"{out.name}: {out.stat().st_size / 1024:.0f} KiB")
