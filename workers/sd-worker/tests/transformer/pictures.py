"""Writes the configurations and the names of the weights of tiny models with transformers, and the images that diffusers
generates with the files of `fixture.rs`. Lines of the tables of original names have a name, the weight of diffusers that a
part of its rows is, and this part: first, number, and number of all, or `swapped` for the second half before the first.

    pip install diffusers==0.42.1 transformers==5.24.0 gguf torch
    python3 pictures.py names data                                # writes data/*.json, data/*.txt
    SD_FOLDER=FOLDER cargo test --test transformer -- --ignored       # writes the models, GGUF files, noise, the input image
    python3 pictures.py images FOLDER data                        # writes data/*.png
    python3 pictures.py cached FOLDER data                        # only those with a first-block cache
    python3 pictures.py scaled FOLDER data                        # only those of files in scaled f8
    python3 pictures.py loras FOLDER data                         # only LoRA files and their images; requires peft

Networks run on the CPU in f32.
"""
import inspect
import json
import math
import sys
from pathlib import Path

import gguf
import numpy
import torch
from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxImg2ImgPipeline, FluxInpaintPipeline,
                       FluxPipeline, FluxTransformer2DModel, SD3Transformer2DModel, StableDiffusion3Img2ImgPipeline,
                       StableDiffusion3Pipeline)
from diffusers.loaders import lora_conversion_utils, lora_pipeline
from diffusers.loaders import single_file_utils as convert
from diffusers.hooks import FirstBlockCacheConfig
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.flux import pipeline_flux_img2img, pipeline_flux_inpaint
from diffusers.pipelines.stable_diffusion_3 import pipeline_stable_diffusion_3_img2img
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel,
                          T5Tokenizer)

STEPS, TOKENS, VOCABULARY = 4, 16, 60
GENERATOR = torch.Generator().manual_seed(1)
CACHED_STEPS, THRESHOLD = 12, 0.8
PROMPT, NEGATIVE = "a red circle", "blue"
KINDS = ["flux_dev", "flux_schnell", "sd3", "sd35"]
# Models with the proportions of published ones, from which single files are made.
FILES = ["flux_files", "sd35_files"]
# Formats of the GGUF files of text encoders, and of the transformer and the text encoder together.
T5_FORMATS = ["f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2k", "q3k", "q4k", "q5k", "q6k"]


def clip(cls, activation, width, projection):
    return cls(CLIPTextConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=3, num_attention_heads=2,
        max_position_embeddings=TOKENS, hidden_act=activation, projection_dim=projection, bos_token_id=VOCABULARY - 2,
        eos_token_id=VOCABULARY - 1))


def file_components(kind):
    """Like `components`, with widths as in published models."""
    flux = kind.startswith("flux")
    heads = lambda cls, activation, count: cls(CLIPTextConfig(
        vocab_size=VOCABULARY, hidden_size=64 * count, intermediate_size=128 * count, num_hidden_layers=2,
        num_attention_heads=count, max_position_embeddings=TOKENS, hidden_act=activation, projection_dim=64 * count,
        bos_token_id=VOCABULARY - 2, eos_token_id=VOCABULARY - 1))
    vae = AutoencoderKL(
        latent_channels=16, block_out_channels=[32] * 4, layers_per_block=1, norm_num_groups=32, sample_size=64,
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        scaling_factor=0.3611 if flux else 1.5305, shift_factor=0.1159 if flux else 0.0609,
        use_quant_conv=False, use_post_quant_conv=False)
    t5 = T5EncoderModel(T5Config(
        vocab_size=80, d_model=256, d_kv=64, d_ff=256, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"))
    sizes = dict(attention_head_dim=32, num_attention_heads=2, joint_attention_dim=256, num_layers=2)
    if flux:
        parts = dict(text_encoder=heads(CLIPTextModel, "quick_gelu", 1), text_encoder_2=t5,
                     transformer=FluxTransformer2DModel(
                         in_channels=64, num_single_layers=1, pooled_projection_dim=64, guidance_embeds=True,
                         axes_dims_rope=[4, 14, 14], **sizes))
        shift = dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256,
                     max_image_seq_len=4096, shift=3.0)
        return parts | dict(vae=vae), FlowMatchEulerDiscreteScheduler(**shift)
    parts = dict(text_encoder=heads(CLIPTextModelWithProjection, "quick_gelu", 1),
                 text_encoder_2=heads(CLIPTextModelWithProjection, "gelu", 2), text_encoder_3=t5,
                 transformer=SD3Transformer2DModel(
                     sample_size=8, caption_projection_dim=64, pooled_projection_dim=192, pos_embed_max_size=8,
                     qk_norm="rms_norm", dual_attention_layers=(0,), **sizes))
    return parts | dict(vae=vae), FlowMatchEulerDiscreteScheduler(shift=3.0)


def components(kind):
    """Returns the components with weights, and the scheduler."""
    if kind in FILES:
        return file_components(kind)
    flux = kind.startswith("flux")
    vae = AutoencoderKL(
        latent_channels=16, block_out_channels=[16, 16, 16, 32], layers_per_block=1, norm_num_groups=8, sample_size=64,
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        scaling_factor=0.3611 if flux else 1.5305, shift_factor=0.1159 if flux else 0.0609,
        use_quant_conv=False, use_post_quant_conv=False)
    t5 = T5EncoderModel(T5Config(
        vocab_size=80, d_model=80, d_kv=16, d_ff=96, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"))
    sizes = dict(attention_head_dim=32, num_attention_heads=2, joint_attention_dim=80)
    if flux:
        parts = dict(text_encoder=clip(CLIPTextModel, "quick_gelu", 32, 32), text_encoder_2=t5,
                     transformer=FluxTransformer2DModel(
                         in_channels=64, num_layers=2, num_single_layers=2, pooled_projection_dim=32,
                         guidance_embeds=kind == "flux_dev", axes_dims_rope=[8, 12, 12], **sizes))
        shift = (dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256,
                      max_image_seq_len=4096, shift=3.0) if kind == "flux_dev" else dict(shift=1.0))
        return parts | dict(vae=vae), FlowMatchEulerDiscreteScheduler(**shift)
    parts = dict(text_encoder=clip(CLIPTextModelWithProjection, "quick_gelu", 32, 24),
                 text_encoder_2=clip(CLIPTextModelWithProjection, "gelu", 40, 40), text_encoder_3=t5,
                 transformer=SD3Transformer2DModel(
                     sample_size=8, num_layers=3, caption_projection_dim=64, pooled_projection_dim=64, pos_embed_max_size=8,
                     **(dict(qk_norm="rms_norm", dual_attention_layers=(0, 1)) if kind == "sd35" else {}), **sizes))
    if kind == "sd35":
        del parts["text_encoder_3"]
    return parts | dict(vae=vae), FlowMatchEulerDiscreteScheduler(shift=3.0)


def table(kind):
    """Returns the index, the configurations, and the shapes of the weights."""
    parts, scheduler = components(kind)
    flux = kind.startswith("flux")
    index = dict(_class_name="FluxPipeline" if flux else "StableDiffusion3Pipeline", _diffusers_version="0.42.1",
                 scheduler=["diffusers", "FlowMatchEulerDiscreteScheduler"])
    configs, shapes = {}, {}
    for name, part in parts.items():
        library = "diffusers" if name in ["transformer", "vae"] else "transformers"
        index[name] = [library, type(part).__name__]
        if library == "transformers":
            t5 = isinstance(part, T5EncoderModel)
            index[name.replace("text_encoder", "tokenizer")] = ["transformers", "T5TokenizerFast" if t5 else "CLIPTokenizer"]
        configs[name] = json.loads(part.config.to_json_string(use_diff=False) if library == "transformers" else part.to_json_string())
        # Files do not contain the copies of shared tensors.
        own = {id(tensor): key for key, tensor in reversed(part.state_dict(keep_vars=True).items())}
        shapes[name] = {key: list(tensor.shape) for key, tensor in part.state_dict(keep_vars=True).items() if own[id(tensor)] == key}
    if kind == "sd35":
        index |= dict(text_encoder_3=[None, None], tokenizer_3=[None, None])
    configs["scheduler"] = json.loads(scheduler.to_json_string())
    return dict(index=index, configs=configs, shapes=shapes)


def t5_tokenizer(folder):
    letters = "abcdefghijklmnopqrstuvwxyz,.!"
    pieces = ["<pad>", "</s>", "<unk>", "▁", *letters, "▁a", "▁red", "▁bl", "ue", "cir", "cle", "re"]
    T5Tokenizer(vocab=[(piece, -float(i) / 4) for i, piece in enumerate(pieces)], extra_ids=0).save_pretrained(folder)


def both(start, *modules):
    return [f"{start}{module}.{kind}" for module in modules for kind in ["weight", "bias"]]


def original_names(kind):
    """Returns the names of the transformer in its authors' code."""
    norms = ["norm.query_norm.scale", "norm.key_norm.scale"]
    if kind.startswith("flux"):
        embedders = ["time_in", "vector_in", *(["guidance_in"] if kind != "flux_schnell" else [])]
        names = both("", "img_in", "txt_in", "final_layer.linear", "final_layer.adaLN_modulation.1",
                     *[f"{name}.{layer}_layer" for name in embedders for layer in ["in", "out"]])
        for i in range(2):
            for stream in ["img", "txt"]:
                start = f"double_blocks.{i}.{stream}_"
                names += both(start, "mod.lin", "attn.qkv", "attn.proj", "mlp.0", "mlp.2")
                names += [f"{start}attn.{norm}" for norm in norms]
            if kind in FILES and i == 1:
                break
            start = f"single_blocks.{i}."
            names += both(start, "modulation.lin", "linear1", "linear2") + [start + norm for norm in norms]
        return names
    names = ["pos_embed", *both("", "x_embedder.proj", "t_embedder.mlp.0", "t_embedder.mlp.2", "y_embedder.mlp.0",
                                "y_embedder.mlp.2", "context_embedder", "final_layer.linear",
                                "final_layer.adaLN_modulation.1")]
    last, dual = (1, 0) if kind in FILES else (2, 1)
    for i in range(last + 1):
        for stream in ["x", "context"]:
            start = f"joint_blocks.{i}.{stream}_block."
            names += both(start, "adaLN_modulation.1", "attn.qkv")
            if kind.startswith("sd35"):
                names += [f"{start}attn.ln_{part}.weight" for part in "qk"]
                if stream == "x" and i <= dual:
                    names += both(start, "attn2.qkv", "attn2.proj")
                    names += [f"{start}attn2.ln_{part}.weight" for part in "qk"]
            if stream == "x" or i < last:
                names += both(start, "attn.proj", "mlp.fc1", "mlp.fc2")
    return names


def table_of_names(kind):
    """Converts tensors that are marked by their number and their rows."""
    names = original_names(kind)
    # The conversion takes the width of the published Flux for granted.
    rows = [7 * 3072 if ".linear1." in name else 6 for name in names]
    marked = {name: torch.arange(count) + (i << 20) for i, (name, count) in enumerate(zip(names, rows))}
    function = "flux" if kind.startswith("flux") else "sd3"
    converted = getattr(convert, f"convert_{function}_transformer_checkpoint_to_diffusers")(dict(marked))
    own = components(kind)[0]["transformer"].state_dict()
    if set(converted) != set(own):
        sys.exit(f"{kind}: {sorted(set(converted) ^ set(own))[:8]}")
    lines = []
    for name, tensor in converted.items():
        index, first = divmod(int(tensor[0]), 1 << 20)
        if int(tensor[-1]) % (1 << 20) < first:
            part = "swapped"
        else:
            unit = math.gcd(first, len(tensor), rows[index])
            part = f"{first // unit} {len(tensor) // unit} {rows[index] // unit}"
        lines.append(f"{names[index]} {name} {part}\n")
    return "".join(lines)


def load(kind, folder, cls, base):
    missing = dict(text_encoder_3=None, tokenizer_3=None) if kind == "sd35" else {}
    pipe = base.from_pretrained(folder / kind, torch_dtype=torch.float32, **missing)
    pipe.set_progress_bar_config(disable=True)
    for suffix in [""] if kind.startswith("flux") else ["", "_2"]:
        getattr(pipe, f"tokenizer{suffix}").model_max_length = TOKENS
    pipe = cls.from_pipe(pipe) if cls is not base else pipe
    pipe.set_progress_bar_config(disable=True)
    pipe.tokenizer_max_length = TOKENS
    return pipe


def save(pipe, out, given=None, mask=None, **options):
    options = dict(num_inference_steps=STEPS, output_type="np") | options
    image = pipe(PROMPT, **options).images[0]
    pixels = (image * 255).round().astype(numpy.uint8)
    if mask is not None:
        pixels = numpy.where(numpy.asarray(mask.convert("L"))[:, :, None] >= 128, pixels, numpy.asarray(given))
    Image.fromarray(pixels).save(out, optimize=True)


def dequantized(kind, folder, data, name):
    """Returns the weights of a GGUF file with the names of diffusers, and checks the file against the quantization of the
    gguf package, which has none for the formats with blocks of 256."""
    own = load_file(folder / kind / "transformer" / "diffusion_pytorch_model.safetensors")
    lines = [line.split() for line in (data / f"{kind}.txt").read_text().splitlines()]
    swapped = lambda weight: torch.cat(weight.chunk(2)[::-1])
    stored = {}
    for tensor in gguf.GGUFReader(folder / f"{name}.gguf").tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        stored[tensor.name] = torch.from_numpy(values.copy()).reshape(list(map(int, tensor.shape[::-1])))
        if tensor.tensor_type.name in ["Q4_0", "Q4_1", "Q5_0", "Q8_0"]:
            parts = sorted((line[2] != "swapped" and int(line[2]), line[1]) for line in lines if line[0] == tensor.name)
            whole = torch.cat([own[part] for _, part in parts])
            if [tensor.name, parts[0][1], "swapped"] in lines:
                whole = swapped(whole)
            if (gguf.quantize(whole.numpy(), tensor.tensor_type) != tensor.data).any():
                sys.exit(f"{name}: {tensor.name} differs from the gguf package's")
    return renamed(stored, own, lines)


def renamed(stored, own, lines):
    """Returns weights with original names under those of diffusers."""
    weights = {}
    for original, name, first, *part in lines:
        weight = stored[original].reshape(-1, *own[name].shape[1:])
        if first == "swapped":
            weights[name] = torch.cat(weight.chunk(2)[::-1])
        else:
            count, of = map(int, part)
            weights[name] = weight.chunk(of)[int(first)] if count == 1 else torch.cat(weight.chunk(of)[int(first):][:count])
    return {name: weight.reshape(own[name].shape) for name, weight in weights.items()}


def unscaled(path):
    """Returns the weights of a file in scaled f8."""
    stored = load_file(path)
    factors = {name.removesuffix("scale_weight"): stored.pop(name) for name in list(stored) if name.endswith(".scale_weight")}
    return {name: weight.float() * factors.get(name.removesuffix("weight"), 1.0) for name, weight in stored.items()
            if not name.endswith((".scale_input", "scaled_fp8"))}


def scaled(folder, data):
    """Writes an image of a transformer and a T5 encoder in scaled f8."""
    pipe = load("flux_files", folder, FluxPipeline, FluxPipeline)
    lines = [line.split() for line in (data / "flux_files.txt").read_text().splitlines()]
    own = pipe.transformer.state_dict()
    pipe.transformer.load_state_dict(renamed(unscaled(folder / "scaled_transformer.safetensors"), own, lines))
    pipe.text_encoder_2.load_state_dict(unscaled(folder / "scaled_t5xxl.safetensors"), strict=False)
    packed = FluxPipeline._pack_latents(load_file(folder / "noise.safetensors")["start"], 1, 16, 6, 8)
    save(pipe, data / "flux_scaled.png", latents=packed, guidance_scale=3.5, width=64, height=48)


def quantized_images(folder, data, start, packed, wide):
    for name in ["flux_dev_q8_0", "flux_dev_q4_0", "sd35_q5_0", "sd35_q4_1"]:
        kind = name[:-5]
        flux = kind == "flux_dev"
        cls = FluxPipeline if flux else StableDiffusion3Pipeline
        pipe = load(kind, folder, cls, cls)
        pipe.transformer.load_state_dict(dequantized(kind, folder, data, name))
        options = (dict(latents=packed.clone(), guidance_scale=3.5) if flux
                   else dict(latents=start.clone(), guidance_scale=5.0, negative_prompt=NEGATIVE))
        save(pipe, data / f"{name}.png", **options, **wide)


# Names of llama.cpp by those of transformers.
LLAMA = {
    "shared.": "token_embd.", "encoder.final_layer_norm.": "enc.output_norm.", "encoder.block.": "enc.blk.",
    "layer.0.SelfAttention.relative_attention_bias.": "attn_rel_b.", "layer.0.SelfAttention.": "attn_",
    "layer.0.layer_norm.": "attn_norm.", "layer.1.DenseReluDense.wi_0.": "ffn_gate.",
    "layer.1.DenseReluDense.wi_1.": "ffn_up.", "layer.1.DenseReluDense.wo.": "ffn_down.", "layer.1.layer_norm.": "ffn_norm."}


def llama_name(name):
    for own, other in LLAMA.items():
        name = name.replace(own, other)
    return name


def dequantized_t5(path, encoder):
    """Returns the weights of an encoder from a GGUF file."""
    stored = {tensor.name: (gguf.dequantize(tensor.data, tensor.tensor_type), tensor) for tensor in gguf.GGUFReader(path).tensors}
    return {name: torch.from_numpy(stored[llama_name(name)][0].copy()).float().reshape(weight.shape)
            for name, weight in encoder.state_dict().items() if name != "encoder.embed_tokens.weight"}


def file_images(folder, data, start, packed, wide):
    """Generates the images of models that are made of single files."""
    pipe = load("flux_files", folder, FluxPipeline, FluxPipeline)
    options = dict(guidance_scale=3.5) | wide
    save(pipe, data / "flux_files.png", latents=packed.clone(), **options)
    for name in T5_FORMATS:
        own = dequantized_t5(folder / f"t5_{name}.gguf", pipe.text_encoder_2)
        pipe.text_encoder_2.load_state_dict(own, strict=False)
        save(pipe, data / f"flux_t5_{name}.png", latents=packed.clone(), **options)
    pipe = load("sd35_files", folder, StableDiffusion3Pipeline, StableDiffusion3Pipeline)
    options = dict(guidance_scale=5.0, negative_prompt=NEGATIVE) | wide
    # Files of CLIP-L have no projection that the network uses.
    with torch.no_grad():
        pipe.text_encoder.text_projection.weight.copy_(torch.eye(64))
    save(pipe, data / "sd35_files.png", latents=start.clone(), **options)


def cached(folder, data):
    """Writes an image of more steps with a first-block cache, which diffusers has for Flux but not for Stable Diffusion 3."""
    start = load_file(folder / "noise.safetensors")["start"]
    packed = FluxPipeline._pack_latents(start, 1, 16, 6, 8)
    pipe = load("flux_dev", folder, FluxPipeline, FluxPipeline)
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=THRESHOLD))
    computed = []
    pipe.transformer.single_transformer_blocks[-1].attn.register_forward_hook(lambda *_: computed.append(1))
    save(pipe, data / "flux_dev_cached.png", latents=packed, guidance_scale=3.5, width=64, height=48,
         num_inference_steps=CACHED_STEPS)
    print(f"{CACHED_STEPS - len(computed)} of {CACHED_STEPS} steps computed the first block only")


# Names of weights of Flux in kohya's files that a LoRA changes, and in diffusers' files.
KOHYA = ["double_blocks_0_img_attn_qkv", "double_blocks_1_txt_attn_qkv", "double_blocks_0_txt_attn_proj",
         "double_blocks_1_img_mlp_0", "double_blocks_0_txt_mlp_2", "double_blocks_0_img_mod_lin", "single_blocks_0_linear1",
         "single_blocks_1_linear2", "single_blocks_1_modulation_lin"]
PEFT = ["attn.to_q", "attn.to_v", "attn.add_k_proj", "to_out.0", "ff.net.2", "ff_context.net.0.proj", "proj_mlp",
        "norm1.linear", "x_embedder", "context_embedder"]
LORA_RANK, ALPHA = 2, 1.5


def lora_pair(rows, columns):
    random = lambda *shape: (torch.randn(shape, generator=GENERATOR) * 0.3).half()
    return random(LORA_RANK, columns), random(rows, LORA_RANK)


def kohya_lora(pipe, data):
    """Returns a LoRA with kohya's names, whose layers consist of several layers of diffusers."""
    own = pipe.transformer.state_dict()
    shapes = {}
    for line in (data / "flux_dev.txt").read_text().splitlines():
        original, name, *_ = line.split()
        key = original.removesuffix(".weight").replace(".", "_")
        if original.endswith(".weight") and key in KOHYA:
            rows, columns = own[name].shape
            shapes[f"lora_unet_{key}"] = (shapes.get(f"lora_unet_{key}", (0, 0))[0] + rows, columns)
    for name, weight in pipe.text_encoder.state_dict().items():
        # diffusers 0.42 drops attentions of text encoders in kohya's files, with transformers 5.
        if name.endswith(("fc1.weight", "fc2.weight")):
            name = name.removeprefix("text_model.").removesuffix(".weight").replace(".", "_")
            shapes[f"lora_te1_text_model_{name}"] = tuple(weight.shape)
    file = {}
    for name, shape in shapes.items():
        file[f"{name}.lora_down.weight"], file[f"{name}.lora_up.weight"] = lora_pair(*shape)
        file[f"{name}.alpha"] = torch.tensor(ALPHA)
    return file


def peft_lora(pipe):
    file = {}
    for name, weight in pipe.transformer.state_dict().items():
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and weight.dim() == 2 and module.endswith(tuple(PEFT)):
            file[f"transformer.{module}.lora_A.weight"], file[f"transformer.{module}.lora_B.weight"] = lora_pair(*weight.shape)
    return file


def loras(folder, data):
    """Writes LoRA files for transformers, and the images with them. The conversion of diffusers takes the width of the
    published Flux for granted."""
    source = inspect.getsource(lora_pipeline._convert_kohya_flux_lora_to_diffusers)
    own = vars(lora_conversion_utils) | {}
    exec(source.replace("12288", "256").replace("3072", "64"), own)
    lora_pipeline._convert_kohya_flux_lora_to_diffusers = own["_convert_kohya_flux_lora_to_diffusers"]
    start = load_file(folder / "noise.safetensors")["start"]
    flux = load("flux_dev", folder, FluxPipeline, FluxPipeline)
    sd35 = load("sd35", folder, StableDiffusion3Pipeline, StableDiffusion3Pipeline)
    for name, file in [("flux_kohya", kohya_lora(flux, data)), ("flux_peft", peft_lora(flux)), ("sd35_peft", peft_lora(sd35))]:
        save_file({key: tensor.contiguous() for key, tensor in file.items()}, data / f"{name}.safetensors", {"format": "pt"})
    for out, pipe, chosen in [
        ("flux_kohya", flux, [("flux_kohya", 0.7)]),
        ("flux_peft", flux, [("flux_peft", 0.5)]),
        ("flux_loras", flux, [("flux_kohya", 0.4), ("flux_peft", -0.3)]),
        ("sd35_peft", sd35, [("sd35_peft", 0.6)]),
        ("flux_dev_q8_0_loras", None, [("flux_kohya", 0.4), ("flux_peft", -0.3)]),
    ]:
        if pipe is None:
            pipe = flux
            pipe.transformer.load_state_dict(dequantized("flux_dev", folder, data, "flux_dev_q8_0"))
        for lora, _ in chosen:
            pipe.load_lora_weights(data, weight_name=f"{lora}.safetensors", adapter_name=lora)
        pipe.set_adapters([lora for lora, _ in chosen], [weight for _, weight in chosen])
        options = (dict(latents=FluxPipeline._pack_latents(start, 1, 16, 6, 8), guidance_scale=3.5) if pipe is flux
                   else dict(latents=start.clone(), guidance_scale=5.0, negative_prompt=NEGATIVE))
        save(pipe, data / f"{out}.png", width=64, height=48, **options)
        pipe.unload_lora_weights()


def images(folder, data):
    noise = load_file(folder / "noise.safetensors")
    wide = dict(width=64, height=48)
    start = noise["start"]
    DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mean + self.std * noise["encode"]
    for module in [pipeline_flux_img2img, pipeline_flux_inpaint, pipeline_stable_diffusion_3_img2img]:
        module.randn_tensor = lambda *_, **__: start.clone()
    packed = FluxPipeline._pack_latents(start, 1, 16, 6, 8)
    file_images(folder, data, start, packed, wide)
    quantized_images(folder, data, start, packed, wide)
    given, mask = [Image.open(folder / f"{name}.png") for name in ["given", "mask"]]
    for kind in KINDS[:2]:
        pipe = load(kind, folder, FluxPipeline, FluxPipeline)
        save(pipe, data / f"{kind}.png", latents=packed.clone(), guidance_scale=3.5, **wide)
    pipe = load("flux_dev", folder, FluxImg2ImgPipeline, FluxPipeline)
    save(pipe, data / "flux_dev_edit.png", image=given, strength=0.5, guidance_scale=2.0, **wide)
    pipe = load("flux_dev", folder, FluxInpaintPipeline, FluxPipeline)
    save(pipe, data / "flux_dev_mask.png", given, mask, image=given, mask_image=mask, strength=0.75, guidance_scale=2.0,
         **wide)
    for kind in KINDS[2:]:
        pipe = load(kind, folder, StableDiffusion3Pipeline, StableDiffusion3Pipeline)
        save(pipe, data / f"{kind}.png", latents=start.clone(), guidance_scale=5.0, negative_prompt=NEGATIVE, **wide)
    pipe = load("sd3", folder, StableDiffusion3Img2ImgPipeline, StableDiffusion3Pipeline)
    save(pipe, data / "sd3_edit.png", image=given, strength=0.5, guidance_scale=1.0, **wide)


def main(what, *folders):
    torch.manual_seed(0)
    if what == "names":
        t5_tokenizer(Path(folders[0]) / "t5")
        for kind in KINDS + FILES:
            text = json.dumps(table(kind), ensure_ascii=False, separators=(",", ":"))
            Path(folders[0], f"{kind}.json").write_text(text + "\n")
            if kind in ["flux_dev", "sd35", *FILES]:
                Path(folders[0], f"{kind}.txt").write_text(table_of_names(kind))
    else:
        {"images": images, "cached": cached, "scaled": scaled, "loras": loras}[what](*map(Path, folders))


main(*sys.argv[1:])
