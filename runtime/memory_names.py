"""From the names on disk, which specs use, to the names of the model in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn

from tpspec.language.schema import NO_PREFIX, Prefix, Stack
from tpspec.language.spec import Spec
from tpspec.memory import Memory


@dataclass
class Stacked:
    """A parameter of several stored tensors: rows by number if it has rows, alternatives side by side."""

    into: str
    entry: Stack
    rows: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))

    def names(self) -> list[list[str]]:
        """The stored names, row by row."""
        return [[row[i] for i in sorted(row)] for _, row in sorted(self.rows.items())]


class MemoryNames:
    """Finds modules and parameters of a model by the names that a spec and a checkpoint use."""

    def __init__(self, spec: Spec, model: nn.Module) -> None:
        self.spec = spec
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.tensors = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self.tensors |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
        self.tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", {})
        base = getattr(model, "base_model_prefix", "")
        usual = (NO_PREFIX, Prefix(stored=f"{base}." if base else ""))
        self._prefixes = tuple(dict.fromkeys((*usual, *spec.prefixes)))
        self._memory = Memory(spec)

    def module(self, name: str) -> str | None:
        """The module that a name of the spec stands for; None where the model has none."""
        return self._known(name, self.modules)

    def tensor(self, name: str) -> str | None:
        """The parameter or buffer that a stored name stands for; None where the model has none."""
        return self._known(name, self.tensors)

    def parts(self, name: str) -> list[str]:
        """The names of the parameters that a stored tensor is split into; its own alone where it is not."""
        return self._memory.parts(name)

    def stacked(self, names: Iterable[str]) -> tuple[list[str], list[Stacked]]:
        """Splits stored names into those that stand alone and those that memory holds as one."""
        alone: list[str] = []
        stacks: dict[str, Stacked] = {}
        for name in names:
            member = self._memory.member(name)
            if member is None:
                alone.append(name)
            else:
                stack = stacks.setdefault(member.into, Stacked(member.into, member.entry))
                stack.rows[member.row][member.alternative] = name
        return alone, list(stacks.values())

    def _known(self, name: str, known: Mapping[str, object] | set[str]) -> str | None:
        for stem in (name, *(stem for p in self._prefixes if (stem := p.strip(name)) is not None)):
            spelled = self._memory.renamed(stem)
            for prefix in self._prefixes:
                if prefix.put(spelled) in known:
                    return prefix.put(spelled)
        return None
