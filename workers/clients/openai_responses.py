"""Tests the Responses API through the official `openai` package, and prints the number of successful checks.

    python3 openai_responses.py http://127.0.0.1:8081
"""
import json
import sys

import openai

from checks import TIMEOUT, check, refused, report, without_space

BASE = sys.argv[1]
client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT)
MODEL = client.models.list().data[0].id

plain = dict(model=MODEL, input="Anna lives", instructions="Tell a story.", max_output_tokens=16, temperature=0)
one = client.responses.create(**plain)
TEXT = one.output_text
check("text", TEXT and one.output[0].role == "assistant", one)
check("status", one.status in ("completed", "incomplete") and one.store is False, one)
check("usage", 0 < one.usage.output_tokens <= 16 and
      one.usage.total_tokens == one.usage.input_tokens + one.usage.output_tokens, one.usage)
messages = [{"role": "system", "content": "Tell a story."}, {"role": "user", "content": "Anna lives"}]
chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=16, temperature=0)
check("the text of a chat", chat.choices[0].message.content == TEXT, chat)
short = client.responses.create(**{**plain, "max_output_tokens": 2})
check("incomplete", short.incomplete_details.reason == "max_output_tokens", short)


def numbered(what, events):
    """Checks the numbers of events, and returns the last response."""
    check(what, [event.sequence_number for event in events] == list(range(len(events))), events)
    check(what, [event.type for event in events[:2]] == ["response.created", "response.in_progress"], events[:2])
    return events[-1].response


events = list(client.responses.create(**plain, stream=True))
last = numbered("stream", events)
check("streamed text", last.output_text == TEXT, last)
joined = "".join(event.delta for event in events if event.type == "response.output_text.delta")
check("text deltas", joined == TEXT, joined)
check("streamed usage", last.usage.output_tokens == one.usage.output_tokens, last.usage)

items = [
    {"role": "developer", "content": [{"type": "input_text", "text": "Tell a story."}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Anna lives"}]},
]
listed = client.responses.create(**{**plain, "input": items, "instructions": None})
check("input items", listed.output_text == TEXT, listed)
again = client.responses.create(**{**plain, "input": [*items, *one.output, {"role": "user", "content": "And then?"}]})
check("output as input", again.output_text and again.usage.input_tokens > 0, again)

PARAMETERS = {
    "type": "object",
    "properties": {"glad": {"type": "boolean"}},
    "required": ["glad"],
    "additionalProperties": False,
}
compact = {**plain, "max_output_tokens": 80, "extra_body": without_space(BASE)}
form = {"type": "json_schema", "name": "person", "schema": PARAMETERS, "strict": True}
held = client.responses.create(**compact, text={"format": form})
value = json.loads(held.output_text)
with client.responses.stream(**compact, text={"format": form}) as stream:
    check("stream helper", stream.get_final_response().output_text == held.output_text, held)
check("schema", type(value["glad"]) is bool and len(value) == 1, value)

tool = {"type": "function", "name": "save", "description": "Saves a person.", "parameters": PARAMETERS, "strict": True}
forced = {**compact, "tools": [tool], "tool_choice": {"type": "function", "name": "save"}}
called = client.responses.create(**forced)
call = called.output[0]
check("call", call.type == "function_call" and call.name == "save", called)
check("arguments", set(json.loads(call.arguments)) == {"glad"}, call)
events = list(client.responses.create(**forced, stream=True))
last = numbered("streamed call", events)
joined = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
check("argument deltas", joined == call.arguments == last.output[0].arguments, joined)
result = {"type": "function_call_output", "call_id": call.call_id, "output": "saved"}
follow = client.responses.create(**{**plain, "tools": [tool], "tool_choice": "none",
                                    "input": [{"role": "user", "content": "Save Anna."}, call, result]})
check("after the call", follow.output[0].type == "message", follow)
logged = client.responses.create(**plain, include=["message.output_text.logprobs"], top_logprobs=2)
check("logprobs", all(len(token.top_logprobs) == 2 for token in logged.output[0].content[0].logprobs), logged)
agent = client.responses.create(**plain, store=True, prompt_cache_key="k", service_tier="auto", truncation="auto", user="u",
                                include=["reasoning.encrypted_content"], reasoning={"effort": "low", "summary": "auto"})
check("fields of agents", agent.store is False, agent)

refused("unknown model", openai.NotFoundError, "model", lambda: client.responses.create(**{**plain, "model": "none"}))
refused("stored response", openai.BadRequestError, "previous_response_id",
        lambda: client.responses.create(**plain, previous_response_id="resp_1"))
refused("temperature", openai.BadRequestError, "temperature",
        lambda: client.responses.create(**{**plain, "temperature": 9}))
refused("image", openai.BadRequestError, "input[0].content[0].type",
        lambda: client.responses.create(**{**plain, "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "data:image/png;base64,", "detail": "auto"}]}]}))
refused("long input", openai.BadRequestError, "input",
        lambda: client.responses.create(**{**plain, "input": "story " * 20000}))
with client.responses.create(**{**plain, "max_output_tokens": 200}, stream=True) as abandoned:
    check("abandoned stream", next(iter(abandoned)).type == "response.created", abandoned)
report("openai_responses")
