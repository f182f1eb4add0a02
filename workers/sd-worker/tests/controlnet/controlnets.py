"""Writes the names of the weights of ControlNets, and the images that diffusers generates with the files of `main.rs`.

    pip install diffusers==0.42.1 transformers==5.24.0 torch
    python3 controlnets.py names data                               # writes data/*.txt
    SD_FOLDER=FOLDER cargo test --test controlnet -- --ignored      # writes the models, noise and input images
    python3 controlnets.py images FOLDER data                       # writes data/*.png

Networks run on the CPU in f32. Each line of a table has a name, a shape, and the original name, if there is one.
"""
import sys
from pathlib import Path

import numpy
import torch
from diffusers import (ControlNetModel, DDIMScheduler, HeunDiscreteScheduler, StableDiffusionControlNetImg2ImgPipeline,
                       StableDiffusionControlNetInpaintPipeline, StableDiffusionControlNetPipeline,
                       StableDiffusionXLControlNetPipeline)
from diffusers.loaders.single_file_utils import DIFFUSERS_TO_LDM_MAPPING, convert_controlnet_checkpoint
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.controlnet import pipeline_controlnet_img2img
from PIL import Image
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "single_file"))
from names import both, marked, unet_names  # noqa: E402

STEPS, SIDE, TOKENS = 4, 32, 16
PROMPT, NEGATIVE = "a red circle", "blue"
HINT_WIDTHS = [4, 6, 8, 10]


def config(kind):
    """Returns the configuration of a ControlNet for the model of this kind."""
    wide = kind != "v1"
    xl = kind.startswith("xl")
    plain = kind == "xl_small"
    down = "DownBlock2D"
    attention = "CrossAttnDownBlock2D"
    return dict(
        block_out_channels=[64, 128] if wide else [32, 64], layers_per_block=1, conditioning_embedding_out_channels=HINT_WIDTHS,
        down_block_types=[down if plain else attention, attention if xl and not plain else down],
        mid_block_type="UNetMidBlock2D" if plain else "UNetMidBlock2DCrossAttn",
        attention_head_dim=[1, 2] if wide else 8, transformer_layers_per_block=[1, 2] if xl else 1,
        cross_attention_dim=128 if xl else 64, use_linear_projection=wide,
        **(dict(addition_embed_type="text_time", addition_time_embed_dim=8,
                projection_class_embeddings_input_dim=6 * 8 + 24) if xl else {}))


def original_names(kind):
    """Returns the names of a ControlNet in its authors' code."""
    own = dict(config(kind), up_block_types=["CrossAttnUpBlock2D"] * 2)
    own["transformer_layers_per_block"] = [1, 2] if kind == "xl" else [1, 1]
    parts = ("input_blocks.", "middle_block.", "time_embed.", "label_emb.")
    names = [name for name in unet_names(own) if name.startswith(parts)]
    skips = len({name.split(".")[1] for name in names if name.startswith("input_blocks.")})
    names += both(*[f"input_hint_block.{2 * i}" for i in range(2 * len(HINT_WIDTHS))])
    return names + both(*[f"zero_convs.{i}.0" for i in range(skips)], "middle_block_out.0")


def table(kind):
    shapes = {name: tensor.shape for name, tensor in ControlNetModel.from_config(config(kind)).state_dict().items()}
    originals = {}
    if kind != "xl_small":
        names = original_names(kind)
        tensors = marked(names)
        converted = convert_controlnet_checkpoint(tensors, config(kind))
        # The conversion itself leaves out XL's additional embedding.
        for own, name in DIFFUSERS_TO_LDM_MAPPING["controlnet"]["addition_embed_type"].items():
            converted |= {own: tensors[name]} if name in tensors else {}
        if set(converted) != set(shapes):
            sys.exit(f"{kind}: {sorted(set(converted) ^ set(shapes))[:8]}")
        originals = {own: names[int(tensor.flatten()[0])] for own, tensor in converted.items()}
    lines = [f"{name} {'x'.join(map(str, shape))} {originals.get(name, '')}".strip() for name, shape in shapes.items()]
    return "\n".join(lines) + "\n"


def load(kind, folder, controlnets, cls):
    """Returns a pipeline with the ControlNets of these names, whose files must have exactly the expected tensors."""
    nets = []
    for name in controlnets:
        net, loaded = ControlNetModel.from_pretrained(folder / "controlnets" / name, output_loading_info=True)
        assert not any(loaded[what] for what in ["missing_keys", "unexpected_keys", "mismatched_keys"]), loaded
        nets.append(net)
    options = {} if kind == "xl" else dict(safety_checker=None)
    pipe = cls.from_pretrained(folder / kind, controlnet=nets if len(nets) > 1 else nets[0],
                               torch_dtype=torch.float32, **options)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config, clip_sample=False)
    for suffix in ["", "_2"] if kind == "xl" else [""]:
        tokenizer, encoder = getattr(pipe, f"tokenizer{suffix}"), getattr(pipe, f"text_encoder{suffix}")
        tokenizer.model_max_length = TOKENS
        # The published configuration; the tiny vocabulary has another end token.
        inner = getattr(encoder, "text_model", encoder)
        inner.eos_token_id = inner.config.eos_token_id = tokenizer.eos_token_id
    pipe.set_progress_bar_config(disable=True)
    return pipe


def save(pipe, out, given=None, mask=None, **options):
    options = dict(guidance_scale=5.0, width=SIDE, height=SIDE, num_inference_steps=STEPS, output_type="np") | options
    image = pipe(PROMPT, negative_prompt=NEGATIVE, **options).images[0]
    pixels = (image * 255).round().astype(numpy.uint8)
    if mask is not None:
        pixels = numpy.where(numpy.asarray(mask.convert("L"))[:, :, None] >= 128, pixels, numpy.asarray(given))
    Image.fromarray(pixels).save(out, optimize=True)


def images(folder, data):
    noise = load_file(folder / "noise.safetensors")
    start = noise["start"]
    DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mean + self.std * noise["encode"]
    pipeline_controlnet_img2img.randn_tensor = lambda *_, **__: start.clone()
    picture = {name: Image.open(folder / f"{name}.png") for name in ["hint", "other", "larger", "given", "mask"]}
    plain, xl = StableDiffusionControlNetPipeline, StableDiffusionXLControlNetPipeline
    hint, other = picture["hint"], picture["other"]
    text = [
        ("v1", "v1", ["v1"], plain, dict(image=hint)),
        ("v1_weak", "v1", ["v1"], plain, dict(image=hint, controlnet_conditioning_scale=0.4, guidance_scale=1.0)),
        ("v1_larger", "v1", ["v1"], plain, dict(image=picture["larger"])),
        ("v1_bgr", "v1", ["v1_bgr"], plain, dict(image=hint)),
        ("v1_shuffle", "v1", ["v1_shuffle"], plain, dict(image=hint, controlnet_conditioning_scale=1.5)),
        ("v1_two", "v1", ["v1", "v1_other"], plain,
         dict(image=[hint, other], controlnet_conditioning_scale=[0.7, -0.5], control_guidance_start=[0.0, 0.25],
              control_guidance_end=[0.6, 1.0])),
        ("v2", "v2", ["v2"], plain, dict(image=hint)),
        ("xl", "xl", ["xl"], xl, dict(image=hint)),
        ("xl_two", "xl", ["xl", "xl_small"], xl, dict(image=[other, hint], controlnet_conditioning_scale=[1.0, 0.5])),
    ]
    for name, kind, controlnets, cls, options in text:
        save(load(kind, folder, controlnets, cls), data / f"{name}.png", latents=start.clone(), **options)
    pipe = load("v1", folder, ["v1"], plain)
    pipe.scheduler = HeunDiscreteScheduler.from_config(pipe.scheduler.config)
    save(pipe, data / "v1_heun.png", latents=start.clone(), image=hint, control_guidance_start=0.2,
         control_guidance_end=0.8)
    given = picture["given"]
    save(load("v1", folder, ["v1"], StableDiffusionControlNetImg2ImgPipeline), data / "v1_edit.png", image=given,
         control_image=hint, strength=0.5, controlnet_conditioning_scale=0.9)
    save(load("inpaint", folder, ["v1"], StableDiffusionControlNetInpaintPipeline), data / "v1_inpaint.png", given,
         picture["mask"], image=given, mask_image=picture["mask"], control_image=hint, strength=1.0,
         latents=start.clone(), controlnet_conditioning_scale=1.0)


def main(what, *folders):
    if what == "names":
        for kind in ["v1", "v2", "xl", "xl_small"]:
            Path(folders[0], f"{kind}.txt").write_text(table(kind))
    else:
        images(*map(Path, folders))


main(*sys.argv[1:])
