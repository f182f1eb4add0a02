"""Writes tiny random models that read pictures, with the features and the logits of transformers.

    pip install transformers==5.24.0 torch pillow
    python3 vision.py data [NAME ...]

Pictures are processed by the classes that use Pillow. Everything else is computed on the CPU in f32. Weights are exact in f16.
"""
import itertools
import sys
from pathlib import Path

import torch
import transformers
from mixtures import GAP, VOCABULARY, randomized
from safetensors.torch import save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4 import image_processing_pil_gemma4 as gemma4_processing
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

# Text, pictures by their numbers, text. The second and the fourth text begin like the first, the latter with another picture.
LAYOUTS = [[12, [0], 14], [12, [0], 5, [1], 12], [33], [12, [2], 9]]
# Height and width. Pillow 13 scales the rows of some tall pictures first, which changes the rounding of single pixels.
PICTURES = [(21, 37), (18, 50), (21, 37)]
IMAGE, BREAK, END = 40, 41, 42
TEXT = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=160,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
SIZES = dict(depth=3, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=4, out_hidden_size=32)
SIGLIP = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    patch_size=4,
    image_size=16,
    hidden_act="gelu_pytorch_tanh",
)
PIXTRAL = dict(
    text_config=dict(
        TEXT, model_type="mistral", sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=1e4)
    ),
    vision_config=dict(
        model_type="pixtral",
        hidden_size=32,
        head_dim=16,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        patch_size=4,
        image_size=32,
        hidden_act="silu",
    ),
    vision_feature_layer=-1,
    projector_hidden_act="gelu",
    image_token_index=IMAGE,
)
TOKENS = dict(image_token_id=IMAGE, video_token_id=43, vision_start_token_id=44, vision_end_token_id=45)


def mrope(section, **more):
    return dict(rope_type="default", rope_theta=1e4, mrope_section=section, **more)


def qwen_features(model, picture):
    out = model.model.get_image_features(picture["pixel_values"], picture["image_grid_thw"], return_dict=True)
    layers = getattr(out, "deepstack_features", None) or []
    return torch.stack([out.pooler_output[0], *(layer[0] if isinstance(layer, (list, tuple)) else layer for layer in layers)])


def qwen_rows(picture):
    _, height, width = picture["image_grid_thw"][0].tolist()
    return [IMAGE] * (height * width // 4)


def qwen_inputs(pictures, tokens):
    return {
        "pixel_values": torch.cat([picture["pixel_values"] for picture in pictures]),
        "image_grid_thw": torch.cat([picture["image_grid_thw"] for picture in pictures]),
        "mm_token_type_ids": (tokens == IMAGE).int(),
    }


def pooled_features(model, picture):
    return model.model.get_image_features(picture["pixel_values"], return_dict=True).pooler_output.reshape(1, -1, 32)


def gemma_inputs(pictures, tokens):
    pixels = torch.cat([picture["pixel_values"] for picture in pictures])
    return {"pixel_values": pixels, "token_type_ids": (tokens == IMAGE).int()}


def smol_features(model, picture):
    out = model.model.get_image_features(picture["pixel_values"], return_dict=True)
    return out.pooler_output[0].reshape(1, -1, 32) if isinstance(out.pooler_output, list) else out.pooler_output.reshape(1, -1, 32)


def smol_rows(picture):
    rows, columns = picture["rows"][0][0], picture["cols"][0][0]
    tiles = [[BREAK, 20 + column, *[IMAGE] * 4] for _ in range(rows) for column in range(columns)]
    return [token for tile in tiles for token in tile] + [BREAK, 19, *[IMAGE] * 4, BREAK]


def smol_inputs(pictures, tokens):
    return {"pixel_values": torch.cat([picture["pixel_values"] for picture in pictures], 1)}


def sizes_of(picture):
    return torch.as_tensor(picture["image_sizes"]).tolist()


def pixtral_features(model, picture):
    sizes = torch.tensor(sizes_of(picture))
    out = model.model.get_image_features(picture["pixel_values"], image_sizes=sizes, return_dict=True)
    return out.pooler_output[0][None]


def pixtral_rows(side):
    def rows(picture):
        height, width = sizes_of(picture)[0]
        lines = [[IMAGE] * (width // side) + [BREAK]] * (height // side)
        return [token for line in lines for token in line][:-1] + [END]

    return rows


def pixtral_inputs(pictures, tokens):
    sizes = torch.tensor([sizes_of(picture)[0] for picture in pictures])
    height, width = sizes.max(0).values.tolist()
    pixels = torch.zeros(len(pictures), 3, height, width)
    for index, picture in enumerate(pictures):
        own = picture["pixel_values"][0]
        pixels[index, :, : own.shape[1], : own.shape[2]] = own
    return {"pixel_values": pixels, "image_sizes": sizes}


# Fewer tokens than those of real pictures.
gemma4_processing._SUPPORTED_SOFT_TOKENS = (16,)


def gemma4_features(model, picture):
    out = model.model.get_image_features(picture["pixel_values"], picture["image_position_ids"], return_dict=True)
    return torch.cat(list(out.pooler_output))[None]


def gemma4_rows(picture):
    return [IMAGE] * int(picture["num_soft_tokens_per_image"][0])


def gemma4_inputs(pictures, tokens):
    names = ("pixel_values", "image_position_ids")
    inputs = {name: torch.cat([picture[name] for picture in pictures]) for name in names}
    return {**inputs, "mm_token_type_ids": (tokens == IMAGE).int()}


def gemma4(text, vision):
    return (
        Gemma4ForConditionalGeneration,
        Gemma4Config(
            text_config=dict(
                {**TEXT, "tie_word_embeddings": True, "pad_token_id": 0},
                global_head_dim=32,
                num_global_key_value_heads=1,
                vocab_size_per_layer_input=VOCABULARY,
                sliding_window=6,
                layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                rope_parameters=dict(
                    sliding_attention=dict(rope_type="default", rope_theta=1e3),
                    full_attention=dict(rope_type="proportional", rope_theta=1e4, partial_rotary_factor=0.25),
                ),
                **text,
            ),
            vision_config=dict(
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=16,
                patch_size=4,
                pooling_kernel_size=2,
                position_embedding_size=32,
                **vision,
            ),
            audio_config=None,
            image_token_id=IMAGE,
            video_token_id=43,
            boi_token_id=44,
            eoi_token_id=45,
            audio_token_id=46,
        ),
        gemma4_processing.Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=16, pooling_kernel_size=2),
        gemma4_features,
        gemma4_rows,
        gemma4_inputs,
    )


SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
QWEN3_PROCESSOR = Qwen2VLImageProcessorPil(
    patch_size=4,
    size=dict(shortest_edge=256, longest_edge=960),
    image_mean=[0.5] * 3,
    image_std=[0.5] * 3,
)
QWEN3_TEXT = dict(TEXT, rope_parameters=mrope([4, 2, 2], mrope_interleaved=True))
QWEN3 = dict(
    vision_config=dict(SIZES, num_position_embeddings=16, deepstack_visual_indexes=[0, 1]), **TOKENS
)
QWEN_FUNCTIONS = (qwen_features, qwen_rows, qwen_inputs)
# Model, configuration, image processor, features of a picture, tokens of a picture, inputs of pictures.
MODELS = {
    "qwen2.5-vl": (
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLConfig(
            text_config=dict(
                {key: value for key, value in TEXT.items() if key != "head_dim"}, rope_parameters=mrope([4, 2, 2])
            ),
            vision_config=dict(SIZES, window_size=16, fullatt_block_indexes=[1]),
            **TOKENS,
        ),
        Qwen2VLImageProcessorPil(patch_size=4, size=dict(shortest_edge=256, longest_edge=960)),
        *QWEN_FUNCTIONS,
    ),
    "qwen3-vl": (
        Qwen3VLForConditionalGeneration,
        Qwen3VLConfig(text_config=QWEN3_TEXT, **QWEN3),
        QWEN3_PROCESSOR,
        *QWEN_FUNCTIONS,
    ),
    "qwen3-vl-moe": (
        Qwen3VLMoeForConditionalGeneration,
        Qwen3VLMoeConfig(
            text_config=dict(QWEN3_TEXT, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2), **QWEN3
        ),
        QWEN3_PROCESSOR,
        *QWEN_FUNCTIONS,
    ),
    "qwen3.5-vision": (
        Qwen3_5ForConditionalGeneration,
        Qwen3_5Config(
            text_config=dict(
                {**TEXT, "head_dim": 32},
                rope_parameters=mrope([2, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.25),
                layer_types=["linear_attention", "full_attention", "linear_attention"],
                linear_num_key_heads=2,
                linear_num_value_heads=4,
                linear_key_head_dim=16,
                linear_value_head_dim=16,
            ),
            vision_config=dict(SIZES, num_position_embeddings=16),
            **TOKENS,
        ),
        QWEN3_PROCESSOR,
        *QWEN_FUNCTIONS,
    ),
    "gemma3-vision": (
        Gemma3ForConditionalGeneration,
        Gemma3Config(
            text_config=dict(
                {**TEXT, "tie_word_embeddings": True},
                sliding_window=6,
                query_pre_attn_scalar=16,
                layer_types=SLIDING,
                rope_parameters=dict(
                    sliding_attention=dict(rope_type="default", rope_theta=1e3),
                    full_attention=dict(rope_type="default", rope_theta=1e4),
                ),
            ),
            vision_config=dict(SIGLIP, image_size=24),
            mm_tokens_per_image=9,
            image_token_index=IMAGE,
            boi_token_index=44,
            eoi_token_index=45,
        ),
        Gemma3ImageProcessorPil(size=dict(height=24, width=24)),
        pooled_features,
        lambda picture: [IMAGE] * 9,
        gemma_inputs,
    ),
    "gemma4-vision": gemma4(
        dict(use_bidirectional_attention="vision", hidden_size_per_layer_input=0), dict(standardize=True)
    ),
    "gemma4-vision-small": gemma4(dict(hidden_size_per_layer_input=16), dict(use_clipped_linears=True)),
    "smolvlm": (
        SmolVLMForConditionalGeneration,
        SmolVLMConfig(
            text_config=dict(TEXT, model_type="llama", rope_parameters=dict(rope_type="default", rope_theta=1e4)),
            vision_config=dict(SIGLIP, model_type="smolvlm_vision"),
            scale_factor=2,
            image_token_id=IMAGE,
            tie_word_embeddings=False,
        ),
        SmolVLMImageProcessorPil(
            size=dict(longest_edge=32), max_image_size=dict(longest_edge=16), return_row_col_info=True
        ),
        smol_features,
        smol_rows,
        smol_inputs,
    ),
    "pixtral": (
        LlavaForConditionalGeneration,
        LlavaConfig(
            **PIXTRAL,
            vision_feature_select_strategy="full",
        ),
        PixtralImageProcessorPil(size=dict(longest_edge=24), patch_size=dict(height=4, width=4)),
        pixtral_features,
        pixtral_rows(4),
        pixtral_inputs,
    ),
    "mistral3": (
        Mistral3ForConditionalGeneration,
        Mistral3Config(
            **PIXTRAL,
            multimodal_projector_bias=False,
            tie_word_embeddings=False,
            spatial_merge_size=2,
        ),
        # The processor of the model doubles the size of patches.
        PixtralImageProcessorPil(size=dict(longest_edge=40), patch_size=dict(height=8, width=8)),
        pixtral_features,
        pixtral_rows(8),
        pixtral_inputs,
    ),
}


# First seeds of models in which those before make logits too sensitive to the rounding of f16 on GPUs.
SEEDS = {"gemma4-vision-small": 34}


def picture(size, random):
    """Returns a picture of random rectangles, u8 (height, width, 3)."""
    height, width = size
    pixels = torch.randint(256, (1, 1, 3), generator=random).repeat(height, width, 1)
    for _ in range(12):
        top, left = (int(torch.randint(side, (1,), generator=random)) for side in size)
        pixels[top : top + 9, left : left + 11] = torch.randint(256, (1, 1, 3), generator=random)
    return (pixels + torch.randint(24, pixels.shape, generator=random)).clamp(max=255).byte()


def write(folder, seed, model, config, processor, features, rows, inputs):
    """Writes a checkpoint, and returns false if rounding to f16 might choose another expert."""
    random = torch.Generator().manual_seed(seed)
    model = randomized(model(config), random)
    for name, values in model.named_parameters():
        if name.endswith("A_log"):
            # States that last for the whole text, and states that last for a few tokens.
            values.data = ((torch.randn(values.shape, generator=random) - 2) * 512).round() / 512
        elif isinstance(model, Qwen3_5ForConditionalGeneration) and name.endswith(("q_norm.weight", "k_norm.weight")):
            # These norms multiply by 1 + weight. Larger queries and keys increase the differences between data types.
            values.data -= 1
    for name, values in model.named_buffers():
        if name.endswith(("std_bias", "std_scale")):
            values.copy_((torch.rand(values.shape, generator=random) * 512 + 256).round() / 512)
        elif name.endswith(("input_min", "output_min", "input_max", "output_max")):
            values.fill_((-1 if name.endswith("min") else 1) * (1.0 + len(name) % 3 / 4))
    gaps = [float("inf")]

    def note_gap(module, inputs, output):
        scores = torch.nn.functional.linear(inputs[0].flatten(0, -2), module.weight)
        ordered, used = scores.sort(descending=True).values, module.top_k
        gaps.append((ordered[:, used - 1] - ordered[:, used]).min().item())

    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(note_gap)
    expected, pictures = {}, []
    for index, size in enumerate(PICTURES):
        own = picture(size, random)
        expected[f"picture.{index}"] = own
        processed = processor(images=[own.numpy()], return_tensors="pt", input_data_format="channels_last")
        pictures.append(processed)
        with torch.no_grad():
            expected[f"features.{index}"] = features(model, processed).contiguous()
        pixels = processed["pixel_values"]
        if "image_position_ids" in processed:
            # The encoder normalizes them, and patches without a position are not read.
            pixels = 2 * (pixels[processed["image_position_ids"][..., 0] >= 0] - 0.5)
        expected[f"pixels.{index}"] = pixels.half().contiguous()
    texts = torch.randint(36, (64,), generator=random)
    for index, layout in enumerate(LAYOUTS):
        tokens, shown = [], []
        for part in layout:
            if isinstance(part, int):
                tokens += texts[len(tokens) % 20 :][:part].tolist()
            else:
                shown += part
                tokens += [44, *rows(pictures[part[0]]), 45]
        tokens = torch.tensor(tokens)
        more = inputs([pictures[number] for number in shown], tokens[None]) if shown else {}
        with torch.no_grad():
            expected[f"logits.{index}"] = model(input_ids=tokens[None], **more).logits[0].contiguous()
        expected[f"tokens.{index}"] = tokens
        expected[f"shown.{index}"] = torch.tensor(shown, dtype=torch.int64)
        if min(gaps) < GAP:
            return False
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    processor.save_pretrained(folder)
    save_file(expected, folder / "expected.st")
    print(folder.name, "seed", seed, {name: list(value.shape) for name, value in expected.items()})
    return True


if __name__ == "__main__":
    print("transformers", transformers.__version__, "torch", torch.__version__)
    for name in sys.argv[2:] or MODELS:
        next(seed for seed in itertools.count(SEEDS.get(name, 7)) if write(Path(sys.argv[1]) / name, seed, *MODELS[name]))
