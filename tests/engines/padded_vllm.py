"""A padded checkpoint in vLLM: it says what the model that it was made from says at tp 1.

    PYTHONPATH=tests python tests/engines/padded_vllm.py [CHECKPOINT]

In float32 at tp 2; and with the layers' weights in GPTQ's 4 bits, whose sums are rounded more coarsely, at
tp 1 too. In an environment that has vLLM's CPU build and tpspec. Without a checkpoint, a random Llama with
9 heads on 3 KV heads. Run by `make test-engines`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from quantizers import stream
from safetensors.torch import load_file, save_file
from vllm_tokens import generate, random_llama

GROUP = 64


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if sys.argv[1:]:
            source = Path(sys.argv[1])
        else:
            heads = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
            source = random_llama(folder / "llama", **heads)
        same = [
            says_the_same(source, folder / "padded", 2, "float32"),
            says_the_same(in_gptq(source, folder / "gptq"), folder / "padded-gptq", 1, "auto"),
        ]
    print(f"{sum(same)} passed, {len(same) - sum(same)} failed")
    sys.exit(not all(same))


def says_the_same(source: Path, padded: Path, tp: int, dtype: str) -> bool:
    """Pads a checkpoint for two ranks; whether vLLM generates the same from both."""
    subprocess.run([sys.executable, "-m", "tpspec", "pad", source, padded, "--tp", "2"], check=True)
    whole, cut = generate(source, 1, dtype=dtype), generate(padded, tp, dtype=dtype)
    for one, other in zip(whole.tokens, cut.tokens, strict=True):
        print("tp 1, as it is:", *one)
        print(f"tp {tp}, padded:  ", *other)
    same = whole.tokens == cut.tokens
    print(f"{source.name}: {'the same tokens' if same else 'other tokens'}", flush=True)
    return same


def in_gptq(source: Path, out: Path) -> Path:
    """A checkpoint with its layers' matrices rounded to 16 multiples of their group's scale."""
    out.mkdir()
    stored: dict[str, torch.Tensor] = {}
    for path in source.glob("*.safetensors"):
        for name, weight in load_file(path).items():
            if ".layers." in name and weight.dim() == 2:
                module = name.removesuffix(".weight")
                stored |= {f"{module}.{part}": tensor for part, tensor in rounded(weight).items()}
            else:
                stored[name] = weight.half()
    save_file(stored, out / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    settings = {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
    config |= {"dtype": "float16", "quantization_config": {"quant_method": "gptq", **settings}}
    (out / "config.json").write_text(json.dumps(config))
    for path in source.glob("tokenizer*"):
        (out / path.name).write_bytes(path.read_bytes())
    return out


def rounded(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """GPTQ's tensors for a matrix: numbers around 8, their zero point stored as 7."""
    inputs = weight.float().t().unflatten(0, (-1, GROUP))
    scales = (inputs.abs().amax(1) / 7).clamp(min=1e-6).half()
    numbers = (inputs / scales.float()[:, None]).round().clamp(-8, 7).flatten(0, 1).int() + 8
    return {
        "qweight": stream(numbers.numpy(), 4, 0),
        "qzeros": stream(np.full(scales.shape, 7), 4, 1),
        "scales": scales,
        "g_idx": (torch.arange(len(numbers)) // GROUP).int(),
    }


if __name__ == "__main__":
    main()
