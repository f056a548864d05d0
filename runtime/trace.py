"""The collectives that generation makes, counted pass by pass, beside those that the model's tags imply."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tpspec.faults import labels
from tpspec.runtime.collectives import Counted, wire_bytes

Call = tuple[str, str]
"""A kind of collective, and the site where it is made."""


@dataclass(frozen=True, slots=True)
class Row:
    """The sites of one kind. `counted` and `predicted` are calls, of all passes together.

    Bytes are of one pass, which reads prompts or one token of each sequence: what this rank gives, and
    what it sends on the wire for that at the least.
    """

    collective: str
    site: str
    counted: int
    predicted: int
    prompt_bytes: float
    prompt_wire_bytes: float
    token_bytes: float
    token_wire_bytes: float


class Trace:
    """What passes have called, as `counted` saw it."""

    def __init__(self, counted: Counted) -> None:
        self.counted = counted
        self.passes: Counter[bool] = Counter()
        self.calls: Counter[Call] = Counter()
        self.payload: defaultdict[bool, Counter[Call]] = defaultdict(Counter)

    def note(self, prompt: bool) -> None:
        """Takes the calls of the pass that has ended, which read prompts or one token of each sequence."""
        self.passes[prompt] += 1
        for call, tally in self.counted.tallies.items():
            self.calls[call] += tally.calls
            self.payload[prompt][call] += tally.payload
        self.counted.reset()

    def rows(self, predicted: Mapping[Call, int]) -> list[Row]:
        """One row for each kind of site, given the calls that one pass should make."""
        label = labels(site for _, site in (*predicted, *self.calls))
        kinds: defaultdict[Call, list[Call]] = defaultdict(list)
        for kind, site in dict.fromkeys((*self.calls, *predicted)):
            kinds[kind, label[site]].append((kind, site))
        return [self._row(kind, site, calls, predicted) for (kind, site), calls in kinds.items()]

    def _row(self, kind: str, site: str, calls: list[Call], predicted: Mapping[Call, int]) -> Row:
        given = {
            prompt: sum(self.payload[prompt][call] for call in calls) // max(1, self.passes[prompt])
            for prompt in (True, False)
        }
        sent = {prompt: wire_bytes(kind, payload, self.counted.size) for prompt, payload in given.items()}
        return Row(
            kind,
            site,
            sum(self.calls[call] for call in calls),
            sum(predicted.get(call, 0) for call in calls) * self.passes.total(),
            given[True],
            sent[True],
            given[False],
            sent[False],
        )
