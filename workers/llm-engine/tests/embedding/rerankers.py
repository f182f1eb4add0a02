"""Writes rerankers: a decoder that answers yes or no, and GGUF files of it and of the encoders of `reference.py`.

    pip install numpy gguf safetensors tokenizers jinja2 sentencepiece protobuf
    python3 rerankers.py data

The decoder is computed with numpy. The same code has to reproduce sentence-transformers' vectors of `data/qwen3` first.
Tokens of the file with unigrams are SentencePiece's.
"""
import io
import json
import sys
from pathlib import Path

import gguf
import jinja2
import numpy as np
import sentencepiece
from safetensors.numpy import load_file, save_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

LIMIT = 192
YES, NO = 101, 77
TEMPLATE = """{%- set task = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("find answers") -%}
{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}
{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}
Judge.
<Task>: {{ task }}
<Query>: {{ query }}
<Document>: {{ document }}<|endoftext|>
Answer:

"""
PROMPT = "Judge.\n<Task>: find answers\n<Query>: {query}\n<Document>: {document}<|endoftext|>\nAnswer:\n"
INSTRUCTION = "find poems"
# Rules of normalization: a ligature, a wide letter, and white space.
RULES = {"\ufb01": "fi", "\uff21": "A", "\t": " ", "\n": " ", "\u3000": " "}


def forward(config, weights, tokens):
    """Returns the final states of a Qwen3 decoder."""
    heads, kv_heads, width = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    eps, count = config["rms_norm_eps"], len(tokens)
    norm = lambda x, name: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[f"{name}.weight"]
    linear = lambda x, name: x @ weights[f"{name}.weight"].T
    steps = config["rope_parameters"]["rope_theta"] ** (-np.arange(0, width, 2) / width)
    angles = np.arange(count)[:, None] * np.concatenate([steps, steps])
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def rotated(x):
        one, other = np.split(x, 2, -1)
        return x * cos + np.concatenate([-other, one], -1) * sin

    x = weights["embed_tokens.weight"][tokens].astype(np.float64)
    hidden_from = np.triu(np.full((count, count), -np.inf), 1)
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (linear(y, f"{at}.self_attn.{part}_proj").reshape(count, -1, width) for part in "qkv")
        q, k = rotated(norm(q, f"{at}.self_attn.q_norm")), rotated(norm(k, f"{at}.self_attn.k_norm"))
        k, v = (np.repeat(part, heads // kv_heads, 1) for part in (k, v))
        scores = np.einsum("qhw,khw->hqk", q, k) / np.sqrt(width) + hidden_from
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hqk,khw->qhw", scores, v).reshape(count, -1), f"{at}.self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")
        gate = linear(y, f"{at}.mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(y, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
    return norm(x, "norm")


def check(data, config, weights, tokenizer):
    """Compares the vectors of the last tokens with those of sentence-transformers."""
    expected = json.loads((data / "qwen3/expected.json").read_text())
    for text, vector in zip(expected["texts"], expected["vectors"]):
        tokens = tokenizer.encode(text).ids
        tokens = tokens if len(tokens) <= 64 else tokens[:63] + tokens[-1:]
        state = forward(config, weights, tokens)[-1]
        off = np.abs(state / np.linalg.norm(state) - vector).max()
        assert off < 1e-5, f"{text!r} is {off} off"


def decoder(data):
    """Writes data/qwen3-reranker, whose missing files are those of data/qwen3, and data/qwen3-reranker.gguf."""
    base, folder = data / "qwen3", data / "qwen3-reranker"
    config, weights = json.loads((base / "config.json").read_text()), load_file(base / "model.safetensors")
    weights = {name.removeprefix("model."): weight for name, weight in weights.items()}
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    check(data, config, weights, tokenizer)
    head = np.random.default_rng(7).normal(size=weights["embed_tokens.weight"].shape).astype(np.float32)

    known = json.loads((data / "bert-reranker/expected.json").read_text())
    query, texts = known["query"], known["texts"][:-1]
    environment = jinja2.Environment()

    def score(text, instruction):
        messages = [{"role": "query", "content": query}, {"role": "document", "content": text}]
        if instruction:
            messages.insert(0, {"role": "system", "content": instruction})
        prompt = environment.from_string(TEMPLATE).render(messages=messages)
        assert instruction or prompt == PROMPT.format(query=query, document=text)
        tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
        logits = forward(config, weights, tokens)[-1] @ head[[YES, NO]].T
        odds = np.exp(logits - logits.max())
        return len(tokens), float(odds[0] / odds.sum())

    plain, instructed = ([score(text, task) for text in texts] for task in (None, INSTRUCTION))
    expected = dict(query=query, texts=texts, tokens=[count for count, _ in plain], scores=[it for _, it in plain],
                    instruction=INSTRUCTION, instructed=[it for _, it in instructed])

    (folder / "1_LogitScore").mkdir(parents=True, exist_ok=True)
    write = lambda name, value: (folder / name).write_text(json.dumps(value, indent=2) + "\n")
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write("1_LogitScore/config.json", {"true_token_id": YES, "false_token_id": NO, "module_input_name": "causal_logits"})
    kind = "sentence_transformers.{}"
    write("modules.json", [
        dict(idx=0, name="0", path="", type=kind.format("base.modules.transformer.Transformer")),
        dict(idx=1, name="1", path="1_LogitScore", type=kind.format("cross_encoder.modules.logit_score.LogitScore")),
    ])
    own = dict(architectures=["Qwen3ForCausalLM"], tie_word_embeddings=False)
    write("config.json", {**config, **own})
    write("tokenizer_config.json", {**json.loads((base / "tokenizer_config.json").read_text()), "model_max_length": LIMIT})
    tensors = {f"model.{name}": weight for name, weight in weights.items()}
    save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors")

    writer = gguf.GGUFWriter(data / "qwen3-reranker.gguf", "qwen3")
    writer.add_context_length(LIMIT)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels(["yes", "no"])
    content = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == "<|endoftext|>" else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in content["merges"]])
    writer.add_eos_token_id(0)
    writer.add_chat_template([dict(name="rerank", template=PROMPT)])
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }
    for name, weight in weights.items():
        part = name.removesuffix(".weight")
        if part.startswith("layers."):
            _, layer, part = part.split(".", 2)
            part = f"blk.{layer}.{parts[part]}"
        else:
            part = {"embed_tokens": "token_embd", "norm": "output_norm"}[part]
        writer.add_tensor(f"{part}.weight", weight)
    writer.add_tensor("cls.output.weight", head[[YES, NO]])
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def character_map():
    """Returns the compiled rules."""
    rules = "\n".join(
        "\t".join(" ".join(f"{ord(sign):X}" for sign in side) for side in rule) for rule in RULES.items()
    )
    path = Path("/tmp/rules.tsv")
    path.write_text(rules + "\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f"]), model_writer=model, vocab_size=10, model_type="unigram",
        normalization_rule_tsv=str(path), hard_vocab_limit=False, minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def unigram_tokens(vocabulary, characters, texts):
    """Returns SentencePiece's tokens of texts."""
    proto = sentencepiece_model_pb2.ModelProto()
    kinds = {0: 3, 1: 3, 2: 3, 3: 2}
    for index, (piece, score) in enumerate(vocabulary):
        proto.pieces.add(piece=piece, score=score, type=kinds.get(index, 1))
    proto.trainer_spec.model_type = 1
    proto.trainer_spec.bos_id, proto.trainer_spec.pad_id = 0, 1
    proto.trainer_spec.eos_id, proto.trainer_spec.unk_id = 2, 3
    proto.normalizer_spec.precompiled_charsmap = characters
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    return [processor.encode(text) for text in texts]


GGUF_PARTS = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls", "classifier": "cls.output", "classifier.dense": "cls", "classifier.out_proj": "cls.output",
}


def encoder(data, name):
    """Writes a cross-encoder as llama.cpp's converter does."""
    folder = data / name
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    is_roberta = config["model_type"] == "xlm-roberta"
    # RoBERTa's positions begin behind that of the padding.
    first = config["pad_token_id"] + 1 if is_roberta else 0
    writer = gguf.GGUFWriter(data / f"{name}.gguf", "bert")
    writer.add_context_length(config["max_position_embeddings"] - first)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    if is_roberta:
        characters = character_map()
        writer.add_tokenizer_model("t5")
        writer.add_token_list([piece for piece, _ in vocabulary])
        writer.add_token_scores([score for _, score in vocabulary])
        writer.add_token_types([2 if index == 3 else 3 if index in special else 1 for index in range(len(vocabulary))])
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_precompiled_charsmap(characters)
        bos, eos, unknown = 0, 2, 3
        texts = ["", "a", "The dog sleeps on the mat, doesn't it?", "  spaces \t and\nlines\u3000", "\ufb01ne \uff21ll",
                 "\u6771\u4eac \U0001f600 unknown"]
        tokens = unigram_tokens(vocabulary, characters, texts)
        expected = json.dumps({"texts": texts, "tokens": tokens})
        (data / f"{name}.gguf.json").write_text(expected + "\n")
    else:
        tokens = sorted(vocabulary, key=vocabulary.get)
        plain = lambda token: token[2:] if token.startswith("##") else "\u2581" + token
        writer.add_tokenizer_model("bert")
        writer.add_token_list([token if vocabulary[token] in special else plain(token) for token in tokens])
        writer.add_token_types([3 if vocabulary[token] in special else 1 for token in tokens])
        bos, eos, unknown = vocabulary["[CLS]"], vocabulary["[SEP]"], vocabulary["[UNK]"]
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_sep_token_id(eos)
    writer.add_unk_token_id(unknown)
    for tensor, weight in weights.items():
        part, kind = tensor.rsplit(".", 1)
        part = part.removeprefix("bert.").removeprefix("roberta.")
        if part.startswith("encoder.layer."):
            layer, part = part.removeprefix("encoder.layer.").split(".", 1)
            part = f"blk.{layer}.{GGUF_PARTS[part]}"
        else:
            part = GGUF_PARTS[part]
        if part == "position_embd":
            weight = weight[first:]
        writer.add_tensor(f"{part}.{kind}", np.ascontiguousarray(weight))
    finish(writer)


def main(data):
    decoder(data)
    for name in ("bert-reranker", "xlm-roberta-reranker"):
        encoder(data, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
