"""How one tensor is shared at any tp: what a rule, a config and a shape come to before tp is known."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tpspec import cuts
from tpspec.axes import Axis, shares
from tpspec.cuts import Extent
from tpspec.layout import Cut, Segment, once, whole

BLOCK = "quantization block"
"""What reports call rows or columns that no cut may part, where a format has no name for them."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """`dim` of a tensor is made of `blocks` times `parts`; None: the tensor is whole on each rank.

    `divisor`: `times` stored indices stand for that many rows or columns (scales of a quantized
    weight), `size` of them in all; `label` is what reports call it. With `bits`, elements of so many
    lie across what would be cut. `full`: zeros stored in it are other values, so that no zero unit may take
    in what is no zero. `once`: rank 0 alone holds it. `select`: it belongs to one unit of an axis. Where
    `apart` is set, no rank reads it.
    """

    dim: int | None = None
    parts: tuple[Extent, ...] = ()
    interleaved: Axis | None = None
    blocks: int = 1
    divisor: int = 1
    times: int = 1
    label: str = BLOCK
    bits: int | None = None
    full: bool = False
    once: bool = False
    select: tuple[Axis, int] | None = None
    apart: bool = False

    @property
    def total(self) -> int:
        """Rows or columns of the cut dimension."""
        return self.blocks * sum(part.size for part in self.parts)

    @property
    def size(self) -> int:
        """Size of the cut dimension as stored."""
        return -(-self.total // self.divisor) * self.times

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that have to divide, each once."""
        axes = dict.fromkeys(part.axis for part in self.parts if part.axis)
        if self.interleaved:
            axes[self.interleaved] = None
        if self.select:
            axes[self.select[0]] = None
        return tuple(axes)

    @property
    def named_parts(self) -> tuple[tuple[str, Extent], ...]:
        """The parts that are cut, each with the name of its axis."""
        return tuple((part.axis.name, part) for part in self.parts if part.axis)

    def misfit(self, tp: int) -> tuple[Axis, str] | None:
        """The axis that tp does not divide, with the numbers; None where the tensor can be cut."""
        for axis in self.axes:
            numbers = axis.misfit(tp)
            if numbers:
                return axis, numbers
        return None

    def granule(self, part: Extent) -> int:
        """Units of a part that a rank may hold at a time, for no cut parts a quantization block."""
        return self.divisor // gcd(self.divisor, part.width)

    def split_block(self, tp: int) -> int | None:
        """The first boundary that falls inside a quantization block, in rows or columns."""
        if self.dim is None or self.divisor == 1:
            return None
        scaled = self._scaled(tp)
        return scaled if isinstance(scaled, int) else None

    def fits(self, tp: int) -> bool:
        """Whether the tensor can be shared among tp ranks."""
        whole = self.bits is None or tp == 1
        return whole and self.misfit(tp) is None and self.split_block(tp) is None

    def cut(self, tp: int) -> Cut:
        """The cut for a tp that fits."""
        if self.select:
            axis, unit = self.select
            held = (any(first <= unit < first + n for first, n in _real(s)) for s in shares(axis, tp))
            return Cut(None, 1, tuple((Segment(0, 1),) if here else None for here in held))
        if self.once:
            return once(tp)
        return whole(tp) if self.dim is None else self._whole_blocks(self._scaled(tp))

    def joined(self, tp: int) -> Cut:
        """What one rank holds of the model that a tp, which fits, divides: see `cuts.joined`."""
        if self.dim is None:
            return whole(1)
        units = cuts.joined(self.dim, self.parts, tp, interleaved=self.interleaved, blocks=self.blocks)
        return self._whole_blocks(cuts.scale(units, self.divisor, self.size, self.times))

    def _scaled(self, tp: int) -> Cut | int:
        assert self.dim is not None
        units = cuts.cut(self.dim, self.parts, tp, interleaved=self.interleaved, blocks=self.blocks)
        return cuts.scale(units, self.divisor, self.size, self.times)

    def _whole_blocks(self, scaled: Cut | int) -> Cut:
        if isinstance(scaled, int):
            raise ValueError(f"a cut at {scaled}, inside a block of {self.divisor}")  # noqa: TRY004
        return scaled


def _real(segments: tuple[Segment, ...]) -> list[tuple[int, int]]:
    return [(source, length) for source, length in segments if source is not None]
