"""Writes tiny random models of more families, with the logits of transformers.

    pip install transformers==4.57.6 torch gguf
    python3 families.py data [NAME ...]

Logits are computed on the CPU in f32. Weights are exact in f16.
"""
import itertools
import sys
from pathlib import Path

import gpt_oss
import torch
import transformers
from mixtures import GAP, LENGTHS, SHARED, SIZES, VOCABULARY, randomized
from safetensors.torch import save_file
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

# Published files of these families have one table for embeddings and logits.
TIED = dict(SIZES, tie_word_embeddings=True)
FOUR_LAYERS = dict(num_hidden_layers=4, sliding_window=6)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.2)
UNTRUNCATED = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, truncate=False)
MULTIPLIERS = dict(
    embedding_multiplier=5.0, residual_multiplier=0.3, attention_multiplier=0.2, logits_scaling=3.0
)
LONGROPE = dict(
    type="longrope",
    short_factor=[1.0 + 0.1 * pair for pair in range(8)],
    long_factor=[2.0 + pair for pair in range(8)],
    short_mscale=1.2,
    long_mscale=1.3,
    original_max_position_embeddings=128,
)
EXPERTS = dict(SIZES, num_local_experts=6, num_experts_per_tok=2)
MODELS = {
    "granite": (GraniteForCausalLM, GraniteConfig(**SIZES, **MULTIPLIERS)),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**SIZES)),
    "olmo3": (Olmo3ForCausalLM, Olmo3Config(**{**SIZES, **FOUR_LAYERS}, rope_scaling=YARN)),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config(**{**TIED, "num_hidden_layers": 4, "pad_token_id": 0})),
    "glm4": (Glm4ForCausalLM, Glm4Config(**SIZES, head_dim=16, pad_token_id=0)),
    "starcoder2": (Starcoder2ForCausalLM, Starcoder2Config(**TIED)),
    "command-r": (CohereForCausalLM, CohereConfig(**TIED, logit_scale=0.5)),
    "command-r7b": (Cohere2ForCausalLM, Cohere2Config(**{**TIED, **FOUR_LAYERS}, logit_scale=0.5)),
    "olmoe": (OlmoeForCausalLM, OlmoeConfig(**SIZES, num_experts=6, num_experts_per_tok=3)),
    "granite-moe": (GraniteMoeForCausalLM, GraniteMoeConfig(**EXPERTS, **MULTIPLIERS)),
    "granite-moe-shared": (
        GraniteMoeSharedForCausalLM,
        GraniteMoeSharedConfig(**EXPERTS, **MULTIPLIERS, shared_intermediate_size=64),
    ),
    "phimoe": (
        PhimoeForCausalLM,
        PhimoeConfig(**EXPERTS, attention_bias=True, lm_head_bias=True, rope_scaling=LONGROPE),
    ),
    "gpt-oss": (
        GptOssForCausalLM,
        GptOssConfig(
            **EXPERTS, head_dim=16, sliding_window=6, rope_scaling=UNTRUNCATED, pad_token_id=0
        ),
    ),
}
# Ends of the names of modules whose output are the scores of experts.
ROUTERS = ("mlp.gate", "block_sparse_moe.gate", "router.layer", "mlp.router")


def write(folder, model, config, seed):
    """Writes a checkpoint, and returns false if rounding to f16 might choose another expert."""
    random = torch.Generator().manual_seed(seed)
    model = randomized(model(config), random)
    if config.model_type == "gpt_oss":
        gpt_oss.round_experts(model)
    gaps = [float("inf")]

    def note_gap(module, inputs, scores):
        if isinstance(scores, tuple):
            scores = torch.nn.functional.linear(inputs[0].flatten(0, -2), module.weight, module.bias)
        ordered = scores.sort(descending=True).values
        used = config.num_experts_per_tok
        gaps.append((ordered[:, used - 1] - ordered[:, used]).min().item())

    for name, module in model.named_modules():
        if name.endswith(ROUTERS):
            module.register_forward_hook(note_gap)
    tokens = [torch.randint(VOCABULARY, (length,), generator=random) for length in LENGTHS]
    # The third text begins like the first.
    tokens[2][:SHARED] = tokens[0][:SHARED]
    expected = {}
    for index, text in enumerate(tokens):
        with torch.no_grad():
            expected[f"logits.{index}"] = model(text[None]).logits[0].contiguous()
        expected[f"tokens.{index}"] = text
        if min(gaps) < GAP:
            return False
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file(expected, folder / "expected.st")
    if config.model_type == "gpt_oss":
        gpt_oss.write_mxfp4(folder.with_name(folder.name + "-mxfp4"), model, config)
    return True


if __name__ == "__main__":
    print("transformers", transformers.__version__, "torch", torch.__version__)
    for name in sys.argv[2:] or MODELS:
        folder = Path(sys.argv[1]) / name
        seed = next(seed for seed in itertools.count() if write(folder, *MODELS[name], seed))
        print(name, "seed", seed)
