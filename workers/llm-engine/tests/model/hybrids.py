"""Writes tiny random models with linear attention in most layers, with the logits of transformers.

    pip install transformers==5.24.0 torch
    python3 hybrids.py data [NAME ...]

Logits are computed on the CPU in f32. Weights are exact in f16.
"""
import torch
from mixtures import SIZES, logits_of, randomized, save, texts, write_all
from transformers import (
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

HYBRID = dict(
    SIZES,
    num_hidden_layers=4,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
)
EXPERTS = dict(
    moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=6, num_experts_per_tok=3
)
SECTIONS = dict(mrope_interleaved=True, mrope_section=[2, 1, 1], rope_type="default", rope_theta=1e4)
MROPE = dict(SECTIONS, partial_rotary_factor=0.25)
MODELS = {
    # The first layer has attention, and the last one none.
    "qwen3-next": (
        Qwen3NextForCausalLM,
        Qwen3NextConfig(
            **HYBRID,
            **EXPERTS,
            mlp_only_layers=[1],
            layer_types=["full_attention", *["linear_attention"] * 3],
        ),
    ),
    "qwen3.5": (
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig(**{**HYBRID, "tie_word_embeddings": True}, rope_parameters=MROPE),
    ),
    "qwen3.5-moe": (
        Qwen3_5MoeForCausalLM,
        Qwen3_5MoeTextConfig(
            **{key: value for key, value in HYBRID.items() if key != "intermediate_size"},
            **EXPERTS,
            rope_parameters=MROPE,
        ),
    ),
}


def write(folder, model, config, seed):
    """Writes a checkpoint, and returns false if rounding to f16 might choose another expert."""
    random = torch.Generator().manual_seed(seed)
    model = randomized(model(config), random)
    gaps = [float("inf")]

    def note_gap(module, inputs, output):
        scores = torch.nn.functional.linear(inputs[0].flatten(0, -2), module.weight)
        ordered, used = scores.sort(descending=True).values, config.num_experts_per_tok
        gaps.append((ordered[:, used - 1] - ordered[:, used]).min().item())

    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(note_gap)
    for name, values in model.named_parameters():
        if name.endswith("A_log"):
            # States that last for the whole text, and states that last for a few tokens.
            values.data = ((torch.randn(values.shape, generator=random) - 2) * 512).round() / 512
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            # These norms multiply by 1 + weight. Larger queries and keys increase the differences between data types.
            values.data -= 1
    expected = logits_of(model, texts(random), gaps)
    if expected is None:
        return False
    save(folder, model, expected)
    return True


if __name__ == "__main__":
    write_all(MODELS, write)
