"""Lists of modules with one for each unit of an axis, of which a rank has its own."""

from __future__ import annotations

from torch import nn

from tpspec.axes import held_units
from tpspec.language.patterns import compile_pattern
from tpspec.runtime.memory_names import MemoryNames
from tpspec.scope import ConfigScope


def keep_selected(names: MemoryNames, scope: ConfigScope, rank: int) -> None:
    """Leaves of every list that a `select` rule names the rank's modules, numbered from zero.

    `names` goes on finding them by the numbers that the checkpoint has. A zero unit has no weights: its
    zeros go through as they are.
    """
    assert scope.tp is not None
    for placed in scope.spec.rules:
        if placed.rule.select is None:
            continue
        *outer, unit = placed.pattern.variables
        container = compile_pattern(placed.template.partition(f".{{{unit}}}")[0])
        for binding in scope.bindings(outer):
            module = names.module(container.name(binding))
            if module is None:
                continue
            units = names.modules[module]
            assert isinstance(units, nn.ModuleList)
            numbers = held_units(scope.axis(placed.rule.select, binding), scope.tp, rank)
            held = [nn.Identity() if number is None else units[number] for number in numbers]
            units._modules = {str(i): one for i, one in enumerate(held)}  # noqa: SLF001 - lists only append
