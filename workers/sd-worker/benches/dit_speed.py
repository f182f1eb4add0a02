"""Measures the time of one step of Flux dev with random weights in PyTorch, as the example dit_speed does for Candle.

    python3 dit_speed.py
    python3 dit_speed.py --check      # on the CPU: the result equals that of diffusers' FluxTransformer2DModel

The operations and the names of the weights are those of FluxTransformer2DModel in diffusers 0.42.1 with
scaled_dot_product_attention, so that this runs without diffusers, except for --steps: a picture of several steps is decoded
by diffusers' AutoencoderKL. With --diffusers, diffusers' class is measured itself. Prints one line of JSON per image side.
"""
import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


def modulated(x, shift, scale):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


class Modulation(nn.Module):
    def __init__(self, width, parts):
        super().__init__()
        self.linear, self.parts = nn.Linear(width, parts * width), parts

    def forward(self, conditioning):
        return self.linear(F.silu(conditioning)).chunk(self.parts, dim=1)


class Up(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, 4 * width)

    def forward(self, x):
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(Up(width), nn.Identity(), nn.Linear(4 * width, width))

    def forward(self, x):
        return self.net(x)


class Attention(nn.Module):
    def __init__(self, width, head, joint):
        super().__init__()
        self.head = head
        for name in ["to_q", "to_k", "to_v"] + (["add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"] if joint else []):
            setattr(self, name, nn.Linear(width, width))
        for name in ["norm_q", "norm_k"] + (["norm_added_q", "norm_added_k"] if joint else []):
            setattr(self, name, nn.RMSNorm(head, eps=1e-6))
        if joint:
            self.to_out = nn.ModuleList([nn.Linear(width, width), nn.Identity()])

    def forward(self, image, text, rotary):
        def heads(x):
            return x.unflatten(-1, (-1, self.head))

        q, k, v = self.norm_q(heads(self.to_q(image))), self.norm_k(heads(self.to_k(image))), heads(self.to_v(image))
        if text is not None:
            added = [self.norm_added_q(heads(self.add_q_proj(text))), self.norm_added_k(heads(self.add_k_proj(text))),
                     heads(self.add_v_proj(text))]
            q, k, v = [torch.cat(pair, dim=1) for pair in zip(added, [q, k, v])]
        q, k = [rotated(x, *rotary) for x in [q, k]]
        out = F.scaled_dot_product_attention(*[x.transpose(1, 2) for x in [q, k, v]]).transpose(1, 2).flatten(2)
        if text is None:
            return out
        text_out, out = out.split([text.shape[1], image.shape[1]], dim=1)
        return self.to_out[0](out), self.to_add_out(text_out)


def rotated(x, cos, sin):
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(3)
    return (x.float() * cos[None, :, None] + turned.float() * sin[None, :, None]).to(x.dtype)


class JointBlock(nn.Module):
    def __init__(self, width, head):
        super().__init__()
        self.norm1, self.norm1_context = Modulation(width, 6), Modulation(width, 6)
        self.attn = Attention(width, head, True)
        self.ff, self.ff_context = FeedForward(width), FeedForward(width)

    def forward(self, image, text, conditioning, rotary):
        shift, scale, gate, *rest = self.norm1(conditioning)
        text_shift, text_scale, text_gate, *text_rest = self.norm1_context(conditioning)
        own, of_text = self.attn(modulated(image, shift, scale), modulated(text, text_shift, text_scale), rotary)
        image = image + gate[:, None] * own
        image = image + rest[2][:, None] * self.ff(modulated(image, *rest[:2]))
        text = text + text_gate[:, None] * of_text
        return image, text + text_rest[2][:, None] * self.ff_context(modulated(text, *text_rest[:2]))


class SingleBlock(nn.Module):
    def __init__(self, width, head):
        super().__init__()
        self.norm, self.attn = Modulation(width, 3), Attention(width, head, False)
        self.proj_mlp, self.proj_out = nn.Linear(width, 4 * width), nn.Linear(5 * width, width)

    def forward(self, x, conditioning, rotary):
        shift, scale, gate = self.norm(conditioning)
        normed = modulated(x, shift, scale)
        inner = F.gelu(self.proj_mlp(normed), approximate="tanh")
        return x + gate[:, None] * self.proj_out(torch.cat([self.attn(normed, None, rotary), inner], dim=2))


class Embedder(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(inputs, width), nn.Linear(width, width)

    def forward(self, x):
        return self.linear_2(F.silu(self.linear_1(x)))


class Embedders(nn.Module):
    def __init__(self, pooled, width):
        super().__init__()
        self.timestep_embedder, self.guidance_embedder = Embedder(256, width), Embedder(256, width)
        self.text_embedder = Embedder(pooled, width)

    def forward(self, timestep, guidance, pooled):
        def sinusoids(value):
            angles = value.float()[:, None] * torch.exp(-math.log(10000) * torch.arange(128, device=value.device) / 128)
            return torch.cat([angles.cos(), angles.sin()], dim=1).to(pooled.dtype)

        return (self.timestep_embedder(sinusoids(timestep)) + self.guidance_embedder(sinusoids(guidance))
                + self.text_embedder(pooled))


class Flux(nn.Module):
    def __init__(self, layers=(19, 38), heads=24, axes=(16, 56, 56), inputs=64, text=4096, pooled=768):
        super().__init__()
        width, self.axes = heads * sum(axes), axes
        self.x_embedder, self.context_embedder = nn.Linear(inputs, width), nn.Linear(text, width)
        self.time_text_embed = Embedders(pooled, width)
        self.transformer_blocks = nn.ModuleList(JointBlock(width, sum(axes)) for _ in range(layers[0]))
        self.single_transformer_blocks = nn.ModuleList(SingleBlock(width, sum(axes)) for _ in range(layers[1]))
        self.norm_out, self.proj_out = Modulation(width, 2), nn.Linear(width, inputs)

    def rotary(self, tokens, height, width, device):
        ids = torch.zeros(tokens + height * width, 3, dtype=torch.float64, device=device)
        ids[tokens:, 1] = torch.arange(height, device=device).repeat_interleave(width)
        ids[tokens:, 2] = torch.arange(width, device=device).repeat(height)
        angles = [ids[:, i, None] * 10000 ** (-torch.arange(0, axis, 2, device=device).double() / axis)
                  for i, axis in enumerate(self.axes)]
        angles = torch.cat(angles, dim=1).repeat_interleave(2, dim=1)
        return angles.cos().float(), angles.sin().float()

    def forward(self, image, text, pooled, timestep, guidance, size):
        conditioning = self.time_text_embed(timestep * 1000, guidance * 1000, pooled)
        image, text = self.x_embedder(image), self.context_embedder(text)
        rotary = self.rotary(text.shape[1], *size, image.device)
        for block in self.transformer_blocks:
            image, text = block(image, text, conditioning, rotary)
        both = torch.cat([text, image], dim=1)
        for block in self.single_transformer_blocks:
            both = block(both, conditioning, rotary)
        scale, shift = self.norm_out(conditioning)
        return self.proj_out(modulated(both[:, text.shape[1]:], shift, scale))


def inputs(side, dtype, device, channels=64, text=4096, pooled=768, tokens=512):
    size = (side // 16, side // 16)
    shapes = [(1, size[0] * size[1], channels), (1, tokens, text), (1, pooled)]
    numbers = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
    return [*numbers, torch.tensor([0.5], device=device), torch.tensor([3.5], device=device), size]


def check():
    from diffusers import FluxTransformer2DModel
    torch.manual_seed(1)
    other = FluxTransformer2DModel(num_layers=2, num_single_layers=2, attention_head_dim=32, num_attention_heads=2,
                                   joint_attention_dim=80, pooled_projection_dim=32, guidance_embeds=True,
                                   axes_dims_rope=(8, 12, 12))
    own = Flux((2, 2), 2, (8, 12, 12), 64, 80, 32)
    own.load_state_dict(other.state_dict())
    image, text, pooled, timestep, guidance, size = inputs(96, torch.float32, "cpu", 64, 80, 32, 7)
    ids = torch.zeros(*size, 3)
    ids[..., 1], ids[..., 2] = torch.arange(size[0])[:, None], torch.arange(size[1])[None]
    expected = other(hidden_states=image, encoder_hidden_states=text, pooled_projections=pooled, timestep=timestep,
                     guidance=guidance, img_ids=ids.flatten(0, 1), txt_ids=torch.zeros(7, 3), return_dict=False)[0]
    difference = (own(image, text, pooled, timestep, guidance, size) - expected).abs().max().item()
    print(json.dumps({"difference": difference, "largest": expected.abs().max().item()}))
    assert difference < 1e-5


class Diffusers(nn.Module):
    """diffusers' own transformer, with the arguments of Flux."""
    def __init__(self, layers):
        super().__init__()
        from diffusers import FluxTransformer2DModel
        self.model = FluxTransformer2DModel(num_layers=layers[0], num_single_layers=layers[1], guidance_embeds=True)

    def forward(self, image, text, pooled, timestep, guidance, size):
        ids = torch.zeros(*size, 3, device=image.device, dtype=image.dtype)
        ids[..., 1] = torch.arange(size[0], device=image.device)[:, None]
        ids[..., 2] = torch.arange(size[1], device=image.device)
        return self.model(hidden_states=image, encoder_hidden_states=text, pooled_projections=pooled, timestep=timestep,
                          guidance=guidance, img_ids=ids.flatten(0, 1), return_dict=False,
                          txt_ids=torch.zeros(text.shape[1], 3, device=image.device, dtype=image.dtype))[0]


def decoder():
    from diffusers import AutoencoderKL
    return AutoencoderKL(
        latent_channels=16, layers_per_block=2, block_out_channels=(128, 256, 512, 512), use_quant_conv=False,
        use_post_quant_conv=False, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4)


def picture(args, model, vae, values, side):
    """Measures the steps of Euler's method and the decoder."""
    packed, text, pooled, _, guidance, size = values
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        sample = packed.float()
        for step in range(args.steps):
            level = torch.tensor([1 - step / args.steps], device="cuda")
            velocity = model(sample.to(packed.dtype), text, pooled, level, guidance, size)
            sample = sample - velocity.float() / args.steps
        latents = sample.unflatten(1, size).unflatten(-1, (16, 2, 2)).permute(0, 3, 1, 4, 2, 5)
        latents = latents.reshape(1, 16, side // 8, side // 8).to(packed.dtype)
        (vae.decode(latents).sample.float().clamp(-1, 1) * 127.5 + 127.5).round().byte().cpu()
        times.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps({"part": f"picture of {args.steps} steps", "side": side, "ms": sorted(times)[1],
                      "reserved_bytes": torch.cuda.max_memory_reserved()}), flush=True)


def main(args):
    dtype = dict(bf16=torch.bfloat16, f16=torch.float16)[args.dtype]
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = (Diffusers if args.diffusers else Flux)(tuple(map(int, args.layers.split(","))))
        vae = decoder() if args.steps else None
    torch.set_default_dtype(torch.float32)
    weights = torch.cuda.memory_allocated()
    for side in map(int, args.sides.split(",")):
        values = inputs(side, dtype, "cuda")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for i in range(args.times + 2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model(*values)
            torch.cuda.synchronize()
            times += [(time.perf_counter() - begin) * 1e3] if i > 1 else []
        print(json.dumps({"dtype": args.dtype, "side": side, "ms": statistics.median(times), "least": min(times),
                          "weights_bytes": weights, "peak_bytes": torch.cuda.max_memory_allocated() - weights,
                          "reserved_bytes": torch.cuda.max_memory_reserved()}), flush=True)
        if args.profile:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(args.profile):
                    model(*values)
                torch.cuda.synchronize()
            rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
            for row in rows[:16]:
                print(f"{row.self_device_time_total / 1e3 / args.profile:9.3f} ms {row.count // args.profile:6}  {row.key[:110]}")
        if args.steps:
            picture(args, model, vae, values, side)


parser = argparse.ArgumentParser()
parser.add_argument("--sides", default="512,1024")
parser.add_argument("--times", type=int, default=5)
parser.add_argument("--dtype", default="bf16")
parser.add_argument("--layers", default="19,38")
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--profile", metavar="STEPS", type=int, default=0)
parser.add_argument("--diffusers", action="store_true")
parser.add_argument("--check", action="store_true")
with torch.inference_mode():
    check() if parser.parse_args().check else main(parser.parse_args())
