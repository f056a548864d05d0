"""Shard maps of published configs, for tests of pictures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tpspec.hub import locate
from tpspec.resolve import choose_spec, resolve
from tpspec.shard_map import MapRow, shard_map

CONFIGS = Path(__file__).parent / "fixtures" / "configs"
LLAMA_70B = Path(__file__).parent / "models" / "Meta-Llama-3-70B" / "config.json"
STORIES = Path(__file__).parent / "models" / "stories260k"


def map_of(path: Path, tp: int) -> list[MapRow]:
    """The shard map of a checkpoint or a config.json."""
    located = locate(str(path))
    tensors = located.checkpoint.tensors if located.checkpoint and located.checkpoint.files else None
    return shard_map(resolve(choose_spec(located.config, None), located.config, tensors), tp)


@cache
def published(name: str, tp: int) -> list[MapRow]:
    """The shard map of a published config."""
    return map_of(CONFIGS / f"{name}.json", tp)


def row_of(rows: list[MapRow], name: str) -> MapRow:
    """The one row whose name ends so, `.weight` left out."""
    (row,) = (row for row in rows if row.name.removesuffix(".weight").endswith(name))
    return row
