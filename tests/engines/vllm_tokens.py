"""What vLLM's CPU build generates from a checkpoint or an export, in a process of its own.

For environments that have vLLM; the ranks share the machine's cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

TEXTS = ("Gravity is", "Once upon a time", "The capital of France is")
IDS = ([1, 17, 4, 60], [2, 9, 12, 40, 7, 99], list(range(5, 21)))
"""Prompts for a model that has a tokenizer, and for one that has none."""
NEW_TOKENS = 24


class Generated(NamedTuple):
    """The tokens added to each prompt, greedily, and the seconds until the first prompt was taken."""

    tokens: list[list[int]]
    start: float


def generate(model: Path, tp: int, *, load_format: str = "auto", dtype: str = "auto") -> Generated:
    """Starts an engine in a process of its own and has it go on with each prompt."""
    cores = sorted(os.sched_getaffinity(0))
    shares = (cores[rank::tp] or [cores[rank % len(cores)]] for rank in range(tp))
    environment = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, share)) for share in shares),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.NamedTemporaryFile(suffix=".json") as said:
        command = [sys.executable, __file__, str(model), str(tp), load_format, dtype, said.name]
        begun = time.monotonic()
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
        tokens, ready = json.load(said)
    return Generated(tokens, ready - begun)


def main(model: str, tp: str, load_format: str, dtype: str, said: str) -> None:
    """Generates, and writes the tokens and when the engine was ready to a file."""
    from vllm import LLM, SamplingParams

    has_texts = (Path(model) / "tokenizer.json").exists()
    engine = LLM(
        model,
        tensor_parallel_size=int(tp),
        load_format=load_format,
        dtype=dtype,
        skip_tokenizer_init=not has_texts,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
    )
    ready = time.monotonic()
    prompts = TEXTS if has_texts else [{"prompt_token_ids": list(ids)} for ids in IDS]
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    tokens = [
        list(result.outputs[0].token_ids) for result in engine.generate(prompts, greedy, use_tqdm=False)
    ]
    Path(said).write_text(json.dumps([tokens, ready]))


def export(source: Path, out: Path, tp: int) -> Path:
    """Exports a checkpoint for vLLM with the command line."""
    command = [sys.executable, "-m", "tpspec", "export", source, out, "--engine", "vllm", "--tp", str(tp)]
    subprocess.run(command, check=True)
    return out


def random_llama(out: Path, **config: Any) -> Path:
    """Writes a small random Llama in bf16, head_dim 64, without a tokenizer; `config` says it otherwise."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = {
        "vocab_size": 1000,
        "hidden_size": 512,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    LlamaForCausalLM(LlamaConfig(**(small | config))).to(torch.bfloat16).save_pretrained(out)
    return out


if __name__ == "__main__":
    main(*sys.argv[1:])
