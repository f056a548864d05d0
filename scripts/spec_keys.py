"""What a proof or a table of mutants was made from: keys that a comment in a spec does not change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from pydantic import BaseModel

from tpspec.language.expressions import Expression
from tpspec.language.spec import PlacedRule, RankSettings, Spec
from tpspec.language.tags import TAGS

UNPROVED = {"cache", "active", "name", "extends", "where", "places", "sha256"}
"""What no proof reads: the sizes of caches and the experts of a token are `plan`'s."""
NAMED = {"let", "per_layer", "ranges"}
UNCHANGED = {"in_", "out", "dims", "dim", "head"}


def proof_key(spec: Spec) -> str:
    """A hash of all that a proof of the spec reads, bases included."""
    return _hash([_but(spec, UNPROVED | {"rules"}), [_rule(placed) for placed in spec.rules]])


def mutation_key(spec: Spec) -> str:
    """A hash of all that decides which mutants a spec has, and whether they are noticed.

    Sizes of dimensions that nothing cuts are left out, and the definitions that they alone read, and
    which matrix is the head: a mutant changes none of these, and saying one can but give more away.
    """
    content = [_but(spec, UNPROVED | NAMED | {"rules"}), [_cut(placed, spec) for placed in spec.rules]]
    known = {**spec.definitions, **spec.ranges}
    waiting = _names(content).union(*(placed.pattern.variables for placed in spec.rules))
    read: dict[str, Any] = {}
    while waiting:
        name = waiting.pop()
        if name in known and name not in read:
            read[name] = known[name]
            waiting |= _names(known[name])
    return _hash([*content, read])


def _but(spec: Spec, without: set[str]) -> dict[str, Any]:
    """The fields of a spec but for some, and for those that say nothing."""
    names = [name for name in spec.__dataclass_fields__ if name not in without]
    return {name: value for name in names if (value := getattr(spec, name))}


def _rule(placed: PlacedRule) -> list[Any]:
    """A rule wherever it stands in its file; what it does not say is left out."""
    said = {name: value for name, value in placed.rule if value is not None and value is not False}
    return [placed.template, placed.form, said]


def _cut(placed: PlacedRule, spec: Spec) -> list[Any]:
    """A rule without the sizes that it says: of its dimensions, which is cut and which are ranges."""
    template, form, said = _rule(placed)
    if placed.rule.tag == "replicated":
        said["replicated"] = True
    dims, along = placed.rule.dims or (), TAGS[placed.rule.tag].dimension
    dim = dims.index(along) if placed.rule.dim is None and along in dims else placed.rule.dim
    kept = {name: value for name, value in said.items() if name not in UNCHANGED}
    first_as_usual = along == "out" and dim == 0
    ranges = [name for name in dims if name in spec.ranges]
    return [template, form, kept, None if first_as_usual else dim, ranges]


def _hash(content: Any) -> str:
    return sha256(json.dumps(_plain(content), sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON holds it."""
    if isinstance(value, Expression):
        return value.text
    parts = _parts(value)
    if isinstance(parts, Mapping):
        return {name: _plain(each) for name, each in parts.items()}
    return value if parts is None else [_plain(each) for each in parts]


def _names(value: Any) -> set[str]:
    """The names that the expressions in a value read."""
    if isinstance(value, Expression):
        return set(value.names)
    parts = _parts(value) or ()
    return set().union(*map(_names, parts.values() if isinstance(parts, Mapping) else parts))


def _parts(value: Any) -> Mapping[str, Any] | Sequence[Any] | None:
    """What a value is made of, by name or in order; None where it is one thing."""
    if isinstance(value, BaseModel):
        return dict(value)
    if isinstance(value, RankSettings):
        return vars(value)
    return value if isinstance(value, (Mapping, tuple, list)) else None
