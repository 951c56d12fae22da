#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the sizes a reader is grateful for, and that text files are clean.

    scripts/check_sizes.py [--warn] [FILE...]      default: every file git knows, and new ones

| what | limit | aim (--warn) |
|---|---|---|
| lines of a C++ or Python file | 800 | 500 |
| lines of a C++ function | 80 (120 in src/kernels/) | 50 |
| columns of code and scripts | 100 | |
| bytes of a file outside tests/data/ and bench/results/ | 512,000 | |

Text must be UTF-8 with LF, end in one newline and carry no tab or trailing blank; C++ must be
ASCII outside tests; every source file names its licence in one SPDX line. A file may be exempt
with its reason in EXEMPT. Functions are found by their braces, which a formatted file makes
reliable enough; lambdas, classes and namespaces are not counted. Exit code 1 and one line per
violation otherwise.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.resolve()
FILE_LINES, FILE_LINES_AIM = 800, 500
FUNCTION_LINES, FUNCTION_LINES_AIM, KERNEL_FUNCTION_LINES = 80, 50, 120
COLUMNS = 100
FILE_BYTES = 512_000
CPP = {".h", ".cc", ".cpp"}
CODE = CPP | {".py", ".sh", ".rs"}
DATA_FOLDERS = ("tests/data/", "bench/results/")
# path: why it may be longer than the limits say.
EXEMPT: dict[str, str] = {}

# Links, raw strings (regular expressions, mostly) and long texts as data stand on one line.
UNBREAKABLE = re.compile(r'https?://|R"\w*\(|"[^"]{70,}"|\'[^\']{70,}\'')
STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'')
RAW_STRING = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# What stands before the `{` of a block that is no function.
NO_FUNCTION = re.compile(
    r"^\s*(template\s*<.*>\s*)?((inline )?namespace|class|struct|union|enum|extern)\b"
    r"|^\s*(if|for|while|switch|do|else|try|catch|case)\b|=\s*$",
    re.DOTALL,
)


def files_to_check() -> list[str]:
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted({name for name in listed if name and (ROOT / name).is_file()})


def is_script(path: Path) -> bool:
    if path.suffix in CODE:
        return True
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def without_literals(text: str) -> str:
    """The same lines with comments, strings and characters blanked, so that braces count."""

    def blank(match: re.Match) -> str:
        return "\n" * match.group().count("\n")

    text = RAW_STRING.sub(blank, text)
    lines = [re.sub(r"//.*", "", STRING.sub('""', line)) for line in text.split("\n")]
    return BLOCK_COMMENT.sub(blank, "\n".join(lines))


def functions(text: str) -> list[tuple[int, int, str]]:
    """(first line, number of lines, heading) of each function body of a C++ file."""
    found = []
    opened: list[
        tuple[int, str] | None
    ] = []  # per open brace: (line, heading) of a function, else None
    heading, line, heading_line = "", 1, 1
    inside_function = 0
    for char in without_literals(text):
        if char == "\n":
            line += 1
            if heading.strip().startswith("#"):
                heading = ""  # a preprocessor line ends here
        if char == "{":
            is_function = not inside_function and ")" in heading and not NO_FUNCTION.search(heading)
            opened.append((heading_line, " ".join(heading.split())) if is_function else None)
            inside_function += is_function
        elif char == "}":
            start = opened.pop() if opened else None
            if start:
                inside_function -= 1
                found.append((start[0], line - start[0] + 1, start[1]))
        if char in "{};":
            heading = ""
        else:
            if not heading.strip():
                heading_line = line
            heading += char
    return found


def check_text(name: str, raw: bytes) -> list[str]:
    problems = []
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"{name}: not UTF-8 at byte {error.start}"]
    if b"\r" in raw:
        problems.append(f"{name}: has CR; lines end in LF")
    if raw and (not raw.endswith(b"\n") or raw.endswith(b"\n\n")):
        problems.append(f"{name}: must end in exactly one newline")
    for number, line in enumerate(raw.split(b"\n"), 1):
        if line.endswith((b" ", b"\t")):
            problems.append(f"{name}:{number}: trailing blank")
        if b"\t" in line:
            problems.append(f"{name}:{number}: tab")
    return problems


def check_code(name: str, raw: bytes, warn: bool) -> tuple[list[str], list[str]]:
    """Problems and warnings of a source file or script."""
    text = raw.decode("utf-8")
    suffix = Path(name).suffix
    problems, warnings = [], []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS and not UNBREAKABLE.search(line):
            problems.append(f"{name}:{number}: {len(line)} columns; the limit is {COLUMNS}")
        if (
            suffix in CPP
            and "_test" not in name
            and not name.startswith("tests/")
            and not line.isascii()
        ):
            problems.append(f"{name}:{number}: not ASCII; write the escape")
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
        problems.append(f"{name}: no SPDX line at its head")
    if suffix in CPP | {".py"} and len(lines) - 1 > FILE_LINES:
        problems.append(f"{name}: {len(lines) - 1} lines; the limit is {FILE_LINES}")
    elif suffix in CPP | {".py"} and warn and len(lines) - 1 > FILE_LINES_AIM:
        warnings.append(f"{name}: {len(lines) - 1} lines; the aim is {FILE_LINES_AIM}")
    if suffix in CPP:
        limit = KERNEL_FUNCTION_LINES if name.startswith("src/kernels/") else FUNCTION_LINES
        for first, count, heading in functions(text):
            message = f"{name}:{first}: function of {count} lines ({heading[-60:]})"
            if count > limit:
                problems.append(f"{message}; the limit is {limit}")
            elif warn and count > FUNCTION_LINES_AIM:
                warnings.append(f"{message}; the aim is {FUNCTION_LINES_AIM}")
    return problems, warnings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warn", action="store_true", help="also print what misses the aims")
    parser.add_argument("files", nargs="*", help="paths relative to the repository's root")
    options = parser.parse_args()
    problems, warnings = [], []
    for name in options.files or files_to_check():
        raw = (ROOT / name).read_bytes()
        if name.startswith(DATA_FOLDERS):
            continue
        if len(raw) > FILE_BYTES:
            problems.append(f"{name}: {len(raw)} bytes; the limit is {FILE_BYTES}")
        if b"\0" in raw or name in EXEMPT:
            continue
        found = check_text(name, raw)
        problems += found
        if is_script(ROOT / name) and not any("not UTF-8" in problem for problem in found):
            more_problems, more_warnings = check_code(name, raw, options.warn)
            problems += more_problems
            warnings += more_warnings
    for line in problems:
        print(line)
    for line in warnings:
        print(f"warning: {line}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
