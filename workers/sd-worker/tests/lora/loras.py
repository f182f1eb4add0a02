"""Writes LoRA files for the tiny models of `main.rs` and the images that diffusers generates with them.

    pip install diffusers==0.35.1 transformers==4.51.3 peft==0.17.1 torch
    SD_FOLDER=FOLDER cargo test --test lora -- --ignored    # writes the models and the noise
    python3 loras.py FOLDER data
    python3 loras.py FOLDER data loha    # only the LoHa, which also runs with transformers 5

Networks run on the CPU in f32. LoRA files have random values in f16.
"""
import json
import sys
from pathlib import Path

import torch
from peft.tuners.loha.layer import make_weight
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).resolve().parents[1] / "tiny_model"))
from published import picture, pipeline

RANK, LOHA_WEIGHT = 2, 0.8
GENERATOR = torch.Generator().manual_seed(1)


def random(*shape):
    return (torch.randn(shape, generator=GENERATOR) * 0.3).half()


def pair(weight, linear=False):
    """Returns the matrices of a change of a weight."""
    rows, *columns = weight.shape
    if linear or len(columns) == 1:
        return random(RANK, columns[0]), random(rows, RANK)
    return random(RANK, *columns), random(rows, RANK, 1, 1)


def modules(network, wanted):
    return {
        name[: -len(".weight")]: weight
        for name, weight in network.state_dict().items()
        if name.endswith(".weight") and weight.dim() >= 2 and wanted(name)
    }


def kohya(prefix, network, wanted, rename=lambda name: name):
    file = {}
    for name, weight in modules(network, wanted).items():
        key = prefix + rename(name).replace(".", "_")
        down, up = pair(weight)
        file[f"{key}.lora_down.weight"], file[f"{key}.lora_up.weight"] = down, up
        # One value per network: diffusers 0.35 drops those of attentions that differ.
        file[f"{key}.alpha"] = torch.tensor(1.5 if "unet" in prefix else 0.5)
    return file


def sgm(name):
    """Returns the name of a block in kohya's files for XL, for one layer per block and three blocks with attention."""
    for own, original in [
        ("down_blocks.0.attentions.0.", "input_blocks.1.1."),
        ("down_blocks.1.attentions.0.", "input_blocks.3.1."),
        ("mid_block.attentions.0.", "middle_block.1."),
        ("up_blocks.0.attentions.0.", "output_blocks.0.1."),
        ("up_blocks.0.attentions.1.", "output_blocks.1.1."),
        ("up_blocks.1.attentions.0.", "output_blocks.2.1."),
        ("up_blocks.1.attentions.1.", "output_blocks.3.1."),
    ]:
        name = name.replace(own, original)
    return name


def peft(prefix, network, wanted):
    file = {}
    for name, weight in modules(network, wanted).items():
        down, up = pair(weight)
        file[f"{prefix}.{name}.lora_A.weight"], file[f"{prefix}.{name}.lora_B.weight"] = down, up
    return file


def loha(prefix, network, wanted):
    """Returns a LoHa in the names of LyCORIS, and changes the weights by it, times `LOHA_WEIGHT`, as PEFT computes it.
    diffusers loads no LoHa."""
    file = {}
    for name, weight in modules(network, wanted).items():
        key = prefix + name.removeprefix("text_model.").replace(".", "_")
        (down, up), (other_down, other_up) = pair(weight.flatten(1)), pair(weight.flatten(1))
        parts = [up, down, other_up, other_down]
        file |= {f"{key}.{end}": tensor for end, tensor in zip(["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"], parts)}
        file[f"{key}.alpha"] = torch.tensor(3.0)
        weight += LOHA_WEIGHT * make_weight(*[tensor.float() for tensor in parts], torch.tensor(3.0 / RANK)).reshape(weight.shape)
    return file


def attention(name):
    return any(part in name for part in ["to_q", "attn2.to_k", "to_out", "proj_in", "ff.net.2"])


def convolution(name):
    return any(part in name for part in [".conv1", ".conv_shortcut", "samplers.0.conv", "time_emb_proj"])


def text(name):
    return "q_proj" in name or "out_proj" in name or "fc1" in name


def main(folder, data):
    noise = load_file(folder / "noise.safetensors")["noise"]
    plain = pipeline(folder / "v1", False)
    files = {
        "kohya": kohya("lora_unet_", plain.unet, lambda name: attention(name) or convolution(name))
        | kohya("lora_te_", plain.text_encoder, text),
        "peft": peft("unet", plain.unet, attention) | peft("text_encoder", plain.text_encoder, text),
    }
    picture(plain, noise, data / "v1.png")
    metadata = {}
    for part, alpha in [("unet", 2 * RANK), ("text_encoder", 1)]:
        start = f"{part}."
        targets = sorted({key[len(start) : key.index(".lora_")] for key in files["peft"] if key.startswith(start)})
        config = dict(r=RANK, lora_alpha=alpha, target_modules=targets, rank_pattern={}, alpha_pattern={})
        metadata |= {f"{part}.{key}": value for key, value in config.items()}
    xl = pipeline(folder / "xl", True)
    files["xl"] = (
        kohya("lora_unet_", xl.unet, attention, sgm)
        | kohya("lora_te1_", xl.text_encoder, text)
        | kohya("lora_te2_", xl.text_encoder_2, text)
    )
    picture(xl, noise, data / "xl.png")
    for name, file in files.items():
        about = {"lora_adapter_metadata": json.dumps(metadata)} if name == "peft" else {}
        save_file({key: tensor.contiguous() for key, tensor in file.items()}, data / f"{name}.safetensors",
                  {"format": "pt"} | about)
    for name, pipe, loras in [
        ("kohya", plain, [("kohya", 0.7)]),
        ("peft", plain, [("peft", 0.4)]),
        ("both", plain, [("kohya", 0.5), ("peft", -0.3)]),
        ("xl_lora", xl, [("xl", 0.6)]),
    ]:
        for lora, _ in loras:
            pipe.load_lora_weights(data, weight_name=f"{lora}.safetensors", adapter_name=lora)
        pipe.set_adapters([lora for lora, _ in loras], [weight for _, weight in loras])
        picture(pipe, noise, data / f"{name}.png")
        pipe.unload_lora_weights()


def write_loha(folder, data):
    noise = load_file(folder / "noise.safetensors")["noise"]
    plain = pipeline(folder / "v1", False)
    file = loha("lora_unet_", plain.unet, lambda name: attention(name) or convolution(name))
    file |= loha("lora_te_text_model_", plain.text_encoder, text)
    save_file({key: tensor.contiguous() for key, tensor in file.items()}, data / "loha.safetensors", {"format": "pt"})
    picture(plain, noise, data / "loha.png")


if sys.argv[3:] != ["loha"]:
    main(Path(sys.argv[1]), Path(sys.argv[2]))
GENERATOR.manual_seed(2)
write_loha(Path(sys.argv[1]), Path(sys.argv[2]))
