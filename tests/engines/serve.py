"""An export and its checkpoint served by vLLM's CPU build: the tokens of both, and how long each takes.

    python tests/engines/serve.py CHECKPOINT EXPORT

In an environment that has vLLM; the export's ranks share the machine's cores. Run by `make test-engines`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROMPTS = ([1, 17, 4, 60], [2, 9, 12, 40, 7, 99], list(range(5, 21)))
NEW_TOKENS = 24


def main() -> None:
    checkpoint, export = map(Path, sys.argv[1:])
    tp = len(list(export.glob("model-rank-*-part-0.safetensors")))
    said = [answer(checkpoint, tp, "auto"), answer(export, tp, "sharded_state")]
    for name, (tokens, seconds) in zip(("checkpoint", "export"), said, strict=True):
        print(f"{name}: started in {seconds:.1f} s, {tokens}")
    same = said[0][0] == said[1][0]
    print(f"tp {tp}: {'the same tokens' if same else 'other tokens'}")
    print(f"{int(same)} passed, {int(not same)} failed")
    sys.exit(not same)


def answer(model: Path, tp: int, load_format: str) -> tuple[list[list[int]], float]:
    """What an engine of its own process generates greedily, and the seconds until it could."""
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(tp)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, __file__, "--engine", str(model), str(tp), load_format]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    tokens, seconds = json.loads(done.stdout.splitlines()[-1])
    return tokens, seconds


def run_engine(model: str, tp: int, load_format: str) -> None:
    """Generates, and prints the tokens and the seconds as JSON in the last line."""
    from vllm import LLM, SamplingParams

    begun = time.monotonic()
    engine = LLM(
        model,
        tensor_parallel_size=tp,
        load_format=load_format,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
    )
    seconds = time.monotonic() - begun
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    results = engine.generate([{"prompt_token_ids": list(prompt)} for prompt in PROMPTS], greedy)
    print("\n" + json.dumps([[list(result.outputs[0].token_ids) for result in results], seconds]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        run_engine(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
