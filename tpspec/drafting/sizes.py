"""What a dimension is made of: the expressions that give its size in every model that was seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpspec.drafting.evidence import Evidence
from tpspec.drafting.roles import ffn_keys, roles_of


@dataclass(frozen=True)
class Size:
    """An expression; with parts, (axis, width or none) each, something that may be cut."""

    text: str
    parts: tuple[tuple[str, str | None], ...] = ()

    @property
    def axis(self) -> str:
        """The first part's axis; empty for a plain size."""
        return self.parts[0][0] if self.parts else ""


class Sizes:
    """The axes of an architecture and the sizes that its config explains."""

    def __init__(self, evidence: Evidence) -> None:
        config = evidence.first.config
        self.configs = [observation.config for observation in evidence.observations]
        self.roles = roles_of(config)
        self.has_head_dim = isinstance(config.get(self.roles.get("head_dim", "")), int)
        self.ffn = {
            axis: key
            for axis, key in _ffn_axes([*ffn_keys(config), *evidence.widths])
            if isinstance(config.get(key), int)
        }
        if not self.ffn and "hidden" in self.roles:
            self.ffn = {"ffn": f"4 * {self.roles['hidden']}"}

    @property
    def hidden(self) -> str:
        return self.roles.get("hidden", "hidden_size")

    @property
    def kv(self) -> str:
        """The axis of the keys and values."""
        return "kv" if "kv" in self.roles else "q"

    @cached_property
    def candidates(self) -> list[tuple[Size, tuple[int, ...]]]:
        """Each size with its value in every observation, the likelier first."""
        units = {"q": self.roles.get("heads"), "kv": self.roles.get("kv"), **self.ffn}
        values = {axis: self._values(text) for axis, text in units.items() if text}
        width = self._head_dim()
        found: list[tuple[Size, tuple[int, ...]]] = [
            (Size(key, (("vocab", None),)), self._values(key)) for key in self._role("vocab")
        ]
        found += [(Size(key), self._values(key)) for key in (*self._role("hidden"), *self._role("experts"))]
        if "heads" in self.roles:
            found.append((Size("head_dim"), width))
        found += [(Size(axis, parts), total) for axis, parts, total in self._cut(values, width)]
        plain = [
            key for key in self.configs[0] if key.endswith(("_dim", "_rank")) and key not in self.ffn.values()
        ]
        found += [(Size(key), self._values(key)) for key in plain if key != self.roles.get("head_dim")]
        return [(size, total) for size, total in found if all(total)]

    def explain(self, sizes: Sequence[int]) -> list[Size]:
        """The sizes that a dimension has in every observation; it may be cut in the first way that cuts."""
        return [size for size, total in self.candidates if total == tuple(sizes)]

    def count(self, values: Sequence[int]) -> str | None:
        """What a number that a block carries says about its heads, as a rank has it."""
        heads, kv = (self._values(self.roles.get(role, "")) for role in ("heads", "kv"))
        width = self._head_dim()
        known = {
            "local(q)": heads,
            "local(kv)": kv,
            "local(q) // local(kv)": _each(int.__floordiv__, heads, kv),
            "local(q) * head_dim": _each(int.__mul__, heads, width),
            "local(kv) * head_dim": _each(int.__mul__, kv, width),
        }
        return next((text for text, of in known.items() if all(of) and of == tuple(values)), None)

    def is_hidden(self, values: Sequence[int]) -> bool:
        """Whether a number is the width of the residual stream in every observation."""
        return tuple(values) == self._values(self.hidden)

    def _cut(
        self, values: Mapping[str, tuple[int, ...]], width: tuple[int, ...]
    ) -> Iterator[tuple[str, tuple[tuple[str, str | None], ...], tuple[int, ...]]]:
        heads = values.get("q")
        if heads:
            kv = values.get("kv", heads)
            q_size, kv_size = _each(int.__mul__, heads, width), _each(int.__mul__, kv, width)
            yield "q", (("q", None),), q_size
            yield "kv", ((self.kv, None),), kv_size
            fused = _each(int.__add__, q_size, _each(int.__add__, kv_size, kv_size))
            yield "fused", (("q", None), (self.kv, None), (self.kv, None)), fused
            yield "kv pair", ((self.kv, None), (self.kv, None)), _each(int.__add__, kv_size, kv_size)
            one_head = (("q", None), ("replicated", "2 * head_dim"))
            yield "multi-query", one_head, _each(int.__add__, q_size, _each(int.__add__, width, width))
            yield "q and gate", (("q", "2 * head_dim"),), _each(int.__add__, q_size, q_size)
        for axis in self.ffn:
            yield axis, ((axis, None),), values[axis]
            yield f"2 {axis}", ((axis, None), (axis, None)), _each(int.__add__, values[axis], values[axis])
        if heads:
            yield "heads", (("q", "1"),), heads
            yield "kv heads", ((self.kv, "1"),), values.get("kv", heads)
            for text, ones in self._other_widths():
                yield f"q * ({text})", (("q", text),), _each(int.__mul__, heads, ones)

    def _other_widths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Widths of a head that latent attention has: one of the config's, or the sum of two."""
        keys = [
            key for key in self.configs[0] if key.endswith("head_dim") and key != self.roles.get("head_dim")
        ]
        for i, key in enumerate(keys):
            yield key, self._values(key)
            for other in keys[i + 1 :]:
                yield f"{key} + {other}", _each(int.__add__, self._values(key), self._values(other))

    def _role(self, role: str) -> list[str]:
        return [self.roles[role]] if role in self.roles else []

    def _values(self, text: str) -> tuple[int, ...]:
        """A key's values, zero where a config has none; `4 * key` four times that."""
        factor, _, key = text.rpartition(" * ")
        numbers = [config.get(key) for config in self.configs]
        return tuple(n * int(factor or 1) if isinstance(n, int) else 0 for n in numbers)

    def _head_dim(self) -> tuple[int, ...]:
        if self.has_head_dim:
            return self._values(self.roles["head_dim"])
        heads, hidden = (self._values(self.roles.get(role, "")) for role in ("heads", "hidden"))
        return tuple(width // n if n else 0 for width, n in zip(hidden, heads, strict=True))


def _each(operation: Any, left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    return tuple(operation(a, b) if b else 0 for a, b in zip(left, right, strict=True))


def _ffn_axes(keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Axis name → key, for each width of an MLP."""
    for i, key in enumerate(keys):
        yield ("ffn" if i == 0 else key.removesuffix("_intermediate_size").removesuffix("_size")), key
