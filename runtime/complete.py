"""What each rank of `tpspec run` does. Light to import: ranks import torch where they run."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from tpspec.runtime.collectives import Counted
from tpspec.runtime.loading import Loading
from tpspec.runtime.request import Completion, Piece, Request
from tpspec.runtime.trace import Row, Trace

if TYPE_CHECKING:
    from tpspec.runtime.collectives import Collectives


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `complete` gives: the completions, and how long the passes of each kind took together."""

    completions: list[Completion]
    prompt_seconds: float
    token_seconds: float
    passes: int
    trace: list[Row]

    @property
    def rate(self) -> float:
        """Tokens per second once the prompts were read, of all sequences together."""
        tokens = sum(len(completion.tokens) - 1 for completion in self.completions)
        return tokens / self.token_seconds if self.token_seconds else 0.0


def complete(
    collectives: Collectives, loading: Loading, request: Request, check_ranks: bool
) -> Generator[Piece, None, Outcome]:
    """Loads this rank's model and completes the prompts. Yields text on rank 0 as it comes."""
    from tpspec.runtime.generate import generate, predicted_calls
    from tpspec.runtime.plan import agreed, make_plan
    from tpspec.runtime.rank_check import attach_rank_check

    loading.register()
    # Rank 0 reads the prompts before the weights, for a prompt at fault need not wait for them.
    mine, texts = make_plan(loading.directory, request) if collectives.rank == 0 else (None, None)
    counted = Counted(collectives)
    rank = loading.load(counted)
    if check_ranks:
        attach_rank_check(rank, collectives)
    plan = agreed(mine, collectives, rank.model.device)
    trace = Trace(counted)
    seconds = {True: 0.0, False: 0.0}
    last = perf_counter()

    def observe(prompt: bool) -> None:
        nonlocal last
        now = perf_counter()
        seconds[prompt] += now - last
        last = now
        trace.note(prompt)

    completions = yield from generate(rank, plan, texts, observe)
    rows = trace.rows(predicted_calls(rank, request))
    return Outcome(completions, seconds[True], seconds[False], trace.passes.total(), rows)
