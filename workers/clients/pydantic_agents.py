"""Tests agents of Pydantic AI, and prints the number of successful checks.

    python3 pydantic_agents.py http://127.0.0.1:8081
"""
import asyncio
import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, ModelHTTPError, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.capabilities import PrepareOutputTools, PrepareTools
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from checks import TIMEOUT, check, greedy_chat, model_name, raised, report, without_space

BASE = sys.argv[1]
MODEL = model_name(BASE)
TEXT, USAGE = greedy_chat(BASE)
PROVIDER = OpenAIProvider(base_url=f"{BASE}/v1", api_key="unused")
GREEDY = ModelSettings(temperature=0, max_tokens=16, timeout=TIMEOUT)
COMPACT = ModelSettings(temperature=0, max_tokens=80, timeout=TIMEOUT, extra_body=without_space(BASE))


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")
    mood: Literal["glad", "sad"]
    age: int = Field(ge=0, le=99)


async def streamed(agent):
    """Returns the pieces of a streamed text, and the usage."""
    async with agent.run_stream("Anna lives") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return pieces, result.usage


async def streamed_output(agent):
    """Returns the values of a streamed output."""
    async with agent.run_stream("Anna lives") as result:
        return [value async for value in result.stream_output(debounce_by=None)]


for model in (OpenAIChatModel(MODEL, provider=PROVIDER), OpenAIResponsesModel(MODEL, provider=PROVIDER)):
    name = type(model).__name__
    agent = Agent(model, model_settings=GREEDY)
    one = agent.run_sync("Anna lives")
    check(f"{name}: text", one.output == TEXT, one)
    check(f"{name}: usage", one.usage.output_tokens == USAGE["completion_tokens"], one.usage)
    check(f"{name}: input tokens", one.usage.input_tokens == USAGE["prompt_tokens"], one.usage)
    pieces, usage = asyncio.run(streamed(agent))
    check(f"{name}: stream", len(pieces) > 2 and "".join(pieces) == TEXT, pieces)
    check(f"{name}: streamed usage", usage.total_tokens == USAGE["total_tokens"], usage)
    again = agent.run_sync("Anna lives", message_history=one.all_messages())
    check(f"{name}: history", again.output == TEXT, again)

    outputs = []
    for kind in (ToolOutput, NativeOutput):
        typed = Agent(model, output_type=kind(Person), model_settings=COMPACT, retries=0)
        outputs.append(typed.run_sync("Anna lives").output)
        check(f"{name}: {kind.__name__}", type(outputs[-1]) is Person, outputs)
        values = asyncio.run(streamed_output(typed))
        check(f"{name}: streamed {kind.__name__}", values[-1] == outputs[-1], values)

    saved = []

    def save(mood: Literal["glad", "sad"]) -> str:
        """Saves a mood."""
        saved.append(mood)
        return "saved"

    async def until_saved(context, definitions):
        return [] if saved else definitions

    async def once_saved(context, definitions):
        return definitions if saved else []

    # The tiny model cannot choose, so it first sees the function alone and then the output alone.
    tools = Agent(model, tools=[save], output_type=ToolOutput(Person), model_settings=COMPACT, retries=0,
                  capabilities=[PrepareTools(until_saved), PrepareOutputTools(once_saved)])
    result = tools.run_sync("Anna lives")
    check(f"{name}: tool", type(result.output) is Person and saved and saved[0] in ("glad", "sad"), result)
    parts = [part for message in result.all_messages() for part in message.parts]
    calls = [part.tool_name for part in parts if isinstance(part, ToolCallPart)]
    check(f"{name}: calls", calls[0] == "save" and len(calls) == 2, parts)
    check(f"{name}: result", any(isinstance(part, ToolReturnPart) and part.content == "saved" for part in parts), parts)

    error = raised(f"{name}: temperature", ModelHTTPError,
                   lambda: agent.run_sync("Anna lives", model_settings=ModelSettings(temperature=9)))
    check(f"{name}: param", error.status_code == 400 and error.body["param"] == "temperature", error)
    unknown = Agent(type(model)("none", provider=PROVIDER))
    error = raised(f"{name}: unknown model", ModelHTTPError, lambda: unknown.run_sync("Anna lives"))
    check(f"{name}: status", error.status_code == 404, error)
report("pydantic_agents")
