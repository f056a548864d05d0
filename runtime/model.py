"""A loaded model as Python programs use it: one rank under torchrun, or all ranks in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import torch

from tpspec.errors import TpspecError
from tpspec.presharded import Presharded
from tpspec.runtime.calls import RankLost
from tpspec.runtime.collectives import Alone, Collectives
from tpspec.runtime.generate import generate
from tpspec.runtime.launch import joined_group, torchrun_rank
from tpspec.runtime.loading import Loading, check_own_file
from tpspec.runtime.out_of_memory import memory_told
from tpspec.runtime.plan import agreed, make_plan
from tpspec.runtime.rank_model import RankModel
from tpspec.runtime.rank_process import drive
from tpspec.runtime.request import Completion, Prompt, Request, Sampling, prompts_of
from tpspec.runtime.threads import ThreadGroup, Threads


def load_model(loading: Loading, *, threads: bool) -> Model:
    """See tpspec.runtime.load."""
    presharded = loading.open()
    tp = presharded.tp
    loading.check_device()
    loading.register()
    own = None if threads else torchrun_rank()
    group = None
    collectives: list[Collectives]
    if own:
        loading = check_own_file(loading, presharded, *own)
        joined = joined_group(loading.device)
        assert joined is not None
        collectives = [joined]
    elif tp == 1:
        collectives = [Alone()]
    elif threads:
        group = ThreadGroup(tp)
        collectives = [Threads(group, rank) for rank in range(tp)]
    else:
        raise TpspecError(
            f"{loading.directory} has {tp} ranks, and this process was not started as one of them",
            remedy=f"start it with torchrun --nproc-per-node {tp}, or load with threads=True",
        )
    with memory_told(presharded, loading.dtype):
        ranks = [loading.load(each) for each in collectives]
    return Model(loading, presharded, ranks, group)


class Model:
    """The ranks of a model that are in this process. After an error, load it again."""

    def __init__(
        self,
        loading: Loading,
        presharded: Presharded,
        ranks: Sequence[RankModel],
        group: ThreadGroup | None = None,
    ) -> None:
        self.loading = loading
        self.presharded = presharded
        self.ranks = ranks
        self._group = group

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        *,
        chat: bool = False,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        batch_size: int = 16,
        on_piece: Callable[[Any], None] = lambda _: None,
    ) -> list[Completion]:
        """Completes a text, or several texts or tuples of token ids; returns the same on every rank.

        The arguments are those of tpspec.runtime.request. `on_piece` gets each Piece of text as it comes,
        where rank 0 is. If all prompts are ids and no string stops them, no tokenizer is loaded and the
        texts are empty.
        Raises TpspecError for prompts that the model cannot take.
        """
        request = Request(
            prompts_of(prompts),
            chat,
            max_new_tokens,
            Sampling(temperature, top_k, top_p, seed),
            (stop,) if isinstance(stop, str) else tuple(stop),
            batch_size,
        )
        first = self.ranks[0].collectives.rank == 0
        mine, texts = make_plan(self.loading.directory, request) if first else (None, None)

        def work(rank: RankModel) -> list[Completion]:
            plan = agreed(mine, rank.collectives, rank.model.device)
            if rank.collectives.rank == 0:
                found = drive(generate(rank, plan, texts), on_piece)
            else:
                found = drive(generate(rank, plan, None), lambda _: None)
            return cast("list[Completion]", found)

        with memory_told(self.presharded, self.loading.dtype):
            return work(self.ranks[0]) if self._group is None else self._in_threads(work, self._group)

    def _in_threads(
        self, work: Callable[[RankModel], list[Completion]], group: ThreadGroup
    ) -> list[Completion]:
        """Does every rank's work; raises the error at the root of a failure, after which all can go on."""

        def one(rank: RankModel) -> list[Completion]:
            try:
                return work(rank)
            except BaseException as error:
                group.leave(rank.collectives.rank, f"failed ({error})")
                raise

        with (
            _threads_of_torch(len(os.sched_getaffinity(0)) // group.size),
            ThreadPoolExecutor(group.size) as pool,
        ):
            futures = [pool.submit(one, rank) for rank in self.ranks]
            try:
                errors = [error for future in futures if (error := future.exception())]
            except BaseException:  # Ctrl-C: no rank is to wait for another any more
                for rank in range(group.size):
                    group.leave(rank, "was stopped")
                raise
        if errors:
            group.restart()
            for model in self.ranks:
                model.attached.restart()
            raise min(errors, key=lambda error: isinstance(error, RankLost))
        return futures[0].result()

    def close(self) -> None:
        """Leaves the group of ranks."""
        for rank in self.ranks:
            rank.collectives.close()


@contextmanager
def _threads_of_torch(count: int) -> Iterator[None]:
    """So many threads for each operation: more than there are cores for all ranks would spin in vain."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)
