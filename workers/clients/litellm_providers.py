"""Tests LiteLLM with the worker as a provider of OpenAI's and of Anthropic's API, and prints the number of successful
checks.

    python3 litellm_providers.py http://127.0.0.1:8081
"""
import asyncio
import json
import os
import sys

# Otherwise the package fetches a list of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402

from checks import MESSAGES, TIMEOUT, check, greedy_chat, model_name, raised, report, without_space  # noqa: E402

litellm.suppress_debug_info = True
BASE = sys.argv[1]
MODEL = model_name(BASE)
TEXT, USAGE = greedy_chat(BASE)
COMPATIBLE = dict(model=f"openai/{MODEL}", api_base=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT)
ANTHROPIC = dict(model=f"anthropic/{MODEL}", api_base=BASE, api_key="unused", max_retries=0, timeout=TIMEOUT)
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"type": "string", "enum": ["calm", "sad"]}, "glad": {"type": "boolean"}},
    "required": ["mood", "glad"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "save", "description": "Saves a person.", "parameters": SCHEMA}}
COMPACT = without_space(BASE)

for provider, place in (("openai", COMPATIBLE), ("anthropic", ANTHROPIC)):
    plain = dict(**place, messages=MESSAGES, max_tokens=16, temperature=0)
    one = litellm.completion(**plain)
    check(f"{provider}: text", one.choices[0].message.content == TEXT, one)
    check(f"{provider}: usage", one.usage.completion_tokens == USAGE["completion_tokens"], one.usage)
    check(f"{provider}: prompt", one.usage.prompt_tokens == USAGE["prompt_tokens"], one.usage)
    parts = list(litellm.completion(**plain, stream=True, stream_options={"include_usage": True}))
    check(f"{provider}: stream", "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == TEXT, parts)
    check(f"{provider}: streamed usage", parts[-1].usage.total_tokens == USAGE["total_tokens"], parts[-1])
    check(f"{provider}: async", asyncio.run(litellm.acompletion(**plain)).choices[0].message.content == TEXT)
    word = TEXT.split()[2]
    stopped = litellm.completion(**plain, stop=[word])
    check(f"{provider}: stop", stopped.choices[0].message.content == TEXT[:TEXT.index(word)], stopped)

    compact = {**plain, "max_tokens": 80, "allowed_openai_params": ["logit_bias"], **COMPACT}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    held = litellm.completion(**compact, response_format=form)
    value = json.loads(held.choices[0].message.content)
    check(f"{provider}: schema", value["mood"] in ("calm", "sad") and type(value["glad"]) is bool and len(value) == 2, value)
    forced = dict(**compact, tools=[TOOL], tool_choice="required")
    called = litellm.completion(**forced).choices[0]
    call = called.message.tool_calls[0]
    check(f"{provider}: call", called.finish_reason == "tool_calls" and call.function.name == "save", called)
    check(f"{provider}: arguments", set(json.loads(call.function.arguments)) == {"mood", "glad"}, call)
    whole = litellm.stream_chunk_builder(list(litellm.completion(**forced, stream=True)))
    streamed = whole.choices[0].message.tool_calls[0]
    check(f"{provider}: streamed call", json.loads(streamed.function.arguments) == json.loads(call.function.arguments), whole)
    turns = [*MESSAGES, called.message, {"role": "tool", "tool_call_id": call.id, "content": "saved"}]
    follow = litellm.completion(**{**plain, "messages": turns}, tools=[TOOL], tool_choice="none")
    check(f"{provider}: after the call", follow.choices[0].message.content, follow)

    error = raised(f"{provider}: unknown model", litellm.NotFoundError,
                   lambda: litellm.completion(**{**plain, "model": f"{provider}/none"}))
    check(f"{provider}: status", error.status_code == 404, error)
    error = raised(f"{provider}: temperature", litellm.BadRequestError,
                   lambda: litellm.completion(**{**plain, "temperature": 9}))
    check(f"{provider}: message", "temperature" in str(error), error)

logged = litellm.completion(**COMPATIBLE, messages=MESSAGES, max_tokens=16, temperature=0, logprobs=True, top_logprobs=2)
content = logged.choices[0].logprobs["content"]
check("logprobs", "".join(token["token"] for token in content) == TEXT, content)
chosen = litellm.completion(**COMPATIBLE, messages=MESSAGES, temperature=0,
                            extra_body={"structured_outputs": {"choice": ["red", "green"]}})
check("choice", chosen.choices[0].message.content in ("red", "green"), chosen)
completed = litellm.text_completion(**{**COMPATIBLE, "model": f"text-completion-openai/{MODEL}"},
                                    prompt="Once upon a time", max_tokens=16, temperature=0)
check("completion", completed.choices[0].text, completed)
answer = litellm.responses(**COMPATIBLE, input="Anna lives", max_output_tokens=16, temperature=0)
check("responses", answer.output[0].content[0].text == TEXT, answer)
events = list(litellm.responses(**COMPATIBLE, input="Anna lives", max_output_tokens=16, temperature=0, stream=True))
deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
check("streamed responses", "".join(deltas) == TEXT, events)
vectors = litellm.embedding(**COMPATIBLE, input=["Anna lives", "the king"], encoding_format="float").data
check("embeddings", len(vectors) == 2 and len(vectors[0]["embedding"]) == len(vectors[1]["embedding"]) > 0, vectors)
report("litellm_providers")
