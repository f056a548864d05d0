"""Forward passes for generation, on tiny models of each way to keep positions and what was read."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tpspec.language.registry import spec_named
from tpspec.runtime.passes import Passes, can_pad
from tpspec.runtime.tiny import tiny_model

PADDED = {
    "llama": "rotary positions",
    "gpt2": "learned positions",
    "opt": "learned positions, with an offset",
    "bloom": "biases by distance, made from the mask",
    "mpt": "biases by distance, made from the length",
    "gemma2": "layers with a window",
    "gptj": "rotary positions taken from a table",
    "deepseek_v3": "latent attention",
    "granitemoe": "takes use_cache among its other arguments",
    "xglm": "sinusoidal positions",
}
APART = {
    "mamba2": "keeps a state, named otherwise",
    "bamba": "keeps states and keys; does not count positions on from its cache",
    "lfm2": "keeps convolutions",
    "qwen3_next": "keeps linear attention's states",
    "recurrent_gemma": "is handed its cache",
    "openai-gpt": "keeps nothing",
    "deepseek_v32": "has an indexer",
}
STEPS = 4


@cache
def rank_of(name: str) -> Any:
    """A whole model in a rank's place."""
    spec = spec_named(name)
    return SimpleNamespace(model=tiny_model(spec), spec=spec, attached=SimpleNamespace())


def prompts_of(name: str) -> tuple[list[list[int]], torch.Tensor]:
    """Prompts of unequal length, and tokens [STEPS, prompts] that follow."""
    size = rank_of(name).model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, size, (length,), generator=generator).tolist() for length in (3, 13, 2)]
    return prompts, torch.randint(3, size, (STEPS, 3), generator=generator)


def logits_of(name: str, prompts: list[list[int]], follow: torch.Tensor) -> torch.Tensor:
    """Logits [1 + STEPS, prompts, vocabulary]."""
    passes = Passes(rank_of(name), prompts, None)
    return torch.stack([passes.first(), *(passes.next(tokens) for tokens in follow)])


@pytest.mark.parametrize("name", [*PADDED, *APART])
def test_passes_give_the_logits_of_transformers_own_loop(name: str):
    model = rank_of(name).model
    for prompt in prompts_of(name)[0]:
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=1 + STEPS,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        follow = theirs.sequences[0, len(prompt) : -1, None]
        torch.testing.assert_close(logits_of(name, [prompt], follow), torch.stack(theirs.logits))


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_no_logit(name: str):
    assert can_pad(rank_of(name))
    prompts, follow = prompts_of(name)
    together = logits_of(name, prompts, follow)
    for number, prompt in enumerate(prompts):
        alone = logits_of(name, [prompt], follow[:, [number]])
        error = (together[:, [number]] - alone).abs().max() / alone.abs().max()
        assert error < 1e-5


@pytest.mark.parametrize("name", APART)
def test_models_that_would_count_padding_are_not_given_any(name: str):
    assert not can_pad(rank_of(name))
