"""What a padded model says anew of a quantized matrix: the group of each input, and the matrix's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpspec import cuts
from tpspec.dimensions import full_name
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.language.tags import TAGS
from tpspec.quantization import detect_format
from tpspec.resolution import Resolution, Shared
from tpspec.rules import Rules


@dataclass(frozen=True, slots=True)
class Numbers:
    """A vector's numbers: each of `values` as many `times`, one after another, until there are `length`."""

    values: Sequence[int]
    times: int
    length: int


def padded_numbers(resolution: Resolution, tp: int) -> Mapping[str, Numbers]:
    """By name, the tensors that zeros and copies do not make, in a model padded for a tp.

    Raises TpspecError where inputs belong to groups in no order: among them zeros have none.
    """
    rules = Rules(resolution.scope(), detect_format(resolution.config))
    if rules.storage.quantization.document is None:
        return {}
    found: dict[str, Numbers] = {}
    findings: list[Finding] = []
    for item in resolution.shared:
        if item.sharing.apart or item.placed.pattern.subtree or item.tensor is None:
            continue
        stored = rules.storage.found(item.placed, item.binding, item.parameter, item.tensor.dtype)
        parameter = stored.parameters.get(full_name(item.parameter))
        if parameter is None or not parameter.holds:
            continue
        if parameter.holds == "shape":
            shape = [_padded_size(rules, item, name, tp) for name in ("out", "in")]
            found[item.tensor.name] = Numbers(shape, 1, 2)
        elif stored.numbers["ordered"]:
            problem = "its inputs are in activation order, in which zeros have no group"
            findings.append(Finding(item.tensor.name, problem, item.placed.place))
        else:
            inputs = _padded_size(rules, item, "in", tp)
            group = inputs if stored.numbers["one"] else int(stored.numbers["group"])
            found[item.tensor.name] = Numbers(range(-(-inputs // group)), group, inputs)
    if findings:
        raise TpspecError(
            f"padded for tp={tp}, this model cannot be an ordinary checkpoint",
            first_findings(findings),
            "tpspec convert --pad cuts it for tpspec run, groups in any order too",
        )
    return found


def _padded_size(rules: Rules, item: Shared, dimension: str, tp: int) -> int:
    """The `in` or `out` of a tensor's matrix in the padded model."""
    if TAGS[item.placed.rule.tag].dimension == dimension:
        matrix = rules.sharing(item.placed, item.binding, "weight", None)
        units = cuts.joined(0, matrix.parts, tp, interleaved=matrix.interleaved, blocks=matrix.blocks)
        return units.length(0)
    size = rules.size(item.placed, item.binding, dimension)
    assert size is not None
    return size.number
