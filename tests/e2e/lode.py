# SPDX-License-Identifier: Apache-2.0
"""Runs the `lode` program for the end-to-end tests: its path is in the environment as LODE."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LODE = os.environ.get("LODE", str(ROOT / "build/release/src/cli/lode"))
# A chat template and generation_config.json; relative, as goldens show the path.
QWEN = "tests/data/tiny-qwen2"
LLAMA = "tests/data/tiny-gguf/llama3-f16.gguf"
SPLIT = "tests/data/tiny-gguf/llama2-q8_0-00002-of-00002.gguf"
VERBS = ["run", "pull", "plan", "inspect", "tokenize", "eval", "calibrate", "verify",
         "bench"]


def environment(**extra: str) -> dict:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    return {**kept, "TERM": "xterm", **extra}


def lode(*args, text: str = "", env: dict | None = None, **kwargs) -> subprocess.CompletedProcess:
    """Runs lode with `text` on stdin; stdout and stderr are captured as text."""
    return subprocess.run(
        [LODE, *map(str, args)], input=text, capture_output=True, text=True, check=False,
        cwd=ROOT, env=env or environment(), timeout=60, **kwargs)
