"""Generating text: the loop that every rank runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from itertools import count

import torch

from tpspec.runtime.agreement import from_rank_0
from tpspec.runtime.answer import Answer
from tpspec.runtime.passes import Passes, can_pad
from tpspec.runtime.plan import Plan
from tpspec.runtime.rank_model import RankModel
from tpspec.runtime.request import Completion, Piece, Request
from tpspec.runtime.sampling import SITE as CHOICE_SITE
from tpspec.runtime.sampling import Sampler
from tpspec.runtime.text import Continuation
from tpspec.runtime.trace import Call
from tpspec.sites import COLLECTIVES

STOP_SITE = "stop strings"

Observer = Callable[[bool], object]
"""Called once the tokens of a pass are chosen, with whether it read prompts."""


def generate(
    rank: RankModel,
    plan: Plan,
    texts: Sequence[Continuation] | None,
    observe: Observer = lambda _: None,
) -> Generator[Piece, None, list[Completion]]:
    """Completes the prompts of a plan that is the same on all ranks; rank 0 alone has texts to fill in.

    Yields text on rank 0 as it comes; returns the completions, in the prompts' order, on every rank.
    """
    sampler = Sampler(plan.sampling, rank.collectives, rank.vocabulary)
    answers = [
        Answer(room, plan.eos, texts[number] if texts else None) for number, room in enumerate(plan.rooms)
    ]
    for numbers in plan.batches(padded=can_pad(rank)):
        yield from _complete(rank, plan, numbers, {n: answers[n] for n in numbers}, sampler, observe)
    told = from_rank_0([answer.text for answer in answers], rank.collectives, rank.model.device)
    return [
        answer.completion(len(prompt), text)
        for answer, prompt, text in zip(answers, plan.prompts, told, strict=True)
    ]


def predicted_calls(rank: RankModel, request: Request) -> Counter[Call]:
    """The collectives of one pass: those that the tags imply, and those of the choice of tokens.

    Logits are not gathered: the choice exchanges candidates.
    """
    calls = Counter(
        (COLLECTIVES[site.kind], site.module)
        for site in rank.sites
        if site.kind in COLLECTIVES and site.kind != "logits"
    )
    for kind, number in Sampler(request.sampling, rank.collectives, rank.vocabulary).predicted().items():
        calls[kind, CHOICE_SITE] = number
    if request.stop:
        calls["broadcast", STOP_SITE] = 1
    return calls


def _complete(
    rank: RankModel,
    plan: Plan,
    numbers: list[int],
    answers: dict[int, Answer],
    sampler: Sampler,
    observe: Observer,
) -> Generator[Piece, None, None]:
    """Runs one batch until every answer has its end; a sequence that has it runs along."""
    passes = Passes(rank, [plan.prompts[number] for number in numbers], plan.positions)
    logits = passes.first()
    for step in count():
        chosen = sampler.next_tokens(logits, numbers, step)
        pieces = []
        for (number, answer), token in zip(answers.items(), chosen.tolist(), strict=True):
            if not answer.finish:
                text = answer.add(token)
                pieces.append(Piece(number, text, last=bool(answer.finish)))
        if plan.stops:
            stopped = torch.tensor(
                [answer.finish == "stop" for answer in answers.values()], device=chosen.device
            )
            for answer, flag in zip(
                answers.values(), rank.collectives.broadcast(stopped, STOP_SITE), strict=True
            ):
                answer.finish = "stop" if flag else answer.finish
        observe(step == 0)
        yield from pieces
        if all(answer.finish for answer in answers.values()):
            return
        logits = passes.next(chosen)
