"""What `rank_memory.py` launches as each rank: importable by name, as a rank's process needs it."""

from __future__ import annotations

from pathlib import Path

import torch

from tpspec.runtime.collectives import Collectives
from tpspec.runtime.loading import Loading
from tpspec.runtime.passes import Passes

PROMPT = list(range(16))
NEW_TOKENS = 8


def bytes_beyond_imports(collectives: Collectives, directory: str) -> list[int]:
    """How each rank's resident memory grows from before loading to after a prompt and some tokens."""
    before = resident()
    passes = Passes(Loading(Path(directory)).load(collectives), [PROMPT], None)
    passes.first()
    for token in range(NEW_TOKENS):
        passes.next(torch.tensor([token]))
    grown = torch.tensor([resident() - before])
    return [int(theirs) for theirs in collectives.all_gather(grown, "grown")]


def resident() -> int:
    """Resident memory but for program code, whose pages a forked process maps again as it runs them."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split(maxsplit=5)
        if "-" in first:  # a mapping: addresses, permissions, offset, device, inode, path
            counts = not (len(rest) == 5 and (".so" in rest[4] or rest[4].startswith("/usr/")))
        elif (first == "Rss:" and counts) or (first == "Anonymous:" and not counts):
            total += int(rest[0]) * 1024
    return total
