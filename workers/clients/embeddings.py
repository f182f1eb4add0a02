"""Compares the embeddings of a worker with those of sentence-transformers, which loads the same folder on the CPU in f32.
Prints the largest 1 - cos, and fails above 0.001.

    llm-worker --model FOLDER
    pip install openai sentence-transformers
    python3 embeddings.py http://127.0.0.1:8081 FOLDER
"""
import sys

import numpy as np
import openai
from sentence_transformers import SentenceTransformer

BASE, FOLDER = sys.argv[1:]
LIMIT = 1e-3

WORDS = "the river runs into a sea that is never full while people sell shells by its shore".split()
TEXTS = [
    "",
    "a",
    "The capital of France is Paris.",
    "Paris is where the French government sits.",
    "Caf\u00e9 cr\u00e8me, na\u00efve fa\u00e7ade; \u6771\u4eac 2024 \u2014 unknown \U0001f600 signs",
    "  spaces \t and\nlines  ",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    *(" ".join(WORDS[i % len(WORDS)] for i in range(length)) for length in (3, 17, 60, 128, 250, 600)),
]

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0)
name = client.models.list().data[0].id
more = {"truncate_prompt_tokens": -1}
answer = client.embeddings.create(model=name, input=TEXTS, extra_body=more)
model = SentenceTransformer(FOLDER, device="cpu")
worst = 0
for text, one in zip(TEXTS, answer.data, strict=True):
    ours, theirs = np.array(one.embedding), model.encode(text, convert_to_numpy=True)
    off = 1 - ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
    print(f"{off:9.1e}  {len(text):5} characters  {text[:40]!r}")
    worst = max(worst, off)
print(f"embeddings: 1 - cos is at most {worst:.1e} for {len(TEXTS)} texts")
sys.exit(int(worst > LIMIT))
