"""The draft as YAML that a person goes on with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpspec.drafting import habits
from tpspec.drafting.evidence import Evidence
from tpspec.drafting.rules import Drafted, draft_rules, pieces
from tpspec.drafting.sizes import Sizes

_WORD = re.compile(r"[A-Za-z_]\w*")
WIDTH = 110


def draft(evidence: Evidence, name: str) -> str:
    """A spec for what was seen, with `# guessed: …` where shapes and names do not tell."""
    sizes = Sizes(evidence)
    rules = draft_rules(evidence, sizes)
    return "\n".join(_Writer(evidence, sizes, rules).lines(name)) + "\n"


class _Writer:
    def __init__(self, evidence: Evidence, sizes: Sizes, rules: list[Drafted]) -> None:
        self.evidence = evidence
        self.sizes = sizes
        self.rules = rules
        self.axes = list(dict.fromkeys(pieces(rules)))

    def lines(self, name: str) -> Iterator[str]:
        seen = "names, shapes and a small model's code" if self.evidence.ran else "names and shapes alone"
        yield f"# A draft from {seen}: say here what differs, and prove it."
        yield "spec: 1"
        yield f"architecture: {name}"
        yield f"model_types: [{self.evidence.model_type}]"
        yield ""
        yield from _section("let", dict(self._let()))
        yield f"ranges: {_flow(self._ranges())}"
        yield f"hidden: {self.sizes.hidden}"
        yield ""
        yield from _section("axes", {axis: _flow(self._axis(axis)) for axis in self.axes})
        yield ""
        yield "modules:"
        yield from self._modules()
        yield 'ignore: ["*.rotary_emb.inv_freq"]'
        if self.evidence.memory:
            yield "memory:"
            for entry in self.evidence.memory:
                if len(line := f"  - {_flow(entry)}") <= WIDTH:
                    yield line
                else:
                    first, *rest = (f"{key}: {_flow(value)}" for key, value in entry.items())
                    yield from (f"  - {first}", *(f"    {each}" for each in rest))
        yield ""
        yield from self._cache()
        yield from self._runtime()
        if self.evidence.tiny:
            yield ""
            yield from _section("tiny", {key: _flow(value) for key, value in self.evidence.tiny.items()})

    def _let(self) -> Iterator[tuple[str, str]]:
        """The class's defaults of what the rules compute with."""
        roles = self.sizes.roles
        essential = {roles.get(role) for role in ("hidden", "layers", "heads", "vocab")}
        for key in sorted(self._used()):
            default = self.evidence.defaults.get(key)
            if key == roles.get("kv") and key in self.evidence.follows_heads:
                yield key, f"{key} or {roles['heads']}"
            elif isinstance(default, bool):
                yield key, f"{key} or false" if not default else f"true if {key} is None else {key}"
            elif isinstance(default, int) and key not in essential and key != "head_dim":
                yield key, f"{key} or {default}"
        if "heads" in roles and {"q", "kv"} & set(self.axes):
            width = f"{self.sizes.hidden} // {roles['heads']}"
            if key := roles.get("head_dim", ""):
                fixed = self.evidence.defaults.get(key) and key not in self.evidence.follows_heads
                width = f"{key} or {self.evidence.defaults[key] if fixed else width}"
            yield "head_dim", width

    def _used(self) -> set[str]:
        used = {"tie_word_embeddings"} if any("tied_to" in each.rule for each in self.rules) else set()
        texts = [
            *(str(each.rule) for each in self.rules),
            *(str(self._axis(axis)) for axis in self.axes),
            str(self._ranges()),
        ]
        known = self.evidence.first.config.keys() | self.evidence.defaults.keys()
        return {word for text in texts for word in _WORD.findall(text) if word in known} | used - {"head_dim"}

    def _ranges(self) -> dict[str, str]:
        names = " ".join(each.template for each in self.rules)
        dims = " ".join(str(each.rule.get("dims", "")) for each in self.rules)
        ranges = {"layer": self.sizes.roles.get("layers", "num_hidden_layers")}
        if "{expert}" in names or "'expert'" in dims:
            ranges["expert"] = self.sizes.roles.get("experts", "num_experts")
        return ranges

    def _axis(self, axis: str) -> dict[str, Any]:
        roles = self.sizes.roles
        if axis == "q":
            return {"units": roles["heads"], "width": "head_dim"}
        if axis == "kv":
            groups = {"groups": "q"} if "q" in self.axes else {}
            return {"units": roles["kv"], "width": "head_dim", "replicate": True, **groups}
        return {"units": roles["vocab"] if axis == "vocab" else self.sizes.ffn[axis]}

    def _modules(self) -> Iterator[str]:
        groups: list[list[Drafted]] = []
        for each in self.rules:
            beside = next((group for group in groups if _siblings(group[0], each)), None)
            if beside:
                beside.append(each)
            else:
                groups.append([each])
        names = [_joined([each.template for each in group]) for group in groups]
        texts = [_rule(group[0].rule) for group in groups]
        short = [name for name, text in zip(names, texts, strict=True) if len(name) + len(text) <= WIDTH - 4]
        column = max(map(len, short), default=0) + 2
        for name, text, group in zip(names, texts, groups, strict=True):
            if group[0].guesses:
                yield f"  # guessed: {'; '.join(group[0].guesses)}"
            aligned = f"  {name + ':':{column}}{text}"
            plain = f"  {name}: {text}"
            yield from (
                _broken(name, text) if len(plain) > WIDTH else [aligned if len(aligned) <= WIDTH else plain]
            )

    def _cache(self) -> Iterator[str]:
        if {"q", "kv"} & set(self.axes):
            heads = self.sizes.kv if self.sizes.kv in self.axes else "q"
            yield "cache:"
            yield f"  - {{per_token: 2 * local({heads}) * head_dim}}"

    def _runtime(self) -> Iterator[str]:
        roles = self.sizes.roles
        config = {
            roles[role]: f"local({axis})"
            for role, axis in (("heads", "q"), ("kv", "kv"))
            if role in roles and axis in self.axes
        }
        if self.sizes.has_head_dim and config:
            config[roles["head_dim"]] = "head_dim"
        attributes = {
            module: {
                name: text for name, values in found.items() if (text := self._attribute(module, values))
            }
            for module, found in self.evidence.attributes.items()
        }
        attributes = {module: found for module, found in attributes.items() if found}
        if not config and not attributes:
            return
        yield "runtime:"
        if config:
            yield f"  config: {_flow(config)}"
        if attributes:
            yield "  attributes:"
            yield from (f"    {module}: {_flow(found)}" for module, found in attributes.items())

    def _attribute(self, module: str, values: Sequence[int]) -> str | None:
        """What a rank's block is told; as wide as the residual stream may mean that and nothing else."""
        text = self.sizes.count(values)
        if self.sizes.is_hidden(values) and not habits.ATTENTION.search(module):
            return None
        named = re.findall(r"local\((\w+)\)", text or "")
        return text if set(named) <= set(self.axes) else None


def _rule(rule: Mapping[str, Any]) -> str:
    return "replicated" if rule == {"replicated": True} else _flow(rule)


def _broken(name: str, text: str) -> list[str]:
    return [f"  {name}:", f"    {text}"]


def _siblings(one: Drafted, other: Drafted) -> bool:
    """Whether two modules of one block have the same rule."""
    same = one.rule == other.rule and one.guesses == other.guesses
    return same and one.template.rpartition(".")[0] == other.template.rpartition(".")[0]


def _joined(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    block = names[0].rpartition(".")[0]
    leaves = ",".join(name.rpartition(".")[2] for name in names)
    return f"{block}.{{{leaves}}}" if block else f'"{{{leaves}}}"'


def _section(title: str, entries: Mapping[str, str]) -> Iterator[str]:
    if entries:
        yield f"{title}:"
        yield from (f"  {key}: {text}" for key, text in entries.items())


def _flow(value: Any) -> str:
    """A value in YAML's flow style."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case str():
            return json.dumps(value) if set(value) & set("{}[],:#&*!|>'\"%@`") else value
        case list() | tuple():
            return f"[{', '.join(map(_flow, value))}]"
        case dict():
            return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, Mapping):
        return _flow(dict(value))
    return str(value)
