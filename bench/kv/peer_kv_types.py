#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KL of the next token of llama.cpp's quantised caches to its f16 cache: beside bench/kv/kv_types.

  python3 bench/kv/peer_kv_types.py MODEL.gguf IDS WINDOW SCORED THREADS

IDS are windows as kv_types wrote them. Flash attention is on, as quantised values need it. Prints
one JSON object.
"""

import ctypes
import json
import sys

import llama_cpp
import numpy as np

TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}  # ggml type ids
BATCH = 512


def log_probs(model, ids, kv_type, scored, threads):
    """Log-probabilities [scored, vocab] after the last tokens, and the mean nll of these tokens."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = len(ids), BATCH, BATCH
    params.n_threads = params.n_threads_batch = threads
    params.type_k = params.type_v = kv_type
    params.flash_attn_type = 1
    context = llama_cpp.llama_init_from_model(model, params)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = []
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
    for first in range(0, len(ids), BATCH):
        chunk = ids[first:first + BATCH]
        batch.n_tokens = len(chunk)
        for i, token in enumerate(chunk):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), first + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = first + i >= len(ids) - scored
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        for i in range(len(chunk)):
            if batch.logits[i]:
                row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (vocab,))
                row = row.astype(np.float64)
                row -= row.max()
                rows.append((row - np.log(np.exp(row).sum())).astype(np.float32))
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return np.stack(rows)


def main() -> int:
    path, ids_path, window, scored, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    callback = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    model = llama_cpp.llama_model_load_from_file(path.encode(),
                                                 llama_cpp.llama_model_default_params())
    windows = np.fromfile(ids_path, "<i4").reshape(-1, window)
    sums = {name: [0.0, 0.0] for name in TYPES}
    for ids in windows:
        reference = None
        for name, kv_type in TYPES.items():
            found = log_probs(model, ids, kv_type, scored, threads)
            reference = found if reference is None else reference
            kl = (np.exp(reference.astype(np.float64)) * (reference - found)).sum(1)
            sums[name][0] += kl.mean() / len(windows)
            sums[name][1] += (reference.argmax(1) == found.argmax(1)).mean() / len(windows)
    print(json.dumps({"peer": f"llama.cpp, llama-cpp-python {llama_cpp.__version__}",
                      "scored_positions": scored, "windows": len(windows),
                      "types": [{"type": name, "kl": float(f"{kl:.3e}"),
                                 "same_best": round(same, 4)}
                                for name, (kl, same) in sums.items()]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
