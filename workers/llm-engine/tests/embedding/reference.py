"""Writes tiny random checkpoints of embedding models and rerankers, with the results of sentence-transformers.

    pip install sentence-transformers==6.2.0 gguf
    python3 reference.py data
    python3 rerankers.py data

The weights are random and the tokenizers are trained on the lines below, so that nothing is downloaded. Results are
computed on the CPU in f32. Vocabularies differ between runs, because ties are resolved by the order in a hash table.
"""
import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """The quick brown fox jumps over the lazy dog. A stitch in time saves nine.
All that glitters is not gold; many a man his life has sold. To be, or not to be: that is the question.
Paris is the capital of France, and Rome is the capital of Italy. Water boils at 100 degrees.
The cat sat on the mat while the dog slept by the door. Rivers run into the sea, yet the sea is never full.
She sells sea shells by the sea shore. How much wood would a woodchuck chuck if it could chuck wood?""".splitlines()

TEXTS = [
    "",
    "a",
    "The capital of France is Paris.",
    "The dog sleeps on the mat, doesn't it?",
    "Caf\u00e9 cr\u00e8me, na\u00efve fa\u00e7ade; \u6771\u4eac 2024 \u2014 unknown \U0001f600 signs",
    "  spaces \t and\nlines  ",
    "Rivers run into the sea. " * 5,
    "How much wood would a woodchuck chuck? " * 40,
]
QUERY = "What is the capital of France?"
WIDTH, LAYERS, HEADS, INNER, LIMIT = 32, 2, 4, 64, 64
SIZES = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER)
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=160, special_tokens=BERT_TOKENS))
    special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    # As BERT's own tokenizers, it distinguishes the segments of a pair.
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LIMIT, model_input_names=inputs, **names
    )


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=ROBERTA_TOKENS, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    special = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=special
    )
    names = dict(pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>", bos_token="<s>", eos_token="</s>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LIMIT, **names)


def byte_level():
    """Returns a tokenizer that appends the end-of-text token, like that of Qwen3-Embedding."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B:1 <|endoftext|>:1", special_tokens=[("<|endoftext|>", 0)]
    )
    names = dict(pad_token="<|endoftext|>", eos_token="<|endoftext|>", padding_side="left")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LIMIT, **names)


def marked_byte_level():
    """Returns a byte-level tokenizer that marks texts as BERT does, like that of ModernBERT."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=BERT_TOKENS, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    inputs = ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LIMIT, model_input_names=inputs, **names
    )


def randomized(model, seed):
    """Replaces all weights, so that layers and norms differ."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            values = torch.randn(weight.shape, generator=random)
            is_norm = weight.dim() == 1 and name.endswith("weight")
            scale = 0.2 if weight.dim() == 1 else 1.5 * weight.shape[-1] ** -0.5
            weight.copy_(values * scale + (1.0 if is_norm else 0.0))
    return model.eval()


def saved(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def results(model, texts):
    # One text at a time, because padding changes the order of sums.
    vectors = [model.encode(text, convert_to_numpy=True).tolist() for text in texts]
    tokens = [len(model.tokenizer(text)["input_ids"]) for text in texts]
    return {"texts": texts, "tokens": tokens, "vectors": [[round(v, 7) for v in vector] for vector in vectors]}


def sentence_model(folder, modules):
    """Adds modules to a model in `folder`, and writes the vectors of all texts."""
    base = Transformer(str(folder), max_seq_length=LIMIT)
    model = SentenceTransformer(modules=[base, *modules], device="cpu")
    model.save(str(folder), create_model_card=False)
    model = SentenceTransformer(str(folder), device="cpu")
    (folder / "expected.json").write_text(json.dumps(results(model, TEXTS)) + "\n")


def embedder(data, name, model, tokenizer, modules, seed):
    saved(randomized(model, seed), tokenizer, data / name)
    sentence_model(data / name, modules)


def reranker(data, name, model, tokenizer, activation, seed):
    folder = data / name
    saved(randomized(model, seed), tokenizer, folder)
    encoder = CrossEncoder(str(folder), device="cpu", activation_fn=activation, max_length=LIMIT)
    encoder.save_pretrained(str(folder), create_model_card=False)
    encoder = CrossEncoder(str(folder), device="cpu")
    scores = [float(encoder.predict((QUERY, text))) for text in TEXTS]
    (folder / "expected.json").write_text(json.dumps({"query": QUERY, "texts": TEXTS, "scores": scores}) + "\n")


def variant(data, base, name, modules):
    """Writes only the modules of a model that has the files of `base` otherwise."""
    whole, part = data / "whole", data / name
    shutil.copytree(data / base, whole, ignore=shutil.ignore_patterns("[1-9]_*", "modules.json"))
    sentence_model(whole, modules)
    part.mkdir()
    for path in [whole / "modules.json", whole / "expected.json", *whole.glob("[1-9]_*")]:
        shutil.move(path, part / path.name)
    shutil.rmtree(whole)


GGUF_PARTS = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}
GGUF_EMBEDDINGS = {
    "word_embeddings": "token_embd", "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types", "LayerNorm": "token_embd_norm",
}


def gguf_file(path, model, tokenizer, pooling, quantized):
    """Writes a BERT model as llama.cpp's converter does."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(LIMIT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(model.config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    # Words begin with a space instead of continuations with ##.
    plain = lambda token: token[2:] if token.startswith("##") else "\u2581" + token
    writer.add_tokenizer_model("bert")
    writer.add_token_list([token if token in BERT_TOKENS else plain(token) for token in tokens])
    writer.add_token_types([3 if token in BERT_TOKENS else 1 for token in tokens])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(tokenizer.cls_token_id)
    writer.add_eos_token_id(tokenizer.sep_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    writer.add_sep_token_id(tokenizer.sep_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_mask_token_id(tokenizer.mask_token_id)
    for name, weight in model.state_dict().items():
        part, kind = name.rsplit(".", 1)
        part = part.removeprefix("bert.")
        if part.startswith("embeddings."):
            name = GGUF_EMBEDDINGS.get(part.removeprefix("embeddings."))
        elif part.startswith("encoder.layer."):
            layer, part = part.removeprefix("encoder.layer.").split(".", 1)
            name = f"blk.{layer}.{GGUF_PARTS[part]}"
        else:
            continue
        if name is None:
            continue
        values = weight.numpy().astype(np.float32)
        if quantized and values.ndim == 2 and name.startswith("blk."):
            blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"{name}.{kind}", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(f"{name}.{kind}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


MODERN_PARTS = {
    "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm", "final_norm": "output_norm",
    "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down", "head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output",
}


def modern_file(path, model, tokenizer, pooling):
    """Writes a ModernBERT model as llama.cpp's converter does."""
    config = model.config
    writer = gguf.GGUFWriter(path, "modern-bert")
    writer.add_context_length(LIMIT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    writer.add_sliding_window(config.local_attention)
    writer.add_sliding_window_pattern(3)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    content = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("modern-bert")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in BERT_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in content["merges"]])
    writer.add_bos_token_id(tokenizer.cls_token_id)
    writer.add_eos_token_id(tokenizer.sep_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    writer.add_sep_token_id(tokenizer.sep_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_mask_token_id(tokenizer.mask_token_id)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_sep_token(True)
    for name, weight in model.state_dict().items():
        part, kind = name.removeprefix("model.").rsplit(".", 1)
        layer = ""
        if part.startswith("layers."):
            _, layer, part = part.split(".", 2)
            layer = f"blk.{layer}."
        writer.add_tensor(f"{layer}{MODERN_PARTS[part]}.{kind}", weight.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def modern(data):
    """Writes ModernBERT: an embedding model, and rerankers with both poolings."""
    torch.manual_seed(1)
    tokenizer = marked_byte_level()
    ids = dict(
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
        cls_token_id=tokenizer.cls_token_id, sep_token_id=tokenizer.sep_token_id,
    )
    sizes = dict(vocab_size=len(tokenizer), max_position_embeddings=LIMIT, **{**SIZES, "num_hidden_layers": 4})
    config = transformers.ModernBertConfig(
        local_attention=16, rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 16e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}, **sizes, **ids
    )
    model = transformers.ModernBertModel(config)
    embedder(data, "modernbert", model, tokenizer, [Pooling(WIDTH, "cls"), Normalize()], 7)
    modern_file(data / "modernbert.gguf", model, tokenizer, gguf.PoolingType.CLS)
    # The fields of published checkpoints, which name neither the kinds of layers nor their rotary parameters.
    path = data / "modernbert/config.json"
    old = json.loads(path.read_text())
    bases = [old["rope_parameters"][kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")]
    own = dict(global_attn_every_n_layers=3, global_rope_theta=bases[0], local_rope_theta=bases[1])
    kept = {key: value for key, value in old.items() if key not in ("layer_types", "rope_parameters")}
    path.write_text(json.dumps({**kept, **own}, indent=2) + "\n")

    biases = dict(norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True)
    for name, pooling, options, seed in [
        ("modernbert-reranker", "mean", {}, 8), ("modernbert-cls-reranker", "cls", biases, 9)
    ]:
        own = {**config.to_dict(), **options, "num_labels": 1, "classifier_pooling": pooling}
        model = transformers.ModernBertForSequenceClassification(transformers.ModernBertConfig(**own))
        reranker(data, name, model, tokenizer, torch.nn.Identity(), seed)
        if not options:
            modern_file(data / f"{name}.gguf", model, tokenizer, gguf.PoolingType.RANK)


def main(data):
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    torch.manual_seed(1)
    words, pieces, bytes_ = word_piece(), unigram(), byte_level()

    bert = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=LIMIT, **SIZES)
    model = transformers.BertModel(bert, add_pooling_layer=False)
    embedder(data, "bert", model, words, [Pooling(WIDTH, "mean"), Normalize()], 1)
    gguf_file(data / "bert.gguf", model, words, gguf.PoolingType.MEAN, quantized=False)
    gguf_file(data / "bert-cls-q8_0.gguf", model, words, gguf.PoolingType.CLS, quantized=True)
    variant(data, "bert", "bert-cls", [Pooling(WIDTH, "cls")])
    modes = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    variant(data, "bert", "bert-modes", [Pooling(WIDTH, modes), Dense(6 * WIDTH, 24), Normalize()])

    roberta = transformers.XLMRobertaConfig(
        vocab_size=len(pieces), max_position_embeddings=LIMIT + 2, type_vocab_size=1, pad_token_id=1, **SIZES
    )
    model = transformers.XLMRobertaModel(roberta, add_pooling_layer=False)
    embedder(data, "xlm-roberta", model, pieces, [Pooling(WIDTH, "cls"), Normalize()], 2)

    qwen3 = transformers.Qwen3Config(
        vocab_size=len(bytes_), max_position_embeddings=256, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, **SIZES
    )
    model = transformers.Qwen3Model(qwen3)
    embedder(data, "qwen3", model, bytes_, [Pooling(WIDTH, "lasttoken"), Normalize()], 3)

    gemma3 = transformers.Gemma3TextConfig(
        vocab_size=len(bytes_), max_position_embeddings=256, num_key_value_heads=2, head_dim=16,
        query_pre_attn_scalar=16, sliding_window=16, use_bidirectional_attention=True, pad_token_id=0,
        bos_token_id=0, eos_token_id=0, layer_types=["sliding_attention", "full_attention"], **SIZES
    )
    model = transformers.Gemma3TextModel(gemma3)
    dense = [Dense(WIDTH, 48, bias=False, activation_function=None), Dense(48, WIDTH, bias=False, activation_function=None)]
    embedder(data, "gemma3", model, bytes_, [Pooling(WIDTH, "mean"), *dense, Normalize()], 4)

    bert = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=LIMIT, num_labels=1, **SIZES)
    model = transformers.BertForSequenceClassification(bert)
    reranker(data, "bert-reranker", model, words, torch.nn.Identity(), 5)
    roberta = transformers.XLMRobertaConfig(**{**roberta.to_dict(), "num_labels": 1})
    model = transformers.XLMRobertaForSequenceClassification(roberta)
    reranker(data, "xlm-roberta-reranker", model, pieces, torch.nn.Sigmoid(), 6)
    modern(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
