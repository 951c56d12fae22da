#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every `path::Symbol` named by docs/life_of_a_token.md still exists.

    scripts/check_token_path.py [--count] [ROOT]

A reference is code in backquotes of the form `src/folder/file.cc::Symbol`. The file must exist
and the symbol must occur in it as a whole word, outside comments. --count says how much a reader
opens: the units named (x.h with x.cc) and their lines. Exit code 1 and one line per dead
reference otherwise.
"""

import argparse
import re
import sys
from pathlib import Path

PAGE = "docs/life_of_a_token.md"
REFERENCE = re.compile(r"`((?:src|tests)/[\w./-]+)::([\w:~]+)`")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--count", action="store_true", help="also print the units and lines named")
    options = parser.parse_args()
    root = options.root.resolve()
    if not (root / PAGE).is_file():
        sys.exit(f"{PAGE} does not exist")
    problems = []
    named: set[Path] = set()
    for number, line in enumerate((root / PAGE).read_text().splitlines(), 1):
        for path, symbol in REFERENCE.findall(line):
            if not (root / path).is_file():
                problems.append(f"{PAGE}:{number}: {path} does not exist")
                continue
            text = (root / path).read_text()
            named.add((root / path).with_suffix(""))
            name = symbol.split("::")[-1]
            if not re.search(rf"(?<![\w~]){re.escape(name)}\b", COMMENT.sub("", text)):
                problems.append(f"{PAGE}:{number}: {path} has no {symbol}")
    if not named:
        problems.append(f"{PAGE} names no `path::Symbol`")
    if options.count:
        files = [stem.with_suffix(end) for stem in named for end in (".h", ".cc")]
        lines = sum(file.read_text().count("\n") for file in files if file.is_file())
        print(f"{PAGE}: {len(named)} units (x.h with x.cc), {lines} lines")
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
