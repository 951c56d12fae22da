#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sliding-window perplexity by transformers: what `lode eval perplexity` must equal within 0.5 %.

  python3 scripts/perplexity_reference.py --model FILE.gguf --text FILE [--window 512]
                                          [--stride 256] [--max-windows 4]

The recipe, for a text of n tokens (tokenised once, without BOS):
- A window is at most `window` positions fed to the model as a fresh sequence. If the model adds a
  BOS token, every window starts with one, and it takes one of the positions.
- Window k starts at text token k * stride; the last one is the first that reaches the end.
- Each text token is scored once, in the first window that holds it, from the logits of the position
  before it. The text's first token is scored only behind a BOS.
- Perplexity = exp(mean negative log-probability of the scored tokens).
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from golden import real, reference


def windows_of(num_tokens: int, window: int, stride: int, has_bos: bool):
    """Yields (begin, first scored, end) in text tokens."""
    body = window - has_bos
    if not 0 < stride <= body:
        raise SystemExit(f"--stride must lie in 1..{body}: else tokens would never be scored")
    begin, scored = 0, 0 if has_bos else 1
    while True:
        end = min(begin + body, num_tokens)
        yield begin, scored, end
        if end == num_tokens:
            return
        begin, scored = begin + stride, end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="FILE.gguf")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--stride", type=int, default=256)
    parser.add_argument("--max-windows", type=int, default=0, help="0: the whole text")
    args = parser.parse_args()

    fields = reference.fields_of(GGUFReader(args.model))
    bos = fields["tokenizer.ggml.bos_token_id"] if fields.get("tokenizer.ggml.add_bos_token") \
        else None
    ids = real.tokenize(args.model, args.text.read_text(encoding="utf-8"), add_bos=False)
    model = reference.load_gguf(args.model)
    total, count = 0.0, 0
    for index, (begin, scored, end) in enumerate(
            windows_of(len(ids), args.window, args.stride, bos is not None)):
        if args.max_windows and index == args.max_windows:
            break
        fed = ([] if bos is None else [bos]) + ids[begin:end]
        log_probs = reference.log_probs_of(model, fed)
        shift = begin - (bos is not None)  # text token t stands at position t - shift
        targets = np.arange(scored, end)
        total -= float(log_probs[targets - shift - 1, np.array(ids)[targets]].sum(dtype=np.float64))
        count += end - scored
        print(f"window {index + 1}: {math.exp(total / count):.4f} over {count} tokens",
              file=sys.stderr, flush=True)
    print(json.dumps({
        "model": args.model.name, "text": args.text.name, "text_tokens": len(ids),
        "window": args.window, "stride": args.stride, "bos": bos, "scored_tokens": count,
        "mean_negative_log_probability": total / count, "perplexity": math.exp(total / count),
        "versions": reference.versions()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
