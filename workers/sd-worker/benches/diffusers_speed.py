"""Benchmarks the parts of a Stable Diffusion 1.5 model with Hugging Face diffusers, and writes such a model with random weights.

    python3 diffusers_speed.py --write /tmp/sd15 --tokenizer examples/tiny_sd/model/tokenizer
    python3 diffusers_speed.py --model /tmp/sd15

Uses f16 and scaled_dot_product_attention, the default of diffusers. Prints one line of JSON per part and image side, in the
format of the example sd_speed. Peak memory is measured per part. Text encoding includes tokenization, and the noise of an
image is generated on the host, as in sd_speed.
"""
import argparse
import json
import os
import shutil
import statistics
import time

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--write", metavar="FOLDER")
parser.add_argument("--tokenizer", metavar="FOLDER", default="examples/tiny_sd/model/tokenizer")
parser.add_argument("--model", metavar="FOLDER")
parser.add_argument("--sides", default="512,1024")
parser.add_argument("--times", type=int, default=10)
args = parser.parse_args()

TEXT = dict(
    vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
    max_position_embeddings=77, hidden_act="quick_gelu", projection_dim=768,
)
UNET = dict(
    sample_size=64, cross_attention_dim=768, attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280),
    down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
)
VAE = dict(
    sample_size=512, latent_channels=4, layers_per_block=2, block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
)
SCHEDULER = dict(
    beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, set_alpha_to_one=False,
    clip_sample=False,
)

if args.write:
    torch.manual_seed(1)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        for name, model in [
            ("text_encoder", CLIPTextModel(CLIPTextConfig(**TEXT))),
            ("unet", UNet2DConditionModel(**UNET)),
            ("vae", AutoencoderKL(**VAE)),
        ]:
            model.to(torch.float16).save_pretrained(f"{args.write}/{name}")
    DDIMScheduler(**SCHEDULER).save_pretrained(f"{args.write}/scheduler")
    shutil.copytree(args.tokenizer, f"{args.write}/tokenizer", dirs_exist_ok=True)
    parts = dict(
        unet=["diffusers", "UNet2DConditionModel"], vae=["diffusers", "AutoencoderKL"],
        text_encoder=["transformers", "CLIPTextModel"], tokenizer=["transformers", "CLIPTokenizer"],
        scheduler=["diffusers", "DDIMScheduler"],
    )
    json.dump({"_class_name": "StableDiffusionPipeline"} | parts, open(f"{args.write}/model_index.json", "w"))
    # Older versions of transformers write all keys.
    path = f"{args.write}/text_encoder/config.json"
    config = TEXT | json.load(open(path))
    json.dump(config, open(path, "w"))

if args.model:
    load = lambda kind, name: kind.from_pretrained(os.path.join(args.model, name), torch_dtype=torch.float16).to("cuda").eval()
    text, unet, vae = load(CLIPTextModel, "text_encoder"), load(UNet2DConditionModel, "unet"), load(AutoencoderKL, "vae")
    weights = torch.cuda.memory_allocated()
    print(json.dumps(dict(by="diffusers", weights_bytes=weights)))

    def measure(part, side, work):
        torch.cuda.reset_peak_memory_stats()
        times = []
        with torch.inference_mode():
            for attempt in range(args.times + 2):
                begin = time.perf_counter()
                work()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) * 1e3)
        peak = torch.cuda.max_memory_allocated() - weights
        print(json.dumps(dict(by="diffusers", part=part, side=side, ms=statistics.median(times[2:]), peak_bytes=peak)))

    sides = [int(side) for side in args.sides.split(",")]
    half = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.float16)
    tokenizer = CLIPTokenizer.from_pretrained(os.path.join(args.model, "tokenizer"))
    length = TEXT["max_position_embeddings"]

    def encode():
        prompts = ["", "a red circle on blue"]
        tokens = tokenizer(prompts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        return text(tokens.input_ids.to("cuda")).last_hidden_state

    measure("text", 0, encode)
    context = half(2, 77, 768)
    for side in sides:
        latents = half(2, 4, side // 8, side // 8)
        measure("unet", side, lambda: unet(latents, 500, encoder_hidden_states=context))
    for side in sides:
        latents = half(1, 4, side // 8, side // 8)
        measure("vae", side, lambda: vae.decode(latents).sample.float())
    scheduler = DDIMScheduler(**SCHEDULER)
    generator = torch.Generator()

    def picture(side):
        context = encode()
        scheduler.set_timesteps(20)
        shape = (1, 4, side // 8, side // 8)
        sample = torch.randn(shape, generator=generator.manual_seed(0), dtype=torch.float16).to("cuda")
        for step in scheduler.timesteps:
            without, wanted = unet(torch.cat([sample] * 2), step, encoder_hidden_states=context).sample.chunk(2)
            sample = scheduler.step(without + 7.5 * (wanted - without), step, sample).prev_sample
        return (vae.decode(sample / 0.18215).sample.float().clamp(-1, 1) * 127.5 + 127.5).round().byte().cpu()

    for side in sides:
        measure("picture of 20 steps", side, lambda: picture(side))
