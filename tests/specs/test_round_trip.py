"""Every tiny model, cut and put together again: the files' sha256 are the originals'."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tiny_checkpoints import accepted
from tiny_models import VARIANTS


def digests(folder: Path, pattern: str = "*") -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob(pattern)}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_tiny_model_survives_cutting_merging_and_resharding(variant, tmp_path):
    source = variant.folder
    for tp in (2, 4, 8):
        accepted("convert", source, tmp_path / f"tp{tp}", "--tp", tp)
    for tp, origin in ((2, "tp8"), (4, "tp8-2")):
        accepted("convert", tmp_path / origin, tmp_path / f"tp8-{tp}", "--tp", tp)
        assert digests(tmp_path / f"tp8-{tp}", "model-rank-*") == digests(
            tmp_path / f"tp{tp}", "model-rank-*"
        )
    for cut in ("tp2", "tp4", "tp8", "tp8-4"):
        accepted("verify", tmp_path / cut, "--against", source)
        accepted("merge", tmp_path / cut, tmp_path / f"{cut}-merged")
        assert digests(tmp_path / f"{cut}-merged") == digests(source)
