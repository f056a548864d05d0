"""The next token from logits that no rank has all of: ranks exchange candidates, not the vocabulary.

    greedy        one candidate per rank, its largest logit
    temperature   one per rank, the largest logit / T + Gumbel noise: the largest of all samples softmax
    top-k         the k largest logits of each rank
    top-p         the largest logits of each rank and its log-sum-exp, and more of them until the nucleus is
                  proved to lie among them

From one candidate per rank every rank finds the largest, by the same comparison of the same integers. Where
more has to be computed, rank 0 decides and the others are told: ranks cannot diverge.

Whatever the method, the token taken is that of the largest logit / T + noise among those allowed, and the
noise belongs to the token (tpspec.runtime.noise): the same seed gives the same sample at every tp.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpspec.errors import TpspecError
from tpspec.layout import Cut
from tpspec.runtime.attach import held_rows
from tpspec.runtime.candidates import NOTHING, best, ranked, token_ids, values_of
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.noise import gumbel
from tpspec.runtime.request import Sampling

SITE = "next token"
FIRST = 64
"""Candidates that each rank gives at first where top-p alone limits the choice."""
GROWTH = 8
UNDECIDED = -1


class Sampler:
    """Chooses tokens for one rank; every rank gets the same ones.

    `vocabulary` is how the head's rows are shared; where it is None every rank has all logits, and
    rank 0's are taken.
    """

    def __init__(self, sampling: Sampling, collectives: Collectives, vocabulary: Cut | None) -> None:
        self.sampling = sampling
        self.collectives = collectives
        self.vocabulary = vocabulary

    def next_tokens(self, logits: Tensor, sequences: Sequence[int], step: int) -> Tensor:
        """Token ids [b] from this rank's logits [b, rows]; `sequences` and `step` pick the noise.

        Raises TpspecError where the logits are not numbers.
        """
        parts = self._parts(logits.shape[-1])
        first, count = parts[self.collectives.rank]
        values = logits[:, :count].float()  # what follows are rows of zeros that fill up the last rank's part
        ids = torch.arange(first, first + count, device=logits.device)
        sampling = self.sampling
        if sampling.temperature == 0:
            return self._largest(values, ids)
        scaled = values.double() / sampling.temperature
        if sampling.top_k is None and sampling.top_p == 1:
            noise = gumbel(sampling.seed, sequences, step, ids)
            return self._largest((scaled + noise).float(), ids)
        rows = [count for _, count in parts]
        count = sampling.top_k or FIRST
        while True:
            gathered = self._gather(values, scaled, ids, min(count, max(rows)))
            tokens = torch.zeros_like(gathered[0][:, 0])
            if self.collectives.rank == 0:
                tokens = self._choose(gathered, rows, sequences, step)
            tokens = self.collectives.broadcast(tokens, SITE)
            if (tokens != UNDECIDED).all():
                return tokens
            count *= GROWTH

    def predicted(self) -> dict[str, int]:
        """The collectives that one choice makes, where top-p does not ask for more candidates."""
        told = self.sampling.temperature and (self.sampling.top_k is not None or self.sampling.top_p < 1)
        return {"all_gather": 1, "broadcast": 1} if told else {"all_gather": 1}

    def _parts(self, width: int) -> list[tuple[int, int]]:
        """First row and number of rows of each rank."""
        size = self.collectives.size
        if self.vocabulary is None:
            return [(0, width), *((0, 0),) * (size - 1)]
        return [held_rows(self.vocabulary, rank) for rank in range(size)]

    def _largest(self, values: Tensor, ids: Tensor) -> Tensor:
        gathered = self.collectives.all_gather(best(values, ids), SITE)
        winners = torch.stack(gathered).amax(0)
        check_numbers(values_of(winners))
        return token_ids(winners)

    def _gather(self, values: Tensor, scaled: Tensor, ids: Tensor, count: int) -> list[Tensor]:
        """Every rank's log-sum-exp, as bits, and its `count` best candidates: int64 [b, 1 + count]."""
        mass = scaled.logsumexp(1, keepdim=True).view(torch.int64)
        return self.collectives.all_gather(torch.cat([mass, ranked(values, ids, count)], 1), SITE)

    def _choose(self, gathered: list[Tensor], rows: list[int], sequences: Sequence[int], step: int) -> Tensor:
        """The tokens [b]; UNDECIDED where the nucleus may reach past the candidates."""
        sampling = self.sampling
        keys = torch.cat([part[:, 1:] for part in gathered], 1).sort(descending=True).values
        keys = keys[:, : sampling.top_k]
        values, ids = values_of(keys), token_ids(keys)
        check_numbers(values[:, 0])
        scaled = values.double() / sampling.temperature
        if sampling.top_k:
            bound = torch.full_like(keys[:, :1], NOTHING)
            mass = scaled.logsumexp(1, keepdim=True)
        else:
            bound = _worst_known(gathered, rows)
            mass = torch.cat([part[:, :1].view(torch.float64) for part in gathered], 1).logsumexp(1, True)
        shares = (scaled - mass).exp()
        sums = shares.cumsum(1)
        nucleus = (keys >= bound) & (sums - shares < sampling.top_p)
        scores = scaled + gumbel(sampling.seed, sequences, step, ids)
        chosen = scores.masked_fill(~nucleus, -torch.inf).argmax(1, keepdim=True)
        complete = (bound == NOTHING) | ((keys >= bound) & (sums >= sampling.top_p)).any(1, keepdim=True)
        return ids.gather(1, chosen).where(complete, UNDECIDED)[:, 0]


def _worst_known(gathered: list[Tensor], rows: list[int]) -> Tensor:
    """The candidate [b, 1] down to which all are known; NOTHING where the ranks have given every one."""
    bounds = [
        part[:, -1:] if held >= part.shape[1] else torch.full_like(part[:, -1:], NOTHING)
        for part, held in zip(gathered, rows, strict=True)
    ]
    return torch.cat(bounds, 1).amax(1, keepdim=True)


def check_numbers(values: Tensor) -> None:
    """Raises TpspecError where the largest logits [b] are infinite or not numbers."""
    if not values.isfinite().all():
        raise TpspecError(
            "the model's logits are not finite numbers",
            remedy="in float16, which overflows early, take bfloat16 or float32 (dtype); "
            "in others, are all weights finite?",
        )
