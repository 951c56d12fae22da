#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The interactive chat of `lode run`, driven through a pseudo-terminal."""

import os
import pty
import re
import select
import signal
import tempfile
import time
import unittest

from lode import LODE, QWEN, ROOT, environment, lode

# The line editor switches bracketed paste on, then draws its prompt.
PROMPT = "\x1b[?2004h\r>>> "
MORE = "\x1b[?2004h\r... "


class Terminal:
    """A child process on a terminal of its own."""

    def __init__(self, *args: str, **env: str):
        self.output = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            try:
                os.execve(LODE, [LODE, *args], environment(**env))
            finally:  # not there: this copy must not go on with the tests
                os._exit(127)

    def read_until(self, text: str, seconds: float = 30.0) -> str:
        """Reads up to and including `text`; returns what came since the last call."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            if time.monotonic() > deadline:
                raise AssertionError(f"no {text!r} in {self.output!r}")
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError as end:
                    raise AssertionError(f"ended without {text!r}: {self.output!r}") from end
        before, _, self.output = self.output.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def ask(self, line: str) -> str:
        """Types a line at the prompt; returns all output up to the next prompt."""
        self.type(line + "\r")
        return self.read_until(PROMPT)

    def exit_code(self) -> int:
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ChatTest(unittest.TestCase):
    def start(self, *args: str, **env: str) -> Terminal:
        terminal = Terminal("run", "-m", QWEN, "-n", "8", "--temperature", "0", *args, **env)
        self.greeting = terminal.read_until(PROMPT)
        return terminal

    def test_talks_remembers_and_leaves(self):
        chat = self.start()
        self.assertIn("/help explains", self.greeting)
        self.assertRegex(chat.ask("Hello"), r"answer \d+ tokens")
        self.assertRegex(chat.ask("And now?"), r"\(\d+ cached\)")
        self.assertRegex(chat.ask("/stats"), r"context \d+ of 4,096 tokens")
        chat.ask("/clear")
        self.assertIn("context 0 of", chat.ask("/stats"))
        chat.type("\x04")
        self.assertEqual(chat.exit_code(), 0)

    def test_a_full_context_is_said_and_nothing_is_cut(self):
        """Case B24: turns are never dropped to make room; what is cleared is the user's choice."""
        chat = self.start("-c", "128", "--ignore-eos")
        for _ in range(10):
            answer = chat.ask("The secret word is lantern, remember it.")
            if "error" in answer:
                break
            before = answer
        self.assertRegex(answer, r"the prompt has \d+ tokens .* needed, the context holds 128")
        self.assertIn("/clear forgets the conversation", answer)
        self.assertIn("answer 8 tokens", before)
        self.assertIn("context holds 128", chat.ask("The secret word is lantern, remember it."))
        chat.ask("/clear")
        self.assertIn("answer 8 tokens", chat.ask("Hello"))
        chat.type("/exit\r")
        self.assertEqual(chat.exit_code(), 0)

    def test_settings(self):
        chat = self.start()
        self.assertIn("temperature 0", chat.ask("/set"))
        chat.ask("/set temperature 0.5")
        chat.ask("/set max_tokens 3")
        chat.ask("/set system Be brief.")
        settings = chat.ask("/set")
        for part in ("temperature 0.500", "max_tokens 3", "system Be brief."):
            self.assertIn(part, settings)
        self.assertIn("did you mean temperature?", chat.ask("/set temprature 1"))
        self.assertIn("expected", chat.ask("/set top_p 7"))
        self.assertIn("did you mean /stats?", chat.ask("/stast"))
        chat.type("/exit\r")
        self.assertEqual(chat.exit_code(), 0)

    def test_reads_files_and_several_lines(self):
        chat = self.start()
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("The ship was named Albatross.")
            file.flush()
            self.assertRegex(chat.ask(f"/read {file.name}"), r"\d+ tokens")
        with_file = int(re.search(r"prompt (\d+) tokens", chat.ask("Name?")).group(1))
        chat.ask("/clear")
        alone = int(re.search(r"prompt (\d+) tokens", chat.ask("Name?")).group(1))
        self.assertGreater(with_file, alone + 5)
        self.assertIn("no/such", chat.ask("/read no/such"))
        chat.type('"""one\r')
        chat.read_until(MORE)
        chat.type('two"""\r')
        chat.read_until("answer")
        chat.read_until(PROMPT)
        chat.type("three \\\r")
        chat.read_until(MORE)
        chat.type("four\r")
        chat.read_until("answer")
        chat.read_until(PROMPT)
        chat.type("/exit\r")
        self.assertEqual(chat.exit_code(), 0)

    def test_interrupt_stops_the_answer_only(self):
        chat = self.start()
        chat.ask("/set max_tokens 0")
        chat.type("Count to a million\r")
        chat.read_until("\r\n")
        time.sleep(0.2)
        os.kill(chat.pid, signal.SIGINT)
        chat.read_until(PROMPT)
        self.assertRegex(chat.ask("/stats"), "context")
        chat.type("half a line\x03")  # Ctrl+C at the prompt drops the line
        chat.read_until(PROMPT)
        self.assertRegex(chat.ask("/stats"), "context")
        chat.type("\x04")
        self.assertEqual(chat.exit_code(), 0)

    def test_keys(self):
        chat = self.start()
        chat.type("/xstats\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x7f\r")  # left five times, backspace
        self.assertIn("context", chat.read_until("no answer yet"))
        chat.read_until(PROMPT)
        chat.type("\x1b[A\r")  # up: the last line again
        chat.read_until("no answer yet")
        chat.read_until(PROMPT)
        chat.type("\x04")
        self.assertEqual(chat.exit_code(), 0)

    def test_colours_only_where_wanted(self):
        chat = self.start()
        self.assertIn("\x1b[2m", self.greeting)
        chat.type("\x04")
        chat.exit_code()
        chat = self.start(NO_COLOR="1")
        self.assertNotIn("\x1b[2m", self.greeting)
        chat.type("\x04")
        chat.exit_code()
        self.assertNotIn("\x1b", lode("run", "--help").stdout)


if __name__ == "__main__":
    unittest.main()
