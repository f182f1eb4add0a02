"""Tests LangChain's models of chats and embeddings, and prints the number of successful checks.

    python3 langchain_chat.py http://127.0.0.1:8081
"""
import asyncio
import sys
from typing import Literal

import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

from checks import TIMEOUT, check, greedy_chat, model_name, raised, report, without_space

BASE = sys.argv[1]
MODEL = model_name(BASE)
TEXT, USAGE = greedy_chat(BASE)
PLACE = dict(base_url=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT)

chat = ChatOpenAI(**PLACE, model=MODEL, temperature=0, max_completion_tokens=16, stream_usage=True)
one = chat.invoke("Anna lives")
check("text", one.content == TEXT, one)
check("usage", one.usage_metadata["output_tokens"] == USAGE["completion_tokens"], one.usage_metadata)
check("input tokens", one.usage_metadata["input_tokens"] == USAGE["prompt_tokens"], one.usage_metadata)
chunks = list(chat.stream("Anna lives"))
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
check("stream", len(chunks) > 2 and whole.content == TEXT, chunks)
check("streamed usage", whole.usage_metadata["total_tokens"] == USAGE["total_tokens"], whole)
check("async", asyncio.run(chat.ainvoke("Anna lives")).content == TEXT)
both = chat.batch(["Anna lives", [HumanMessage("Anna lives")]])
check("batch", [message.content for message in both] == [TEXT, TEXT], both)
chain = ChatPromptTemplate.from_messages([("human", "{name} lives")]) | chat
check("chain", chain.invoke({"name": "Anna"}).content == TEXT)
word = TEXT.split()[2]
check("stop", chat.invoke("Anna lives", stop=[word]).content == TEXT[:TEXT.index(word)])
logged = chat.bind(logprobs=True, top_logprobs=2).invoke("Anna lives").response_metadata["logprobs"]["content"]
check("logprobs", "".join(token["token"] for token in logged) == TEXT, logged)
check("alternatives", all(len(token["top_logprobs"]) == 2 for token in logged), logged)
responses = ChatOpenAI(**PLACE, model=MODEL, temperature=0, max_completion_tokens=16, use_responses_api=True)
answer = responses.invoke("Anna lives")
check("responses", answer.text == TEXT, answer)
check("streamed responses", "".join(chunk.text for chunk in responses.stream("Anna lives")) == TEXT)


class Person(BaseModel):
    """A person."""

    mood: Literal["glad", "sad"]
    age: int = Field(ge=0, le=99)


@tool
def save(mood: Literal["glad", "sad"]) -> str:
    """Saves a mood."""
    return f"saved {mood}"


compact = ChatOpenAI(**PLACE, model=MODEL, temperature=0, max_completion_tokens=80, **without_space(BASE))
for method in ("json_schema", "function_calling"):
    typed = compact.with_structured_output(Person, method=method, strict=True, include_raw=True)
    seen = typed.invoke("Anna lives")
    check(method, type(seen["parsed"]) is Person and seen["parsing_error"] is None, seen)
forced = compact.bind_tools([save], tool_choice="required", strict=True)
called = forced.invoke("Anna lives")
call = called.tool_calls[0]
check("call", len(called.tool_calls) == 1 and call["name"] == "save" and call["args"]["mood"] in ("glad", "sad"), called)
check("finish reason", called.response_metadata["finish_reason"] == "tool_calls", called)
chunks = list(forced.stream("Anna lives"))
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
check("streamed call", [(call["name"], call["args"]) for call in whole.tool_calls] == [(call["name"], call["args"])], whole)
result = save.invoke(call)
check("result", type(result) is ToolMessage and result.content.startswith("saved"), result)
follow = chat.bind_tools([save], tool_choice="none").invoke([HumanMessage("Anna lives"), called, result])
check("after the call", type(follow) is AIMessage and not follow.tool_calls, follow)
asked = ChatOpenAI(**PLACE, model=MODEL, temperature=0, max_completion_tokens=80, use_responses_api=True,
                   extra_body=without_space(BASE))
called = asked.bind_tools([save], tool_choice="save", strict=True).invoke("Anna lives")
check("call of responses", called.tool_calls[0]["args"] == call["args"], called)

completed = OpenAI(**PLACE, model=MODEL, temperature=0, max_tokens=16)
whole = completed.invoke("Once upon a time")
check("completion", whole and "".join(completed.stream("Once upon a time")) == whole, whole)

# The check of lengths would tokenize the texts as OpenAI's models do.
embeddings = OpenAIEmbeddings(**PLACE, model=MODEL, check_embedding_ctx_length=False)
vectors = embeddings.embed_documents(["Anna lives", "the king"])
check("embeddings", len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-3, vectors)
query = embeddings.embed_query("Anna lives")
check("query", max(abs(a - b) for a, b in zip(query, vectors[0], strict=True)) < 1e-4, query)

error = raised("unknown model", openai.NotFoundError, lambda: chat.bind(model="none").invoke("Anna lives"))
check("param", error.param == "model", error)
error = raised("temperature", openai.BadRequestError, lambda: chat.bind(temperature=9).invoke("Anna lives"))
check("param", error.param == "temperature", error)
error = raised("long", openai.BadRequestError, lambda: list(chat.stream("story " * 20000)))
check("param", error.param == "messages", error)
report("langchain_chat")
