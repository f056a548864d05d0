"""A padded checkpoint in vLLM: it says what the model that it was made from says at tp 1.

    PYTHONPATH=tests python tests/engines/padded_vllm.py [CHECKPOINT]

In float32 at tp 2; and with the layers' weights in GPTQ's 4 bits, whose sums are rounded more coarsely, at
tp 1 too. In an environment that has vLLM's CPU build and tpspec. Without a checkpoint, a random Llama with
9 heads on 3 KV heads. Run by `make test-engines`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from rounded_gptq import in_gptq
from vllm_tokens import generate, random_llama


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


if __name__ == "__main__":
    main()
