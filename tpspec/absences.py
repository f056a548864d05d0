"""What a checkpoint lacks: rules without their tensors, and modules that have some of theirs alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from tpspec.dimensions import full_name
from tpspec.errors import Finding, TpspecError
from tpspec.faults import Faults
from tpspec.language.expressions import ExpressionError
from tpspec.language.spec import PlacedRule
from tpspec.resolution import Shared
from tpspec.rules import Rules

MAX_TENSORS = 2**18
"""One rule for more modules than this is a broken config, not a model."""
INCOMPLETE = "is the checkpoint complete, and config.json its own?"


class Absences:
    """Looks for what is not there, and for what is there too much of."""

    def __init__(self, rules: Rules, faults: Faults) -> None:
        self.rules = rules
        self.scope = rules.scope
        self.spec = rules.scope.spec
        self.faults = faults

    def check(
        self,
        shared: list[Shared],
        forms: Collection[tuple[str, str]],
        at_fault: Collection[tuple[int, tuple[int, ...]]],
    ) -> None:
        """Every rule that is not optional has its tensors, each once.

        `at_fault` names rules and bindings whose tensors were found wanting, and so are not absent.
        """
        present: dict[int, dict[tuple[int, ...], dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        for item in shared:
            values = tuple(item.binding.values())
            parameters = present[id(item.placed)][values]
            assert item.tensor is not None
            if item.parameter in parameters and not item.placed.pattern.subtree:
                problem = "the checkpoint has this tensor under two names"
                self.faults.add(item.tensor.name, problem, item.tensor.file)
            parameters[item.parameter] = item.tensor.dtype
        for placed in self.spec.rules:
            if placed.form and placed.form not in forms:
                continue
            if placed.pattern.subtree or (placed.rule.optional is True and not present[id(placed)]):
                continue
            for binding in self._expected(placed):
                values = tuple(binding.values())
                self._check_module(
                    placed, binding, present[id(placed)].get(values), (id(placed), values) in at_fault
                )

    def _check_module(
        self, placed: PlacedRule, binding: Mapping[str, int], has: Mapping[str, str] | None, at_fault: bool
    ) -> None:
        """Whether a module has what it needs; a tied head has no more than its bias."""
        tied = self.tied(placed)
        if has is None and not tied:
            if not (at_fault or self.rules.optional(placed, binding)):
                self.faults.add(placed.pattern, *self._absent(placed), binding=binding)
        elif has and not (tied or at_fault) and (lacking := self._lacking(placed, binding, has)):
            problem = f"has {', '.join(sorted(has))} but no {' and no '.join(lacking)}"
            self.faults.add(placed.pattern, problem, placed.place, binding=binding)
        else:
            self._check_bias(placed, binding, has or {})

    def _lacking(self, placed: PlacedRule, binding: Mapping[str, int], has: Mapping[str, str]) -> list[str]:
        """The tensors that a module needs beside those that it has, by their element types."""
        names = {full_name(parameter): dtype for parameter, dtype in has.items() if parameter != "bias"}
        telling = next((name for name in names if name != "weight"), "weight")
        stored = self.rules.storage.found(placed, binding, telling, names.get("weight", ""))
        needed = stored.needed if stored.quantized else ("weight",)
        found = {stored.parameters[name].name if name in stored.parameters else name for name in names}
        return [name for name in needed if name not in found]

    def _expected(self, placed: PlacedRule) -> Iterator[dict[str, int]]:
        count = 1
        for name in placed.pattern.variables:
            count *= len(self.scope.range(name))
        if count > MAX_TENSORS:
            problem = f"config.json makes it {count} modules; a model has at most {MAX_TENSORS}"
            raise TpspecError(
                "config.json is not a model's", [Finding(placed.template, problem, placed.place)]
            )
        for binding in self.scope.bindings(placed.pattern.variables):
            try:
                if self.rules.applies(placed, binding):
                    yield binding
            except ExpressionError as error:
                self.faults.add(placed.pattern, str(error), placed.place, binding=binding)

    def tied(self, placed: PlacedRule) -> bool:
        """Whether the config says that a module shares another's weight."""
        return bool(placed.rule.tied_to and self.scope.lookup("tie_word_embeddings", {}))

    def _absent(self, placed: PlacedRule) -> tuple[str, str, str]:
        if placed.rule.tied_to:
            problem = f"is not in the checkpoint, and config.json does not tie it to {placed.rule.tied_to}"
            return problem, placed.place, "set tie_word_embeddings in config.json if the weights are tied"
        return (
            "is not in the checkpoint",
            placed.place,
            INCOMPLETE,
        )

    def _check_bias(self, placed: PlacedRule, binding: Mapping[str, int], has: Collection[str]) -> None:
        if placed.rule.bias is None:
            return
        wanted = bool(self.scope.evaluate(placed.rule.bias, binding))
        document = self.rules.storage.quantization.document
        if document and document.zero_biases and not wanted and "weight" not in has:
            return  # the rank that loads it sees whether it is of zeros
        if wanted != ("bias" in has):
            problem = "is not in the checkpoint" if wanted else "is stored, but the model has none"
            where = f"{problem} (bias: {placed.rule.bias})"
            self.faults.add(placed.pattern, where, placed.place, "", binding, "bias")
