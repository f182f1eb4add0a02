"""Writes tiny random models of Gemma 3n and Gemma 4, with the logits and the mean states of transformers.

    pip install transformers==5.24.0 torch
    python3 layered.py data [NAME ...]

Logits are computed on the CPU in f32. Weights are exact in f16. The layers of these models differ: in the heads of layers with
and without a window, in the caches that the last layers share, and in inputs of their own.
"""
import json

import torch
from mixtures import VOCABULARY, logits_of, randomized, save, texts, write_all
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig, Gemma4ForCausalLM, Gemma4TextConfig

PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    sliding_window=6,
    max_position_embeddings=128,
    attn_implementation="eager",
)
GEMMA4 = dict(SIZES, global_head_dim=32, final_logit_softcapping=8.0)
MODELS = {
    # Tokens from 40 on have no row of their own in the table of inputs.
    "gemma3n": (
        Gemma3nForCausalLM,
        Gemma3nTextConfig(
            **SIZES,
            num_hidden_layers=6,
            layer_types=PATTERN * 2,
            hidden_size_per_layer_input=32,
            vocab_size_per_layer_input=40,
            num_kv_shared_layers=3,
            altup_num_inputs=3,
            laurel_rank=32,
            activation_sparsity_pattern=[0.8, 0.3] + [0.0] * 4,
            final_logit_softcapping=8.0,
        ),
    ),
    # Like E2B and E4B: inputs of each layer, and last layers that share a cache and are wider.
    "gemma4-small": (
        Gemma4ForCausalLM,
        Gemma4TextConfig(
            **GEMMA4,
            num_hidden_layers=6,
            layer_types=PATTERN * 2,
            hidden_size_per_layer_input=32,
            vocab_size_per_layer_input=VOCABULARY,
            num_kv_shared_layers=3,
            use_double_wide_mlp=True,
        ),
    ),
    # Like 31B: fewer heads of keys, which are also the values, in layers without a window.
    "gemma4": (
        Gemma4ForCausalLM,
        Gemma4TextConfig(
            **GEMMA4,
            num_hidden_layers=3,
            layer_types=PATTERN,
            hidden_size_per_layer_input=0,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
        ),
    ),
    # Like 26B-A4B.
    "gemma4-moe": (
        Gemma4ForCausalLM,
        Gemma4TextConfig(
            **GEMMA4,
            num_hidden_layers=2,
            layer_types=PATTERN[1:],
            hidden_size_per_layer_input=0,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            enable_moe_block=True,
            num_experts=6,
            top_k_experts=2,
            moe_intermediate_size=32,
        ),
    ),
}


def note_gaps(model, used, gaps):
    """Collects the least distances of the scores of a chosen and another expert."""

    def note(module, inputs, output):
        ordered = output.flatten(0, -2).sort(descending=True).values
        gaps.append((ordered[:, used - 1] - ordered[:, used]).min().item())

    for name, module in model.named_modules():
        if name.endswith("router.proj"):
            module.register_forward_hook(note)


def write(folder, model, config, seed):
    """Writes a checkpoint, and returns false if rounding to f16 might choose another expert."""
    random = torch.Generator().manual_seed(seed)
    model = randomized(model(config), random)
    with torch.no_grad():
        for name, scale in model.named_buffers():
            if name.endswith("layer_scalar"):
                scale.copy_(((torch.rand(1, generator=random) + 0.5) * 64).round() / 64)
        for name, weight in model.named_parameters():
            # These are factors, too. Those of the router outweigh a division by the root of the hidden size.
            if name.endswith(("per_expert_scale", "correct_output_scale")):
                weight.add_(1.0)
            if name.endswith("router.scale"):
                weight.copy_((weight + 24.0).half())
    gaps = [float("inf")]
    note_gaps(model, getattr(config, "top_k_experts", None), gaps)
    tokens = texts(random)
    expected = logits_of(model, tokens, gaps)
    if expected is None:
        return False
    with torch.no_grad():
        means = [model.model(text[None]).last_hidden_state[0].mean(0) for text in tokens]
    expected["means"] = torch.stack(means)
    save(folder, model, expected)
    publish(folder / "config.json")
    return True


def publish(path):
    """Writes the sizes of layers without a window as published files have them."""
    config = json.loads(path.read_text())
    layers = config.pop("per_layer_config", None)
    if layers:
        own = next(iter(layers.values()))
        config["global_head_dim"] = own["head_dim"]
        config["num_global_key_value_heads"] = own.get("num_key_value_heads")
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_all(MODELS, write)
