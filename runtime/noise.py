"""Random numbers that belong to a token and not to a rank.

The noise of a token is a function of (seed, sequence, step, token id): each rank computes it for the part
of the vocabulary that it holds, and all tp sizes see the same numbers. The function is SplitMix64 (Steele,
Lea, Flood, OOPSLA 2014), whose state moves on by a constant, so that any element is computed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST = 31
BITS = 52
"""Of each word, as many as leave every number strictly between 0 and 1 in double precision."""


def gumbel(seed: int, sequences: Sequence[int], step: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise [b, n] in float64, for token ids [n] or [b, n] of `b` sequences."""
    keys = torch.tensor([_signed(_key(seed, sequence, step)) for sequence in sequences], device=tokens.device)
    bits = _mix(keys[:, None] + tokens * _signed(GOLDEN))
    uniform = (_shifted(bits, 64 - BITS).double() + 0.5) * 2.0**-BITS
    return -torch.log(-torch.log(uniform))


def _key(*parts: int) -> int:
    """Where in the generator's cycle a sequence's step begins."""
    key = 0
    for part in parts:
        key = (key ^ (part & WORD)) + GOLDEN & WORD
        for shift, factor in ROUNDS:
            key = (key ^ key >> shift) * factor & WORD
        key ^= key >> LAST
    return key


def _mix(words: Tensor) -> Tensor:
    for shift, factor in ROUNDS:
        words = (words ^ _shifted(words, shift)) * _signed(factor)
    return words ^ _shifted(words, LAST)


def _shifted(words: Tensor, shift: int) -> Tensor:
    """A shift to the right that fills with zeros; torch's own fills with the sign."""
    return words >> shift & ((1 << 64 - shift) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
