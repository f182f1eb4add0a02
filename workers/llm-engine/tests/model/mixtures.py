"""Writes tiny random mixtures of experts, with the logits of transformers.

    pip install transformers==4.51.3 torch
    python3 mixtures.py data

Logits are computed on the CPU in f32. Weights are exact in f16, so that the checkpoints are small and the same for all data
types.
"""
import itertools
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY, SHARED, LENGTHS = 48, 16, [40, 30, 40]
# Least distance of the scores of a chosen and another expert.
GAP = 0.015
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=128,
    tie_word_embeddings=False,
    attn_implementation="eager",
)
SMALL = dict(SIZES, moe_intermediate_size=32, num_experts=6, num_experts_per_tok=2)
LAYERS = dict(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3])
MODELS = {
    "mixtral": (MixtralForCausalLM, MixtralConfig(**SIZES, num_local_experts=5, sliding_window=None)),
    "mixtral-window": (MixtralForCausalLM, MixtralConfig(**SIZES, num_local_experts=4, sliding_window=6)),
    "qwen2-moe": (Qwen2MoeForCausalLM, Qwen2MoeConfig(**SMALL, shared_expert_intermediate_size=64)),
    "qwen2-moe-dense-layers": (
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig(**{**SMALL, **LAYERS}, shared_expert_intermediate_size=64, norm_topk_prob=True),
    ),
    "qwen3-moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**{**SMALL, "num_experts_per_tok": 3, "head_dim": 32}, norm_topk_prob=True),
    ),
    "qwen3-moe-dense-layers": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**{**SMALL, **LAYERS, "head_dim": 32})),
}


def randomized(model, random):
    """Replaces all weights by multiples of 1/512, which are exact in f16."""
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            values = torch.randn(weight.shape, generator=random)
            is_norm = weight.dim() == 1 and name.endswith("weight")
            scale = 0.2 if weight.dim() == 1 else 1.5 * weight.shape[-1] ** -0.5
            values = values * scale + (1.0 if is_norm else 0.0)
            weight.copy_((values * 512).round() / 512)
    return model.eval()


def gap(model, text):
    """Returns the least distance of the scores of a chosen and another expert, and the logits."""
    with torch.no_grad():
        out = model.model(text[None], output_router_logits=True)
        logits = model.lm_head(out.last_hidden_state)[0].contiguous()
    used, least = model.config.num_experts_per_tok, float("inf")
    for scores in out.router_logits:
        if isinstance(scores, torch.Tensor) and scores.shape[-1] > used:
            ordered = scores.sort(descending=True).values
            least = min(least, (ordered[:, used - 1] - ordered[:, used]).min().item())
    return least, logits


def texts(random):
    """Returns the tokens of the texts, of which the third begins like the first."""
    tokens = [torch.randint(VOCABULARY, (length,), generator=random) for length in LENGTHS]
    tokens[2][:SHARED] = tokens[0][:SHARED]
    return tokens


def logits_of(model, tokens, gaps):
    """Returns the tokens and logits of texts, or nothing if one of the gaps that the model's hooks collect is too small."""
    expected = {}
    for index, text in enumerate(tokens):
        with torch.no_grad():
            expected[f"logits.{index}"] = model(text[None]).logits[0].contiguous()
        expected[f"tokens.{index}"] = text
        if min(gaps) < GAP:
            return None
    return expected


def save(folder, model, expected):
    """Writes the weights in f16, and what is expected of them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file(expected, folder / "expected.st")


def write_all(models, write):
    """Writes the models that the command line names, or all, each with the first seed for which `write` succeeds."""
    print("transformers", transformers.__version__, "torch", torch.__version__)
    for name in sys.argv[2:] or models:
        folder = Path(sys.argv[1]) / name
        seed = next(seed for seed in itertools.count() if write(folder, *models[name], seed))
        print(name, "seed", seed)


def write(folder, model, config, seed):
    """Writes a checkpoint, and returns false if rounding to f16 might choose another expert."""
    random = torch.Generator().manual_seed(seed)
    model = randomized(model(config), random)
    tokens = texts(random)
    expected = {}
    for index, text in enumerate(tokens):
        least, expected[f"logits.{index}"] = gap(model, text)
        if least < GAP:
            return False
        expected[f"tokens.{index}"] = text
    save(folder, model, expected)
    return True


if __name__ == "__main__":
    write_all(MODELS, write)
