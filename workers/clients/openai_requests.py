"""Tests all kinds of requests through the official `openai` package, and prints the number of successful checks.

    python3 openai_requests.py http://127.0.0.1:8081
"""
import json
import sys

import openai

from checks import TIMEOUT, check, refused, report

BASE = sys.argv[1]

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT)
models = client.models.list().data
check("models", len(models) == 1, models)
MODEL = models[0].id
check("model", client.models.retrieve(MODEL).id == MODEL, MODEL)

PROMPT = "Once upon a time"
greedy = dict(model=MODEL, prompt=PROMPT, max_tokens=20, temperature=0)
one = client.completions.create(**greedy)
TEXT = one.choices[0].text
check("completion", TEXT and one.usage.completion_tokens <= 20, one)
parts = list(client.completions.create(**greedy, stream=True))
check("streamed completion", "".join(part.choices[0].text for part in parts) == TEXT, parts)
counted = list(client.completions.create(**greedy, stream=True, stream_options={"include_usage": True}))
check("streamed usage", counted[-1].usage.completion_tokens == one.usage.completion_tokens, counted[-1])
both = client.completions.create(**{**greedy, "prompt": [PROMPT, PROMPT]})
check("two prompts", [choice.text for choice in both.choices] == [TEXT, TEXT], both)
word = TEXT.split()[2]
stopped = client.completions.create(**greedy, stop=[word])
check("stop", word not in stopped.choices[0].text and TEXT.startswith(stopped.choices[0].text), stopped)
logged = client.completions.create(**greedy, logprobs=3)
probabilities = logged.choices[0].logprobs
check("logprobs", all(value <= 0 for value in probabilities.token_logprobs), probabilities)
check("alternatives", all(len(top) >= 3 for top in probabilities.top_logprobs), probabilities)
drawn = dict(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=1.2, top_p=0.9, seed=7)
again = [client.completions.create(**drawn).choices[0].text for _ in range(2)]
check("seed", again[0] == again[1], again)
several = client.completions.create(**drawn, n=3)
check("n", len(several.choices) == 3 and several.choices[0].text == again[0], several)

MESSAGES = [{"role": "system", "content": "Tell a story."}, {"role": "user", "content": "Anna lives"}]
chat = dict(model=MODEL, messages=MESSAGES, max_tokens=16, temperature=0)
answer = client.chat.completions.create(**chat)
check("chat", answer.choices[0].message.content and answer.choices[0].message.role == "assistant", answer)
parts = list(client.chat.completions.create(**chat, stream=True))
joined = "".join(part.choices[0].delta.content or "" for part in parts)
check("streamed chat", joined == answer.choices[0].message.content, parts)
logged = client.chat.completions.create(**chat, logprobs=True, top_logprobs=2)
content = logged.choices[0].logprobs.content
check("chat logprobs", all(len(token.top_logprobs) == 2 for token in content), content)
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "glad": {"type": "boolean"}},
    "required": ["age", "glad"],
    "additionalProperties": False,
}
form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
held = client.chat.completions.create(**{**chat, "max_tokens": 400}, response_format=form)
value = json.loads(held.choices[0].message.content)
check("schema", type(value["age"]) is int and type(value["glad"]) is bool and len(value) == 2, value)

vectors = client.embeddings.create(model=MODEL, input=["Anna lives", "the king"], encoding_format="float").data
check("embeddings", len(vectors) == 2 and len(vectors[0].embedding) == len(vectors[1].embedding) > 0, vectors)

refused("unknown model", openai.NotFoundError, "model",
        lambda: client.completions.create(**{**greedy, "model": "none"}))
refused("temperature", openai.BadRequestError, "temperature",
        lambda: client.completions.create(**{**greedy, "temperature": 9}))
refused("max_tokens", openai.BadRequestError, "max_tokens",
        lambda: client.completions.create(**{**greedy, "max_tokens": -2}))
refused("no messages", openai.BadRequestError, "messages",
        lambda: client.chat.completions.create(**{**chat, "messages": []}))
refused("long prompt", openai.BadRequestError, "prompt",
        lambda: client.completions.create(**{**greedy, "prompt": "story " * 20000}))

with client.completions.create(**{**greedy, "max_tokens": 200}, stream=True) as abandoned:
    check("abandoned stream", next(iter(abandoned)).choices, abandoned)
report("openai_requests")
