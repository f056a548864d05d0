"""Where specs are found: built-in ones through an index of model types, users' own beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from tpspec.errors import TpspecError
from tpspec.language.documents import SpecFile, read_spec_file
from tpspec.language.load import load_spec
from tpspec.language.spec import Spec

BUILT_IN = Path(__file__).resolve().parent.parent / "specs"
PATH_VARIABLE = "TPSPEC_PATH"


def spec_for(model_types: Sequence[str], where: str = "config.json") -> Spec:
    """The spec of the first model type that has one. Raises TpspecError where none has."""
    for model_type in model_types:
        for path in user_files():
            if model_type in _read_user_file(path).content.model_types:
                return spec_from_file(path)
        if model_type in built_in_index():
            return spec_named(built_in_index()[model_type])
    known = sorted(built_in_index())
    close = get_close_matches(model_types[0], known, n=3)
    near = f"; near it: {', '.join(close)}" if close else ""
    raise TpspecError(
        f"{where}: no spec knows model_type '{model_types[0]}'{near}",
        remedy=f"list them with `tpspec specs`, or write one and pass it with --spec FILE or {PATH_VARIABLE}",
    )


def _read_user_file(path: Path) -> SpecFile:
    try:
        return read_spec_file(path, str(path))
    except TpspecError as error:
        remedy = f"mend it, or take it out of {PATH_VARIABLE}, which lists it"
        raise TpspecError(error.message, error.findings, remedy) from None


def spec_from_file(path: Path) -> Spec:
    """Loads a user's spec file."""
    return load_spec(path, shown(path), _find)


def spec_named(name: str) -> Spec:
    """Loads a spec by its architecture's name, user specs first."""
    path, where = _find(name, BUILT_IN / "-")
    return load_spec(path, where, _find)


def spec_names() -> list[str]:
    """Names of all specs, users' and built-in."""
    files = (*user_files(), *BUILT_IN.glob("*.yaml"))
    return sorted({path.stem for path in files})


def user_files() -> list[Path]:
    """Spec files in the folders that TPSPEC_PATH lists."""
    files = []
    for entry in filter(None, os.environ.get(PATH_VARIABLE, "").split(os.pathsep)):
        folder = Path(entry)
        if not folder.exists():
            raise TpspecError(f"{PATH_VARIABLE}: there is no '{entry}'")
        files += sorted(folder.glob("*.yaml")) if folder.is_dir() else [folder]
    return files


def user_folders() -> list[Path]:
    """The folders among what TPSPEC_PATH lists."""
    entries = filter(None, os.environ.get(PATH_VARIABLE, "").split(os.pathsep))
    return [Path(entry) for entry in entries if Path(entry).is_dir()]


@cache
def built_in_index() -> dict[str, str]:
    """Model type → name of the built-in spec, as `make index` wrote it."""
    index: dict[str, str] = json.loads((BUILT_IN / "index.json").read_text())
    return index


def make_index() -> dict[str, str]:
    """The index that index.json should hold. Raises TpspecError where two specs claim a model type."""
    index: dict[str, str] = {}
    for path in sorted(BUILT_IN.glob("*.yaml")):
        for model_type in read_spec_file(path, shown(path)).content.model_types:
            if model_type in index:
                raise TpspecError(f"{shown(path)}: {model_type} is claimed by {index[model_type]} too")
            index[model_type] = path.stem
    return dict(sorted(index.items()))


def shown(path: Path) -> str:
    """How reports show a spec's path: built-in ones as `specs/NAME.yaml`."""
    return f"specs/{path.name}" if path.resolve().parent == BUILT_IN.resolve() else str(path)


def _find(name: str, seen_from: Path) -> tuple[Path, str]:
    if not all(part.isidentifier() for part in name.replace("-", "_").split(".")):
        raise TpspecError(f"'{name}' is not a spec's name")
    beside = seen_from.with_name(f"{name}.yaml")
    candidates = [beside, *(path for path in user_files() if path.stem == name), BUILT_IN / f"{name}.yaml"]
    for path in candidates:
        if path.is_file():
            return path, shown(path)
    close = get_close_matches(name, spec_names(), n=1)
    raise TpspecError(
        f"there is no spec '{name}'",
        remedy=f"did you mean '{close[0]}'?" if close else "list them with `tpspec specs`",
    )
