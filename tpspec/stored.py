"""How one module is stored: which tensors, and what each of their dimensions is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd, lcm, prod
from typing import Any, NamedTuple

FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E8M0"})
"""What a scale may be stored in."""


class Dimension(NamedTuple):
    """A stored dimension: `out`, `in`, a range's name or a size; `times` indices for each `divisor` of it.

    `whole`: a cut leaves it as it is. `label` is what reports call the divisor.
    """

    name: str
    divisor: int = 1
    times: int = 1
    whole: bool = False
    label: str = ""

    @classmethod
    def of(cls, name: str, divisor: int, times: int, *, whole: bool, label: str) -> Dimension:
        """A dimension with its fraction reduced."""
        common = gcd(divisor, times)
        return cls(name, divisor // common, times // common, whole, label)

    def stored(self, size: int) -> int:
        """Stored indices of a dimension of this size; the last `divisor` may be partial."""
        return -(-size // self.divisor) * self.times


@dataclass(frozen=True)
class Parameter:
    """One tensor of a module. `dtypes` are safetensors' names, the usual one first; none: any float.

    Some checkpoints have `others` for its dimensions. Scalars have none. `holds` says what its numbers are
    (`groups`, `shape`) where they are not of the weight.
    """

    name: str
    dimensions: tuple[Dimension, ...]
    others: tuple[tuple[Dimension, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    optional: bool = False
    holds: str = ""

    def accepts(self, dtype: str) -> bool:
        """Whether a stored tensor of this element type can be it."""
        return dtype in (self.dtypes or FLOATS)

    def fitting(self, shape: tuple[int, ...]) -> tuple[Dimension, ...]:
        """The dimensions that a stored shape has, by their number; scalars may be [1]."""
        for dimensions in (self.dimensions, *self.others):
            if not dimensions and prod(shape) == 1:
                return (Dimension("1"),) * len(shape)
            if len(dimensions) == len(shape):
                return dimensions
        return self.dimensions


@dataclass(frozen=True, eq=False)
class Stored:
    """The tensors of a module by their names, other spellings included.

    `values` says how they make the weight, as specs/quant has it, and `numbers` what its `let` comes to
    there; a plain module has neither. With an `offset`, stored zeros are zeros only where their scale is.
    """

    values: str
    parameters: Mapping[str, Parameter]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    offset: bool = False

    @property
    def quantized(self) -> bool:
        """Whether the weight is stored otherwise than as itself."""
        return bool(self.values)

    @property
    def needed(self) -> tuple[str, ...]:
        """The tensors that a module cannot do without."""
        return tuple(name for name, p in self.parameters.items() if p.name == name and not p.optional)

    def lacks_zeros(self, name: str) -> bool:
        """Whether zeros stored along `in` or `out` are other values: no scale of theirs makes them zeros."""
        scales = (p for p in self.parameters.values() if p.name != "bias" and not p.dtypes)
        along = any(d.name == name and not d.whole for scale in scales for d in scale.dimensions)
        return self.offset and not along

    def block(self, name: str) -> tuple[int, str]:
        """Rows or columns of `in` or `out` that no cut may part, and what they are called."""
        found = [
            dimension
            for parameter in self.parameters.values()
            for dimension in parameter.dimensions
            if dimension.name == name and not dimension.whole
        ]
        widest = max(found, key=lambda dimension: dimension.divisor, default=Dimension(name))
        return lcm(*(dimension.divisor for dimension in found)), widest.label


def weight_dimensions(ndim: int, *, in_out: bool = False) -> tuple[Dimension, ...]:
    """A plain weight's dimensions: [out, in], or for a convolution [out, in, …]."""
    names = ("in", "out") if in_out and ndim == 2 else ("out", "in")
    rest = tuple(f"dim{i}" for i in range(2, ndim))
    return tuple(Dimension(name) for name in (*names, *rest)[:ndim])


BIAS = Parameter("bias", (Dimension("out"),), optional=True)
PLAIN = Stored("", {"bias": BIAS})
