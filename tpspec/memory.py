"""What `memory` of a spec says: how the model spells names on disk, and which tensors it holds as one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tpspec.language.patterns import Pattern, compile_pattern, expand, skeleton_of
from tpspec.language.schema import Rename, Split, Stack
from tpspec.language.spec import Spec


@dataclass(frozen=True, slots=True)
class Member:
    """A stored tensor's place in the parameter `into`: its row, and which of those side by side it is."""

    entry: Stack
    into: str
    row: int
    alternative: int


class Memory:
    """The `memory` section of a spec, looked up by names as a checkpoint stores them."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._renames = [
            (re.compile(rf"(?<![^.]){re.escape(stored)}(?![^.])"), spelled)
            for entry in spec.memory
            if isinstance(entry, Rename)
            for stored, spelled in entry.pairs
        ]
        self._stacks: Mapping[str, list[tuple[Pattern, Stack, int]]] = defaultdict(list)
        for entry in spec.memory:
            if isinstance(entry, Stack):
                for alternative, template in enumerate(expand(entry.stack)):
                    pattern = compile_pattern(template)
                    self._stacks[pattern.skeleton].append((pattern, entry, alternative))
        self._splits = [
            (compile_pattern(entry.split), entry.into) for entry in spec.memory if isinstance(entry, Split)
        ]

    def renamed(self, name: str) -> str:
        """A name as the model spells it; each rename works on the last one's result."""
        for pattern, spelled in self._renames:
            name = pattern.sub(spelled, name)
        return name

    def member(self, name: str) -> Member | None:
        """Where a stored tensor lies in a parameter that is made of several; None for one of its own."""
        for stripped, _ in self.spec.names_of(name) if self._stacks else ():
            skeleton, numbers = skeleton_of(stripped)
            for pattern, entry, alternative in self._stacks.get(skeleton, ()):
                binding = pattern.match(numbers)
                if binding is not None:
                    values = {variable: number + entry.offset for variable, number in binding}
                    row = values.pop(entry.over) if entry.over else 0
                    return Member(entry, compile_pattern(entry.into).name(values), row, alternative)
        return None

    def parts(self, name: str) -> list[str]:
        """The names of the parameters that a stored tensor is split into; its own alone where it is not."""
        for stripped, prefix in self.spec.names_of(name) if self._splits else ():
            skeleton, numbers = skeleton_of(stripped)
            for pattern, into in self._splits:
                binding = pattern.match(numbers) if pattern.skeleton == skeleton else None
                if binding is not None:
                    return [prefix.put(compile_pattern(part).name(dict(binding))) for part in expand(into)]
        return [name]
