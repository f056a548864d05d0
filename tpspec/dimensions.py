"""What each dimension of a module's tensors is, as its rule and the way in which it is stored say."""

from __future__ import annotations

from tpspec.language.schema import Rule
from tpspec.language.spec import PlacedRule
from tpspec.language.tags import TAGS
from tpspec.stored import Dimension, Stored, weight_dimensions

VECTORS = ("norm", "scale", "A_log")
"""Ends of names of what may have two dimensions, and is no matrix to multiply with."""


def full_name(parameter: str) -> str:
    """A tensor's name within its module, where a bare parameter stands for a module's weight.

    Empty is the bare parameter itself, and `_scales` what is stored under its name and that.
    """
    return f"weight{parameter}" if not parameter or parameter.startswith("_") else parameter


def named(module: str, parameter: str) -> str:
    """A tensor's name; of a bare parameter `parameter` is empty, or what follows its name (`_scales`)."""
    return f"{module}{'.' * bool(parameter and not parameter.startswith('_'))}{parameter}"


def is_matrix(placed: PlacedRule) -> bool:
    """Whether a rule is about matrices that a quantizer takes, as far as the rule tells.

    Of matrices that every rank holds whole those that project are taken; routers, position
    embeddings and the like are not.
    """
    rule = placed.rule
    leaf = placed.template.rpartition(".")[2]
    if placed.pattern.subtree or rule.norm or rule.dim is not None or leaf.endswith(VECTORS):
        return False
    if not TAGS[rule.tag].cuts:
        return rule.shape is not None and len(rule.shape) == 2 and "proj" in leaf
    return rule.dims is None or {"in", "out"} <= {*rule.dims}


def dimensions_of(
    rule: Rule, stored: Stored, parameter: str, shape: tuple[int, ...] | None = None
) -> tuple[Dimension, ...]:
    """A tensor's dimensions; without a shape, the usual ones of its format.

    What is stacked goes first; a weight has its dimensions in the order that its rule says.
    """
    name = full_name(parameter)
    known = stored.parameters.get(name)
    in_out = rule.layout == "in-out"
    stacked = tuple(Dimension(each) for each in rule.dims or () if each not in ("in", "out"))
    if known is None:
        return tuple(map(Dimension, rule.dims or ())) or weight_dimensions(len(shape or "ab"), in_out=in_out)
    if name == "bias":
        return known.dimensions
    if name == "weight":
        of = {dimension.name: dimension for dimension in known.dimensions}
        ordered = rule.dims or (("in", "out") if in_out else ("out", "in"))
        return tuple(of.get(each, Dimension(each)) for each in ordered)
    return (*stacked, *(known.dimensions if shape is None else known.fitting(shape[len(stacked) :])))
