"""Tests the Messages API through the official `anthropic` package, and prints the number of successful checks.

    python3 anthropic_messages.py http://127.0.0.1:8081
"""
import json
import sys

import anthropic

from checks import TIMEOUT, check, fetch, model_name, report, without_space

BASE = sys.argv[1]
client = anthropic.Anthropic(base_url=BASE, api_key="unused", max_retries=0, timeout=TIMEOUT)
MODEL = model_name(BASE)

USER = {"role": "user", "content": "Anna lives"}
# The package has no parameter for the temperature.
GREEDY = {"temperature": 0}
plain = dict(model=MODEL, messages=[USER], system="Tell a story.", max_tokens=16, extra_body=GREEDY)
one = client.messages.create(**plain)
TEXT = one.content[0].text
check("text", TEXT and one.role == "assistant" and one.content[0].type == "text", one)
check("usage", 0 < one.usage.output_tokens <= 16 and one.usage.input_tokens >= 0, one.usage)
count = client.messages.count_tokens(model=MODEL, messages=[USER], system="Tell a story.").input_tokens
check("count_tokens", count == one.usage.input_tokens + one.usage.cache_read_input_tokens, count)
short = client.messages.create(**{**plain, "max_tokens": 2})
check("max_tokens", short.stop_reason == "max_tokens" and short.usage.output_tokens == 2, short)
word = TEXT.split()[2]
stopped = client.messages.create(**plain, stop_sequences=[word])
check("stop sequence", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == word, stopped)
check("stopped text", "".join(block.text for block in stopped.content) == TEXT[:TEXT.index(word)], stopped)

events = list(client.messages.create(**plain, stream=True))
order = list(dict.fromkeys(event.type for event in events))
expected = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]
check("order of events", order == expected, order)
joined = "".join(event.delta.text for event in events if event.type == "content_block_delta")
check("text deltas", joined == TEXT, joined)
check("streamed usage", events[-2].usage.output_tokens == one.usage.output_tokens, events[-2])
with client.messages.stream(**plain) as stream:
    check("stream helper", "".join(stream.text_stream) == TEXT, stream)
    check("final message", stream.get_final_message().stop_reason == one.stop_reason, stream)
with client.beta.messages.stream(**plain, betas=["interleaved-thinking-2025-05-14"]) as stream:
    check("beta", stream.get_final_message().content[0].text == TEXT, stream)

blocks = [{"role": "user", "content": [{"type": "text", "text": "Anna lives", "cache_control": {"type": "ephemeral"}}]}]
system = [{"type": "text", "text": "Tell a story.", "cache_control": {"type": "ephemeral"}}]
listed = client.messages.create(**{**plain, "messages": blocks, "system": system}, metadata={"user_id": "u"})
check("blocks", listed.content[0].text == TEXT, listed)
start = " ".join(TEXT.split()[:3])
begun = client.messages.create(**{**plain, "messages": [USER, {"role": "assistant", "content": start}]})
# The chat template of the tiny Llama writes only the last message.
continued = fetch(BASE, "/v1/completions", {"prompt": start, "max_tokens": 16, "temperature": 0})["choices"][0]["text"]
check("continued answer", begun.content[0].text == continued, (continued, begun))

SCHEMA = {
    "type": "object",
    "properties": {"glad": {"type": "boolean"}},
    "required": ["glad"],
    "additionalProperties": False,
}
compact = {**plain, "max_tokens": 80, "extra_body": {**GREEDY, **without_space(BASE)}}
form = {"format": {"type": "json_schema", "schema": SCHEMA}}
held = client.messages.create(**compact, output_config=form)
value = json.loads(held.content[0].text)
check("schema", type(value["glad"]) is bool and len(value) == 1, value)

tool = {"name": "save", "description": "Saves a person.", "input_schema": SCHEMA}
for choice in ({"type": "any"}, {"type": "tool", "name": "save"}):
    forced = {**compact, "tools": [tool], "tool_choice": choice}
    called = client.messages.create(**forced)
    call = called.content[0]
    check("call", called.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "save", called)
    check("input", set(call.input) == {"glad"}, call)
    with client.messages.stream(**forced) as stream:
        final = stream.get_final_message()
        check("streamed call", final.content[0].input == call.input, final)
result = {"type": "tool_result", "tool_use_id": call.id, "content": "saved"}
turns = [USER, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
follow = client.messages.create(**{**plain, "messages": turns}, tools=[tool], tool_choice={"type": "none"})
check("after the call", follow.content[0].type == "text", follow)
agent = {**plain, "max_tokens": 32000, "stop_sequences": ["a"], "tools": [tool], "tool_choice": {"type": "auto"}}
with client.messages.stream(**agent, thinking={"type": "enabled", "budget_tokens": 1024}, service_tier="auto") as stream:
    check("fields of agents", stream.get_final_message().stop_reason in ("stop_sequence", "max_tokens"), stream)


def refused(what, kind, param, work):
    """Checks that a request raises an error of type `kind`, in Anthropic's format, that names the field `param`."""
    try:
        seen = work()
    except kind as error:
        check(what, error.body["type"] == "error" and error.body["error"]["param"] == param, error)
    else:
        sys.exit(f"{what}: expected an error, got {seen}")


refused("unknown model", anthropic.NotFoundError, "model", lambda: client.messages.create(**{**plain, "model": "claude"}))
refused("temperature", anthropic.BadRequestError, "temperature", lambda: client.messages.create(**{**plain, "extra_body": {"temperature": 9}}))
refused("no messages", anthropic.BadRequestError, "messages", lambda: client.messages.create(**{**plain, "messages": []}))
refused("unknown field", anthropic.BadRequestError, "invented", lambda: client.messages.create(**{**plain, "extra_body": {"invented": 1}}))
refused("long messages", anthropic.BadRequestError, "messages",
        lambda: client.messages.create(**{**plain, "messages": [{"role": "user", "content": "story " * 20000}]}))
with client.messages.create(**{**plain, "max_tokens": 200}, stream=True) as abandoned:
    check("abandoned stream", next(iter(abandoned)).type == "message_start", abandoned)
report("anthropic_messages")
