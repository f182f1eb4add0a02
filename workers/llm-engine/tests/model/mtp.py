"""Writes heads that predict further tokens (MTP) for tiny models of `families.py` and `hybrids.py`, with their logits.

    pip install transformers==5.24.0 torch
    python3 mtp.py data [NAME ...]

transformers ignores such heads. Here, its layers compute the block, and torch what is around it. The input of position p is
the projection of the normalized embedding of token p + 1 and of the normalized hidden state of position p. Further drafts
repeat this with the head's own hidden states. Everything is computed on the CPU in f32. Weights are exact in f16.
"""
import copy
import itertools
import sys
from pathlib import Path

import torch
from mixtures import GAP
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

# Names of the projection, of the norms of embeddings, of hidden states and of the result, and prefixes of these and of the block.
APPENDED = ["eh_proj", "enorm", "hnorm", "shared_head.norm"], "model.layers.{}.", "model.layers.{}."
MODULE = ["fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"], "mtp.", "mtp.layers.0."
# The head repeats with states after the last norm in Qwen's models, and before it in the others.
MODELS = {
    "deepseek-v3": (DeepseekV3DecoderLayer, APPENDED),
    "glm4-moe": (Glm4MoeDecoderLayer, APPENDED),
    "qwen3-next": (Qwen3NextDecoderLayer, MODULE),
    "qwen3.5": (Qwen3_5DecoderLayer, MODULE),
}
DRAFTS = 4


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Head:
    """Weights of a head, and its formula."""

    def __init__(self, model, block, names, random):
        self.model, config = model, copy.deepcopy(model.config)
        self.eps, self.is_module = config.rms_norm_eps, names is MODULE
        index = config.num_hidden_layers - 1
        if self.is_module:
            config.layer_types = ["full_attention"] * config.num_hidden_layers
        self.block = block(config, index).eval()
        hidden = config.hidden_size

        def weight(*shape):
            values = torch.randn(shape, generator=random)
            # Norms of Qwen's models multiply by 1 + weight.
            base = 0.0 if self.is_module else 1.0
            values = values * 0.2 + base if len(shape) == 1 else values * 1.5 * shape[-1] ** -0.5
            return (values * 512).round() / 512

        for name, values in itertools.chain(self.block.named_parameters(), self.block.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                values.data = (torch.randn(values.shape, generator=random) * 128).round() / 512
            elif values.dim() == 3:
                values.data = torch.stack([weight(*values.shape[1:]) for _ in range(values.shape[0])])
            else:
                values.data = weight(*values.shape)
        self.own = [weight(hidden, 2 * hidden), *(weight(hidden) for _ in range(3))]
        self.gaps = [float("inf")]
        for name, module in self.block.named_modules():
            if name == "mlp.gate":
                module.register_forward_hook(self.note_gap)

    def note_gap(self, module, inputs, output):
        scores = torch.nn.functional.linear(inputs[0].flatten(0, -2), module.weight)
        if hasattr(module, "e_score_correction_bias"):
            scores = 4 * (scores.sigmoid() + module.e_score_correction_bias)
        ordered, used = scores.sort(descending=True).values, self.model.config.num_experts_per_tok
        self.gaps.append((ordered[:, used - 1] - ordered[:, used]).min().item())

    def norm(self, x, index):
        weight = self.own[index]
        return rms(x, weight + 1 if self.is_module else weight, self.eps)

    def forward(self, tokens, hidden):
        """Returns the logits and the hidden states for repetitions of all positions."""
        rows = len(tokens)
        inputs = torch.cat([self.norm(self.model.model.embed_tokens(tokens), 1), self.norm(hidden, 2)], -1)
        x = torch.nn.functional.linear(inputs, self.own[0])[None]
        positions = torch.arange(rows)[None]
        angles = self.model.model.rotary_emb(x, positions)
        mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        x = self.block(x, attention_mask=mask, position_ids=positions, position_embeddings=angles)
        x = (x[0] if isinstance(x, tuple) else x)[0]
        normed = self.norm(x, 3)
        return self.model.lm_head(normed), normed if self.is_module else x

    def tensors(self, names):
        own, prefix, block = names
        index = self.model.config.num_hidden_layers
        tensors = {f"{prefix.format(index)}{name}.weight": value for name, value in zip(own, self.own)}
        for name, value in self.block.state_dict().items():
            name = block.format(index) + name
            if name.endswith("experts.gate_up_proj"):
                gates, ups = value.chunk(2, 1)
                for expert, (gate, up) in enumerate(zip(gates, ups)):
                    one = name.replace("gate_up_proj", str(expert))
                    tensors[f"{one}.gate_proj.weight"], tensors[f"{one}.up_proj.weight"] = gate, up
            elif name.endswith("experts.down_proj"):
                for expert, down in enumerate(value):
                    tensors[name.replace("down_proj", f"{expert}.down_proj.weight")] = down
            else:
                tensors[name] = value
        return {name: value.half().contiguous() for name, value in tensors.items()}


def write(folder, base, block, names, seed):
    """Writes a head, and returns false if rounding to f16 might choose another expert."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    head = Head(model, block, names, torch.Generator().manual_seed(seed))
    texts, expected = load_file(base / "expected.st"), {}
    with torch.no_grad():
        for index in range(3):
            tokens = texts[f"tokens.{index}"]
            hidden = model.model(tokens[None]).last_hidden_state[0]
            # The last token has no successor. It is followed by drafts.
            inputs, hidden = tokens[1:], hidden[:-1]
            logits, states = head.forward(inputs, hidden)
            expected[f"logits.{index}"] = logits
            drafts = []
            for _ in range(DRAFTS):
                inputs, hidden = torch.cat([inputs, logits[-1:].argmax(-1)]), torch.cat([hidden, states[-1:]])
                logits, states = head.forward(inputs, hidden)
                drafts.append(logits[-1])
            expected[f"drafts.{index}"] = inputs[-DRAFTS:]
            expected[f"draft_logits.{index}"] = torch.stack(drafts)
    if min(head.gaps) < GAP:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    save_file(head.tensors(names), folder / "head.safetensors")
    save_file({name: value.contiguous() for name, value in expected.items()}, folder / "expected.st")
    return True


if __name__ == "__main__":
    data = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        block, names = MODELS[name]
        seeds = itertools.count()
        seed = next(seed for seed in seeds if write(data / f"{name}-mtp", data / name, block, names, seed))
        print(name, "seed", seed)
