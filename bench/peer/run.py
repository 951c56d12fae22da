#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures lode and llama.cpp on one machine in one run and prints the ratio of each row.

  python3 bench/peer/run.py --model FILE.gguf [--lode build/release/src/cli/lode] [--rounds 3]
  python3 bench/peer/run.py --model FILE.gguf --peer-only

llama.cpp is the shared library and headers of the installed llama-cpp-python package, driven by
llama_depth.cc (compiled here). First every peer setting (flash attention on and off, f16 and q8_0
keys and values) is timed once per row and the fastest kept: the peer runs at its best in each row.
Then, round by round, peer and lode run right after each other, each in its own process, the order
swapped every round. A row's figure is the median over the rounds of (peer time / lode time): above
1 lode is faster. Every raw time goes into the JSON file.

Rows: decode at a depth (seconds per token, mean over the steps of a process), prefill of 512
tokens at a depth (seconds), and the wall time of a whole process that loads the model from a warm
file cache and produces one token.
"""

import argparse
import datetime
import importlib.util
import json
import shlex
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PREFILL_TOKENS = 512
SETTINGS = [(flash, kv) for flash in (1, 0) for kv in ("f16", "q8_0")]
# kind, depth
ROWS = [("decode", 0), ("prefill", 0), ("decode", 8192), ("prefill", 8192), ("decode", 32768),
        ("first token", 0)]
# Runs inside the wrapping command, so that its waiting is not part of the time.
TIMER = """
import json, subprocess, sys, time
begin = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True)
seconds = time.monotonic() - begin
print(json.dumps({"stdout": done.stdout.decode(), "seconds": seconds}))
"""


def build_peer() -> Path:
    """Compiles llama_depth against the installed package; returns the binary."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        raise SystemExit("needs the package llama-cpp-python")
    package = Path(spec.submodule_search_locations[0]).resolve()
    libraries, headers = package / "lib", package.parent / "include"
    if not (headers / "llama.h").exists():
        raise SystemExit(f"llama.h not found in {headers}: install llama-cpp-python from source")
    binary = ROOT / "build/peer/llama_depth"
    binary.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["g++", "-std=c++20", "-O2", f"-I{headers}", HERE / "llama_depth.cc", "-o",
                    binary, f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", "-lggml-cpu",
                    f"-Wl,-rpath,{libraries}"], check=True)
    return binary


class Bench:
    def __init__(self, args, peer: Path):
        self.args, self.peer = args, peer

    def run(self, command) -> tuple:
        """Runs a command; returns (stdout, wall seconds without the wrapping command's own)."""
        done = subprocess.run(
            [*shlex.split(self.args.wrap), sys.executable, "-c", TIMER, *map(str, command)],
            check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
            stderr=None if self.args.show_stderr else subprocess.DEVNULL)
        timed = json.loads(done.stdout)
        return timed["stdout"], timed["seconds"]

    def steps(self, depth: int) -> int:
        return 32 if depth == 0 else 12 if depth < 16384 else 8 if depth < 65536 else 4

    def peer_seconds(self, kind: str, depth: int, setting) -> float:
        flash, kv = setting
        command = [self.peer, "--model", self.args.model, "--threads", self.args.threads,
                   "--flash", flash, "--kv", kv]
        if kind == "first token":
            return self.run([*command, "--first-token", 1, "--prefill", 8])[1]
        prefill, decode = (PREFILL_TOKENS, 0) if kind == "prefill" else (0, self.steps(depth))
        row = json.loads(self.run([*command, "--depths", depth, "--prefill", prefill, "--decode",
                                   decode])[0])["rows"][0]
        return row["prefill_seconds"][0] if kind == "prefill" \
            else statistics.mean(row["decode_seconds"])

    def lode_seconds(self, kind: str, depth: int) -> float:
        if kind == "first token":
            return self.run([self.args.lode, "run", "-m", self.args.model, "-t", self.args.threads,
                             "--no-chat", "-p", "The capital of France is the", "-n", 1])[1]
        if kind == "decode" and depth > 0 and self.args.lode_attention != "flash":
            return self.lode_tiled_seconds(depth)
        prefill, decode = (PREFILL_TOKENS, 0) if kind == "prefill" else (0, self.steps(depth))
        text, _ = self.run([self.args.lode, "bench", "-m", self.args.model, "-p", prefill, "-n",
                            decode, "-d", depth, "-r", 1, "-t", self.args.threads, "-o", "json",
                            "--kv-cache-dtype", self.args.lode_kv])
        row = json.loads(text)[0]
        return statistics.median(row["samples_ns"]) / 1e9 / max(1, row["n_gen"])

    def lode_tiled_seconds(self, depth: int) -> float:
        """Decode of an attention that selects what it reads: made-up keys tell nothing of it."""
        text, _ = self.run([self.args.lode, "bench", "-m", self.args.model, "--attention",
                            self.args.lode_attention, "-n", self.steps(depth), "-d", depth, "-r", 1,
                            "--tile-from", 4096, "-t", self.args.threads, "-o", "json",
                            "--kv-cache-dtype", self.args.lode_kv])
        return json.loads(text)[0]["median_ms_per_token"] / 1e3


def best_settings(bench: Bench, rows) -> dict:
    best = {}
    for row in rows:
        times = {setting: bench.peer_seconds(*row, setting) for setting in SETTINGS}
        best[row] = min(times, key=times.get)
        for (flash, kv), seconds in times.items():
            print(f"  {row[0]} at {row[1]}: llama.cpp flash={flash} kv={kv}: "
                  f"{describe(row[0], seconds)}", flush=True)
    return best


def measure(bench: Bench, args, best: dict) -> dict:
    """Alternates peer and lode and returns the report."""
    rows = []
    for row in args.rows:
        rows.append({"work": row[0], "depth": row[1], "peer_flash": best[row][0],
                     "peer_kv": best[row][1], "peer_seconds": [], "lode_seconds": []})
    for round_index in range(args.rounds):
        for row, out in zip(args.rows, rows, strict=True):
            runs = [lambda: out["peer_seconds"].append(bench.peer_seconds(*row, best[row])),
                    lambda: out["lode_seconds"].append(bench.lode_seconds(*row))]
            for run in runs if round_index % 2 == 0 else reversed(runs):
                run()
    print("| work | depth | llama.cpp at its best | lode | lode : llama.cpp |")
    print("|---|---|---|---|---|")
    for out in rows:
        out["ratios"] = [peer / lode for peer, lode in
                         zip(out["peer_seconds"], out["lode_seconds"], strict=True)]
        out["ratio"] = statistics.median(out["ratios"])
        peer, lode = (statistics.median(out[key]) for key in ("peer_seconds", "lode_seconds"))
        flash = "flash" if out["peer_flash"] else "no flash"
        print(f"| {out['work']} | {out['depth']} | {describe(out['work'], peer)} ({flash}, "
              f"{out['peer_kv']}) | {describe(out['work'], lode)} | {out['ratio']:.2f} |")
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "cpu": cpu_name(),
            "threads": args.threads, "model": args.model.name, "lode_kv": args.lode_kv,
            "lode_attention": args.lode_attention,
            "peer": "llama-cpp-python " + version("llama-cpp-python"), "rounds": args.rounds,
            "prefill_tokens": PREFILL_TOKENS, "rows": rows}


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, check=False).stdout.strip()


def describe(kind: str, seconds: float) -> str:
    if kind == "prefill":
        return f"{PREFILL_TOKENS / seconds:.1f} tokens/s"
    return f"{1e3 * seconds:.1f} ms"


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def parse_rows(text: str) -> list:
    """"decode:0,prefill:8192" -> rows."""
    rows = []
    for item in text.split(","):
        kind, _, depth = item.partition(":")
        rows.append((kind.replace("-", " "), int(depth or 0)))
    unknown = [row for row in rows if row[0] not in ("decode", "prefill", "first token")]
    if unknown:
        raise SystemExit(f"unknown rows {unknown}; known: decode:D, prefill:D, first-token")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="FILE.gguf")
    parser.add_argument("--lode", type=Path, default=ROOT / "build/release/src/cli/lode")
    parser.add_argument("--lode-kv", default="int8", help="lode's --kv-cache-dtype")
    parser.add_argument("--lode-attention", default="flash",
                        help="of lode's decode rows beyond depth 0; csa_hca runs over a real prefill of 4,096 "
                        "tokens, repeated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=parse_rows, default=ROWS,
                        help="such as decode:0,prefill:8192,first-token (default: all)")
    parser.add_argument("--peer-only", action="store_true", help="time every peer setting, no lode")
    parser.add_argument("--wrap", default="", help="command put before every timed process")
    parser.add_argument("--show-stderr", action="store_true")
    parser.add_argument("--out", type=Path, help="default: bench/results/peer-DATE.json")
    args = parser.parse_args()
    bench = Bench(args, build_peer())
    print(f"{cpu_name()}, {args.threads} threads, {args.model.name}, llama-cpp-python "
          f"{version('llama-cpp-python')}")
    best = best_settings(bench, args.rows)
    if args.peer_only:
        return 0
    report = measure(bench, args, best)
    out = args.out or ROOT / f"bench/results/peer-{datetime.date.today()}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
