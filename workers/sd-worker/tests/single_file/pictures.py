"""Writes the images that diffusers generates with the weights of the GGUF files of `gguf.rs`, which the gguf package
dequantizes, also with a LoRA in addition, of the files in scaled f8 of `scaled.rs`, and of XL's refiner in `refiner.rs`.

    pip install diffusers==0.42.1 transformers==5.24.0 peft gguf torch
    SD_FOLDER=FOLDER cargo test --test single_file -- --ignored     # writes the models, the GGUF files, and the noise
    python3 pictures.py FOLDER data
    python3 pictures.py FOLDER data refiner                       # only those of the refiner

Networks run on the CPU in f32.
"""
import sys
from pathlib import Path

import gguf
import numpy
import torch
from diffusers import DDIMScheduler, EulerDiscreteScheduler, StableDiffusionXLImg2ImgPipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.stable_diffusion_xl import pipeline_stable_diffusion_xl_img2img as img2img
from PIL import Image
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).resolve().parents[1] / "tiny_model"))
from published import GUIDANCE, NEGATIVE, PROMPT, SIDE, TOKENS, picture, pipeline

UNET = "model.diffusion_model."
# A LoRA for version 1, of which the part for the UNet is used, and its weight.
LORA = (Path(__file__).resolve().parents[1] / "lora" / "data" / "kohya.safetensors", 0.7)


def unscaled(path):
    """Returns the weights of a file in scaled f8."""
    stored = load_file(path)
    factors = {name.removesuffix("scale_weight"): stored.pop(name) for name in list(stored) if name.endswith(".scale_weight")}
    return {name: weight.float() * factors.get(name.removesuffix("weight"), 1.0) for name, weight in stored.items()
            if not name.endswith((".scale_input", "scaled_fp8"))}


def load(pipe, path, table):
    """Replaces the weights of a pipeline by those of a file."""
    stored = unscaled(path) if path.suffix == ".safetensors" else {}
    for tensor in [] if stored else gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        name = tensor.name if tensor.name.startswith((UNET, "cond", "first")) else UNET + tensor.name
        stored[name] = torch.from_numpy(values.copy()).float()
    states = {}
    for line in table.read_text().splitlines():
        name, *own = line.split(" ")
        if not own or name not in stored:
            continue
        transposed = own[0].endswith("^T")
        parts = own[0].removesuffix("^T").split("+")
        weight = stored[name].flatten()
        for part, values in zip(parts, weight.chunk(len(parts))):
            component, key = part.split("/", 1)
            network = getattr(pipe, component)
            state = network.state_dict()
            key = key if key in state else key.removeprefix("text_model.")
            shape = state[key].shape
            values = values.reshape(shape[::-1]).T if transposed else values.reshape(shape)
            states.setdefault(component, {})[key] = values
    for component, state in states.items():
        network = getattr(pipe, component)
        missing, extra = network.load_state_dict(state, strict=False)
        missing = [key for key in missing if "position_ids" not in key]
        if extra or (missing and component != "text_encoder"):
            sys.exit(f"{path}: {component}: {missing[:3]} missing, {extra[:3]} unknown")


def refiner(folder, data, noise):
    """Writes images of the refiner alone, and after a base model."""
    DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mean + self.std * noise["encode"]
    img2img.randn_tensor = lambda *_, **__: noise["noise"].clone()
    pipe = StableDiffusionXLImg2ImgPipeline.from_pretrained(folder / "refiner", torch_dtype=torch.float32)
    pipe.tokenizer_2.model_max_length = TOKENS
    encoder = pipe.text_encoder_2
    getattr(encoder, "text_model", encoder).eos_token_id = pipe.tokenizer_2.eos_token_id
    pipe.set_progress_bar_config(disable=True)
    options = dict(prompt=PROMPT, negative_prompt=NEGATIVE, guidance_scale=GUIDANCE)
    save = lambda image, name: Image.fromarray((image * 255).round().astype(numpy.uint8)).save(data / name, optimize=True)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config, clip_sample=False)
    given = Image.open(folder / "given.png")
    save(pipe(image=given, strength=0.5, num_inference_steps=8, output_type="np", **options).images[0], "refiner_edit.png")
    base = pipeline(folder / "xl", True)
    for part in [base, pipe]:
        part.scheduler = EulerDiscreteScheduler.from_config(part.scheduler.config)
    options |= dict(num_inference_steps=6)
    latents = base(latents=noise["noise"].clone(), width=SIDE, height=SIDE, denoising_end=0.4, output_type="latent", **options).images
    pipe.vae = base.vae
    save(pipe(image=latents, denoising_start=0.4, output_type="np", **options).images[0], "refiner_stage.png")


def main(folder, data, only=None):
    noise = load_file(folder / "noise.safetensors")
    if only == "refiner":
        return refiner(folder, data, noise)
    noise = noise["noise"]
    for version in ["v1", "v2", "xl"]:
        for kind in ["whole", "unet", *(["scaled"] if version != "v2" else [])]:
            pipe = pipeline(folder / version, version == "xl")
            path = folder / f"{version}_{kind}.{'safetensors' if kind == 'scaled' else 'gguf'}"
            load(pipe, path, data.parent / f"{version}.txt")
            picture(pipe, noise, data / f"{version}_{kind}.png", optimize=True)
            if version == "v1" and kind != "scaled":
                path, weight = LORA
                lora = {name: tensor for name, tensor in load_file(path).items() if name.startswith("lora_unet_")}
                pipe.load_lora_weights(lora, adapter_name="lora")
                pipe.set_adapters(["lora"], [weight])
                picture(pipe, noise, data / f"{version}_{kind}_lora.png", optimize=True)
    refiner(folder, data, load_file(folder / "noise.safetensors"))


main(*map(Path, sys.argv[1:3]), *sys.argv[3:])
