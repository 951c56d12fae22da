#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the checks themselves: each rule must refuse one small violation and pass its repair.

    scripts/checks_test.py

Trees are made in a temporary folder; nothing of the repository is read but the scripts.
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import check_sizes

SCRIPTS = Path(__file__).parent.resolve()


def run(script: str, root: Path) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPTS / script), str(root)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


class TreeTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.write("LAYERS", "base:\nkernels: base\nmodels: base kernels\n")
        self.write("src/base/status.h", "")
        self.write("src/kernels/matmul.h", "")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class LayersTest(TreeTest):
    def expect(self, name: str, text: str, message: str) -> None:
        """`text` as the file `name` gives `message`; without it the tree is clean."""
        self.assertEqual(run("check_layers.py", self.root), (0, ""))
        self.write(name, text)
        code, output = run("check_layers.py", self.root)
        self.assertEqual(code, 1)
        self.assertIn(message, output)

    def test_includes_point_downwards(self) -> None:
        self.write("src/models/qwen.cc", '#include "kernels/matmul.h"\n#include <fmt/format.h>\n')
        self.expect("src/base/log.cc", '#include "kernels/matmul.h"\n', "may include only itself")

    def test_an_included_file_exists(self) -> None:
        self.expect("src/models/qwen.cc", '#include "base/gone.h"\n', "does not exist")

    def test_an_include_names_its_folder(self) -> None:
        self.expect("src/base/log.cc", '#include "status.h"\n', "not of the form")

    def test_libraries_stay_out_of_headers(self) -> None:
        self.write("src/base/span.h", "#include <span>\n#include <sys/stat.h>\n")
        self.write("src/base/span_test.h", "#include <gtest/gtest.h>\n")
        self.expect("src/base/json.h", "#include <nlohmann/json.hpp>\n", "belongs in a .cc file")

    def test_highway_stays_in_kernels(self) -> None:
        self.write("src/kernels/dot.cc", "#include <hwy/highway.h>\n")
        self.write("src/models/dot_test.cc", "#include <hwy/highway.h>\n")
        self.expect("src/models/dot.cc", "#include <hwy/highway.h>\n", "only kernels may include")

    def test_every_folder_is_listed(self) -> None:
        self.expect("src/extra/a.cc", "", "src/extra is not listed")

    def test_layers_has_no_cycle(self) -> None:
        self.expect("LAYERS", "base: kernels\nkernels: base\nmodels: base\n", "not listed above")

    def test_cmake_agrees(self) -> None:
        self.write(
            "src/models/CMakeLists.txt", "lode_library(models SOURCES a.cc DEPS base kernels)"
        )
        text = "lode_library(kernels SOURCES a.cc\n  DEPS base models\n  LIBS fmt::fmt)"
        self.expect("src/kernels/CMakeLists.txt", text, "kernels may not depend on models")


class TokenPathTest(TreeTest):
    def expect(self, code: int, message: str, page: str) -> None:
        self.write("docs/life_of_a_token.md", page)
        found_code, output = run("check_token_path.py", self.root)
        self.assertEqual(found_code, code)
        self.assertIn(message, output)

    def test_symbols(self) -> None:
        self.write("src/base/a.h", "// Gone()\nclass Engine { void Generate(); };\n")
        self.expect(0, "", "`src/base/a.h::Engine::Generate`\n")
        self.expect(1, "has no Gone", "`src/base/a.h::Gone`\n")
        self.expect(1, "b.h does not exist", "`src/base/b.h::Engine`\n")
        self.expect(1, "names no", "nothing\n")


class SizesTest(unittest.TestCase):
    def problems(self, name: str, text: str) -> str:
        raw = text.encode()
        head = b"// SPDX-License-Identifier: Apache-2.0\n"
        return "\n".join(
            check_sizes.check_text(name, raw) + check_sizes.check_code(name, head + raw, False)[0]
        )

    def test_functions(self) -> None:
        def body(count: int) -> str:
            return "  x = 1;\n" * count

        def function(heading: str, count: int) -> str:
            return f"{heading} {{\n{body(count)}}}\n"

        for heading in ("int F(int a)", "template <class T>\nT A<T>::F()", "A::A(int b) : b_(b)"):
            with self.subTest(heading):
                text = "namespace lode {\n" + function(heading, 79) + "}\n"
                self.assertIn("function of 8", self.problems("src/base/a.cc", text))
                self.assertEqual("", self.problems("src/kernels/a.cc", text))
                self.assertEqual("", self.problems("src/base/a.cc", function(heading, 70)))
        inner = "void F() {\n  if (a) {\n" + body(20) + "  }\n  auto g = [](int x) {\n"
        inner += body(60) + "  };\n}\n"
        self.assertIn("function of 86", self.problems("src/base/a.cc", inner))
        # Neither a class, nor a table, nor a brace in a string or comment is a function.
        fine = "class A : public B {\n" + body(100) + "};\n"
        fine += "constexpr int kTable[] = {\n" + "  1,\n" * 100 + "};\n"
        fine += "int F() {  // {\n  return G(\"{\", '{');\n}\n" + "int a;\n" * 100
        self.assertEqual("", self.problems("src/base/a.cc", fine))

    def test_text(self) -> None:
        for text, message in (
            ("a\r\n", "CR"),
            ("a", "newline"),
            ("a\n\n", "newline"),
            ("a \n", "trailing blank"),
            ("\ta\n", "tab"),
            ("x" * 101 + "\n", "101 columns"),
            ("// caf\u00e9\n", "not ASCII"),
            ("int a;\n" * 801, "802 lines"),
        ):
            with self.subTest(message):
                self.assertIn(message, self.problems("src/base/a.cc", text))
        self.assertEqual("", self.problems("src/base/a.cc", "x" * 100 + "\n" + "int a;\n" * 790))
        self.assertIn("not UTF-8", check_sizes.check_text("a", b"\xff\n")[0])
        self.assertIn("no SPDX", check_sizes.check_code("a.cc", b"int a;\n", False)[0][0])


if __name__ == "__main__":
    unittest.main(verbosity=0)
