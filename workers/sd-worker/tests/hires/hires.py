"""Writes the images that diffusers generates in two passes, of which the second is image to image at a larger size.

    pip install diffusers==0.42.1 transformers==5.24.0 torch
    SD_FOLDER=FOLDER cargo test --test hires -- --ignored    # writes the model and the noise
    python3 hires.py FOLDER data

Networks run on the CPU in f32.
"""
import sys
from pathlib import Path

import numpy
import torch
from diffusers import DDIMScheduler, StableDiffusionImg2ImgPipeline, StableDiffusionPipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.stable_diffusion import pipeline_stable_diffusion_img2img
from PIL import Image
from safetensors.torch import load_file

SIDE, TOKENS, STEPS, GUIDANCE = 32, 16, 4, 5.0
PROMPT, NEGATIVE = "a red circle", "blue"
# Number of steps of the second pass, and of its schedule.
HIRES_STEPS, SCHEDULE = 3, 4


def main(folder, data):
    pipe = StableDiffusionPipeline.from_pretrained(folder / "v1", torch_dtype=torch.float32, safety_checker=None)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config, clip_sample=False)
    pipe.tokenizer.model_max_length = TOKENS
    getattr(pipe.text_encoder, "text_model", pipe.text_encoder).eos_token_id = pipe.tokenizer.eos_token_id
    second = StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)
    for one in [pipe, second]:
        one.set_progress_bar_config(disable=True)
    noise = load_file(folder / "noise.safetensors")
    common = dict(negative_prompt=NEGATIVE, guidance_scale=GUIDANCE)
    latents = pipe(PROMPT, num_inference_steps=STEPS, width=SIDE, height=SIDE, latents=noise["first"].clone(),
                   output_type="latent", **common).images
    decoded = pipe.image_processor.postprocess(
        pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample.detach(), output_type="pil")[0]
    interpolated = lambda height, width, **mode: torch.nn.functional.interpolate(latents, size=(height, width), **mode)
    for name, image in [
        ("latent", interpolated(16, 16, mode="bilinear")),
        ("bicubic_antialiased", interpolated(16, 16, mode="bicubic", antialias=True)),
        ("nearest_exact", interpolated(12, 12, mode="nearest-exact")),
        ("cut", interpolated(16, 16, mode="bicubic")[:, :, 2:14]),
        ("lanczos", decoded.resize((48, 48), Image.Resampling.LANCZOS)),
        ("nearest", decoded.resize((64, 64), Image.Resampling.NEAREST)),
    ]:
        shape = image.shape[2:] if torch.is_tensor(image) else (image.height // 4, image.width // 4)
        start, encode = [noise[f"{kind}_{shape[0]}_{shape[1]}"] for kind in ["start", "encode"]]
        DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mean + self.std * encode
        pipeline_stable_diffusion_img2img.randn_tensor = lambda *_, **__: start.clone()
        made = second(PROMPT, image=image, num_inference_steps=SCHEDULE, strength=HIRES_STEPS / SCHEDULE,
                      output_type="np", **common).images[0]
        Image.fromarray((made * 255).round().astype(numpy.uint8)).save(data / f"{name}.png", optimize=True)


main(*map(Path, sys.argv[1:]))
