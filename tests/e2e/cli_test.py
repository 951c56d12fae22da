#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The `lode` program as scripts use it: help, exit codes, streams, JSON, goldens, signals."""

import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from lode import LLAMA, LODE, QWEN, ROOT, SPLIT, VERBS, environment, lode

GOLDEN = ROOT / "tests/e2e/golden"


class HelpTest(unittest.TestCase):
    def test_every_verb_explains_itself(self):
        for args in [[verb, "--help"] for verb in VERBS] + [["help", verb] for verb in VERBS]:
            result = lode(*args)
            self.assertEqual(result.returncode, 0, args)
            self.assertIn("Usage: lode " + args[args[0] == "help"], result.stdout)
            self.assertIn("Examples\n  lode ", result.stdout)
            self.assertEqual(result.stderr, "")
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100, args)

    def test_overview_names_every_verb(self):
        for args in (["--help"], ["help"]):
            result = lode(*args)
            self.assertEqual(result.returncode, 0)
            for verb in VERBS:
                self.assertIn(f"\n  {verb} ", result.stdout)

    def test_version(self):
        self.assertRegex(lode("--version").stdout, r"^lode \d+\.\d+\.\d+ \(.+, \w+\)\n$")


class MistakesTest(unittest.TestCase):
    def check(self, args, code, *parts, **kwargs):
        result = lode(*args, **kwargs)
        self.assertEqual(result.returncode, code, (args, result.stderr))
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.split("\n")[0].startswith("lode: error: "), result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_usage(self):
        self.check(["inpsect"], 2, "unknown command 'inpsect'", "did you mean `lode inspect`?")
        self.check(["run", "--modle", "x"], 2, "unknown option --modle", "did you mean --model?")
        self.check(["run", "-p", "x"], 2, "no model given", "lode pull")
        self.check(["run", "-m", QWEN, "-n", "many", "-p", "x"], 2, "-n: expected an integer")
        self.check(["run", "-m", QWEN, "-p", "x", "--top-p", "2"], 2, "top_p", "found 2")
        self.check(["run", "-m", QWEN, "-p", "x", "--kv-cache-dtype", "int3"], 2, "int3")
        run = ["run", "-m", QWEN, "-p", "x"]
        for size in ("0", "12", "256"):
            self.check(run + ["--block-size", size], 2, "8, 16, 32, 64 or 128", "found " + size)
        self.check(run + ["--kv-cache-memory-bytes", "1000"], 2, "budget of 1000 bytes", "at least")
        self.check(run + ["--kv-cache-memory-bytes", "-1"], 2, "--kv-cache-memory-bytes")
        self.check(run + ["--gpu-memory-utilization", "1.5"], 2, "--memory-utilization")
        self.check(run + ["--memory-utilization", "nan"], 2, "--memory-utilization")
        self.check(run + ["--hca-defrag-interval", "-1"], 2, "--hca-defrag-interval")
        self.check(run + ["--hca-int4-fallback-threshold", "-1"], 2, "--hca-int4-fallback")
        self.check(run + ["--log-level", "loud"], 2, "loud")
        self.check(["inspect", "--kv", "-m", QWEN], 2, "-f or -p")
        self.check(["run", "-m", QWEN, "-p", "x", "--attention", "fast"], 2, "fast", "flash")
        self.check(["run", "-m", QWEN, "-p", "x", "--chat", "--no-chat"], 2, "only one")
        self.check(["bench", "-m", QWEN, "-o", "xml"], 2, "xml")
        self.check(["bench", "-m", QWEN, "--max-seconds", "nan"], 2, "--max-seconds")
        self.check(["bench", "-m", QWEN, "-f", os.devnull], 2, "empty")
        compare = ["bench", "-m", QWEN, "--attention", "flash,eager"]
        self.check(["bench", "-m", QWEN, "--attention", "flash,fast"], 2, '"fast"')
        self.check(["bench", "-m", QWEN, "--attention", "flash,"], 2, '""')
        self.check(compare + ["-d", "64,100"], 2, "-d", "multiple of 32", "found 100")
        self.check(compare + ["--tile-from", "33"], 2, "--tile-from", "found 33")
        self.check(compare + ["-p", "8"], 2, "-p", "decode only")
        self.check(compare + ["-n", "1,2"], 2, "-n", "one positive number")
        self.check(["eval", "accuracy"], 2, "accuracy", "lode eval perplexity")
        self.check(["eval", "perplexity", "-m", QWEN, "-p", "x", "--window", "8", "--stride", "9"],
                   2, "--stride")
        self.check(["run", "-m", QWEN, "--no-chat"], 2, "the prompt is empty")

    def test_files(self):
        self.check(["inspect", "no/such.gguf"], 3, "no/such.gguf")
        self.check(["run", "-m", QWEN, "-f", "no/such.txt"], 3, "no/such.txt")
        self.check(["run", "-m", "qwen2.5-coder-0.5", "-p", "x"], 3, "did you mean qwen2.5-coder")
        with tempfile.TemporaryDirectory() as folder:
            self.check(["run", "-m", "gemma-3-270m", "-p", "x"], 3, "lode pull gemma-3-270m",
                       env=environment(XDG_CACHE_HOME=folder))
            bad = Path(folder) / "bad.gguf"
            bad.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 100)
            self.check(["inspect", bad], 4, "bad.gguf")

    def test_too_long_is_refused_not_cut(self):
        """Case B24: a secret in the first line, five contexts of text behind it."""
        text = "The secret word is lantern.\n" + "The sky was grey that day. " * 40 + "The secret?"
        count = int(lode("tokenize", "-m", QWEN, "--chat", "--count", text=text).stdout)
        self.assertGreater(count, 5 * 64)
        self.check(["run", "-m", QWEN, "-c", 64, "-n", 8], 6, f"the prompt has {count} tokens",
                   f"{count + 8} needed, the context holds 64", "-c N", text=text)
        # One token less than the context, as many, one more (case B26); an answer has one at least.
        for context, code in ((count + 1, 0), (count, 6), (count - 1, 6)):
            result = lode("run", "-m", QWEN, "-c", context, "-q", "--ignore-eos", text=text)
            self.assertEqual(result.returncode, code, result.stderr)
            if code != 0:
                self.assertIn(f"{count + 1} needed, the context holds {context}", result.stderr)
        # Too much for the cache's budget, though not for the context.
        self.check(["run", "-m", QWEN, "--kv-cache-memory-bytes", 100_000, "-n", 8], 6,
                   "the budget of the cache is 100000", text=text)

    def test_full_disk(self):
        for args in (["inspect", QWEN], ["run", "-m", QWEN, "-p", "Hello", "-n", "4"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([LODE, *args], stdin=subprocess.DEVNULL, stdout=full,
                                        stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
            self.assertEqual(result.returncode, 7)
            self.assertIn("No space left", result.stderr)

    def test_closed_pipe_ends_quietly(self):
        read_end, write_end = os.pipe()
        os.close(read_end)
        result = subprocess.run([LODE, "inspect", QWEN], stdout=write_end, stderr=subprocess.PIPE,
                                check=False, cwd=ROOT)
        os.close(write_end)
        self.assertEqual(result.returncode, -signal.SIGPIPE)
        self.assertEqual(result.stderr, b"")


class InspectTest(unittest.TestCase):
    def test_golden(self):
        for model, name in ((LLAMA, "inspect_llama3.txt"), (QWEN, "inspect_qwen2.txt")):
            self.assertEqual(lode("inspect", model).stdout, (GOLDEN / name).read_text(), name)

    def test_json(self):
        report = json.loads(lode("inspect", SPLIT, "--json").stdout)
        self.assertEqual(report["architecture"], "llama")
        self.assertEqual(len(report["files"]), 2)
        self.assertEqual(sum(t["bytes"] for t in report["tensors"]), report["tensor_bytes"])
        self.assertEqual(sum(t["parameters"] for t in report["types"].values()),
                         report["parameters"])
        self.assertEqual({t["file"] for t in report["tensors"]}, {0, 1})

    def test_names_of_any_script(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mod\u00e8les/\u0437\u0430\u0433\u0440/\u6a21\u578b.gguf"
            path.parent.mkdir(parents=True)
            shutil.copy(ROOT / LLAMA, path)
            self.assertIn(str(path), lode("inspect", path).stdout)
            self.assertEqual(lode("run", "-m", path, "--no-chat", "-p", "a", "-n", 2).returncode, 0)


class SparseAttentionTest(unittest.TestCase):
    """csa_hca on a tiny model: made at first use, kept, given by hand, wrong files refused."""

    TEXT = "Once upon a time there was a small test. " * 60

    def test_calibrates_once_and_says_what_it_read(self):
        with tempfile.TemporaryDirectory() as folder:
            run = ["run", "-m", QWEN, "-p", self.TEXT, "-n", 8, "--ignore-eos", "--json",
                   "--attention", "csa_hca", "--csa-top-k", 64, "--hca-window", 64]
            first = lode(*run, env=environment(XDG_CACHE_HOME=folder))
            self.assertIn("calibration", first.stderr)
            second = lode(*run, env=environment(XDG_CACHE_HOME=folder))
            self.assertNotIn("calibration", second.stderr)
            report = json.loads(second.stdout)
            self.assertEqual(report["token_ids"], json.loads(first.stdout)["token_ids"])
            self.assertLess(report["keys_read_share"], 1)
            self.assertGreater(report["unread_mass_share"], 0)
            everything = json.loads(lode(*run, "--csa-top-k", 1 << 30,
                                         env=environment(XDG_CACHE_HOME=folder)).stdout)
            exact = json.loads(lode(*run[:-6]).stdout)
            self.assertEqual(everything["token_ids"], exact["token_ids"])
            self.assertNotIn("keys_read_share", exact)

    def test_marks_are_no_tokens(self):
        with tempfile.TemporaryDirectory() as folder:
            def run(text, *flags):
                result = lode("run", "-m", QWEN, "-n", 4, "--ignore-eos", "--json",
                              "--csa-top-k", 64, "--csa-max-error", 0, "--hca-window", 64,
                              *flags, "-p", text,
                              env=environment(XDG_CACHE_HOME=folder))
                self.assertEqual(result.returncode, 0, result.stderr)
                return json.loads(result.stdout)

            def marked(mark):  # behind a sentence, where a token ends anyway
                sentences = self.TEXT.split(". ")
                return ". ".join(sentences[:9]) + "." + mark + " " + ". ".join(sentences[9:])

            self.assertEqual(marked(""), self.TEXT)
            for sparse in (["--attention", "csa_hca:csa_index=codes"],
                           ["--prefill-attention", "csa_hca"]):
                for chat in ([], ["--no-chat"]):
                    plain = run(self.TEXT, *sparse, *chat)
                    fine = run(marked("<hca-fine>"), *sparse, *chat)
                    border = run(marked("<hca-sep>"), *sparse, *chat)
                    for other in (fine, border):
                        self.assertEqual(other["prompt_tokens"], plain["prompt_tokens"])
                    self.assertGreater(fine["keys_read_share"], border["keys_read_share"])
                    self.assertGreater(border["keys_read_share"], plain["keys_read_share"])
            self.assertGreater(run(marked("<hca-sep>"))["prompt_tokens"], plain["prompt_tokens"])

    def test_flags_win_over_the_configuration(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            shutil.copytree(ROOT / QWEN, model)
            config = json.loads((model / "config.json").read_text())

            def run(settings, *flags):
                (model / "config.json").write_text(json.dumps({**config, **settings}))
                return lode("run", "-m", model, "-p", self.TEXT, "-n", 1, "--json", *flags,
                            env=environment(XDG_CACHE_HOME=folder))

            settings = {"attention_implementation": "csa_hca", "csa_top_k": 64, "hca_window": 64,
                        "csa_max_error": 0, "use_hca": False}
            configured = json.loads(run(settings).stdout)
            self.assertLess(configured["keys_read_share"], 1)
            self.assertEqual(configured["unread_mass_share"], 0)
            more = json.loads(run(settings, "--csa-top-k", 128, "--hca-summary", "mean").stdout)
            self.assertGreater(more["keys_read_share"], configured["keys_read_share"])
            self.assertGreater(more["unread_mass_share"], 0)
            for wrong, found in (({"csa_index": "hash"}, "string 'hash'"),
                                 ({"csa_top_k": -1}, "integer -1"),
                                 ({"csa_max_unread": 2}, "integer 2")):
                refused = run(wrong)
                self.assertEqual(refused.returncode, 4, refused.stderr)
                for text in (str(model), *wrong, "expected", found):
                    self.assertIn(text, refused.stderr)
            self.assertEqual(run({"csa_index": "hash"}, "--csa-index", "means").returncode, 0)
            self.assertIn("csa_topk", run({"csa_topk": 1}).stderr)

    def test_calibrate(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "made")
            made = lode("calibrate", "-m", QWEN, "-p", self.TEXT, "-o", path)
            self.assertEqual(made.stdout, path + "\n")
            sparse = ["-p", "x", "-n", 1, "--attention", "csa_hca", "--calibration"]
            self.assertEqual(lode("run", "-m", QWEN, *sparse, path).returncode, 0)
            other = lode("run", "-m", LLAMA, *sparse, path)
            self.assertEqual(other.returncode, 2)
            self.assertIn(path, other.stderr)
            with open(path, "r+b") as file:
                byte = file.read(101)[100]
                file.seek(100)
                file.write(bytes([byte ^ 1]))
            broken = lode("run", "-m", QWEN, *sparse, path)
            self.assertEqual(broken.returncode, 4)
            self.assertIn("checksum", broken.stderr)
            self.assertEqual(lode("run", "-m", QWEN, *sparse, path + "?").returncode, 3)
        self.assertEqual(lode("calibrate", "-m", QWEN, "-o", "/no/such/folder/x").returncode, 7)
        self.assertIn("-o", lode("calibrate", "-m", QWEN).stderr)
        for wrong in (["--hca-summary", "median"], ["--csa-index", "hash"], ["--csa-hash-dim", 48],
                      ["--csa-seed", -1], ["--hca-window", 0]):
            refused = lode("run", "-m", QWEN, "-p", "x", *wrong)
            self.assertEqual(refused.returncode, 2, wrong)
            self.assertIn(wrong[0], refused.stderr)

    def test_index_graph_says_what_its_summaries_carry(self):
        refused = lode("run", "-m", QWEN, "-p", "x", "--attention", "csa_hca",
                       "--hca-summary", "ffn")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("found ffn, which is for index_graph", refused.stderr)
        text = "one two three " * 300
        answers = [lode("run", "-m", QWEN, "-p", text, "-n", 3, "--attention", "index_graph",
                        "--hca-window", 64, "--hca-summary", kind, "--temp", 0, "--json")
                   for kind in ("mean", "ffn", "none")]
        shares = []
        for answer in answers:
            self.assertEqual(answer.returncode, 0, answer.stderr)
            shares.append(json.loads(answer.stdout)["unread_mass_share"])
        self.assertNotEqual(shares[0], shares[1])
        self.assertEqual(shares[2], 0)


class VerifyTest(unittest.TestCase):
    """What a sparse attention loses on a tiny model; what an exact one does not lose."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.text = os.path.join(cls.folder.name, "text")
        Path(cls.text).write_text("Once upon a time there was a small test of %d words.\n" * 90
                                  % tuple(range(90)))

    def verify(self, *args):
        return lode("verify", "-m", QWEN, "-f", self.text, "--csa-top-k", 64, "--hca-window", 64,
                    *args, env=environment(XDG_CACHE_HOME=self.folder.name))

    def test_fidelity(self):
        args = ["-c", 600, "--steps", 5, "--attention", "csa_hca,flash", "--sparse-prefill", 64,
                "--variants", 20]
        result = self.verify(*args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        fidelity = report["fidelity"]
        self.assertEqual((fidelity["prompt_tokens"], fidelity["steps"]), (576, 5))
        rows = {(row["attention"], row["sparse_prefill_tokens"]): row for row in fidelity["rows"]}
        self.assertEqual(list(rows), [("csa_hca", 0), ("flash", 0), ("csa_hca", 64), ("flash", 64)])
        for (attention, _), row in rows.items():
            self.assertGreaterEqual(row["max_kl"], row["mean_kl"])
            if attention == "flash":
                self.assertLess(row["max_kl"], 1e-6)
                self.assertEqual((row["same_top1"], row["keys_read_share"]), (1, 1))
            else:
                self.assertGreater(row["mean_kl"], 0)
                self.assertLess(row["keys_read_share"], 1)
                self.assertGreater(row["bytes_share_of_f16"], 0)
                self.assertGreater(row["unread_mass_share"], 0)
                self.assertGreater(row["missed_mass_share"], 0)
                self.assertLess(row["recall_256"], 1)
        memory = report["memory"]
        self.assertEqual(memory["tokens"], 595)
        self.assertGreaterEqual(memory["counted"]["kv_bytes"], 595 * 3 * 2 * 16 * 2 * 2)  # f16
        counted, planned = memory["counted"], memory["planned"]
        self.assertAlmostEqual(counted["weight_bytes"] / planned["weight_bytes"], 1, delta=0.02)
        resident = memory["resident"]
        self.assertGreater(resident["loaded_bytes"], resident["before_load_bytes"])
        self.assertGreaterEqual(resident["prompt_bytes"], resident["loaded_bytes"])
        self.assertEqual([row["attention"] for row in memory["attentions"]], ["csa_hca", "flash"])
        # 18 pages of 3 layers and 2 heads: 288 bytes of codes each.
        self.assertGreater(memory["attentions"][0]["index_bytes"], 18 * 3 * 2 * 288)
        self.assertEqual(memory["attentions"][1]["index_bytes"], 0)
        exact, sparse = (next(row for row in report["outputs"]["rows"] if row["attention"] == name)
                         for name in ("flash", "csa_hca"))
        self.assertAlmostEqual(exact["all"]["min_cosine"], 1)
        self.assertLess(sparse["all"]["min_cosine"], exact["all"]["min_cosine"])
        self.assertEqual(len(sparse["layers"]), 3)
        sentences = report["sentences"]
        self.assertEqual((sentences["variants"], sentences["context_tokens"]), (20, 288))
        self.assertGreater(sentences["all"]["recall_by_codes"], 0.3)
        self.assertNotIn("index_graph", memory)
        self.assertNotIn("variant_buckets", sentences["all"])
        measured = {row["figure"]: row for row in report["claims"]}
        self.assertEqual(list(measured), ["recall", "cosine"])
        self.assertEqual(measured["recall"]["claimed"], 0.992)
        self.assertEqual(measured["recall"]["measured"], rows["csa_hca", 0]["recall_256"])
        self.assertEqual(measured["cosine"]["measured"], sparse["all"]["mean_cosine"])
        sections = self.verify(*args).stdout.split("\n\n")
        self.assertIn("Memory with 595 tokens", sections[0])
        self.assertIn("5 steps behind 576 tokens", sections[1])
        self.assertEqual(len(sections[1].splitlines()), 6)
        self.assertEqual(len(sections[2].splitlines()), 2 + 2 * 4)

    def test_buckets_of_text_one(self):
        args = ["-c", 1100, "--steps", 2, "--sparse-prefill", 0, "--variants", 4,
                "--csa-index", "buckets"]
        result = self.verify(*args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        graph = report["memory"]["index_graph"]
        tokens, heads = 1098, 3 * 2
        parts = {"bucket_map_bytes": heads * tokens * 2, "summary_pointer_bytes": tokens * 4,
                 "sparse_key_bytes": heads * 2 * 3 * 16 * 2,
                 "summary_token_bytes": heads * 2 * 2 * 16 * 2}
        self.assertEqual(graph, {"buckets": 2, "summaries": 2, **parts,
                                 "total_bytes": sum(parts.values())})
        self.assertEqual(report["sentences"]["buckets"], 1)
        sentences = report["sentences"]["all"]
        self.assertEqual((sentences["variant_buckets"], sentences["one_bucket_share"]), (1, 1))
        self.assertLess(sentences["recall_by_buckets"], 0.1)  # three keys of 32 neighbours
        self.assertEqual([row["figure"] for row in report["claims"]],
                         ["recall", "variant_buckets", "cosine"])
        text = self.verify(*args).stdout
        for words in ("Index graph as text 1 lays it out", "That is next to nothing",
                      "What text 1 claims"):
            self.assertIn(words, text)

    def test_tasks(self):
        args = ["-c", 1500, "--attention", "flash,csa_hca", "--tasks", "niah_single_2,vt",
                "--samples", 2, "--csa-top-k", 64, "--csa-max-error", 0]
        result = self.verify(*args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        tasks = json.loads(result.stdout)["tasks"]
        self.assertEqual([score["task"] for score in tasks["scores"]], ["niah_single_2", "vt"])
        exact, sparse = tasks["total"]["attentions"]
        self.assertEqual(exact["identical_answers"], 4)
        self.assertLess(sparse["identical_answers"], 4)
        for sample in tasks["samples"]:
            self.assertLessEqual(sample["prompt_tokens"], 1500)
            self.assertEqual([a["attention"] for a in sample["answers"]],
                             ["flash", "flash", "csa_hca"])
            self.assertEqual(sample["answers"][0]["text"], sample["answers"][1]["text"])
        self.assertEqual(result.stdout, self.verify(*args, "--json").stdout)
        self.assertEqual(len(self.verify(*args).stdout.splitlines()), 5)

    def test_mistakes(self):
        for args, part in ((["--tasks", "niah"], "niah_single_1, "),
                           (["--prefill-attention", "eager"], "--sparse-prefill"),
                           (["--attention", "csa_hca,fast"], "fast"),
                           (["-c", "64K"], "the text has"), (["-c", 8], "prompt of at least")):
            result = self.verify(*args)
            self.assertEqual(result.returncode, 2, (args, result.stderr))
            self.assertIn(part, result.stderr)
        self.assertIn("-f FILE", lode("verify", "-m", QWEN).stderr)


class TokenizeTest(unittest.TestCase):
    TEXT = "Hello w\u00f6rld, \u6a21\u578b \U0001f642\n"

    def test_golden(self):
        result = lode("tokenize", "-m", QWEN, text=self.TEXT)
        self.assertEqual(result.stdout, (GOLDEN / "tokenize_qwen2.txt").read_text())

    def test_forms_agree(self):
        tokens = json.loads(lode("tokenize", "-m", QWEN, "-p", self.TEXT, "--json").stdout)
        ids = lode("tokenize", "-m", QWEN, "-f", "-", "--ids", text=self.TEXT).stdout.split()
        count = lode("tokenize", "-m", QWEN, "--count", text=self.TEXT).stdout
        self.assertEqual([token["id"] for token in tokens["tokens"]], list(map(int, ids)))
        self.assertEqual(int(count), tokens["count"])

    def test_control_tokens_only_when_asked(self):
        plain = json.loads(lode("tokenize", "-m", QWEN, "-p", "<|im_end|>", "--json").stdout)
        special = json.loads(
            lode("tokenize", "-m", QWEN, "-p", "<|im_end|>", "--json", "--special").stdout)
        self.assertFalse(any(token["control"] for token in plain["tokens"]))
        self.assertEqual([token["control"] for token in special["tokens"]], [True])


    def test_chat_shows_the_prompt_that_run_feeds(self):
        common = ["-m", QWEN, "-p", "a <|im_end|>", "--system", "b"]
        shown = json.loads(lode("tokenize", *common, "--chat", "--json").stdout)
        fed = json.loads(lode("run", *common, "-n", 1, "--ignore-eos", "--json").stdout)
        self.assertEqual(shown["count"], fed["prompt_tokens"])
        self.assertEqual("".join(token["text"] for token in shown["tokens"]),
                         "<|im_start|>system\nb<|im_end|>\n<|im_start|>user\na <|im_end|><|im_end|>\n"
                         "<|im_start|>assistant\n")
        # Control tokens are the template's five; the one the user wrote is text.
        self.assertEqual([token["text"] for token in shown["tokens"] if token["control"]],
                         ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"])
        self.assertEqual(lode("tokenize", "-m", QWEN, "-p", "a", "-f", "-", text="b").stdout,
                         lode("tokenize", "-m", QWEN, "-p", "b\n\na").stdout)

    def test_chat_refuses_what_does_not_belong(self):
        for args, part in ((["--chat", "--special"], "--special and --chat"),
                           (["--chat", "--no-bos"], "--no-bos and --chat"),
                           (["--system", "b"], "--system needs --chat")):
            result = lode("tokenize", "-m", QWEN, "-p", "a", *args)
            self.assertEqual(result.returncode, 2, args)
            self.assertIn(part, result.stderr)
        result = lode("tokenize", "-m", LLAMA, "-p", "a", "--chat")
        self.assertEqual(result.returncode, 3)
        self.assertIn("no chat template", result.stderr)


class RunTest(unittest.TestCase):
    def test_streams(self):
        result = lode("run", "-m", QWEN, "--ignore-eos", "-n", "12", text="Once upon a time")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("tokens/s", result.stdout)
        self.assertRegex(result.stderr,
                         r"^prompt \d+ tokens, .* answer 12 tokens, .*limit of tokens\n$")
        quiet = lode("run", "-m", QWEN, "--ignore-eos", "-n", "12", "-q", text="Once upon a time")
        self.assertEqual(quiet.stderr, "")
        self.assertEqual(quiet.stdout, result.stdout)

    def test_json_and_sources_of_the_prompt(self):
        common = ["run", "-m", QWEN, "-n", "8", "--ignore-eos", "--json"]
        piped = json.loads(lode(*common, text="Hello").stdout)
        given = json.loads(lode(*common, "-p", "Hello").stdout)
        self.assertEqual(piped["token_ids"], given["token_ids"])
        self.assertEqual(given["completion_tokens"], 8)
        self.assertEqual(given["finish_reason"], "length")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("A fact.")
            file.flush()
            both = json.loads(lode(*common, "-f", file.name, "-p", "A question?").stdout)
        joined = json.loads(lode(*common, "-p", "A fact.\n\nA question?").stdout)
        self.assertEqual(both["token_ids"], joined["token_ids"])
        plain = json.loads(lode(*common, "--no-chat", "-p", "Hello").stdout)
        self.assertLess(plain["prompt_tokens"], given["prompt_tokens"])

    def test_greedy_is_the_same_with_any_number_of_threads(self):
        answers = {lode("run", "-m", QWEN, "-p", "Tell me", "-n", 32, "-t", threads, "-q").stdout
                   for threads in (1, 2, 3) for _ in range(2)}
        self.assertEqual(len(answers), 1)

    def test_seeds(self):
        def ids(*args):
            return json.loads(lode("run", "-m", QWEN, "-p", "Hi", "-n", "24", "--ignore-eos",
                                   "--json", "--temperature", "1", *args).stdout)["token_ids"]
        self.assertEqual(ids("--seed", "5"), ids("--seed", "5"))
        self.assertNotEqual(ids("--seed", "5"), ids("--seed", "6"))

    def test_logprobs_and_bias(self):
        result = json.loads(lode("run", "-m", QWEN, "-p", "Hi", "-n", "2", "--ignore-eos", "--json",
                                 "--logprobs", "3", "--logit-bias", "17=1000").stdout)
        self.assertEqual(result["token_ids"], [17, 17])
        best = [entry["logprob"] for entry in result["logprobs"][0]["top"]]
        self.assertEqual(best, sorted(best, reverse=True))
        self.assertLessEqual(result["logprobs"][0]["logprob"], best[0])

    def test_stop_text_is_not_part_of_the_answer(self):
        whole = lode("run", "-m", QWEN, "-p", "Hi", "-n", "24", "--ignore-eos", "-q").stdout
        middle = whole[len(whole) // 2:len(whole) // 2 + 3]
        cut = json.loads(lode("run", "-m", QWEN, "-p", "Hi", "-n", "24", "--ignore-eos", "--json",
                              "--stop", middle).stdout)
        self.assertEqual(cut["finish_reason"], "stop")
        self.assertEqual(cut["text"], whole[:whole.index(middle)])

    def test_interrupt_keeps_the_text_and_says_so(self):
        with subprocess.Popen(
                [LODE, "run", "-m", QWEN, "-p", "Hi", "--ignore-eos", "--attention", "eager"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
            first = process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertTrue(first)
        self.assertIn(b"interrupted", errors)
        self.assertTrue(rest.endswith(b"\n"))


class MeasuringVerbsTest(unittest.TestCase):
    def test_perplexity(self):
        text = (ROOT / "tests/data/texts/moby_dick_opening.txt").read_text()[:2000]
        common = ["eval", "perplexity", "-m", QWEN, "--activations", "f32", "--kv-cache-dtype",
                  "f32"]
        report = json.loads(lode(*common, "--window", 64, "--stride", 32, "--json",
                                 text=text).stdout)
        self.assertEqual(report["scored_tokens"], report["text_tokens"] - 1)
        self.assertIsNone(report["bos"])
        self.assertAlmostEqual(math.log(report["perplexity"]),
                               report["mean_negative_log_probability"], places=9)
        self.assertLess(report["interval_low"], report["perplexity"])
        self.assertGreater(report["interval_high"], report["perplexity"])
        line = lode(*common, "--window", 64, "--stride", 32, "--max-windows", 2, text=text).stdout
        self.assertIn("window 64, stride 32, BOS none, 95 of", line)
        bos = lode("eval", "perplexity", "-m", LLAMA, "--window", 64, "--stride", 32, text=text)
        self.assertIn("BOS in every window", bos.stdout)

    def test_bench(self):
        rows = json.loads(lode("bench", "-m", QWEN, "-p", "16,0", "-n", 4, "-d", "0,64", "-r", 2,
                               "-o", "json").stdout)
        self.assertEqual([(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows],
                         [(16, 0, 0), (0, 4, 0), (16, 0, 64), (0, 4, 64)])
        for row in rows:
            self.assertEqual(len(row["samples_ns"]), 2)
            self.assertGreaterEqual(row["max_ts"], row["median_ts"])
            self.assertGreaterEqual(row["median_ts"], row["min_ts"])
        table = lode("bench", "-m", QWEN, "-p", 8, "-n", 0, "-r", 1).stdout.splitlines()
        self.assertEqual(len(table), 3)
        self.assertIn("pp8", table[2])
        csv = lode("bench", "-m", QWEN, "-p", 8, "-n", 0, "-r", 1, "-o", "csv").stdout
        self.assertTrue(csv.startswith('"model","threads"'))

    def test_bench_of_attentions(self):
        common = ["bench", "-m", QWEN, "--csa-top-k", 32, "--csa-max-error", 0,
                  "--hca-window", 32, "--tile-from", 64]
        rows = json.loads(lode(*common, "--attention", "flash,csa_hca,eager", "-d", "256,64",
                               "-n", 3, "-r", 2, "-o", "json").stdout)
        self.assertEqual([(row["attention"], row["n_depth"]) for row in rows],
                         [(name, depth) for depth in (256, 64)
                          for name in ("flash", "csa_hca", "eager")])
        for row in rows:
            self.assertEqual(row["n_prefilled"], 64)
            self.assertEqual(row["samples_n_gen"], [3, 3])
            self.assertEqual(len(row["samples_ms_per_token"]), 2)
            self.assertAlmostEqual(row["weights_ms_per_token"] + row["attention_ms_per_token"],
                                   row["median_ms_per_token"], delta=1e-9)
            self.assertIn("re-rotated", row["context"])
        self.assertEqual([rows[0]["ratio_to_first"], rows[3]["ratio_to_first"]], [1, 1])
        # csa_hca reports what it does, and the others nothing.
        sparse = rows[1]
        self.assertLess(sparse["share_of_keys_read"], 1)
        self.assertGreater(sparse["bytes_per_token"], sparse["model_bytes"])
        self.assertLess(sparse["select_ms_per_token"] + sparse["attend_ms_per_token"],
                        sparse["attention_ms_per_token"])
        for name in ("share_of_keys_read", "bytes_per_token", "select_ms_per_token"):
            self.assertIsNone(rows[0][name])
        # A budget of time is spent by the first token; the table says so.
        table = lode(*common, "--attention", "eager", "-d", 64, "-n", 4, "-r", 3,
                     "--max-seconds", "1e-9").stdout
        self.assertIn("| 1 of 12 |", table)
        self.assertIn("| native | 2,840 | eager, f16 | 64 |", table)
        csv = lode(*common, "--attention", "flash", "-d", 96, "-n", 1, "-r", 1, "-o", "csv")
        self.assertTrue(csv.stdout.startswith('"kv","attention"'))
        self.assertIn("re-rotated", csv.stderr)

    def test_cache_counters(self):
        text = "It was a dark and stormy night; " * 20
        command = ["inspect", "--kv", "-m", QWEN, "-p", text, "-p", "Call me Ishmael. " * 9,
                   "-p", text, "-n", 3]
        report = json.loads(lode(*command, "--json").stdout)
        self.assertEqual(report["prefix_lookups"], 3)
        self.assertGreater(report["prefix_blocks_found"], 3)
        self.assertEqual(report["hash_collisions"], 0)
        for ratio in ("hca_cache_hit_rate", "hca_fragmentation_rate"):
            self.assertTrue(0 <= report[ratio] <= 1, report[ratio])
        self.assertLessEqual(report["block_bytes"], report["budget_bytes"])
        self.assertIn("hca_cache_hit_rate", lode(*command).stdout)
        logged = lode("run", "-m", QWEN, "-p", "Hi", "-n", 2, "--log-level", "debug").stderr
        self.assertIn("hca_cache_stats hit_rate=", logged)

    def test_bench_kv(self):
        report = json.loads(lode("bench", "kv", "-t", "1,3", "--seconds", "0.05", "-c", 1024,
                                 "--layers", 2, "--json").stdout)
        self.assertEqual([row["threads"] for row in report["allocation"]], [1, 1, 3, 3])
        self.assertGreater(report["allocation"][0]["extends"], 0)
        calm, ordered = report["simulated_hour"]
        self.assertGreater(calm["mean_fragmentation"], ordered["mean_fragmentation"])
        self.assertLess(ordered["after_pass"], 0.05)
        self.assertIn("adaptive 32", [row["blocks"] for row in report["block_sizes"]])

    def test_plan(self):
        report = json.loads(lode("plan", "-m", QWEN, "-c", 1024, "--json").stdout)
        self.assertTrue(report["fits"])
        parts = ["weight_bytes", "kv_bytes", "index_bytes", "activation_bytes", "tokenizer_bytes",
                 "program_bytes", "mapped_bytes"]
        self.assertEqual(sum(report[part] for part in parts), report["total_bytes"])
        self.assertEqual(report["trained_context"], 4096)
        # And the open tile of the sequence: 32 tokens more.
        self.assertEqual(report["kv_bytes"], (1024 + 32) * 3 * 2 * 2 * 16 * 2)
        self.assertEqual(report["index_bytes"], 0)
        sparse = json.loads(lode("plan", "-m", QWEN, "-c", 1024, "--attention", "csa_hca",
                                 "--json").stdout)
        codes = 3 * 2 * 32 * (16 * 16 + 32)  # layers, heads, pages; nibbles and scales
        self.assertGreater(sparse["index_bytes"], codes)

        def index(*args):
            plan = lode("plan", "-m", QWEN, "-c", 1024, *args, "--json")
            return json.loads(plan.stdout)["index_bytes"]

        for kind in ("hamming", "buckets"):
            signs = index("--attention", "csa_hca", "--csa-index", kind) - sparse["index_bytes"]
            self.assertEqual(signs, 3 * 2 * (1024 * 8 + (3 * 64 * 16 + 2 * 16 + 64) * 4))
        # Three sums of 64 features in double, the features once.
        self.assertEqual(index("--attention", "mla_rff"), 3 * 2 * 3 * 64 * 17 * 8 + 64 * 17 * 4)
        self.assertEqual(index("--prefill-attention", "csa_hca"), sparse["index_bytes"])
        refused = lode("plan", "-m", QWEN, "-c", 1 << 30)
        self.assertEqual(refused.returncode, 6)
        self.assertRegex(refused.stderr, r"hint: it fits with -c \d+ --kv-cache-dtype f16")
        largest = refused.stderr.split("-c ")[1].split()[0]
        self.assertEqual(lode("plan", "-m", QWEN, "-c", int(int(largest) * 0.9)).returncode, 0)

    def test_plan_and_run_warn_of_untrained_positions(self):
        warning = "warning: context of 8192 tokens: tiny-qwen2 was trained for 4096;"
        for args in (["plan"], ["plan", "--measure"], ["run", "-p", "Hi", "-n", 1]):
            result = lode(*args, "-m", QWEN, "-c", 8192)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stderr.count(warning), 1, (args, result.stderr))
            self.assertIn("--rope-interpolation-factor 2 ", result.stderr)
            self.assertNotIn("warning", lode(*args, "-m", QWEN, "-c", 4096).stderr)


if __name__ == "__main__":
    unittest.main()
