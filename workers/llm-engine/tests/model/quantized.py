"""Writes tiny quantized matrices with the packers of published packages, and the weights that these packages unpack.

    pip install torch transformers==4.57.6 compressed-tensors==0.20.0
    pip download --no-deps autoawq==0.2.9 auto-gptq==0.7.1    # unpack them: importing them requires a GPU
    python3 quantized.py data awq/utils/packing_utils.py auto_gptq/nn_modules/qlinear/qlinear_cuda.py

Each folder has a matrix `x`, and its weights as `expected`. Scales are exact in f16.
"""
import importlib.util
import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

OUTPUTS, INPUTS, GROUP = 32, 128, 32


def load(path):
    """Loads a file of a package without the package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scales(*shape):
    return torch.randint(128, 256, shape).float() / 8192


def save(folder, quantization, tensors, expected):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"x.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors | {"expected": expected.float().contiguous()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}) + "\n")


def gptq(folder, module, reordered):
    """Packs with AutoGPTQ. Zero points of 0 are left out: its packer writes them over their neighbors."""
    groups = torch.arange(INPUTS) // GROUP
    if reordered:
        groups = groups[torch.randperm(INPUTS)]
    scale, zero = scales(OUTPUTS, INPUTS // GROUP), torch.randint(1, 16, (OUTPUTS, INPUTS // GROUP)).float()
    numbers = torch.randint(0, 16, (OUTPUTS, INPUTS))
    linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    linear.weight.data = scale[:, groups] * (numbers - zero[:, groups])
    packed = module.QuantLinear(4, GROUP, INPUTS, OUTPUTS, False)
    packed.pack(linear, scale, zero, groups.int())
    tensors = {"qweight": packed.qweight, "qzeros": packed.qzeros, "scales": packed.scales.half(), "g_idx": packed.g_idx}
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": reordered}
    save(folder, config, tensors, linear.weight.data)


def awq(folder, module):
    """Unpacks random words with AutoAWQ."""
    words = lambda *shape: torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)
    qweight, qzeros = words(INPUTS, OUTPUTS // 8), words(INPUTS // GROUP, OUTPUTS // 8)
    scale = scales(INPUTS // GROUP, OUTPUTS)
    expected = module.dequantize_gemm(qweight, qzeros, scale, 4, GROUP).T
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    save(folder, config, {"qweight": qweight, "qzeros": qzeros, "scales": scale.half()}, expected)


def compressed_tensors(folder, compressor, scale, **arguments):
    """Packs and unpacks with compressed-tensors."""
    weights = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    floats = torch.randn(OUTPUTS, INPUTS) * 0.2
    state = {"weight": floats, "weight_scale": scale}
    if not weights.symmetric:
        state["weight_zero_point"] = torch.randint(-8, 8, scale.shape, dtype=torch.int8)
    state = compressor.compress(state, scheme)
    expected = compressor.decompress(state, scheme)["weight"]
    kind = "pack" if arguments["num_bits"] == 4 else arguments["type"]
    group = {"targets": ["Linear"], "weights": json.loads(weights.model_dump_json())}
    config = {"quant_method": "compressed-tensors", "format": f"{kind}-quantized", "config_groups": {"group_0": group}}
    save(folder, config, state, expected)


def main(data, awq_file, gptq_file):
    torch.manual_seed(1)
    data = Path(data)
    for name, reordered in (("gptq", False), ("gptq-reordered", True)):
        gptq(data / f"quantized-{name}", load(gptq_file), reordered)
    awq(data / "quantized-awq", load(awq_file))
    packed, plain = PackedQuantizationCompressor, NaiveQuantizationCompressor
    for name, compressor, scale, arguments in (
        ("pack", packed, scales(OUTPUTS, INPUTS // GROUP),
         {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}),
        ("pack-channel", packed, scales(OUTPUTS, 1),
         {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}),
        ("int", plain, scales(OUTPUTS, 1) / 8,
         {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}),
        ("float", plain, scales(OUTPUTS, 1) / 8,
         {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}),
        ("float-block", plain, scales(OUTPUTS // 16, INPUTS // 64) / 8,
         {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [16, 64]}),
    ):
        compressed_tensors(data / f"quantized-{name}", compressor, scale, **arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
