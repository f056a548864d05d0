"""An export and its checkpoint served by vLLM's CPU build: the tokens of both, and how long each takes.

    PYTHONPATH=tests python tests/engines/serve.py [CHECKPOINT] [--tp N] [--gptq]

In an environment that has vLLM and tpspec. Without a checkpoint, a random Llama with head_dim 64. With --gptq
the layers' weights are rounded to GPTQ's 4 bits first. Run by `make test-engines`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rounded_gptq import in_gptq
from vllm_tokens import export, generate, random_llama


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--gptq", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, tp = arguments.checkpoint or random_llama(Path(folder) / "llama"), arguments.tp
        if arguments.gptq:
            source = in_gptq(source, Path(folder) / "gptq")
        out = export(source, Path(folder) / "export", tp)
        whole, cut = generate(source, tp), generate(out, tp, load_format="sharded_state")
    print(f"the checkpoint: started in {whole.start:.1f} s, {whole.tokens}")
    print(f"the export:     started in {cut.start:.1f} s, {cut.tokens}")
    same = whole.tokens == cut.tokens
    print(f"tp {tp}: {'the same tokens' if same else 'other tokens'}")
    print(f"{int(same)} passed, {int(not same)} failed")
    sys.exit(not same)


if __name__ == "__main__":
    main()
