"""Writes low-rank adapters of tiny models with PEFT, and the logits of transformers with them.

    pip install transformers==5.24.0 torch peft==0.21.2
    python3 adapters.py data

Logits are computed on the CPU in f32. The models are those of `families.py`. Weights are exact in f16.
"""
import sys
from pathlib import Path

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

VOCABULARY, LENGTH = 48, 24
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "granite-lora": ("granite", LoraConfig(r=2, lora_alpha=6, target_modules=ALL)),
    "olmo2-rslora": (
        "olmo2",
        LoraConfig(r=4, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"]),
    ),
}


def randomized(model, random):
    """Replaces the weights of the adapter by multiples of 1/512."""
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "lora_" in name:
                values = torch.randn(weight.shape, generator=random)
                scale = weight.shape[-1] ** -0.5 if "lora_A" in name else 0.5
                weight.copy_((values * scale * 512).round() / 512)
    return model.eval()


def write(data, name, base, config, seed):
    """Writes an adapter with a text and the logits after each of its tokens."""
    random = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(data / base, dtype=torch.float32)
    model = randomized(get_peft_model(model, config), random)
    text = torch.randint(VOCABULARY, (LENGTH,), generator=random)
    with torch.no_grad():
        logits = model(text[None]).logits[0].contiguous()
    folder = data / name
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    save_file({"tokens": text, "logits": logits}, folder / "expected.st")


if __name__ == "__main__":
    print("transformers", transformers.__version__, "torch", torch.__version__, "peft", peft.__version__)
    for seed, (name, (base, config)) in enumerate(ADAPTERS.items()):
        write(Path(sys.argv[1]), name, base, config, seed)
        print(name)
