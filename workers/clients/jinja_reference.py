"""Renders chat templates with jinja2, set up as transformers sets it up.

Usage: jinja_reference.py TEMPLATES OUT. Renders each *.jinja file of the folder TEMPLATES with each conversation, and writes
a JSON list of the inputs and results to OUT. A result is null where jinja2 raises an exception.
"""

import datetime
import json
import pathlib
import sys

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Instant that strftime_now formats.
NOW = 1785000000

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Returns the weather <now> & \"here\", in Z\u00fcrich's units.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City", "enum": ["Paris", "K\u00f6ln"]},
                    "days": {"type": "integer", "default": 3, "nullable": True},
                    "scale": {"type": "number", "minimum": 0.5},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "stop", "description": "Stops.", "parameters": {"type": "object", "properties": {}}},
    },
]


def call(arguments):
    return {"id": "abc123xyz", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


ARGUMENTS = {"city": "K\u00f6ln", "days": 2, "scale": None, "flags": [True, "it's"]}
ASK = turn("user", "What is the weather?")
RESULT = turn("tool", "{\"degrees\": 21.5}", name="get_weather", tool_call_id="abc123xyz")

CONVERSATIONS = {
    "plain": [turn("user", "Hello")],
    "system": [turn("system", "Be brief."), turn("user", " Hello \n")],
    "turns": [turn("user", "a"), turn("assistant", "<think>\nno\n</think>\n\nb"), turn("user", "c"), turn("assistant", "d"), turn("user", "e")],
    "tools": [turn("system", "Be brief."), ASK],
    "call": [ASK, turn("assistant", "", tool_calls=[call(ARGUMENTS)]), RESULT],
    "middle": [turn("user", "a"), turn("assistant", "b"), turn("developer", "Be brief."), turn("system", "Stay calm."), turn("user", "c")],
    "parts": [turn("user", [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])],
    "empty": [turn("user", "a"), turn("assistant", ""), turn("user", "b")],
    "unicode": [turn("user", "\u00e9 '\"\\ <b>&amp; {{ x }} \U0001f600\u2028\t{%"), turn("assistant", " '\u4f60\u597d\" "), turn("user", "\n")],
}


class Generation(Extension):
    """The tag that marks text of the assistant for training."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return env


def main(folder, out):
    cases = []
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        text = path.read_text(encoding="utf-8")
        for name, messages in CONVERSATIONS.items():
            tools = TOOLS if name in ("tools", "call") else None
            tokens = {"bos_token": "<s>", "eos_token": "</s>"}
            try:
                values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
                # Templates may change nothing: the environment is immutable.
                expected, error = environment().from_string(text).render(**values, **tokens), None
            except Exception as raised:  # Whatever jinja2 raises is a refusal.
                expected, error = None, f"{type(raised).__name__}: {raised}"
            cases.append(
                {"template": path.name, "conversation": name, "text": text, "messages": messages, "tools": tools,
                 "now": NOW, "expected": expected, "error": error}
            )
    pathlib.Path(out).write_text(json.dumps(cases), encoding="utf-8")
    print(f"renderings={len(cases)}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
