"""An engine as its file says: found by name, a model class's family resolved."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from tpspec.engines.schema import PARAMETER, EngineDocument, Family, Tensors, Version
from tpspec.errors import Finding, TpspecError
from tpspec.language.expressions import Expression
from tpspec.language.patterns import Pattern, compile_pattern, expand, skeleton_of
from tpspec.language.registry import BUILT_IN, PATH_VARIABLE, user_folders
from tpspec.language.yaml_source import read_document
from tpspec.resolution import Resolution
from tpspec.scope import ConfigScope

_compiled = cache(compile_pattern)


@dataclass(frozen=True, slots=True)
class Source:
    """One of a spec's names that an entry is about: which of the entry's sources, and where it goes."""

    pattern: Pattern
    into: str
    tensors: Tensors
    number: int
    count: int
    """How many sources the entry has."""

    def name(self, binding: Mapping[str, int], parameter: str) -> str:
        """The engine's name; ranges that it does not have are stacked."""
        template = self.into
        if PARAMETER in template:
            template = template.replace(PARAMETER, parameter)
        elif parameter:
            template = f"{template}.{parameter}"
        return _compiled(template).name(binding)

    def place(self, binding: Mapping[str, int]) -> tuple[int, ...]:
        """Where a tensor stands among those that make one of the engine's: stacked units, then sources."""
        stacked = (value for name, value in binding.items() if f"{{{name}}}" not in self.into)
        return (*stacked, self.number)


@dataclass(frozen=True)
class Layer:
    """A model class's entry with those of its bases: names by skeleton, and what else is said."""

    name: str
    cls: str
    model_type: str
    """Whose tensors the class has."""
    prefix: str
    rename: Mapping[str, str]
    earlier: Mapping[str, str]
    tied: str
    attention: str | None
    latent: bool
    fits: Expression | None
    sources: Mapping[str, tuple[Source, ...]]

    def spelled(self, name: str) -> str:
        """A name with the engine's words in the place of the spec's, as the release spells it."""
        name = ".".join(self.rename.get(word, word) for word in name.split("."))
        for piece, earlier in self.earlier.items():
            name = name.replace(piece, earlier)
        return name

    def find(self, name: str) -> tuple[Source, dict[str, int]] | None:
        """The entry that names one of the spec's modules or bare parameters."""
        skeleton, numbers = skeleton_of(name)
        for source in self.sources.get(skeleton, ()):
            binding = source.pattern.match(numbers)
            if binding is not None:
                return source, dict(binding)
        return None


def read_engine(name: str) -> EngineDocument:
    """The file of an engine, a user's own first. Raises TpspecError where it is not valid."""
    own = (folder / "engines" / f"{name}.yaml" for folder in user_folders())
    path = next((path for path in own if path.is_file()), None)
    if path:
        return _read(path, str(path))
    return _read(BUILT_IN / "engines" / f"{name}.yaml", f"specs/engines/{name}.yaml")


@cache
def _read(path: Path, where: str) -> EngineDocument:
    source = read_document(path, where)
    try:
        return EngineDocument.model_validate(source.data)
    except ValidationError as error:
        findings = [
            Finding(".".join(map(str, entry["loc"])), entry["msg"], source.place(tuple(entry["loc"])))
            for entry in error.errors()
        ]
        raise TpspecError(f"{where} is not valid", findings) from None


def versions_of(engine: EngineDocument, release: str | None) -> tuple[Version, ...]:
    """What a release has otherwise than the engine's file says, the latest change first.

    Raises TpspecError for a release whose names the file does not say.
    """
    if release is None:
        return ()
    asked, since = _numbers(release, engine), engine.since or engine.compared_with
    if asked < _numbers(since, engine):
        raise TpspecError(
            f"specs/engines/{engine.engine}.yaml says what {engine.title} calls tensors from {since} on, not "
            f"in {release}",
            remedy=f"use {since} or a later release",
        )
    return tuple(version for version in engine.versions if asked < _numbers(version.before, engine))


def is_before(engine: EngineDocument, release: str, other: str) -> bool:
    """Whether a release is earlier than another."""
    return _numbers(release, engine) < _numbers(other, engine)


def is_untold(engine: EngineDocument, release: str) -> bool:
    """Whether a release is later than the one that the engine's file was compared with."""
    return is_before(engine, engine.compared_with, release)


def _numbers(release: str, engine: EngineDocument) -> tuple[int, ...]:
    try:
        return (*map(int, release.split(".")), 0, 0)[:3]
    except ValueError:
        raise TpspecError(
            f"'{release:.40}' is not a release of {engine.title}, such as {engine.compared_with}"
        ) from None


def family_of(engine: EngineDocument, resolution: Resolution, release: str | None = None) -> Layer:
    """What the engine makes of the model class that config.json names. Raises TpspecError where unknown."""
    known = {cls: name for name, family in engine.families.items() for cls in family.classes}
    classes = _classes(resolution.config.get("architectures"))
    cls = next((cls for cls in classes if cls in known), None)
    if cls is None:
        raise _unknown(engine, classes, known)
    name, versions = known[cls], versions_of(engine, release)
    families = list(_with_bases(engine, name, versions))
    earlier = {piece: was for version in versions for piece, was in version.rename.items()}
    model_type = engine.families[name].classes[cls]
    return _layered(name, cls, model_type, families, resolution.scope(), earlier)


def _unknown(engine: EngineDocument, classes: Sequence[str], known: Collection[str]) -> TpspecError:
    """What is wrong with config.json's classes, none of which is known."""
    if not classes:
        return TpspecError(
            "config.json names no model class",
            remedy="name it in `architectures`, as the checkpoint's author did",
        )
    for cls in classes:
        if why := engine.left_out.get(cls):
            return TpspecError(
                f"a {cls} is not exported for {engine.title}: {why}",
                remedy=f"where {engine.title} has the model, let it load the checkpoint itself",
            )
    where = f"specs/engines/{engine.engine}.yaml"
    close = get_close_matches(classes[0], known, n=3, cutoff=0.8)
    near = f"; near it: {', '.join(close)}" if close else ""
    return TpspecError(
        f"config.json names {', '.join(classes)}, and {where} does not say how {engine.title} lays that out"
        f"{near}",
        remedy=f"let {engine.title} load the checkpoint itself, or add the class to a copy of {where} in "
        f"engines/ of a folder of {PATH_VARIABLE}",
    )


def _classes(said: object) -> list[str]:
    """The names of config.json's `architectures`."""
    names = said or []
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    finding = Finding("config.json", f"`architectures` is {said!r:.80}, not a list of model classes' names")
    raise TpspecError("config.json does not say which model class it is of", [finding])


def _with_bases(
    engine: EngineDocument, name: str, versions: Sequence[Version], count: int | None = None
) -> Iterator[Family]:
    """A family's bases, then itself, with these changes; with only the first `count` of its own."""
    changes = [number for number, version in enumerate(versions[:count]) if name in version.families]
    family = versions[changes[-1]].families[name] if changes else engine.families[name]
    if family.extends == name:
        yield from _with_bases(engine, name, versions, changes[-1])
    elif family.extends:
        yield from _with_bases(engine, family.extends, versions)
    yield family


def _layered(
    name: str,
    cls: str,
    model_type: str,
    families: Sequence[Family],
    scope: ConfigScope,
    earlier: Mapping[str, str],
) -> Layer:
    entries: dict[str, Tensors] = {}
    for family in families:
        for into, tensors in family.tensors.items():
            for target in _targets(into):
                entries.pop(target, None)
                if tensors and (tensors.when is None or scope.evaluate(tensors.when, {})):
                    entries[target] = tensors
    sources: dict[str, tuple[Source, ...]] = {}
    for into, tensors in entries.items():
        templates = expand(tensors.of or into)
        for number, template in enumerate(templates):
            pattern = compile_pattern(template)
            found = Source(pattern, into, tensors, number, len(templates))
            sources[pattern.skeleton] = (*sources.get(pattern.skeleton, ()), found)
    last = families[::-1]
    return Layer(
        name,
        cls,
        model_type,
        next((f.prefix for f in last if f.prefix is not None), ""),
        {word: spelled for family in families for word, spelled in family.rename.items()},
        earlier,
        next((f.tied for f in last if f.tied is not None), "head"),
        next((f.attention for f in last if "attention" in f.model_fields_set), None),
        any(f.latent for f in families),
        next((f.fits for f in last if f.fits is not None), None),
        sources,
    )


def _targets(into: str) -> list[str]:
    """An entry's own names: each of its alternatives."""
    mark = "<parameter>"
    return [name.replace(mark, PARAMETER) for name in expand(into.replace(PARAMETER, mark))]
