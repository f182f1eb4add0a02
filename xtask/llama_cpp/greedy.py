"""Writes the greedy tokens of llama.cpp's CPU build for the requests of a JSON file back into it.

usage: greedy.py MODEL.gguf REQUESTS.json

A request is {"prompt": text} or {"chat": text}. It gets the fields "tokens" and "margins": the difference between the
logits of the two most likely tokens at each token.
"""
import json
import sys

import llama_cpp

MODEL, PATH = sys.argv[1:]
TOKENS = 24
# The template of SmolLM2 for one message.
CHAT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")


def greedy(model, prompt):
    model.reset()
    model.eval(model.tokenize(prompt.encode(), add_bos=False, special=True))
    width = model.n_vocab()
    tokens, margins = [], []
    while len(tokens) < TOKENS:
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)[:width]
        first, second = sorted(range(width), key=logits.__getitem__, reverse=True)[:2]
        if first == model.token_eos():
            break
        tokens.append(first)
        margins.append(round(logits[first] - logits[second], 4))
        model.eval([first])
    return tokens, margins


with open(PATH) as file:
    requests = json.load(file)
model = llama_cpp.Llama(MODEL, n_ctx=512, n_gpu_layers=0, verbose=False)
for request in requests:
    prompt = request.get("prompt") or CHAT.format(request["chat"])
    request["tokens"], request["margins"] = greedy(model, prompt)
with open(PATH, "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(request) for request in requests) + "\n]\n")
print(f"llama-cpp: ok requests={len(requests)}")
