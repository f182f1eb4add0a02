"""Tests Instructor's modes of typed answers, and prints the number of successful checks.

    python3 instructor_models.py http://127.0.0.1:8081
"""
import sys
from typing import Literal

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel, ConfigDict, Field, field_validator

from checks import MESSAGES, TIMEOUT, check, model_name, raised, report, without_space

BASE = sys.argv[1]
MODEL = model_name(BASE)
CLIENT = openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT)
ASKED = dict(messages=MESSAGES, model=MODEL, temperature=0, max_tokens=80, max_retries=0)


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")
    mood: Literal["glad", "sad"]
    age: int = Field(ge=0, le=99)


class Refused(Person):
    """A person that no answer describes."""

    @field_validator("age")
    @classmethod
    def refuse(cls, age):
        raise ValueError("the age is wrong")


# This mode only asks for JSON and writes the schema into the prompt, which is then longer than the tiny model's context.
SCHEMA = {
    "response_format": {"type": "json_object", "schema": Person.model_json_schema()},
    "truncate_prompt_tokens": 256,
}
MODES = [
    (instructor.Mode.TOOLS, {}),
    (instructor.Mode.TOOLS_STRICT, {}),
    (instructor.Mode.JSON_SCHEMA, {}),
    (instructor.Mode.JSON, SCHEMA),
]
for mode, form in MODES:
    client = instructor.from_openai(CLIENT, mode=mode)
    asked = {**ASKED, "extra_body": {**without_space(BASE), **form}}
    person, answer = client.chat.completions.create_with_completion(**asked, response_model=Person)
    check(f"{mode}: person", isinstance(person, Person), answer)
    check(f"{mode}: usage", 0 < answer.usage.completion_tokens <= 80, answer.usage)
    parts = list(client.chat.completions.create_partial(**asked, response_model=Person))
    check(f"{mode}: partial", parts[-1].model_dump() == person.model_dump(), parts)

client = instructor.from_openai(CLIENT, mode=instructor.Mode.TOOLS)
asked = {**ASKED, "extra_body": without_space(BASE), "max_retries": 1}
error = raised("retry", InstructorRetryException,
               lambda: client.chat.completions.create(**asked, response_model=Refused))
check("two answers", error.n_attempts == 2 and "the age is wrong" in str(error), error)
error = raised("temperature", InstructorRetryException,
               lambda: client.chat.completions.create(**{**ASKED, "temperature": 9}, response_model=Person))
check("param", "temperature" in str(error), error)
report("instructor_models")
