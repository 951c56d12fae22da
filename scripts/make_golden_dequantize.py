#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/dequantize/TYPE.bin: random stored weights and their f32 answers.

The answers are those of the `gguf` Python package. Stored bytes are random; only the half
precision scales are drawn as finite numbers of mixed size (subnormal ones included), so that every
bit pattern of the quantised fields occurs and no answer is NaN. Each file is a text line
"lode-dequantize TYPE ELEMENTS", the stored bytes, then ELEMENTS little-endian f32.
versions.txt records what made them.

Usage: python3 scripts/make_golden_dequantize.py
"""

import pathlib
import platform

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "dequantize"
ELEMENTS = 1024

# Byte offsets of the half precision scales in a block of each quantised type.
SCALE_OFFSETS = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0],
}


def finite_halves(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random bit patterns of finite halves, as uint16."""
    bits = rng.integers(0, 0x10000, count, dtype=np.uint16)
    infinite = (bits & 0x7C00) == 0x7C00
    bits[infinite] &= 0xBFFF
    return bits


def stored_bytes(rng: np.random.Generator, name: str) -> np.ndarray:
    """ELEMENTS random stored weights of the type, as bytes."""
    if name == "F32":
        return rng.standard_normal(ELEMENTS, dtype=np.float32).view(np.uint8)
    if name == "F16":
        return finite_halves(rng, ELEMENTS).view(np.uint8)
    if name == "BF16":
        bits = rng.integers(0, 0x10000, ELEMENTS, dtype=np.uint16)
        bits[(bits & 0x7F80) == 0x7F80] &= 0xBFFF
        return bits.view(np.uint8)
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (ELEMENTS // block_elements, block_bytes), dtype=np.uint8)
    for offset in SCALE_OFFSETS[name]:
        blocks[:, offset:offset + 2] = finite_halves(rng, len(blocks)).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20240617)
    for name in ["F32", "F16", "BF16", *SCALE_OFFSETS]:
        stored = stored_bytes(rng, name)
        kind = gguf.GGMLQuantizationType[name]
        typed = stored.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))
        answers = gguf.dequantize(typed, kind).astype("<f4").reshape(-1)
        assert answers.size == ELEMENTS and np.isfinite(answers).all(), name
        header = f"lode-dequantize {name} {ELEMENTS}\n".encode()
        (OUT / f"{name}.bin").write_bytes(header + stored.tobytes() + answers.tobytes())
    from importlib.metadata import version
    (OUT / "versions.txt").write_text(
        f"gguf {version('gguf')}\nnumpy {np.__version__}\npython {platform.python_version()}\n")


if __name__ == "__main__":
    main()
