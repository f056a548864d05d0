"""What is asked of the ranks, and what they answer. No torch here: the command line makes requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tpspec.errors import TpspecError

Finish = Literal["eos", "stop", "length"]
Prompt = str | tuple[int, ...]
"""Text, or the ids of tokens."""


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
        if self.max_new_tokens < 1 or self.batch_size < 1:
            raise TpspecError("at least one new token is generated, for at least one prompt at a time")
        if "" in self.stop:
            raise TpspecError("an empty stop string would stop every text before it begins")


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
