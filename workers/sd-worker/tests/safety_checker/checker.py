"""Writes a tiny safety checker with random weights, and the scores that diffusers computes with it.

    python3 checker.py FOLDER

Requires torch, diffusers and transformers of PyPI. The files in data/ were written with diffusers 0.42.
"""
import json
import sys
from pathlib import Path

import numpy
import torch
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker, cosine_distance
from PIL import Image
from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPImageProcessor

SIDE, THRESHOLD = 32, 0.51
SIZES = [(40, 24), (24, 40), (64, 64), (32, 32)]

folder = Path(sys.argv[1])
torch.manual_seed(5)
vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=8)
config = CLIPConfig(vision_config=vision, text_config=dict(hidden_size=8, num_attention_heads=1), projection_dim=16)
checker = StableDiffusionSafetyChecker(config).eval()
with torch.no_grad():
    for parameter in checker.parameters():
        parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() == 1 else 2 * parameter.shape[-1] ** -0.5))
        # Exact in half precision, which the file has.
        parameter.copy_(parameter.half().float())
    # Makes the embeddings of images differ.
    for name, parameter in checker.named_parameters():
        if name.endswith(("patch_embedding.weight", "q_proj.weight", "k_proj.weight", "out_proj.weight")):
            parameter.mul_(4)
    for name in ("concept_embeds_weights", "special_care_embeds_weights"):
        getattr(checker, name).fill_(THRESHOLD)

processor = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SIDE)
cases = []
for width, height in SIZES:
    y, x, c = numpy.indices((height, width, 3))
    image = Image.fromarray(((7 * x + 13 * y + 50 * c + 3 * x * y // 16) % 256).astype("uint8"))
    pixels = processor(image, return_tensors="pt").pixel_values
    with torch.no_grad():
        embedding = checker.visual_projection(checker.vision_model(pixels)[1])
        scores = {name: (cosine_distance(embedding, getattr(checker, name))[0] - THRESHOLD).tolist()
                  for name in ("special_care_embeds", "concept_embeds")}
        flagged = checker(clip_input=pixels, images=[numpy.ones(3)])[1][0]
    cases.append(dict(width=width, height=height, flagged=bool(flagged), **scores))

# The names of published files.
names = {name.replace("vision_model.", "vision_model.vision_model.", 1) if "vision_model.vision_model" not in name else name: tensor
         for name, tensor in checker.state_dict().items() if "position_ids" not in name}
save_file({name: tensor.half().contiguous() for name, tensor in names.items()}, folder / "model.safetensors")
(folder / "config.json").write_text(json.dumps(dict(projection_dim=16, vision_config=vision), indent=1) + "\n")
(folder / "expected.json").write_text(json.dumps(cases, indent=1) + "\n")
print([case["flagged"] for case in cases], sorted(names))
