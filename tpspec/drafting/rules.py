"""From the shapes of a module's tensors to the rule that the draft gives it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tpspec.drafting import habits
from tpspec.drafting.evidence import Evidence, Shape
from tpspec.drafting.sizes import Size, Sizes

PARAMETERS = ("weight", "bias")


@dataclass(frozen=True)
class Drafted:
    """A module's rule as YAML has it, and what was guessed about it."""

    template: str
    rule: dict[str, Any]
    guesses: tuple[str, ...] = ()


def draft_rules(evidence: Evidence, sizes: Sizes) -> list[Drafted]:
    """One rule for each module or bare parameter, in the order of the checkpoint."""
    modules: dict[str, dict[str, list[Shape]]] = defaultdict(dict)
    for name in evidence.first.shapes:
        stem, _, leaf = name.rpartition(".")
        module, parameter = (stem, leaf) if leaf in PARAMETERS else (name, "")
        modules[module][parameter] = [
            observation.shapes.get(name, evidence.first.shapes[name]) for observation in evidence.observations
        ]
    drafter = _Drafter(evidence, sizes)
    matrices_first = sorted(modules, key=lambda module: _is_vector(modules[module]))
    found = {module: drafter.draft(module, modules[module]) for module in matrices_first}
    drafted = [found[module] for module in modules]
    embeddings = {module for module, kind in evidence.kinds.items() if kind.endswith("Embedding")}
    return sorted(_paired(_tied(drafted, embeddings)), key=partial(_order, embeddings=embeddings))


def _shapes(parameters: dict[str, list[Shape]]) -> list[Shape]:
    """The shapes that a module's rule is drafted from."""
    return parameters.get("weight") or parameters.get("") or parameters["bias"]


def _is_vector(parameters: dict[str, list[Shape]]) -> bool:
    return len(_shapes(parameters)[0]) == 1


def _paired(drafted: list[Drafted]) -> list[Drafted]:
    """Rows whose input nothing gives in shares stay whole: a draft has to load."""
    return [
        each
        if "row" not in each.rule or any(_feeds(other, each) for other in drafted)
        else replace(each, rule={"replicated": True}, guesses=("nothing that is cut seems to feed it",))
        for each in drafted
    ]


def _feeds(one: Drafted, row: Drafted) -> bool:
    """Whether a module of the same layer, or of none, gives its output in shares of the row's axis."""
    ranges = [set(re.findall(r"\{\w+\}", each.template)) for each in (one, row)]
    return "row" not in one.rule and row.rule["row"] in pieces([one]) and ranges[0] <= ranges[1]


def _order(drafted: Drafted, embeddings: set[str]) -> int:
    """As the model runs: what comes before the layers, the layers, what comes after, the head."""
    if "{layer}" in drafted.template:
        return 1
    if "embed" in drafted.template or drafted.template in embeddings:
        return 0
    return 3 if "vocab" in drafted.rule else 2


def _tied(drafted: list[Drafted], embeddings: set[str]) -> list[Drafted]:
    """The head, which may share the embedding's weight."""
    tables = [each.template for each in drafted if "vocab" in each.rule]
    heads = [name for name in tables if name not in embeddings] if embeddings else []
    heads = heads or [name for name in tables if habits.HEAD.search(name)]
    others = [name for name in tables if name not in heads]
    if len(heads) != 1 or len(others) != 1:
        return drafted
    return [
        replace(each, rule=each.rule | {"tied_to": others[0]}) if each.template == heads[0] else each
        for each in drafted
    ]


class _Drafter:
    def __init__(self, evidence: Evidence, sizes: Sizes) -> None:
        self.evidence = evidence
        self.sizes = sizes
        self.cut: set[tuple[str, str]] = set()  # blocks, and the axes that cut matrices in them

    def draft(self, module: str, parameters: dict[str, list[Shape]]) -> Drafted:
        shapes = _shapes(parameters)
        dimensions = [self.sizes.explain(sizes) for sizes in zip(*shapes, strict=True)]
        leaf = module.rpartition(".")[2]
        if len(shapes[0]) == 1:
            drafted = self._vector(module, dimensions[0], bare="" in parameters)
        elif "" in parameters and "expert" in module:
            drafted = self._stacked(module, dimensions)
        elif len(shapes[0]) >= 2:
            drafted = self._matrix(module, leaf, dimensions)
            self.cut |= {(module.rpartition(".")[0], axis) for axis in pieces([drafted])}
        else:
            drafted = Drafted(module, {"replicated": True})
        return self._completed(drafted, parameters)

    def _completed(self, drafted: Drafted, parameters: dict[str, list[Shape]]) -> Drafted:
        """With what the rule says of biases, and of layers that lack the module."""
        rule, guesses = dict(drafted.rule), list(drafted.guesses)
        if "weight" in parameters and len(parameters["weight"][0]) < 3:
            switch = self.evidence.switches.get(f"{drafted.template}.bias")
            table = "vocab" in rule or self.evidence.kinds.get(drafted.template, "").endswith("Embedding")
            matrix = len(parameters["weight"][0]) == 2 and not table
            if switch or (self.evidence.ran and (matrix or "bias" in parameters)):
                rule["bias"] = switch or "bias" in parameters
        first = self.evidence.first
        names = (f"{drafted.template}.{parameter}".removesuffix(".") for parameter in parameters)
        layers = first.layers[next(names)]
        every = range(max((max(found) for found in first.layers.values() if found), default=-1) + 1)
        if layers and layers != frozenset(every):
            rule["optional"] = True
            guesses.append(f"only in layers {', '.join(map(str, sorted(layers)))}: say when")
        return Drafted(drafted.template, rule, tuple(guesses))

    def _vector(self, module: str, found: list[Size], *, bare: bool) -> Drafted:
        cut = next(
            (size for size in found if size.parts and len(size.parts) == 1 and size.axis != "vocab"), None
        )
        plain = next((size for size in found if not size.parts), None)
        named = habits.WHOLE_WIDTH_NORM.search(module)
        whole_width = (
            cut and plain and plain.text == self.sizes.hidden and (named or self._inside(module, cut.axis))
        )
        if plain and not whole_width:
            return Drafted(module, {"replicated": plain.text})
        if not cut:
            return Drafted(module, {"replicated": True}, ("its size is not explained by the config",))
        axis, width = cut.parts[0]
        if bare:
            return Drafted(module, {"qkv-head": axis} | ({"width": width} if width else {}))
        kind = (
            "layer"
            if "LayerNorm" in self.evidence.kinds.get(module, "") and "RMS" not in self.evidence.kinds[module]
            else "rms"
        )
        known = "size" if not whole_width else "name" if named else "place"
        guess = f"a norm over the whole width, by its {known}"
        return Drafted(module, {"column": axis, "norm": {"kind": kind}}, (guess,))

    def _inside(self, module: str, axis: str) -> bool:
        """Whether a norm is of what an attention's matrices made, not of the input that they share."""
        block = module.rpartition(".")[0]
        apart = self.evidence.reads.get(module) is False and habits.ATTENTION.search(block)
        return bool(apart) and (block, axis) in self.cut

    def _matrix(self, module: str, leaf: str, dimensions: Sequence[list[Size]]) -> Drafted:
        in_out = self.evidence.kinds.get(module) == "Conv1D"
        outs, ins = (dimensions[1], dimensions[0]) if in_out else (dimensions[0], dimensions[1])
        layout = {"layout": "in-out"} if in_out else {}
        if any(size.axis == "vocab" for size in outs):
            return Drafted(module, {"vocab": "vocab"})
        out = next((size for size in outs if size.parts), None)
        into = next((size for size in ins if len(size.parts) == 1), None)
        narrow_out, narrow_in = (any(size.text == self.sizes.hidden for size in side) for side in (outs, ins))
        why: tuple[str, ...] = ()
        if narrow_out and narrow_in:
            tag = None
            if out and into and habits.ATTENTION.search(module):
                tag, why = self._tie_break(module, leaf)
        else:
            tag = "column" if out and not narrow_out else "row" if into and not narrow_in else None
        if tag == "column" and out:
            return self._column(module, out, layout | ({} if narrow_in else _other("in", ins)), why)
        if tag == "row" and into:
            rule = {"row": into.axis} | _width(into) | layout | self._reduced_at(module)
            return Drafted(module, rule | ({} if narrow_out else _other("out", outs)), why)
        shape = [_plain(side) for side in dimensions]
        if all(shape) or self.evidence.kinds.get(module, "").endswith("Embedding"):
            return Drafted(module, {"replicated": shape if all(shape) else True}, why)
        unknown = "replicated; nothing in the config that init knows moves it"
        return Drafted(module, {"replicated": True}, (*why, unknown))

    def _column(self, module: str, out: Size, more: dict[str, Any], why: tuple[str, ...]) -> Drafted:
        axes = [{"axis": axis, "width": width} if axis == "replicated" else axis for axis, width in out.parts]
        attention = out.axis in ("q", "kv")
        if len(axes) == 1:
            tag = "qkv-head" if attention else "column"
            return Drafted(module, {tag: axes[0]} | _width(out) | more, why)
        rule: dict[str, Any] = {"qkv-head" if attention else "merged": axes}
        if attention and habits.HEAD_BY_HEAD.search(module) and self.sizes.kv in axes:
            rule["interleaved"] = self.sizes.kv
            order = f"{self._order(out)} of one {self.sizes.kv} head after another, by its name"
        elif len({axis for axis, _ in out.parts}) == 1:
            mixed = f"mixed row by row: interleaved: {out.axis}"
            order = f"one part after the other; shapes do not tell ({mixed})"
        else:
            order = f"the order {self._order(out)}; shapes do not tell"
            if self.sizes.kv in axes:
                order += f" (one KV group after another: interleaved: {self.sizes.kv})"
        return Drafted(module, rule | more, (*why, order))

    @staticmethod
    def _order(size: Size) -> str:
        return ", ".join(axis for axis, _ in size.parts)

    def _tie_break(self, module: str, leaf: str) -> tuple[str | None, tuple[str, ...]]:
        """Column or row, where a matrix is as wide as the residual stream on both sides."""
        if module in self.evidence.reads:
            if self.evidence.reads[module]:
                return "column", ("column, for its input is the block's",)
            return "row", ("row, for its input is not the block's",)
        planned = self.evidence.plan.get(module, "")
        if planned.startswith(("colwise", "rowwise")):
            return ("column" if planned.startswith("col") else "row"), ("as transformers' plan has it",)
        tag = habits.cuts(leaf)
        return tag, (f"{tag or 'replicated'}, by its name",)

    def _reduced_at(self, module: str) -> dict[str, str]:
        """Experts give parts of one sum, which is reduced after the block that runs them."""
        block, expert, _ = module.partition(".{expert}")
        if not expert:
            return {}
        stacked = any("over" in entry for entry in self.evidence.memory)
        return {"reduce_at": block if stacked else block.rpartition(".")[0]}

    def _stacked(self, module: str, dimensions: Sequence[list[Size]]) -> Drafted:
        """Experts in one parameter: of the dimensions, one counts them, and one is cut."""
        experts = self.sizes.roles.get("experts", "")
        names: list[str | None] = [None] * len(dimensions)
        cut: Size | None = None
        for i, found in enumerate(dimensions):
            if any(size.text == experts for size in found) and "expert" not in names:
                names[i] = "expert"
            elif any(size.text == self.sizes.hidden for size in found):
                names[i] = "hidden"
            else:
                cut = next((size for size in found if size.parts), None)
                names[i] = "cut"
        block = module.rpartition(".")[0]
        if cut is None and "hidden" in names and len(dimensions) == 2 and "bias" in module:
            return Drafted(module, {"once": True}, ("added to a sum over the ranks",))
        if cut is None or "expert" not in names:
            return Drafted(module, {"replicated": True}, ("its shape is not explained by the config",))
        row = len(cut.parts) == 1 and "down" in module.rpartition(".")[2]
        spelled = {"expert": "expert", "cut": "in" if row else "out", "hidden": "out" if row else "in"}
        dims = [spelled[name] for name in names if name]
        if row:
            return Drafted(module, {"row": cut.axis, "dims": dims, "reduce_at": block})
        axes = [axis for axis, _ in cut.parts]
        if len(axes) == 1:
            return Drafted(module, {"column": axes[0], "dims": dims})
        return Drafted(module, {"merged": axes, "dims": dims}, ("one after the other, not row by row",))


def _width(size: Size) -> dict[str, str]:
    width = size.parts[0][1]
    return {"width": width} if width else {}


def _other(side: str, found: list[Size]) -> dict[str, str]:
    text = _plain(found)
    return {side: text} if text else {}


def _plain(found: list[Size]) -> str | None:
    return next((size.text for size in found if not size.parts), None)


def pieces(drafted: list[Drafted]) -> Iterator[str]:
    """The axes that the rules name."""
    for each in drafted:
        for tag in ("column", "row", "qkv-head", "merged", "vocab"):
            named = each.rule.get(tag, [])
            parts = [named] if isinstance(named, str) else named
            yield from (part for part in parts if isinstance(part, str))
