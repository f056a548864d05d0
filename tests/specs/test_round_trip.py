"""Tiny models, cut and put together again: the files' sha256 are the originals'.

A proof (tests/runtime/test_prove.py) merges every other spec's model as well; here the core's are
resharded too, through the command line, in all their variants.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tiny_checkpoints import accepted
from tiny_models import CORE, VARIANTS


def digests(folder: Path, pattern: str = "*") -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob(pattern)}


MODELS = [variant for variant in VARIANTS if variant.spec_name in CORE]


@pytest.mark.parametrize("variant", MODELS, ids=str)
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
