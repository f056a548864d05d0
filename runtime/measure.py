"""What each rank of `tpspec bench` does. Light to import: ranks import torch where they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter
from typing import TYPE_CHECKING, cast

from tpspec.errors import TpspecError
from tpspec.faults import labels
from tpspec.runtime.collectives import Counted, Tally
from tpspec.runtime.loading import Loading
from tpspec.runtime.request import Sampling
from tpspec.runtime.trace import Call

if TYPE_CHECKING:
    from tpspec.runtime.collectives import Collectives
    from tpspec.runtime.rank_model import RankModel

SEED = 1
SIZES = (4 << 10, 64 << 10, 1 << 20)
"""Bytes of the all-reduces that are timed by themselves."""
ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Share:
    """The part that the sites of one kind have in a step: seconds, a median over the runs.

    `exchange` is what the last rank to come spends in them, and the ranks' mean beyond that is `wait`, for
    slower ranks.
    """

    collective: str
    site: str
    calls: int
    bytes: int
    exchange: float
    wait: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the runs, in seconds. `step` is one token's pass and choice, on rank 0."""

    load: float
    first_token: float
    step: float
    shares: list[Share]
    all_reduces: list[tuple[int, float]]
    """What an all-reduce of so many bytes takes, by itself."""

    @property
    def compute(self) -> float:
        """What of a step is spent in no collective."""
        return self.step - sum(share.exchange + share.wait for share in self.shares)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds, and what the collectives of the steps after the first token came to."""

    first_token: float
    step: float
    tallies: Mapping[Call, Tally]


def measure(
    collectives: Collectives, loading: Loading, prompt_tokens: int, new_tokens: int, runs: int
) -> Generator[str, None, Measured]:
    """Loads this rank's model, then times greedy decoding of one prompt of random tokens.

    Yields "loaded" once all ranks are. A short run that is not measured goes first.
    """
    counted = Counted(collectives)
    started = perf_counter()
    rank = loading.load(counted)
    [load] = max(_of_all_ranks([perf_counter() - started], rank))
    yield "loaded"
    prompt = _random_prompt(rank, prompt_tokens, new_tokens)
    _run(rank, counted, prompt, 2)
    measured = [_run(rank, counted, prompt, new_tokens) for _ in range(runs)]
    return Measured(
        load,
        median(run.first_token for run in measured),
        median(run.step for run in measured),
        _shares(measured, new_tokens - 1, rank),
        [(size, _all_reduce_seconds(size, rank)) for size in SIZES] if counted.size > 1 else [],
    )


def _run(rank: RankModel, counted: Counted, prompt: list[int], new_tokens: int) -> Run:
    from tpspec.runtime.passes import Passes
    from tpspec.runtime.sampling import Sampler

    sampler = Sampler(Sampling(), counted, rank.vocabulary)
    counted.barrier("run")
    started = perf_counter()
    passes = Passes(rank, [prompt], None)
    tokens = sampler.next_tokens(passes.first(), [0], 0)
    first = perf_counter()
    counted.reset()
    for step in range(1, new_tokens):
        tokens = sampler.next_tokens(passes.next(tokens), [0], step)
    seconds = perf_counter() - first
    tallies = dict(counted.tallies)
    counted.reset()
    return Run(first - started, seconds / (new_tokens - 1), tallies)


def _shares(runs: list[Run], steps: int, rank: RankModel) -> list[Share]:
    label = labels(site for _, site in runs[0].tallies)
    kinds: defaultdict[Call, list[Call]] = defaultdict(list)
    for kind, site in runs[0].tallies:
        kinds[kind, label[site]].append((kind, site))
    shares = []
    for (kind, site), calls in kinds.items():
        mine = [sum(run.tallies[call].seconds for call in calls) / steps for run in runs]
        by_run = list(zip(*_of_all_ranks(mine, rank), strict=True))
        first = [runs[0].tallies[call] for call in calls]
        shares.append(
            Share(
                kind,
                site,
                sum(tally.calls for tally in first) // steps,
                sum(tally.payload for tally in first) // steps,
                median(min(seconds) for seconds in by_run),
                median(mean(seconds) - min(seconds) for seconds in by_run),
            )
        )
    return shares


def _all_reduce_seconds(size: int, rank: RankModel) -> float:
    """The median over a few rounds of what the slowest rank spends in an all-reduce of so many bytes."""
    import torch

    tensor = torch.ones(size // 4, device=rank.model.device)
    spent = []
    for _ in range(ROUNDS):
        rank.collectives.barrier("measurements")
        started = perf_counter()
        rank.collectives.all_reduce(tensor, "measurements")
        spent.append(perf_counter() - started)
    slowest: list[float] = [max(seconds) for seconds in zip(*_of_all_ranks(spent, rank), strict=True)]
    return median(slowest)


def _of_all_ranks(numbers: list[float], rank: RankModel) -> list[list[float]]:
    """Every rank's numbers."""
    import torch

    mine = torch.tensor(numbers, dtype=torch.float64, device=rank.model.device)
    return [theirs.tolist() for theirs in rank.collectives.all_gather(mine, "measurements")]


def _random_prompt(rank: RankModel, prompt_tokens: int, new_tokens: int) -> list[int]:
    import torch

    config = rank.model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and prompt_tokens + new_tokens > positions:
        raise TpspecError(
            f"{prompt_tokens} tokens and {new_tokens} new ones: the model has {positions} positions"
        )
    ids = torch.randint(config.vocab_size, (prompt_tokens,), generator=torch.Generator().manual_seed(SEED))
    return cast("list[int]", ids.tolist())
