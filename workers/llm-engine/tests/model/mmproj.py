"""Writes the models of vision.py as llama.cpp's converter does: a GGUF file of the text model, and an mmproj file.

    pip install gguf==0.19.0 safetensors torch
    python3 mmproj.py data [NAME ...]

Names of tensors and keys are those of the package gguf. Pictures of real models have the size that llama.cpp chooses; here,
keys that it ignores for some projectors contain the sizes of the checkpoint.
"""
import json
import sys
from pathlib import Path

import gguf
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, VisionProjectorType
from safetensors.torch import load_file

IMAGE = 40
GEMMA4 = (VisionProjectorType.GEMMA4V, {})
QWEN3 = (VisionProjectorType.QWEN3VL, {IMAGE: "<|image_pad|>"})
# Architecture of the text model, projector, and the tokens whose numbers the checkpoints have.
MODELS = {
    "qwen2.5-vl": (MODEL_ARCH.QWEN2VL, VisionProjectorType.QWEN25VL, {IMAGE: "<|image_pad|>"}),
    "qwen3-vl": (MODEL_ARCH.QWEN3VL, *QWEN3),
    # The tests convert these text models.
    "qwen3-vl-moe": (None, *QWEN3),
    "qwen3.5-vision": (None, *QWEN3),
    "gemma3-vision": (
        MODEL_ARCH.GEMMA3,
        VisionProjectorType.GEMMA3,
        {IMAGE: "<image_soft_token>", 44: "<start_of_image>", 45: "<end_of_image>"},
    ),
    "gemma4-vision": (None, *GEMMA4),
    "gemma4-vision-small": (None, *GEMMA4),
    "smolvlm": (MODEL_ARCH.LLAMA, VisionProjectorType.IDEFICS3, {IMAGE: "<image>"}),
    "pixtral": (MODEL_ARCH.LLAMA, VisionProjectorType.PIXTRAL, {IMAGE: "[IMG]"}),
    "mistral3": (MODEL_ARCH.LLAMA, VisionProjectorType.PIXTRAL, {IMAGE: "[IMG]"}),
}
# Beginnings of names that newer versions of transformers write, and those of published files.
RENAMED = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.text_model.", "model."),
    ("model.visual.", "visual."),
    ("model.vision_tower.", "vision_tower."),
    ("model.embed_vision.", "embed_vision."),
    ("vision_tower.embeddings.", "vision_tower.vision_model.embeddings."),
    ("vision_tower.encoder.", "vision_tower.vision_model.encoder."),
    ("vision_tower.post_layernorm.", "vision_tower.vision_model.post_layernorm."),
    ("visual.merger.norm.", "visual.merger.ln_q."),
    ("visual.merger.linear_fc1.", "visual.merger.mlp.0."),
    ("visual.merger.linear_fc2.", "visual.merger.mlp.2."),
]


def published(name):
    for beginning, other in RENAMED:
        if name.startswith(beginning):
            name = other + name.removeprefix(beginning)
    return name


def interleaved(tensor, heads):
    """Orders the rows of each head so that rotary pairs are neighbors."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def add(writer, name, tensor):
    is_wide = tensor.dim() == 1 or "position_embd" in name
    writer.add_tensor(name, (tensor.float() if is_wide else tensor.half()).contiguous().numpy())


def write(path, arch, keys, tensors):
    writer = GGUFWriter(path, arch)
    keys(writer)
    for name, tensor in sorted(tensors.items()):
        add(writer, name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text(config, arch, tokens, weights):
    own = config["text_config"]
    heads, kv_heads = own["num_attention_heads"], own["num_key_value_heads"]
    names = gguf.get_tensor_name_map(arch, own["num_hidden_layers"])
    tensors = {}
    for name, tensor in weights.items():
        if not name.startswith(("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")):
            continue
        if arch == MODEL_ARCH.LLAMA and "q_proj" in name:
            tensor = interleaved(tensor, heads)
        if arch == MODEL_ARCH.LLAMA and "k_proj" in name:
            tensor = interleaved(tensor, kv_heads)
        if arch == MODEL_ARCH.GEMMA3 and "norm" in name:
            tensor = tensor.float() + 1
        tensors[names.get_name(name, (".weight", ".bias"))] = tensor

    def keys(writer):
        width = own.get("head_dim") or own["hidden_size"] // heads
        writer.add_block_count(own["num_hidden_layers"])
        writer.add_context_length(own["max_position_embeddings"])
        writer.add_embedding_length(own["hidden_size"])
        writer.add_feed_forward_length(own["intermediate_size"])
        writer.add_head_count(heads)
        writer.add_head_count_kv(kv_heads)
        writer.add_key_length(width)
        writer.add_value_length(width)
        writer.add_layer_norm_rms_eps(own["rms_norm_eps"])
        rope = own["rope_parameters"]
        if arch == MODEL_ARCH.GEMMA3:
            writer.add_sliding_window(own["sliding_window"])
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in own["layer_types"]])
            writer.add_float32("gemma3.rope.local_freq_base", rope["sliding_attention"]["rope_theta"])
            rope = rope["full_attention"]
        writer.add_rope_freq_base(rope["rope_theta"])
        if "mrope_section" in rope:
            writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
        if arch == MODEL_ARCH.QWEN3VL:
            writer.add_num_deepstack_layers(len(config["vision_config"]["deepstack_visual_indexes"]))
        writer.add_token_list([tokens.get(token, f"t{token}") for token in range(own["vocab_size"])])

    return keys, tensors


def encoder(config, projector, weights, processor):
    own = config["vision_config"]
    heads = own.get("num_attention_heads") or own["num_heads"]
    layers = own.get("num_hidden_layers") or own["depth"]
    # The number in names of projectors is none of a layer.
    names = gguf.get_tensor_name_map(MODEL_ARCH.MMPROJ, max(layers, 8))
    tensors = {}
    for name, tensor in weights.items():
        ending = "." + name.rsplit(".", 1)[-1]
        text_parts = ("model.layers.", "model.embed_tokens", "model.per_layer_", "model.norm.", "lm_head.")
        if name.startswith((*text_parts, "vision_tower.head.")):
            continue
        if name.startswith("visual.deepstack_merger_list."):
            index, part = name.split(".")[2:4]
            layer = own["deepstack_visual_indexes"][int(index)]
            tensors[f"v.deepstack.{layer}.{part.replace('linear_', '')}{ending}"] = tensor
        elif name == "visual.patch_embed.proj.weight":
            tensors["v.patch_embd.weight"], tensors["v.patch_embd.weight.1"] = tensor[:, :, 0], tensor[:, :, 1]
        elif name.endswith("mm_input_projection_weight"):
            tensors["mm.input_projection.weight"] = tensor
        elif projector == VisionProjectorType.GEMMA4V:
            name = "model." + name.replace(".linear.weight", ".weight")
            name = name.replace("model.vision_tower.vision_model.encoder.", "vision_model.model.")
            if name.endswith("input_proj.weight"):
                side = own["patch_size"]
                tensor = tensor.reshape(-1, side, side, 3).permute(0, 3, 1, 2)
            name += ".weight" if name.endswith("position_embedding_table") else ""
            endings = (".weight", ".input_min", ".input_max", ".output_min", ".output_max")
            new = names.get_name(name, endings)
            assert new, name
            tensors[new] = tensor.reshape(1) if tensor.dim() == 0 else tensor
        elif ".qkv." in name and projector == VisionProjectorType.QWEN25VL:
            layer = name.split(".")[2]
            for part, rows in zip("qkv", tensor.chunk(3)):
                tensors[f"v.blk.{layer}.attn_{part}{ending}"] = rows
        else:
            if "soft_emb_norm" in name:
                tensor = tensor.float() + 1
            if projector == VisionProjectorType.PIXTRAL and ("q_proj" in name or "k_proj" in name):
                tensor = interleaved(tensor, heads)
            new = names.get_name(name, (".weight", ".bias"))
            assert new, name
            tensors[new] = tensor

    def keys(writer):
        size, image = processor.get("size") or {}, own.get("image_size") or 24
        writer.add_type("mmproj")
        writer.add_clip_has_vision_encoder(True)
        writer.add_clip_projector_type(projector)
        writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
        writer.add_vision_embedding_length(own["hidden_size"])
        writer.add_vision_feed_forward_length(own["intermediate_size"])
        writer.add_vision_block_count(layers)
        writer.add_vision_head_count(heads)
        writer.add_vision_patch_size(own["patch_size"])
        writer.add_vision_image_mean(processor["image_mean"])
        writer.add_vision_image_std(processor["image_std"])
        if projector == VisionProjectorType.GEMMA4V:
            side = own["pooling_kernel_size"] * own["patch_size"]
            writer.add_vision_projector_scale_factor(own["pooling_kernel_size"])
            writer.add_vision_max_pixels(processor["max_soft_tokens"] * side * side)
        elif own["hidden_act"] == "silu":
            writer.add_vision_use_silu(True)
        else:
            writer.add_vision_use_gelu(True)
        eps = own.get("layer_norm_eps", 1e-5 if projector == VisionProjectorType.PIXTRAL else 1e-6)
        writer.add_vision_attention_layernorm_eps(eps)
        if projector in (VisionProjectorType.QWEN25VL, VisionProjectorType.QWEN3VL):
            image = int(own.get("num_position_embeddings", 16) ** 0.5) * own["patch_size"]
            writer.add_vision_spatial_merge_size(own["spatial_merge_size"])
            writer.add_vision_min_pixels(size["shortest_edge"])
            writer.add_vision_max_pixels(size["longest_edge"])
        else:
            writer.add_vision_preproc_image_size(size.get("longest_edge") or image)
        writer.add_vision_image_size(image)
        if projector == VisionProjectorType.QWEN25VL:
            writer.add_vision_n_wa_pattern(own["fullatt_block_indexes"][0] + 1)
            writer.add_uint32("clip.vision.window_size", own["window_size"])
        if projector == VisionProjectorType.QWEN3VL:
            deepstack = own.get("deepstack_visual_indexes", [])
            writer.add_vision_is_deepstack_layers([layer in deepstack for layer in range(layers)])
        if projector == VisionProjectorType.GEMMA3:
            side = int(config["mm_tokens_per_image"] ** 0.5)
            writer.add_vision_projector_scale_factor(image // own["patch_size"] // side)
        if projector == VisionProjectorType.IDEFICS3:
            writer.add_vision_projector_scale_factor(config["scale_factor"])
        if projector == VisionProjectorType.PIXTRAL and "spatial_merge_size" in config:
            writer.add_vision_spatial_merge_size(config["spatial_merge_size"])

    return keys, tensors


if __name__ == "__main__":
    for name in sys.argv[2:] or MODELS:
        folder = Path(sys.argv[1]) / name
        arch, projector, tokens = MODELS[name]
        config = json.loads((folder / "config.json").read_text())
        processor = json.loads((folder / "preprocessor_config.json").read_text())
        weights = {published(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
        if arch:
            write(folder / "model.gguf", gguf.MODEL_ARCH_NAMES[arch], *text(config, arch, tokens, weights))
        write(folder / "mmproj-model-f16.gguf", "clip", *encoder(config, projector, weights, processor))
        print(folder, *(path.stat().st_size for path in sorted(folder.glob("*.gguf"))))
