"""Writes tiny random models with recurrent states in most layers, with the logits of transformers.

    pip install transformers==5.24.0 torch
    python3 hybrids.py data [NAME ...]

Logits are computed on the CPU in f32. Weights are exact in f16.
"""
import itertools

import torch
from mixtures import SIZES, logits_of, randomized, save, texts, write_all
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
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
# All of Granite's multipliers differ from 1.
GRANITE = dict(
    SIZES,
    num_hidden_layers=4,
    attention_multiplier=0.2,
    embedding_multiplier=5.0,
    logits_scaling=3.0,
    residual_multiplier=0.3,
    shared_intermediate_size=64,
    mamba_n_heads=4,
    mamba_d_state=16,
    mamba_d_head=16,
    layer_types=["mamba", "attention", "mamba", "mamba"],
)
# Mamba 1 has a state for each channel, of which this has 64.
JAMBA = dict(
    SIZES,
    num_hidden_layers=4,
    attn_layer_period=3,
    attn_layer_offset=1,
    mamba_d_state=16,
)
MAMBA_HEADS = dict(mamba_n_heads=4, mamba_d_state=16, mamba_d_head=16)
# All multipliers differ from 1.
FALCON = dict(
    SIZES,
    **MAMBA_HEADS,
    mamba_d_ssm=64,
    head_dim=32,
    embedding_multiplier=5.0,
    lm_head_multiplier=0.4,
    key_multiplier=0.7,
    attention_in_multiplier=1.2,
    attention_out_multiplier=0.8,
    ssm_in_multiplier=1.3,
    ssm_out_multiplier=0.6,
    mlp_multipliers=[1.4, 0.9],
    ssm_multipliers=[0.9, 1.1, 0.7, 1.3, 1.5],
)
NEMOTRON = dict(
    {key: value for key, value in SIZES.items() if key != "num_hidden_layers"},
    head_dim=32,
    ssm_state_size=16,
    mamba_num_heads=4,
    mamba_head_dim=24,
    # Without its custom kernels, transformers has this minimum of steps, which the kernels do not have.
    time_step_min=1e-9,
)
NEMOTRON_EXPERTS = dict(
    NEMOTRON,
    n_groups=1,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    moe_shared_expert_intermediate_size=64,
)
MODELS = {
    "jamba": (JambaForCausalLM, JambaConfig(**JAMBA, num_experts=1, num_experts_per_tok=1)),
    "jamba-moe": (
        JambaForCausalLM,
        JambaConfig(
            **JAMBA,
            num_experts=4,
            num_experts_per_tok=2,
            mamba_dt_rank=8,
            mamba_conv_bias=False,
            mamba_proj_bias=True,
        ),
    ),
    "falcon-h1": (FalconH1ForCausalLM, FalconH1Config(**FALCON)),
    # The norm follows the gates, and precedes them in the other one.
    "falcon-h1-norm": (
        FalconH1ForCausalLM,
        FalconH1Config(**FALCON, mamba_n_groups=2, mamba_rms_norm=True, mamba_norm_before_gate=False),
    ),
    "falcon-h1-norm-first": (
        FalconH1ForCausalLM,
        FalconH1Config(**FALCON, mamba_rms_norm=True, time_step_limit=(0.3, 1.5)),
    ),
    "bamba": (
        BambaForCausalLM,
        BambaConfig(
            **{**SIZES, "num_hidden_layers": 4}, **MAMBA_HEADS, head_dim=32, attn_layer_indices=[1]
        ),
    ),
    # A group of heads has the norm in the output projection; several have it before.
    "granite4": (
        GraniteMoeHybridForCausalLM,
        GraniteMoeHybridConfig(**GRANITE, num_local_experts=0, num_experts_per_tok=0),
    ),
    "granite4-moe": (
        GraniteMoeHybridForCausalLM,
        GraniteMoeHybridConfig(
            **{**GRANITE, "num_hidden_layers": 3, "layer_types": ["attention", "mamba", "mamba"]},
            num_local_experts=5,
            num_experts_per_tok=2,
            mamba_n_groups=2,
            mamba_conv_bias=False,
            mamba_proj_bias=True,
            time_step_limit=(0.3, 1.5),
            position_embedding_type="rope",
        ),
    ),
    # The last layer has no attention, and the one before it is a network only.
    "nemotron-h": (
        NemotronHForCausalLM,
        NemotronHConfig(
            **NEMOTRON,
            layers_block_type=["mamba", "mlp", "mamba", "attention", "mlp", "mamba"],
            n_groups=2,
        ),
    ),
    "nemotron-h-moe": (
        NemotronHForCausalLM,
        NemotronHConfig(
            **NEMOTRON_EXPERTS,
            layers_block_type=["mamba", "moe", "attention", "moe"],
            routed_scaling_factor=2.5,
        ),
    ),
    "nemotron-h-latent": (
        NemotronHForCausalLM,
        NemotronHConfig(
            **NEMOTRON_EXPERTS,
            layers_block_type=["mamba", "attention", "moe"],
            moe_latent_size=16,
        ),
    ),
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
        if hasattr(module, "e_score_correction_bias"):
            # Differences of scores are at most a quarter of those of their sigmoids.
            scores = 4 * (scores.sigmoid() + module.e_score_correction_bias)
        ordered, used = scores.sort(descending=True).values, config.num_experts_per_tok
        gaps.append((ordered[:, used - 1] - ordered[:, used]).min().item())

    for name, module in model.named_modules():
        if name.endswith(("mlp.gate", "mixer.gate", "block_sparse_moe.router", "feed_forward.router")):
            module.register_forward_hook(note_gap)
    for name, values in itertools.chain(model.named_parameters(), model.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            values.data = (torch.randn(values.shape, generator=random) * 128).round() / 512
        elif name.endswith(".D"):
            values.data += 1
        elif name.endswith("A_log"):
            # States that last for the whole text, and states that last for a few tokens, exact in f16.
            rates = ((torch.randn(values.shape, generator=random) - 2) * 512).round() / 512
            values.data = rates.clamp(-4, 4)
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
