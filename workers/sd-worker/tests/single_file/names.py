"""Writes the names of the weights of tiny single-file checkpoints, with the names that diffusers converts them to.

    pip install diffusers==0.35.1 transformers==4.51.3 torch
    python3 names.py .

The names follow the modules of the original implementations (ldm, sgm, open_clip). The conversion functions of
diffusers map them, and the result must be exactly the weights of the networks of diffusers and transformers. Each line
of the files has an original name and the weights that it holds, in parts of equal numbers of rows; `^T` marks a
transposed matrix, and lines with one name are tensors that no network uses.
"""
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.loaders import single_file_utils as convert
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

RESNET = ["in_layers.0", "in_layers.2", "emb_layers.1", "out_layers.0", "out_layers.3"]
BUFFERS = ["betas", "alphas_cumprod", "model_ema.decay", "model_ema.num_updates"]


def both(*modules):
    return [f"{module}.{kind}" for module in modules for kind in ["weight", "bias"]]


def transformer(at, depth):
    names = both(*[f"{at}.{part}" for part in ["norm", "proj_in", "proj_out"]])
    for i in range(depth):
        block = f"{at}.transformer_blocks.{i}"
        for attention in ["attn1", "attn2"]:
            names += [f"{block}.{attention}.to_{part}.weight" for part in "qkv"]
            names += both(f"{block}.{attention}.to_out.0")
        names += both(*[f"{block}.{part}" for part in ["ff.net.0.proj", "ff.net.2", "norm1", "norm2", "norm3"]])
    return names


def resnet(at, skip):
    return both(*[f"{at}.{part}" for part in RESNET], *([f"{at}.skip_connection"] if skip else []))


def unet_names(config):
    """Returns the names of openaimodel.UNetModel."""
    widths, layers = config["block_out_channels"], config["layers_per_block"]
    depths, last = config["transformer_layers_per_block"], len(widths) - 1
    names = both("time_embed.0", "time_embed.2", "input_blocks.0.0", "out.0", "out.2")
    if config.get("addition_embed_type"):
        names += both("label_emb.0.0", "label_emb.0.2")
    index, width, skips = 1, widths[0], [widths[0]]
    for block, kind in enumerate(config["down_block_types"]):
        for _ in range(layers):
            names += resnet(f"input_blocks.{index}.0", width != widths[block])
            if kind.startswith("Cross"):
                names += transformer(f"input_blocks.{index}.1", depths[block])
            width = widths[block]
            skips.append(width)
            index += 1
        if block < last:
            names += both(f"input_blocks.{index}.0.op")
            skips.append(width)
            index += 1
    names += resnet("middle_block.0", False) + transformer("middle_block.1", depths[-1])
    names += resnet("middle_block.2", False)
    index = 0
    for block, kind in enumerate(config["up_block_types"]):
        for layer in range(layers + 1):
            names += resnet(f"output_blocks.{index}.0", True)
            module = 1
            if kind.startswith("Cross"):
                names += transformer(f"output_blocks.{index}.1", depths[last - block])
                module = 2
            if layer == layers and block < last:
                names += both(f"output_blocks.{index}.{module}.conv")
            index += 1
    return names


def vae_names(config):
    """Returns the names of AutoencoderKL in ldm."""
    widths, layers = config["block_out_channels"], config["layers_per_block"]
    names = both("quant_conv", "post_quant_conv")
    for half, kind in [("encoder", "down"), ("decoder", "up")]:
        names += both(*[f"{half}.{part}" for part in ["conv_in", "norm_out", "conv_out"]])
        parts = ["norm1", "conv1", "norm2", "conv2"]
        names += both(*[f"{half}.mid.block_{i}.{part}" for i in [1, 2] for part in parts])
        names += both(*[f"{half}.mid.attn_1.{part}" for part in ["norm", "q", "k", "v", "proj_out"]])
        for block, width in enumerate(widths):
            before = widths[max(block - 1, 0)] if kind == "down" else widths[min(block + 1, len(widths) - 1)]
            for layer in range(layers + (kind == "up")):
                names += both(*[f"{half}.{kind}.{block}.block.{layer}.{part}" for part in parts])
                if layer == 0 and before != width:
                    names += both(f"{half}.{kind}.{block}.block.0.nin_shortcut")
            if kind == "down" and block + 1 < len(widths):
                names += both(f"{half}.down.{block}.downsample.conv")
            if kind == "up" and block > 0:
                names += both(f"{half}.up.{block}.upsample.conv")
    return names


def open_clip_names(layers):
    """Returns the names of the text part of open_clip.CLIP."""
    names = ["token_embedding.weight", "positional_embedding", "text_projection", "logit_scale"]
    names += both("ln_final")
    for i in range(layers):
        at = f"transformer.resblocks.{i}"
        names += [f"{at}.attn.in_proj_weight", f"{at}.attn.in_proj_bias"]
        names += both(*[f"{at}.{part}" for part in ["attn.out_proj", "ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj"]])
    return names


def marked(names):
    """Returns tensors whose elements identify their name: its index, and the third of the rows."""
    width = 4
    tensors = {}
    for i, name in enumerate(names):
        rows = 3 * width if ".in_proj_" in name else width
        shape = [rows, width]
        if ".attn_1." in name and name.endswith("weight") and ".norm." not in name:
            shape = [rows, width, 1, 1]
        if name.endswith("in_proj_bias"):
            shape = [rows]
        tensors[name] = (torch.arange(rows) // width / 4 + i).reshape([rows] + [1] * (len(shape) - 1)).expand(shape)
    return tensors


def table(original, converted, component):
    """Returns lines for the original names, by the marks in the converted tensors."""
    held = {}
    for name, tensor in converted.items():
        mark = tensor.flatten()[0].item()
        held.setdefault(int(mark), {})[mark % 1] = name
    lines = []
    for i, name in enumerate(original):
        parts = [f"{component}/{part}" for _, part in sorted(held.get(i, {}).items())]
        transposed = "^T" if name.endswith(".text_projection") else ""
        lines.append(f"{name} {'+'.join(parts)}{transposed if parts else ''}".strip())
    return lines


def checked(converted, network, what):
    expected = {name for name in network.state_dict() if "position_ids" not in name}
    if set(converted) != expected:
        sys.exit(f"{what}: {sorted(set(converted) ^ expected)[:8]}")
    return converted


def unet_lines(config):
    names = [convert.LDM_UNET_KEY + name for name in unet_names(config)]
    own = dict(config, attention_head_dim=8, norm_num_groups=32)
    converted = convert.convert_ldm_unet_checkpoint(marked(names), own)
    return table(names, checked(converted, UNet2DConditionModel(**own), "UNet"), "unet")


def vae_lines():
    sizes = dict(block_out_channels=[32, 32, 64], layers_per_block=1)
    blocks = dict(down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3)
    names = ["first_stage_model." + name for name in vae_names(sizes)]
    network = AutoencoderKL(latent_channels=4, **blocks, **sizes)
    converted = convert.convert_ldm_vae_checkpoint(marked(names), dict(network.config))
    return table(names, checked(converted, network, "VAE"), "vae")


def text_network(layers, projection=False):
    kind = CLIPTextModelWithProjection if projection else CLIPTextModel
    return kind(CLIPTextConfig(vocab_size=60, hidden_size=64, intermediate_size=64, num_hidden_layers=layers,
                               num_attention_heads=1, projection_dim=24))


def clip_lines(prefix, component):
    network = text_network(2)
    names = [f"{prefix}{name}" for name in network.state_dict()]
    converted = convert.convert_ldm_clip_checkpoint(marked(names), remove_prefix=prefix)
    lines = table(names, checked(converted, network, "CLIP"), component)
    return lines + [f"{prefix}text_model.embeddings.position_ids"]


def open_clip_lines(prefix, component, layers, projection):
    names = [prefix + name for name in open_clip_names(layers)]
    network = text_network(2, projection)
    converted = convert.convert_open_clip_checkpoint(network, marked(names), prefix)
    # Version 2 has no projection and one layer less than its file.
    unused = {name for name in converted if not projection and name == "text_projection.weight"}
    unused |= {name for name in converted if ".layers.2." in name}
    converted = {name: tensor for name, tensor in converted.items() if name not in unused}
    return table(names, checked(converted, network, "OpenCLIP"), component)


def main(folder):
    types = dict(down_block_types=["CrossAttnDownBlock2D", "DownBlock2D"],
                 up_block_types=["UpBlock2D", "CrossAttnUpBlock2D"], layers_per_block=1)
    v1 = dict(types, block_out_channels=[32, 64], transformer_layers_per_block=[1, 1], cross_attention_dim=64)
    v2 = dict(v1, block_out_channels=[64, 128], use_linear_projection=True)
    both_blocks = dict(down_block_types=["CrossAttnDownBlock2D"] * 2, up_block_types=["CrossAttnUpBlock2D"] * 2)
    xl = dict(v2, **both_blocks, transformer_layers_per_block=[1, 2], cross_attention_dim=128,
              addition_embed_type="text_time", addition_time_embed_dim=8,
              projection_class_embeddings_input_dim=6 * 8 + 24)
    # Like the published one, it has no attention in its last down block.
    refiner = dict(v2, transformer_layers_per_block=[1, 2], addition_embed_type="text_time", addition_time_embed_dim=8,
                   projection_class_embeddings_input_dim=5 * 8 + 24)
    files = {
        "v1": unet_lines(v1) + clip_lines("cond_stage_model.transformer.", "text_encoder"),
        "v2": unet_lines(v2) + open_clip_lines("cond_stage_model.model.", "text_encoder", 3, False),
        "xl": unet_lines(xl)
        + clip_lines("conditioner.embedders.0.transformer.", "text_encoder")
        + open_clip_lines("conditioner.embedders.1.model.", "text_encoder_2", 2, True),
        "refiner": unet_lines(refiner) + open_clip_lines("conditioner.embedders.0.model.", "text_encoder_2", 2, True),
    }
    for name, lines in files.items():
        Path(folder, f"{name}.txt").write_text("\n".join(lines + vae_lines() + BUFFERS) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
