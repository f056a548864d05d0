"""A padded checkpoint in vLLM: at tp 2 it says what the model that it was made from says at tp 1.

    python tests/engines/padded_vllm.py [CHECKPOINT]

In an environment that has vLLM's CPU build. Without a checkpoint, a random Llama with 9 heads on 3 KV heads;
one with a tokenizer is given texts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

PROMPTS = ("Gravity is", "Once upon a time", "The capital of France is")
IDS = ([1, 17, 4, 60], [2, 9], [77, 5, 5, 31, 8])
NEW_TOKENS = 24
CORES = {1: "0-1", 2: "0|1"}
"""The cores of each rank, of a machine with two."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(sys.argv[1]) if sys.argv[1:] else random_llama(Path(folder) / "llama")
        padded = Path(folder) / "padded"
        subprocess.run([sys.executable, "-m", "tpspec", "pad", source, padded, "--tp", "2"], check=True)
        whole, cut = generated(source, 1), generated(padded, 2)
    for one, other in zip(whole, cut, strict=True):
        print("tp 1, as it is:", *one)
        print("tp 2, padded:  ", *other)
    print("the same tokens" if whole == cut else "other tokens")
    sys.exit(whole != cut)


def random_llama(out: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=576,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(out)
    return out


def generated(model: Path, tp: int) -> list[list[int]]:
    """The tokens that vLLM adds to each prompt, greedily, in a process of its own."""
    env = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": CORES[tp], "VLLM_CPU_KVCACHE_SPACE": "1"}
    with tempfile.NamedTemporaryFile(suffix=".json") as tokens:
        command = [sys.executable, __file__, "--generate", model, str(tp), tokens.name]
        subprocess.run(command, check=True, env=env, stdout=sys.stderr)
        return json.load(tokens)


def generate(model: str, tp: int, tokens: str) -> None:
    """Writes them to a file."""
    from vllm import LLM, SamplingParams

    has_texts = (Path(model) / "tokenizer.json").exists()
    llm = LLM(
        model,
        tensor_parallel_size=tp,
        dtype="float32",
        enforce_eager=True,
        max_model_len=96,
        skip_tokenizer_init=not has_texts,
    )
    prompts = PROMPTS if has_texts else [{"prompt_token_ids": list(ids)} for ids in IDS]
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, detokenize=has_texts)
    outputs = llm.generate(prompts, sampling)
    Path(tokens).write_text(json.dumps([list(output.outputs[0].token_ids) for output in outputs]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--generate"]:
        generate(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
