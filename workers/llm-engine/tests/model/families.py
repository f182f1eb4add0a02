"""Writes tiny random models of more families, with the logits of transformers.

    pip install transformers==4.57.6 torch gguf
    python3 families.py data [NAME ...]

Logits are computed on the CPU in f32. Weights are exact in f16.
"""
import itertools

import gpt_oss
import torch
from mixtures import SIZES, logits_of, randomized, save, texts, write_all
from transformers import (
    ArceeConfig,
    ArceeForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

# Published files of these families have one table for embeddings and logits.
TIED = dict(SIZES, tie_word_embeddings=True)
FOUR_LAYERS = dict(num_hidden_layers=4, sliding_window=6)
FULL = ["full_attention"] * 2
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
# Other fields have other names in Falcon.
COMMON = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "attn_implementation")
FALCON = dict({key: SIZES[key] for key in COMMON}, num_attention_heads=4, bos_token_id=0, eos_token_id=0)
GROUPED = dict(FALCON, new_decoder_architecture=True, num_kv_heads=2)
EXPERTS = dict(SIZES, num_local_experts=6, num_experts_per_tok=2)
LATENT = dict(
    SIZES,
    num_hidden_layers=3,
    num_key_value_heads=2,
    kv_lora_rank=32,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    moe_intermediate_size=32,
    n_shared_experts=2,
    first_k_dense_replace=1,
    routed_scaling_factor=1.5,
    pad_token_id=0,
)
LITE = dict(q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=3)
GROUPS = dict(n_routed_experts=6, num_experts_per_tok=2, n_group=2, topk_group=1)
PAIRS = dict(n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2)
DEEPSEEK_YARN = dict(
    type="yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0
)
MODELS = {
    "granite": (GraniteForCausalLM, GraniteConfig(**SIZES, **MULTIPLIERS)),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**SIZES)),
    "olmo3": (Olmo3ForCausalLM, Olmo3Config(**{**SIZES, **FOUR_LAYERS}, rope_scaling=YARN)),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config(**{**TIED, "num_hidden_layers": 4, "pad_token_id": 0})),
    "glm4": (Glm4ForCausalLM, Glm4Config(**SIZES, head_dim=16, pad_token_id=0)),
    "starcoder2": (Starcoder2ForCausalLM, Starcoder2Config(**TIED)),
    "command-r": (CohereForCausalLM, CohereConfig(**TIED, logit_scale=0.5)),
    "command-r7b": (Cohere2ForCausalLM, Cohere2Config(**{**TIED, **FOUR_LAYERS}, logit_scale=0.5)),
    "seed-oss": (SeedOssForCausalLM, SeedOssConfig(**SIZES, head_dim=32)),
    "exaone4": (Exaone4ForCausalLM, Exaone4Config(**{**SIZES, **FOUR_LAYERS})),
    "exaone4-no-window": (Exaone4ForCausalLM, Exaone4Config(**SIZES, sliding_window=None, layer_types=FULL)),
    "ernie4.5": (Ernie4_5ForCausalLM, Ernie4_5Config(**TIED, head_dim=16)),
    "ernie4.5-moe": (
        Ernie4_5_MoeForCausalLM,
        Ernie4_5_MoeConfig(
            **TIED,
            moe_num_experts=6,
            moe_k=3,
            moe_intermediate_size=32,
            moe_layer_start_index=1,
        ),
    ),
    "arcee": (ArceeForCausalLM, ArceeConfig(**SIZES)),
    "falcon": (FalconForCausalLM, FalconConfig(**FALCON)),
    "falcon-two-norms": (FalconForCausalLM, FalconConfig(**GROUPED)),
    "falcon-one-norm": (
        FalconForCausalLM,
        FalconConfig(**GROUPED, num_ln_in_parallel_attn=1, ffn_hidden_size=96, tie_word_embeddings=False),
    ),
    "falcon-sequential": (
        FalconForCausalLM,
        FalconConfig(**FALCON, parallel_attn=False, multi_query=False, bias=True),
    ),
    "nemotron": (NemotronForCausalLM, NemotronConfig(**SIZES, head_dim=32)),
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
    "deepseek-v2": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config(**LATENT, **GROUPS, q_lora_rank=64, topk_method="group_limited_greedy"),
    ),
    "deepseek-v2-lite": (DeepseekV2ForCausalLM, DeepseekV2Config(**LATENT, **LITE)),
    "deepseek-v3": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config(**LATENT, **PAIRS, q_lora_rank=64, rope_scaling=DEEPSEEK_YARN),
    ),
    "glm4-moe": (
        Glm4MoeForCausalLM,
        Glm4MoeConfig(
            **SIZES,
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            attention_bias=True,
            use_qk_norm=True,
            routed_scaling_factor=1.5,
            pad_token_id=0,
        ),
    ),
    "gpt-oss": (
        GptOssForCausalLM,
        GptOssConfig(
            **EXPERTS, head_dim=16, sliding_window=6, rope_scaling=UNTRUNCATED, pad_token_id=0
        ),
    ),
}
# Ends of the names of modules whose output are the scores of experts.
ROUTERS = ("mlp.gate", "mlp.moe_statics", "block_sparse_moe.gate", "router.layer", "mlp.router")


def least_gap(scores, used):
    """Returns the least distance of the scores of a chosen and another expert or group."""
    ordered = scores.sort(descending=True).values
    return (ordered[:, used - 1] - ordered[:, used]).min().item()


def gaps_of(module, inputs, output, config):
    """Returns the least distances of scores in a router."""
    used = config.num_experts_per_tok
    if hasattr(module, "e_score_correction_bias") and not hasattr(module, "weight"):
        # Corrected probabilities. A softmax is at most a quarter as steep.
        return [least_gap(4 * output, used)]
    if not isinstance(output, tuple):
        return [least_gap(output, used)]
    bias = getattr(module, "bias", None)
    scores = torch.nn.functional.linear(inputs[0].flatten(0, -2), module.weight, bias)
    is_corrected = hasattr(module, "e_score_correction_bias")
    if is_corrected:
        # A sigmoid is at most a quarter as steep.
        scores = 4 * (scores.sigmoid() + module.e_score_correction_bias)
    groups = getattr(config, "n_group", None) or 1
    if groups == 1:
        return [least_gap(scores, used)]
    of_groups = scores.unflatten(-1, (groups, -1)).topk(2 if is_corrected else 1).values.sum(-1)
    chosen = of_groups >= of_groups.topk(config.topk_group).values[:, -1:]
    scores = scores.masked_fill(~chosen.repeat_interleave(scores.shape[-1] // groups, -1), -1e9)
    return [least_gap(of_groups, config.topk_group), least_gap(scores, used)]


def write(folder, model, config, seed):
    """Writes a checkpoint, and returns false if rounding to f16 might choose another expert."""
    random = torch.Generator().manual_seed(seed)
    model = randomized(model(config), random)
    for name, correction in itertools.chain(model.named_buffers(), model.named_parameters()):
        if name.endswith("e_score_correction_bias"):
            correction.copy_((torch.randn(correction.shape, generator=random) * 128).round() / 512)
    if config.model_type == "gpt_oss":
        gpt_oss.round_experts(model)
    gaps = [float("inf")]

    def note_gap(module, inputs, output):
        gaps.extend(gaps_of(module, inputs, output, config))

    for name, module in model.named_modules():
        if name.endswith(ROUTERS):
            module.register_forward_hook(note_gap)
    expected = logits_of(model, texts(random), gaps)
    if expected is None:
        return False
    save(folder, model, expected)
    if config.model_type == "gpt_oss":
        gpt_oss.write_mxfp4(folder.with_name(folder.name + "-mxfp4"), model, config)
    return True


if __name__ == "__main__":
    write_all(MODELS, write)
