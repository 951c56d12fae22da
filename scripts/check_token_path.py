#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every `path::Symbol` named by docs/life_of_a_token.md still exists.

    scripts/check_token_path.py [--count] [ROOT]

A reference is code in backquotes of the form `src/folder/file.cc::Symbol`. The file must exist
and the symbol must occur in it as a whole word, outside comments. Counts the files named and
their lines, which the page states as its aim. Exit code 1 and one line per dead reference
otherwise.
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
    parser.add_argument("--count", action="store_true", help="also print the files and lines named")
    options = parser.parse_args()
    root = options.root.resolve()
    if not (root / PAGE).is_file():
        sys.exit(f"{PAGE} does not exist")
    problems = []
    lines: dict[str, int] = {}
    for number, line in enumerate((root / PAGE).read_text().splitlines(), 1):
        for path, symbol in REFERENCE.findall(line):
            if not (root / path).is_file():
                problems.append(f"{PAGE}:{number}: {path} does not exist")
                continue
            text = (root / path).read_text()
            lines[path] = text.count("\n")
            name = symbol.split("::")[-1]
            if not re.search(rf"(?<![\w~]){re.escape(name)}\b", COMMENT.sub("", text)):
                problems.append(f"{PAGE}:{number}: {path} has no {symbol}")
    if not lines:
        problems.append(f"{PAGE} names no `path::Symbol`")
    if options.count:
        print(f"{PAGE}: {len(lines)} files, {sum(lines.values())} lines")
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
