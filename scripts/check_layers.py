#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that dependencies between the folders of src/ point the way the file LAYERS says.

    scripts/check_layers.py [ROOT]

For each `#include "folder/file"` in src/ it checks that the including folder may use `folder`
and that the file exists; for each src/<folder>/CMakeLists.txt, that DEPS of lode_library()
names only allowed folders. LAYERS itself must have no cycle: a folder may use only folders
listed above it. Our headers include no library's header, and a library of LIBRARY_OWNERS is
included by one folder only; tests are free of both rules. Exit code 1 and one line per violation
otherwise.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
LIBRARY = re.compile(r"lode_library\(\s*(\w+)([^)]*)\)")
DEPENDENCIES = re.compile(r"\bDEPS\b((?:\s+\w+)*?)(?=\s+LIBS\b|\s*$)")
# Headers that a header of ours may include with <>: C++ (no dot), the system's, the compiler's.
SYSTEM_HEADER = re.compile(
    r"[a-z0-9_]+|(sys|linux|arpa|netinet)/\w+\.h|(unistd|fcntl|immintrin|arm_neon)\.h"
)
# Libraries that one folder keeps to itself, by the first word of the header's path.
LIBRARY_OWNERS = {"hwy": "kernels", "curl": "net"}


def read_layers(path: Path) -> tuple[dict[str, set[str]], list[str]]:
    """The table folder -> folders it may include (itself not listed), and what is wrong with it."""
    allowed: dict[str, set[str]] = {}
    problems = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        folder, _, rest = line.partition(":")
        for dependency in rest.split():
            if dependency not in allowed:
                problems.append(
                    f"LAYERS:{number}: {folder} uses {dependency}, which is not listed above it"
                )
        allowed[folder.strip()] = set(rest.split())
    return allowed, problems


def check_file(root: Path, path: Path, folder: str, allowed: dict[str, set[str]]) -> list[str]:
    problems = []
    where = path.relative_to(root)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        target, slash, _ = name.partition("/")
        problem = ""
        is_test = "_test" in path.stem
        if target in LIBRARY_OWNERS:
            if LIBRARY_OWNERS[target] != folder and not is_test:
                problem = f"only {LIBRARY_OWNERS[target]} may include this library"
        elif quote == "<":
            if path.suffix == ".h" and not is_test and not SYSTEM_HEADER.fullmatch(name):
                problem = "a library's header belongs in a .cc file"
        elif not slash or target not in allowed:
            problem = 'not of the form "folder/file.h" with a folder of src/'
        elif target != folder and target not in allowed[folder]:
            known = " ".join(sorted(allowed[folder])) or "nothing else"
            problem = f"{folder} may include only itself and {known}"
        elif not (root / "src" / name).is_file():
            problem = "does not exist"
        if problem:
            problems.append(f"{where}:{number}: {name}: {problem}")
    return problems


def check_cmake(root: Path, folder: str, allowed: dict[str, set[str]]) -> list[str]:
    path = root / "src" / folder / "CMakeLists.txt"
    if not path.is_file():
        return []
    problems = []
    for name, body in LIBRARY.findall(path.read_text()):
        if name != folder:
            problems.append(
                f"{path.relative_to(root)}: lode_library({name}) must be named {folder}"
            )
        dependencies = DEPENDENCIES.search(body)
        for dependency in dependencies.group(1).split() if dependencies else []:
            if dependency not in allowed[folder]:
                problems.append(
                    f"{path.relative_to(root)}: {folder} may not depend on {dependency}"
                )
    return problems


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    allowed, problems = read_layers(root / "LAYERS")
    for folder in sorted(path.name for path in (root / "src").iterdir() if path.is_dir()):
        if folder not in allowed:
            problems.append(f"src/{folder} is not listed in LAYERS")
            continue
        for path in sorted((root / "src" / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                problems += check_file(root, path, folder, allowed)
        problems += check_cmake(root, folder, allowed)
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
