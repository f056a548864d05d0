"""Names of the files of a pre-sharded directory: its own, and those that may stand beside them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

MANIFEST = "tpspec.json"
EXPORT = "tpspec-export.json"
"""The manifest of an export; engines look at `model-rank-*` alone."""
EXPORTED = re.compile(r"model-rank-(0|[1-9]\d{0,8})-part-[^/]*\.safetensors", re.ASCII)
"""What engines' sharded_state loaders look for: any part's name."""
EXTRAS = "extras.safetensors"
STATE = ".tpspec"
"""The folder that tells of an interrupted conversion."""
_OURS = re.compile(
    rf"({re.escape(MANIFEST)}|{re.escape(EXPORT)}|{re.escape(EXTRAS)}|model-rank-\d+-of-\d+\.safetensors)"
    r"(\.partial)?|\.tpspec.*"
)


def rank_file(rank: int, tp: int) -> str:
    return f"model-rank-{rank:05}-of-{tp:05}.safetensors"


def is_plain(name: str) -> bool:
    """Whether a name is a relative path with slashes, printable and spelled in the one usual way."""
    path = PurePosixPath(name)
    usual = bool(path.parts) and str(path) == name and not path.is_absolute() and ".." not in path.parts
    return usual and name.isprintable() and "\\" not in name


def carry_problem(name: str) -> str:
    """Why a file of this name cannot go along with the ranks; empty where it can."""
    if not is_plain(name):
        return "is no name of a file inside the directory, or has characters that are not portable"
    top = PurePosixPath(name).parts[0]
    return f"would stand where tpspec keeps {top}" if _OURS.fullmatch(top) else ""
