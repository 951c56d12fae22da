#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks for steps: sizes at which lode's time jumps although the work hardly grows.

  python3 bench/steps.py --model FILE.gguf [--lode build/release/src/cli/lode] [--rounds 3]

A switch between kernels or ways to cut the work, at a wrong size, shows as a step in time. Three
curves are measured by `lode bench`, each around the sizes where something switches (powers of two,
the cut of keys, the prefill chunk): a prefill of n tokens, a decode behind n cached ones, and a
prefill of 64 behind n cached ones. All sizes of a curve are timed round after round, and a size's
time is its fastest run: other load on the machine only ever adds. The step from a size to the next
is the ratio of their times over the ratio of their sizes (never below 1): above 1.2 it is a step
up. A time that falls by more than 20 % where the size grows is a step too. The two sizes of a
step are timed again before it counts.

Prints each curve and exits with 1 when there is a step. Not part of the tests: a busy machine
could fail it. Results are in docs/verification.md.
"""

import argparse
import json
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LARGEST_STEP = 0.20
CONFIRMING_ROUNDS = 5
PREFILL = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49,
           63, 64, 65, 95, 96, 97, 127, 128, 129, 192, 255, 256, 257, 384, 511, 512, 513, 544,
           640]
DEPTHS = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 383, 511, 512,
          513, 767, 1023, 1024, 1025, 1535, 1536, 1537, 2047, 2048, 2049, 3071, 4080, 4090, 4095,
          4096, 4097, 6144, 8191, 8192, 8193, 12288, 16383, 16384, 16385]
CHUNK_DEPTHS = [0, 64, 448, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4080, 4090, 4096,
                4097]


class Curve(NamedTuple):
    name: str
    arguments: list[str]  # of `lode bench`; {} stands for the sizes
    size_key: str  # in its JSON
    sizes: list[int]
    offset: int  # work besides that of n, in the same unit


CURVES = [
    Curve("prefill of n tokens", ["-p", "{}", "-n", "0"], "n_prompt", PREFILL, 0),
    Curve("decode behind n", ["-p", "0", "-n", "3", "-d", "{}"], "n_depth", DEPTHS, 64),
    Curve("prefill of 64 behind n", ["-p", "64", "-n", "0", "-d", "{}"], "n_depth", CHUNK_DEPTHS,
          64),
]


def time_sizes(options, curve: Curve, sizes: list[int], times: dict[int, float]) -> None:
    """Times `sizes` twice more, there and back: a machine that slows down for a while meets
    neighbours alike. `times` keeps each one's fastest run in milliseconds."""
    listed = ",".join(map(str, sizes + sizes[::-1]))
    command = [*shlex.split(options.wrap), options.lode, "bench", "-m", options.model, "-t",
               str(options.threads), "--kv-cache-dtype", options.kv_cache_dtype, "-r", "1", "-o",
               "json", *(word.replace("{}", listed) for word in curve.arguments)]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    for row in json.loads(output):
        time = min(row["samples_ns"]) / 1e6
        times[row[curve.size_key]] = min(time, times.get(row[curve.size_key], time))


def find_steps(times: dict[int, float], offset: int) -> list[tuple[int, float, float]]:
    """(size, ms, step from the size before) in order; a step is 0 where there is none."""
    rows = []
    before = None
    for size, time in sorted(times.items()):
        step = 0.0
        if before is not None:
            ratio = time / before[1]
            growth = (size + offset) / (before[0] + offset)
            step = max(ratio / growth - 1, 0.0) if ratio > 1 else ratio - 1
        rows.append((size, time, step))
        before = (size, time)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--lode", default=str(ROOT / "build/release/src/cli/lode"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-cache-dtype", default="f16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wrap", default="", help="a command that runs each measurement")
    options = parser.parse_args()

    found = 0
    for curve in CURVES:
        times: dict[int, float] = {}
        for _ in range(options.rounds):
            time_sizes(options, curve, curve.sizes, times)
        rows = find_steps(times, curve.offset)
        for _ in range(CONFIRMING_ROUNDS):
            doubted = [size for before, row in zip(rows, rows[1:]) if abs(row[2]) > LARGEST_STEP
                       for size in (before[0], row[0])]
            if not doubted:
                break
            time_sizes(options, curve, sorted(set(doubted)), times)
            rows = find_steps(times, curve.offset)
        print(f"\n{curve.name}, {options.kv_cache_dtype} keys and values\n"
              "     n         ms    step")
        for size, time, step in rows:
            is_step = abs(step) > LARGEST_STEP
            found += is_step
            print(f"{size:6} {time:10.2f} {100 * step:6.1f} %{'  STEP' if is_step else ''}")
        worst = max(rows, key=lambda row: abs(row[2]))
        print(f"largest step: {100 * worst[2]:.1f} % at {worst[0]}", flush=True)
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
