"""Greedy text from transformers, streamed to stdout: alone, or tensor-parallel under torchrun."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer


class Words(BaseStreamer):  # type: ignore[misc]
    """Prints each token as soon as it is chosen."""

    def __init__(self, tokenizer: object, *, speak: bool) -> None:
        self.tokenizer = tokenizer
        self.speak = speak
        self.prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt and self.speak:
            print(self.tokenizer.decode(value), end=" ", flush=True)  # type: ignore[attr-defined]
        self.prompt = False

    def end(self) -> None:
        if self.speak:
            print(flush=True)


def main(folder: str, prompt: str, new_tokens: int, parallel: bool) -> None:
    plan = {"tp_plan": "auto"} if parallel else {}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **plan)
    rank = torch.distributed.get_rank() if parallel else 0
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        streamer=Words(tokenizer, speak=rank == 0),
    )


if __name__ == "__main__":
    folder, prompt, new_tokens, kind = sys.argv[1:]
    main(folder, prompt, int(new_tokens), kind == "parallel")
