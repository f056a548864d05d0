"""An export and its checkpoint served by vLLM's CPU build: the tokens of both, and how long each takes.

    python tests/engines/serve.py [CHECKPOINT] [--tp N]

In an environment that has vLLM and tpspec; the ranks share the machine's cores. Without a checkpoint, a
random Llama with head_dim 64. Run by `make test-engines`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPTS = ([1, 17, 4, 60], [2, 9, 12, 40, 7, 99], list(range(5, 21)))
NEW_TOKENS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path)
    parser.add_argument("--tp", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = arguments.checkpoint or random_llama(Path(folder) / "llama")
        out, tp = Path(folder) / "export", arguments.tp
        exporting = [
            sys.executable,
            "-m",
            "tpspec",
            "export",
            source,
            out,
            "--engine",
            "vllm",
            "--tp",
            str(tp),
        ]
        subprocess.run(exporting, check=True)
        said = {"checkpoint": answer(source, tp, "auto"), "export": answer(out, tp, "sharded_state")}
    for name, (tokens, seconds) in said.items():
        print(f"{name}: started in {seconds:.1f} s, {tokens}")
    same = said["checkpoint"][0] == said["export"][0]
    print(f"tp {tp}: {'the same tokens' if same else 'other tokens'}")
    print(f"{int(same)} passed, {int(not same)} failed")
    sys.exit(not same)


def random_llama(out: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    return out


def answer(model: Path, tp: int, load_format: str) -> tuple[list[list[int]], float]:
    """What an engine of its own process generates greedily, and the seconds until it could."""
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(tp)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.NamedTemporaryFile(suffix=".json") as said:
        command = [sys.executable, __file__, "--engine", str(model), str(tp), load_format, said.name]
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
        tokens, seconds = json.load(said)
    return tokens, seconds


def run_engine(model: str, tp: int, load_format: str, said: str) -> None:
    """Generates, and writes the tokens and the seconds to a file."""
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
    Path(said).write_text(json.dumps([[list(result.outputs[0].token_ids) for result in results], seconds]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        run_engine(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        main()
