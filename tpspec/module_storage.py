"""How each module of a spec is stored: what the config tells of it, and what its tensors show."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from tpspec.dimensions import full_name, is_matrix
from tpspec.language.spec import PlacedRule
from tpspec.quantization import Quantization
from tpspec.scope import ConfigScope
from tpspec.stored import PLAIN, Stored

MAX_NAMED = 2**18
"""More modules of one rule than this are not told apart by their names."""


class ModuleStorage:
    """Finds the storage of modules; results are shared between those that the config does not tell apart."""

    def __init__(self, scope: ConfigScope, quantization: Quantization) -> None:
        self.scope = scope
        self.quantization = quantization
        self._told: dict[tuple[int, tuple[int, ...]], Stored] = {}

    def differs_by_name(self, placed: PlacedRule) -> bool:
        """Whether modules of a rule are stored in different ways, which the config tells by their names."""
        if not (self.quantization.by_name and is_matrix(placed)):
            return False
        bindings = islice(self.scope.bindings(placed.pattern.variables), MAX_NAMED)
        return len({self.told(placed, binding) for binding in bindings}) > 1

    def told(self, placed: PlacedRule, binding: Mapping[str, int]) -> Stored:
        """How a module is stored, as far as the config alone tells.

        Ranges that the binding leaves open make no difference to it.
        """
        if self.quantization.document is None:
            return PLAIN
        names = placed.pattern.variables if self.quantization.by_name else ()
        numbers = tuple(binding.get(name, self.scope.range(name).start) for name in names)
        key = id(placed), numbers
        if key not in self._told:
            self._told[key] = self._tell(placed, dict(zip(names, numbers, strict=True)))
        return self._told[key]

    def _tell(self, placed: PlacedRule, binding: Mapping[str, int]) -> Stored:
        rule, head = placed.rule, placed.rule.tag == "vocab"
        if not is_matrix(placed) or (head and not (rule.head or rule.tied_to)):
            return PLAIN
        name = placed.pattern.name(binding) if self.quantization.by_name else placed.template
        return self.quantization.of((name, *(p.put(name) for p in self.scope.spec.prefixes)), head=head)

    def found(
        self, placed: PlacedRule, binding: Mapping[str, int], parameter: str, dtype: str = ""
    ) -> Stored:
        """How the module of a tensor is stored that is there, whatever the config says of the module."""
        stored, name = self.told(placed, binding), full_name(parameter)
        if self.quantization.document and name not in stored.parameters and (dtype or name != "weight"):
            stored = self.quantization.usual
        known = stored.parameters.get(name)
        plain = known is None or (name == "weight" and bool(dtype) and not known.accepts(dtype))
        return PLAIN if plain else stored
