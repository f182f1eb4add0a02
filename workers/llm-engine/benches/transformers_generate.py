"""Creates a Llama of a billion random weights, and measures Hugging Face Transformers' throughput with it on CUDA.

    python3 transformers_generate.py --write /tmp/billion --tokenizer examples/tiny_llama/model/tokenizer.json
    python3 transformers_generate.py --model /tmp/billion
"""
import argparse
import json
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--write", metavar="FOLDER")
parser.add_argument("--tokenizer", metavar="FILE", default="examples/tiny_llama/model/tokenizer.json")
parser.add_argument("--model", metavar="FOLDER")
parser.add_argument("--prompt", type=int, default=128)
parser.add_argument("--tokens", type=int, default=128)
parser.add_argument("--streams", default="1,4,16,64")
args = parser.parse_args()

# The sizes of Llama 3.2 1B.
SIZES = dict(
    hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
    vocab_size=128256, max_position_embeddings=8192, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
    rms_norm_eps=1e-5, rope_theta=500000.0, head_dim=64,
)

if args.write:
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.float16)
    model.save_pretrained(args.write)
    # The model has more tokens than the tokenizer: the others get placeholder texts.
    tokenizer = json.load(open(args.tokenizer))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary.update({f"<extra {token}>": token for token in range(len(vocabulary), SIZES["vocab_size"])})
    json.dump(tokenizer, open(f"{args.write}/tokenizer.json", "w"))
    # candle-transformers expects these fields as older versions of Transformers write them.
    path = f"{args.write}/config.json"
    config = json.load(open(path)) | {key: SIZES[key] for key in ("rope_theta", "head_dim")} | {"torch_dtype": "float16"}
    json.dump(config, open(path, "w"), indent=2)

if args.model:
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float16).to("cuda").eval()
    for streams in map(int, args.streams.split(",")):
        ids = torch.randint(3, SIZES["vocab_size"], (streams, args.prompt), device="cuda")
        for attempt in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            with torch.no_grad():
                out = model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=args.tokens,
                    max_new_tokens=args.tokens, pad_token_id=0,
                )
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
        generated = streams * (out.shape[1] - args.prompt)
        print(json.dumps(dict(by="transformers", streams=streams, tokens_per_second=generated / seconds)))
