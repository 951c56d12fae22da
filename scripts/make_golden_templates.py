#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares chat template renders with jinja2's, set up as Hugging Face transformers does.

  make_golden_templates.py FOLDER [--tool build/release/src/tokenizer/lode_render_template]
  make_golden_templates.py --gguf FILE     writes tests/data/tokenizer/qwen_chat.tsv

FOLDER holds .jinja files (models/templates of the source package of llama-cpp-python, for example;
the templates belong to their vendors and are not in this repository). Each is rendered with four
conversations. Prints one line per render that differs and a summary; exits 1 below --at-least.

qwen_chat.tsv has a line per conversation, rendered with the template inside a Qwen2.5 file: tools,
the messages, and last the text (\\n and \\\\ escaped).
"""

import argparse
import collections
import datetime
import json
import pathlib
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/data/tokenizer/qwen_chat.tsv"
BOS, EOS = "<s>", "</s>"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a city, in °C & <html>\'s "quotes"',
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {"city": {"type": "string", "description": "Zürich"}},
            },
        },
    }
]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}},
        }
    ],
}
ANSWER = {
    "role": "tool",
    "tool_call_id": "call00001",
    "name": "get_weather",
    "content": '{"t": 21.5}',
}
CONVERSATIONS = [
    ("plain", [{"role": "user", "content": "Hello, 世界 <b>&</b>!"}], None),
    (
        "system and turns",
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": " Hi "},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Bye\n"},
        ],
        None,
    ),
    (
        "tools",
        [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Weather?"}],
        TOOLS,
    ),
    ("tool call", [{"role": "user", "content": "Weather?"}, CALL, ANSWER], TOOLS),
]


class Generation(jinja2.ext.Extension):
    """transformers' AssistantTracker without the tracking."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    @jinja2.pass_eval_context
    def _body(self, context, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def reference(source):
    results = []
    for _, messages, tools in CONVERSATIONS:
        try:
            results.append(
                (
                    True,
                    environment()
                    .from_string(source)
                    .render(
                        messages=messages,
                        tools=tools,
                        documents=None,
                        add_generation_prompt=True,
                        bos_token=BOS,
                        eos_token=EOS,
                    ),
                )
            )
        except Exception as error:  # any failure of a template is a result here
            results.append((False, f"{type(error).__name__}: {error}"))
    return results


def ours(tool, path):
    def dump(value):
        return json.dumps(value, ensure_ascii=False)

    jobs = "".join(
        "\t".join(["true", dump(tools), "{}", *map(dump, messages)]) + "\n"
        for _, messages, tools in CONVERSATIONS
    )
    out = subprocess.run(
        [tool, str(path), BOS, EOS], input=jobs.encode(), capture_output=True, check=True
    ).stdout
    results = []
    while out:
        head, _, rest = out.partition(b"\n")
        kind, size = head.split()
        results.append((kind == b"ok", rest[: int(size)].decode()))
        out = rest[int(size) + 1 :]
    return results


def write_golden(path):
    import gguf

    source = gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents()
    with open(GOLDEN, "w", encoding="utf-8", newline="\n") as out:
        for (_, messages, tools), (ok, text) in zip(CONVERSATIONS, reference(source)):
            assert ok, text
            fields = [json.dumps(field, ensure_ascii=False) for field in [tools, *messages]]
            fields.append(text.replace("\\", "\\\\").replace("\n", "\\n"))
            out.write("\t".join(fields) + "\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--gguf", help="a Qwen2.5 file")
    parser.add_argument("--tool", default="build/release/src/tokenizer/lode_render_template")
    parser.add_argument("--at-least", type=int, default=0, help="exit 1 below this many")
    args = parser.parse_args()
    if args.gguf:
        write_golden(args.gguf)
        return 0
    count = collections.Counter()
    for path in sorted(args.folder.glob("*.jinja")):
        expected = reference(path.read_text(encoding="utf-8"))
        for (name, _, _), want, got in zip(
            CONVERSATIONS, expected, ours(args.tool, path), strict=True
        ):
            if not want[0]:
                ours_did = "rendered" if got[0] else "refused"
                count[f"refused by jinja2, {ours_did} by us"] += 1
                continue
            outcome = "equal" if got == want else "differs" if got[0] else "error"
            count[outcome] += 1
            if outcome != "equal":
                at = next((i for i, (a, b) in enumerate(zip(want[1], got[1])) if a != b), 0)
                part = slice(max(0, at - 20), at + 40)
                where = (
                    got[1] if outcome == "error" else f"{want[1][part]!r} became {got[1][part]!r}"
                )
                print(f"{outcome}: {path.name}, {name}: {where}")
    summary = ", ".join(f"{n} {what}" for what, n in sorted(count.items()))
    print(f"jinja2 {jinja2.__version__}: {summary}")
    return 0 if count["equal"] >= args.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
