"""Experts of gpt-oss in MXFP4, for `families.py`: in safetensors, and in a GGUF file with the names of llama.cpp."""
import json

import gguf
import numpy
import torch
from safetensors.torch import save_file

# Magnitudes by the three low bits of a number. The fourth bit is the sign.
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
EXPERTS = ("gate_up_proj", "down_proj")


def encode(matrices):
    """Returns the scales and numbers of matrices (.., out, in) in blocks of 32, and the values that they stand for."""
    blocks = matrices.unflatten(-1, (-1, 32))
    exponents = blocks.abs().amax(-1, keepdim=True).log2().floor() - 2
    scaled = blocks / exponents.exp2()
    numbers = (scaled.abs()[..., None] - MAGNITUDES).abs().argmin(-1)
    values = MAGNITUDES[numbers] * scaled.sign() * exponents.exp2()
    numbers = (numbers + 8 * (scaled < 0)).to(torch.uint8)
    return (exponents[..., 0] + 127).to(torch.uint8), numbers, values.flatten(-2)


def of_experts(model):
    """Returns the names and parameters of the experts' matrices."""
    return [(name, weight) for name, weight in model.named_parameters() if name.endswith(EXPERTS)]


def round_experts(model):
    """Rounds the experts' matrices to MXFP4."""
    with torch.no_grad():
        for _, weight in of_experts(model):
            weight.copy_(encode(weight.transpose(1, 2))[2].transpose(1, 2))


def pack(first, second):
    """Packs pairs of numbers into bytes."""
    return first | second << 4


def write_mxfp4(folder, model, config):
    """Writes the model with experts in MXFP4."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    writer = gguf.GGUFWriter(folder / "model.gguf", "gpt-oss")
    stacks = {}
    for name, weight in of_experts(model):
        scales, numbers, _ = encode(weight.float().transpose(1, 2))
        del tensors[name]
        tensors[f"{name}_scales"] = scales
        tensors[f"{name}_blocks"] = pack(numbers[..., ::2], numbers[..., 1::2])
        blocks = torch.cat([scales[..., None], pack(numbers[..., :16], numbers[..., 16:])], -1)
        prefix = name.rsplit(".", 1)[0]
        if name.endswith("down_proj"):
            stacks[f"{prefix}.down_proj"] = blocks
        else:
            stacks |= {f"{prefix}.gate_proj": blocks[:, ::2], f"{prefix}.up_proj": blocks[:, 1::2]}
    save_file(tensors, folder / "model.safetensors")
    values = {**json.loads(config.to_json_string()), "quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n")

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, config.num_hidden_layers)
    for name, blocks in stacks.items():
        data = blocks.flatten(-2).contiguous().numpy()
        writer.add_tensor(f"{names.get_name(name)}.weight", data, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    for name, weight in tensors.items():
        parts = {name: weight}
        if name.endswith("gate_up_proj_bias"):
            parts = {
                name.replace("gate_up_proj_bias", "gate_proj.bias"): weight[:, ::2],
                name.replace("gate_up_proj_bias", "up_proj.bias"): weight[:, 1::2],
            }
        for part, values in parts.items():
            part = part.replace("down_proj_bias", "down_proj.bias").replace("sinks", "sinks.weight")
            if not part.endswith(("_blocks", "_scales")):
                values = values.contiguous().numpy().astype(numpy.float32)
                writer.add_tensor(names.get_name(part, (".weight", ".bias")), values)
    scaling = config.rope_scaling
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(scaling["factor"])
    writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
