"""Pipelines of diffusers for the models that `published.rs` describes, and their request.

Networks run on the CPU in f32.
"""
import numpy
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline
from PIL import Image

STEPS, GUIDANCE, SIDE, TOKENS = 4, 5.0, 32, 16
PROMPT, NEGATIVE = "a red circle", "blue"


def pipeline(folder, xl):
    kind = StableDiffusionXLPipeline if xl else StableDiffusionPipeline
    options = {} if xl else dict(safety_checker=None)
    pipe = kind.from_pretrained(folder, torch_dtype=torch.float32, **options)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config, clip_sample=False)
    for part in ["tokenizer", "tokenizer_2"] if xl else ["tokenizer"]:
        getattr(pipe, part).model_max_length = TOKENS
    for part in ["text_encoder", "text_encoder_2"] if xl else ["text_encoder"]:
        # The published configuration; the tiny vocabulary has another end token.
        encoder = getattr(pipe, part)
        getattr(encoder, "text_model", encoder).eos_token_id = pipe.tokenizer.eos_token_id
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(pipe, noise, out, **options):
    """Writes the image of the request; `options` are those of PNG."""
    image = pipe(PROMPT, negative_prompt=NEGATIVE, num_inference_steps=STEPS, guidance_scale=GUIDANCE, width=SIDE,
                 height=SIDE, latents=noise.clone(), output_type="np").images[0]
    Image.fromarray((image * 255).round().astype(numpy.uint8)).save(out, **options)
