"""What is asked of the ranks, and what they answer. No torch here: the command line makes requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from tpspec.errors import Finding, TpspecError, first_findings

Finish = Literal["eos", "stop", "length"]
Prompt = str | tuple[int, ...]
"""Text, or the ids of tokens."""


COLDEST = 1e-5
"""Logits divided by less may overflow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen from the logits.

    With a temperature of 0 it is the likeliest, the lowest id where several are. Otherwise it is drawn from
    softmax(logits / temperature); with `top_k` from the k likeliest tokens, with `top_p` then from the fewest
    of these whose probability is at least top_p. `seed` is any integer.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise TpspecError(f"temperature {self.temperature} is not a number from 0 up")
        if 0 < self.temperature < COLDEST:
            raise TpspecError(f"temperature {self.temperature} is too small; 0 takes the likeliest token")
        if self.top_k is not None and self.top_k < 1:
            raise TpspecError(f"top-k {self.top_k} keeps no token; 1 keeps the likeliest")
        if not 0 < self.top_p <= 1:
            raise TpspecError(f"top-p {self.top_p} does not lie between 0 and 1")


@dataclass(frozen=True, slots=True)
class Request:
    """Prompts to go on from. With `chat`, each text is a user's message, put into the model's chat template.

    A completion ends before the first of the strings `stop`. At most `batch_size` prompts run side by side.
    """

    prompts: tuple[Prompt, ...]
    chat: bool = False
    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    batch_size: int = 16

    def __post_init__(self) -> None:
        if not self.prompts:
            raise TpspecError("there is no prompt")
        findings = [
            Finding(f"prompt {number}", f"has the byte {_stray(prompt)}, which is no UTF-8 text")
            for number, prompt in enumerate(self.prompts, 1)
            if isinstance(prompt, str) and _stray(prompt)
        ]
        if findings:
            raise TpspecError("a prompt has to be text", first_findings(findings))
        if self.max_new_tokens < 1 or self.batch_size < 1:
            raise TpspecError("at least one new token is generated, for at least one prompt at a time")
        if "" in self.stop:
            raise TpspecError("an empty stop string would stop every text before it begins")


def _stray(text: str) -> str:
    """The first byte that the command line or a file gave and that no character has; empty where all do."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"0x{ord(text[error.start]) & 0xFF:02x}"
    return ""


def prompts_of(given: str | Sequence[object]) -> tuple[Prompt, ...]:
    """One text, or several texts and sequences of token ids, as prompts. Raises TpspecError for others."""
    if isinstance(given, str):
        return (given,)
    prompts: list[Prompt] = []
    findings = []
    for number, prompt in enumerate(given, 1):
        if isinstance(prompt, str):
            prompts.append(prompt)
        elif isinstance(prompt, Sequence) and all(isinstance(token, Integral) for token in prompt):
            prompts.append(tuple(map(int, prompt)))
        else:
            problem = f"{prompt!r:.40} is neither a text nor a tuple of token ids"
            findings.append(Finding(f"prompt {number}", problem))
    if findings:
        remedy = 'prompts are a text, or a list of texts and tuples of ints: ["Once", (1, 403)]'
        raise TpspecError("these are no prompts", first_findings(findings), remedy)
    return tuple(prompts)


@dataclass(frozen=True, slots=True)
class Piece:
    """Text as it comes: the next characters after prompt number `sequence`."""

    sequence: int
    text: str
    last: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """What followed a prompt. Where an end-of-text token was the `finish`, it is the last of `tokens`."""

    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str
    finish: Finish
