"""A padded checkpoint in vLLM: at tp 2 it says what the model that it was made from says at tp 1.

    python tests/engines/padded_vllm.py [CHECKPOINT]

In an environment that has vLLM's CPU build and tpspec. Without a checkpoint, a random Llama with 9 heads on
3 KV heads. Run by `make test-engines`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from vllm_tokens import generate, random_llama


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, padded = Path(folder) / "llama", Path(folder) / "padded"
        if sys.argv[1:]:
            source = Path(sys.argv[1])
        else:
            random_llama(source, hidden_size=576, num_attention_heads=9, num_key_value_heads=3)
        subprocess.run([sys.executable, "-m", "tpspec", "pad", source, padded, "--tp", "2"], check=True)
        # Sums over other shares are rounded otherwise: in float32 no token depends on it.
        whole, cut = (generate(path, tp, dtype="float32") for path, tp in ((source, 1), (padded, 2)))
    for one, other in zip(whole.tokens, cut.tokens, strict=True):
        print("tp 1, as it is:", *one)
        print("tp 2, padded:  ", *other)
    same = whole.tokens == cut.tokens
    print("the same tokens" if same else "other tokens")
    print(f"{int(same)} passed, {int(not same)} failed")
    sys.exit(not same)


if __name__ == "__main__":
    main()
