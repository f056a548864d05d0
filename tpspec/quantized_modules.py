"""Which stored tensors together are the weight of one quantized module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpspec.dimensions import full_name
from tpspec.quantization import detect_format
from tpspec.resolution import Resolution, Shared
from tpspec.rules import Rules
from tpspec.stored import Stored


@dataclass(frozen=True)
class QuantizedModule:
    """The tensors of a weight that is not stored as itself.

    `weight` is the name that it would have, `tensors` are the stored names by parameter, and `in_out`
    says that its rule wants the input dimension before the output dimension.
    """

    weight: str
    stored: Stored
    tensors: Mapping[str, str]
    in_out: bool


def quantized_modules(resolution: Resolution) -> list[QuantizedModule]:
    """The quantized modules of a checkpoint, in its tensors' order."""
    rules = Rules(resolution.scope(1), detect_format(resolution.config))
    if rules.storage.quantization.document is None:
        return []
    found: dict[str, tuple[Stored, dict[str, str], bool]] = {}
    for item in resolution.shared:
        for weight, stored, parameter in _of_item(rules, item):
            assert item.tensor is not None
            rule = item.placed.rule
            order = [name for name in rule.dims or () if name in ("in", "out")]
            in_out = order == ["in", "out"] or rule.layout == "in-out"
            found.setdefault(weight, (stored, {}, in_out))[1][parameter] = item.tensor.name
    return [QuantizedModule(weight, *of) for weight, of in found.items()]


def _of_item(rules: Rules, item: Shared) -> Iterator[tuple[str, Stored, str]]:
    """The weight that a tensor is a part of, how that is stored, and as which parameter the tensor."""
    assert item.tensor is not None
    if item.sharing.apart or item.placed.pattern.subtree or item.parameter == "bias":
        return
    if item.placed.rule.tag == "once" or item.parameter in rules.storage.quantization.scalars:
        return
    name = full_name(item.parameter)
    stored = rules.storage.found(item.placed, item.binding, item.parameter, item.tensor.dtype)
    if not stored.quantized:
        return
    bare = item.parameter != name
    stem = (
        item.tensor.name.removesuffix(item.parameter) if bare else item.tensor.name.removesuffix(f".{name}")
    )
    yield stem if bare else f"{stem}.weight", stored, stored.parameters[name].name
