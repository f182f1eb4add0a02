"""Runs a small task of lm-evaluation-harness against the worker, and compares its log likelihoods with those of a
Llama computed here in f64. Prints the number of successful checks.

    python3 lm_eval_scores.py http://127.0.0.1:8081 ../../examples/tiny_llama/model
"""
import json
import os
import struct
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import lm_eval  # noqa: E402
import numpy as np  # noqa: E402
import openai  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from checks import TIMEOUT, check, report  # noqa: E402

BASE, MODEL = sys.argv[1], Path(sys.argv[2])
# Largest difference of a log likelihood. The worker computes in f32.
TOLERANCE = 2e-3

DOCUMENTS = [
    {"context": "Once upon a time there was a", "choices": [" little girl", " big dog", " stone of the sea"], "answer": 0},
    {"context": "Anna", "choices": [" lives in a house", " is a king"], "answer": 0},
    {"context": "The king said:", "choices": [" yes", " no", " who are you"], "answer": 2},
]
SCORES = """
task: tiny_scores
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: context
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
TEXTS = """
task: tiny_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: context
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 12, temperature: 0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


class Llama:
    """Computes the log probabilities of tokens in f64."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        data = (folder / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        types = {"F16": np.float16, "F32": np.float32}
        self.weights = {}
        for name, tensor in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + offset for offset in tensor["data_offsets"])
                values = np.frombuffer(data[start:end], types[tensor["dtype"]])
                self.weights[name] = values.reshape(tensor["shape"]).astype(np.float64)

    def norm(self, x, name):
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * self.weights[f"{name}.weight"]

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T

    def heads(self, x, name, is_rotated):
        x = self.linear(x, name).reshape(len(x), self.config["num_attention_heads"], -1).transpose(1, 0, 2)
        if not is_rotated:
            return x
        half = x.shape[-1] // 2
        angles = np.outer(np.arange(x.shape[1]), self.config["rope_theta"] ** -(np.arange(half) / half))
        sine, cosine = np.sin(angles), np.cos(angles)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def logprobs(self, tokens):
        """Returns the log probabilities of all next tokens at every position."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        mask = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            normed = self.norm(x, f"{at}.input_layernorm")
            query, key = (self.heads(normed, f"{at}.self_attn.{part}_proj", True) for part in "qk")
            value = self.heads(normed, f"{at}.self_attn.v_proj", False)
            scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1]) + mask
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ value
            x = x + self.linear(mixed.transpose(1, 0, 2).reshape(x.shape), f"{at}.self_attn.o_proj")
            normed = self.norm(x, f"{at}.post_attention_layernorm")
            gate = self.linear(normed, f"{at}.mlp.gate_proj")
            gated = gate / (1 + np.exp(-gate)) * self.linear(normed, f"{at}.mlp.up_proj")
            x = x + self.linear(gated, f"{at}.mlp.down_proj")
        logits = self.linear(self.norm(x, "model.norm"), "lm_head")
        largest = logits.max(-1, keepdims=True)
        return logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))


llama, tokenizer = Llama(MODEL), Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def expected(given, text):
    """Returns the log likelihood of the end of a text, and whether it is the greedy continuation."""
    table = llama.logprobs(text)
    places = range(len(given), len(text))
    score = sum(table[place - 1, text[place]] for place in places)
    return score, all(table[place - 1].argmax() == text[place] for place in places)


def evaluate(task, batch, is_tokenized):
    """Runs a task through lm-eval's client of completions, and returns its samples."""
    arguments = {
        "model": openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", timeout=TIMEOUT).models.list().data[0].id,
        "base_url": f"{BASE}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(MODEL),
        "tokenized_requests": is_tokenized,
        "num_concurrent": 1,
        "timeout": TIMEOUT,
        "max_length": llama.config["max_position_embeddings"],
    }
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "documents.json")
        data.write_text("\n".join(map(json.dumps, DOCUMENTS)))
        for name, text in [("scores", SCORES), ("texts", TEXTS)]:
            Path(folder, f"{name}.yaml").write_text(text.format(data=data))
        manager = TaskManager(include_path=folder, include_defaults=False)
        found = lm_eval.simple_evaluate(
            model="local-completions", model_args=arguments, tasks=[task], task_manager=manager,
            batch_size=batch, log_samples=True, bootstrap_iters=0, verbosity="ERROR",
        )
    return found["samples"][task]


LARGEST = 0
for batch, is_tokenized in [(1, True), (4, True), (1, False)]:
    samples = evaluate("tiny_scores", batch, is_tokenized)
    check("documents", len(samples) == len(DOCUMENTS), samples)
    for sample in samples:
        document = sample["doc"]
        for choice, answer in zip(document["choices"], sample["filtered_resps"]):
            text = tokenizer.encode(document["context"] + choice, add_special_tokens=False).ids
            given = tokenizer.encode(document["context"], add_special_tokens=False).ids
            if not is_tokenized:
                # The worker adds the token that begins a text, which lm-eval counts as one of the context.
                text = tokenizer.encode(document["context"] + choice).ids
            score, greedy = float(answer[0]), str(answer[1]) == "True"
            wanted, is_greedy = expected(given, text)
            what = f"batch {batch}, tokens {is_tokenized}: {document['context']}{choice}"
            check(what, abs(score - wanted) < TOLERANCE, (score, wanted))
            check(f"{what}: greedy", greedy == is_greedy, (greedy, is_greedy))
            print(f"{what}: {score:.4f}, expected {wanted:.4f}")
            LARGEST = max(LARGEST, abs(score - wanted))

print(f"largest difference of a log likelihood: {LARGEST:.2e}")
for is_tokenized in [True, False]:
    for sample in evaluate("tiny_texts", 1, is_tokenized):
        text = sample["resps"][0][0]
        check("generate_until", text and "." not in text, sample)
        print(f"{sample['doc']['context']}|{text}")
report("lm_eval_scores")
