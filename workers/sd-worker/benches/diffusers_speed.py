"""Benchmarks the parts of a Stable Diffusion 1.5 or XL model with Hugging Face diffusers, and writes such a model with
random weights.

    python3 diffusers_speed.py --write /tmp/sd15 --tokenizer examples/tiny_sd/model/tokenizer
    python3 diffusers_speed.py --model /tmp/sd15
    python3 diffusers_speed.py --write /tmp/xl --xl --tokenizer examples/tiny_sd/model/tokenizer
    python3 diffusers_speed.py --model /tmp/xl --sides 1024 --memory-formats contiguous,channels_last

Uses f16 and scaled_dot_product_attention, the default of diffusers. Prints one line of JSON per part and image side, in the
format of the example sd_speed. Peak memory, of tensors and reserved from
the driver, is measured per part. Text encoding includes tokenization, and the noise of an
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
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--write", metavar="FOLDER")
parser.add_argument("--tokenizer", metavar="FOLDER", default="examples/tiny_sd/model/tokenizer")
parser.add_argument("--xl", action="store_true", help="write the sizes of XL, with a VAE that does not overflow in f16")
parser.add_argument("--model", metavar="FOLDER")
parser.add_argument("--parts", default="text,unet,vae,picture")
parser.add_argument("--memory-formats", default="contiguous", help="comma-separated: contiguous, channels_last")
parser.add_argument("--profile", metavar="STEPS", type=int, default=0, help="print the slowest kernels of STEPS steps of the UNet")
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

TEXTS = [TEXT]
if args.xl:
    # The second text encoder is OpenCLIP's ViT-bigG.
    TEXTS.append(TEXT | dict(hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20,
                             projection_dim=1280, hidden_act="gelu"))
    UNET |= dict(
        sample_size=128, cross_attention_dim=2048, attention_head_dim=(5, 10, 20), block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), transformer_layers_per_block=(1, 2, 10),
        addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
        use_linear_projection=True,
    )
    VAE |= dict(sample_size=1024, scaling_factor=0.13025, force_upcast=False)

if args.write:
    torch.manual_seed(1)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        for name, create in [
            ("text_encoder", lambda: CLIPTextModel(CLIPTextConfig(**TEXT))),
            ("text_encoder_2", lambda: CLIPTextModelWithProjection(CLIPTextConfig(**TEXTS[-1]))),
            ("unet", lambda: UNet2DConditionModel(**UNET)),
            ("vae", lambda: AutoencoderKL(**VAE)),
        ]:
            if name != "text_encoder_2" or args.xl:
                create().to(torch.float16).save_pretrained(f"{args.write}/{name}")
    DDIMScheduler(**SCHEDULER).save_pretrained(f"{args.write}/scheduler")
    parts = dict(
        unet=["diffusers", "UNet2DConditionModel"], vae=["diffusers", "AutoencoderKL"],
        scheduler=["diffusers", "DDIMScheduler"],
    )
    for text, end, kind in zip(TEXTS, ["", "_2"], ["CLIPTextModel", "CLIPTextModelWithProjection"]):
        shutil.copytree(args.tokenizer, f"{args.write}/tokenizer{end}", dirs_exist_ok=True)
        parts |= {f"tokenizer{end}": ["transformers", "CLIPTokenizer"], f"text_encoder{end}": ["transformers", kind]}
        # Older versions of transformers write all keys.
        path = f"{args.write}/text_encoder{end}/config.json"
        config = text | json.load(open(path))
        json.dump(config, open(path, "w"))
    name = "StableDiffusionXLPipeline" if args.xl else "StableDiffusionPipeline"
    json.dump({"_class_name": name} | parts, open(f"{args.write}/model_index.json", "w"))

if args.model:
    def load(kind, name):
        return kind.from_pretrained(os.path.join(args.model, name), torch_dtype=torch.float16).to("cuda").eval()

    xl = os.path.isdir(os.path.join(args.model, "text_encoder_2"))
    texts = [load(CLIPTextModel, "text_encoder")]
    if xl:
        texts.append(load(CLIPTextModelWithProjection, "text_encoder_2"))
    unet, vae = load(UNet2DConditionModel, "unet"), load(AutoencoderKL, "vae")
    weights = torch.cuda.memory_allocated()

    def measure(part, side, work):
        if part.split()[0] not in args.parts.split(","):
            return
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        times = []
        with torch.inference_mode():
            for attempt in range(args.times + 2):
                begin = time.perf_counter()
                work()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) * 1e3)
        peak = torch.cuda.max_memory_allocated() - weights
        print(json.dumps(dict(by="diffusers", part=part, side=side, ms=statistics.median(times[2:]), peak_bytes=peak,
                              reserved_bytes=torch.cuda.max_memory_reserved())), flush=True)

    sides = [int(side) for side in args.sides.split(",")]
    half = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.float16)
    tokenizer = CLIPTokenizer.from_pretrained(os.path.join(args.model, "tokenizer"))
    length = TEXT["max_position_embeddings"]

    def encode():
        """Returns the embeddings of two prompts, and the pooled embedding of XL."""
        prompts = ["", "a red circle on blue"]
        tokens = tokenizer(prompts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        tokens = tokens.input_ids.to("cuda")
        if not xl:
            return texts[0](tokens).last_hidden_state, None
        both = [text(tokens, output_hidden_states=True) for text in texts]
        return torch.cat([output.hidden_states[-2] for output in both], dim=-1), both[1].text_embeds

    def added(pooled, side):
        if not xl:
            return None
        return dict(text_embeds=pooled, time_ids=torch.tensor([[side, side, 0, 0, side, side]] * 2, device="cuda").half())

    with torch.inference_mode():
        context, pooled = encode()
    scheduler = DDIMScheduler(**SCHEDULER)
    generator = torch.Generator()

    def picture(side):
        context, pooled = encode()
        extra = added(pooled, side)
        scheduler.set_timesteps(20)
        shape = (1, 4, side // 8, side // 8)
        sample = torch.randn(shape, generator=generator.manual_seed(0), dtype=torch.float16).to("cuda")
        for step in scheduler.timesteps:
            output = unet(torch.cat([sample] * 2), step, encoder_hidden_states=context, added_cond_kwargs=extra).sample
            without, wanted = output.chunk(2)
            sample = scheduler.step(without + 7.5 * (wanted - without), step, sample).prev_sample
        decoded = vae.decode(sample / vae.config.scaling_factor).sample
        return (decoded.float().clamp(-1, 1) * 127.5 + 127.5).round().byte().cpu()

    for memory_format in args.memory_formats.split(","):
        if memory_format == "channels_last":
            unet, vae = unet.to(memory_format=torch.channels_last), vae.to(memory_format=torch.channels_last)
        print(json.dumps(dict(by="diffusers", weights_bytes=weights, memory_format=memory_format)), flush=True)
        measure("text", 0, encode)
        for side in sides:
            latents, extra = half(2, 4, side // 8, side // 8), added(pooled, side)
            step = lambda: unet(latents, 500, encoder_hidden_states=context, added_cond_kwargs=extra)
            measure("unet", side, step)
            if args.profile:
                with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                    for _ in range(args.profile):
                        step()
                    torch.cuda.synchronize()
                rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
                print(f"UNet, {side}: {sum(row.self_device_time_total for row in rows) / 1e3 / args.profile:.2f} ms per step")
                for row in rows[:24]:
                    print(f"{row.self_device_time_total / 1e3 / args.profile:9.3f} ms {row.count // args.profile:6}  {row.key[:110]}")
        for side in sides:
            latents = half(1, 4, side // 8, side // 8)
            measure("vae", side, lambda: vae.decode(latents).sample.float())
        for side in sides:
            measure("picture of 20 steps", side, lambda: picture(side))
