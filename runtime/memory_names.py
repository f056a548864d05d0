"""From the names on disk, which specs use, to the names of the model in memory."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn

from tpspec.language.patterns import compile_pattern, expand, skeleton_of
from tpspec.language.schema import NO_PREFIX, Prefix, Rename, Split, Stack
from tpspec.language.spec import Spec


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
        self._renames = [
            (re.compile(rf"(?<![^.]){re.escape(stored)}(?![^.])"), spelled)
            for entry in spec.memory
            if isinstance(entry, Rename)
            for stored, spelled in entry.pairs
        ]
        self._stacks = [
            (compile_pattern(template), entry, alternative)
            for entry in spec.memory
            if isinstance(entry, Stack)
            for alternative, template in enumerate(expand(entry.stack))
        ]

        self._splits = [
            (compile_pattern(entry.split), entry.into) for entry in spec.memory if isinstance(entry, Split)
        ]

    def module(self, name: str) -> str | None:
        """The module that a name of the spec stands for; None where the model has none."""
        return self._known(name, self.modules)

    def tensor(self, name: str) -> str | None:
        """The parameter or buffer that a stored name stands for; None where the model has none."""
        return self._known(name, self.tensors)

    def parts(self, name: str) -> list[str]:
        """The names of the parameters that a stored tensor is split into; its own alone where it is not."""
        for stripped, prefix in self.spec.names_of(name) if self._splits else ():
            skeleton, numbers = skeleton_of(stripped)
            for pattern, into in self._splits:
                binding = pattern.match(numbers) if pattern.skeleton == skeleton else None
                if binding is not None:
                    return [prefix.put(compile_pattern(part).name(dict(binding))) for part in expand(into)]
        return [name]

    def stacked(self, names: Iterable[str]) -> tuple[list[str], list[Stacked]]:
        """Splits stored names into those that stand alone and those that memory holds as one."""
        alone: list[str] = []
        stacks: dict[str, Stacked] = {}
        for name in names:
            found = self._member(name)
            if found is None:
                alone.append(name)
            else:
                entry, into, row, alternative = found
                stacks.setdefault(into, Stacked(into, entry)).rows[row][alternative] = name
        return alone, list(stacks.values())

    def _member(self, name: str) -> tuple[Stack, str, int, int] | None:
        for stripped, _ in self.spec.names_of(name) if self._stacks else ():
            skeleton, numbers = skeleton_of(stripped)
            for pattern, entry, alternative in self._stacks:
                binding = pattern.match(numbers) if pattern.skeleton == skeleton else None
                if binding is not None:
                    values = {variable: number + entry.offset for variable, number in binding}
                    row = values.pop(entry.over) if entry.over else 0
                    return entry, compile_pattern(entry.into).name(values), row, alternative
        return None

    def _known(self, name: str, known: Mapping[str, object] | set[str]) -> str | None:
        for stem in (name, *(stem for p in self._prefixes if (stem := p.strip(name)) is not None)):
            for pattern, to in self._renames:
                stem = pattern.sub(to, stem)  # noqa: PLW2901 - each rename works on the last one's result
            for prefix in self._prefixes:
                if prefix.put(stem) in known:
                    return prefix.put(stem)
        return None
