"""What rank 0 makes of a request before the model runs: token ids, and how far each prompt may go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from transformers import GenerationConfig, PretrainedConfig

from tpspec.errors import Finding, TpspecError
from tpspec.runtime.agreement import from_rank_0
from tpspec.runtime.building import read_model_config
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.model_faults import config_at_fault
from tpspec.runtime.request import Request, Sampling
from tpspec.runtime.text import Continuation, Tokenizer


@dataclass(frozen=True)
class Plan:
    """Prompts as ids; `rooms` is how many tokens each may get, `eos` the tokens that end a text.

    `positions` is how many the model has, None where there is no limit; `stops` whether rank 0
    looks for stop strings.
    """

    prompts: list[list[int]]
    rooms: list[int]
    eos: list[int]
    positions: int | None
    sampling: Sampling
    stops: bool
    batch_size: int

    def batches(self, *, padded: bool) -> Iterator[list[int]]:
        """The prompts' numbers, at most `batch_size` at a time; of one length, unless they are padded."""
        lengths = dict.fromkeys(None if padded else len(prompt) for prompt in self.prompts)
        for length in lengths:
            alike = iter(n for n, p in enumerate(self.prompts) if length is None or len(p) == length)
            while batch := list(islice(alike, self.batch_size)):
                yield batch


def make_plan(directory: Path, request: Request) -> tuple[Plan, list[Continuation] | None]:
    """The plan for a directory's model, and the texts to fill in; none where all prompts are ids.

    Raises TpspecError for prompts that the model cannot take, all at once.
    """
    whole = read_model_config(str(directory), text_only=False)
    config = whole.get_text_config()
    positions: int | None = getattr(config, "max_position_embeddings", None)
    tokenizer = None
    if request.stop or any(isinstance(prompt, str) for prompt in request.prompts):
        tokenizer = Tokenizer(directory)
    prompts, findings = [], []
    for number, prompt in enumerate(request.prompts):
        if isinstance(prompt, str):
            assert tokenizer is not None
            ids = tokenizer.encode(prompt, chat=request.chat)
        else:
            ids = prompt
        prompts.append(list(ids))
        if problem := _problem(ids, positions, config.vocab_size):
            said = f"{prompt!r:.40}" if isinstance(prompt, str) else f"{len(ids)} tokens"
            findings.append(Finding(f"prompt {number + 1} ({said})", problem))
    if findings:
        raise TpspecError(f"{directory} cannot go on from what it is given", findings)
    rooms = [request.max_new_tokens] * len(prompts)
    if positions is not None:  # the last token is not read again, and needs no position
        rooms = [min(room, positions - len(ids) + 1) for room, ids in zip(rooms, prompts, strict=True)]
    eos = _end_tokens(directory, whole)
    plan = Plan(prompts, rooms, eos, positions, request.sampling, bool(request.stop), request.batch_size)
    texts = [Continuation(tokenizer, ids, request.stop) for ids in prompts] if tokenizer else None
    return plan, texts


def agreed(plan: Plan | None, collectives: Collectives, device: torch.device) -> Plan:
    """Rank 0's plan, on every rank."""
    told = from_rank_0(asdict(plan) if plan else None, collectives, device)
    return Plan(**{**told, "sampling": Sampling(**told["sampling"])})


def _problem(ids: tuple[int, ...], positions: int | None, vocabulary: int) -> str:
    """Why the model cannot read a prompt; empty where it can."""
    if not ids:
        return "has no tokens"
    if positions is not None and len(ids) > positions:
        return f"has {len(ids)} tokens, the model {positions} positions"
    unknown = [token for token in ids if not 0 <= token < vocabulary]
    if unknown:
        return f"has the token {unknown[0]}, the model's vocabulary ends at {vocabulary - 1}"
    return ""


def _end_tokens(directory: Path, config: PretrainedConfig) -> list[int]:
    """The tokens that end a text: of generation_config.json, which may list several, else of config.json."""
    path = directory / "generation_config.json"
    with config_at_fault(path):
        if path.exists():
            settings = GenerationConfig.from_pretrained(str(directory))
        else:
            settings = GenerationConfig.from_model_config(config)  # not every model's config has them
    found: int | list[int] | None = settings.eos_token_id
    return found if isinstance(found, list) else [] if found is None else [found]
