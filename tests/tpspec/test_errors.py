"""What is at fault, as it is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpspec.checkpoint import open_checkpoint
from tpspec.errors import Finding, TpspecError

HOSTILE = "a\n\x1b[31mevil"


def test_names_that_a_terminal_would_obey_are_escaped_everywhere() -> None:
    error = TpspecError(
        HOSTILE, [Finding(HOSTILE, HOSTILE, HOSTILE, HOSTILE.replace("\n", ""))], "two\nlines"
    )
    said = "a\\n\\x1b[31mevil"
    assert str(error).splitlines() == [
        said,
        f"  {said}: {said} ({said})",
        f"  → {said.replace(chr(92) + 'n', '')}",
        "  → two",
        "lines",
    ]


def test_a_message_of_any_length_is_printed_short() -> None:
    assert len(str(TpspecError("x" * 100_000))) < 700


def test_letters_of_every_language_stay() -> None:
    assert str(TpspecError("größer → 模型", [Finding("…", "×2")])) == "größer → 模型\n  …: ×2"


def test_an_indexs_names_reach_nobodys_terminal(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    index = {"weight_map": {HOSTILE: "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(TpspecError) as refused:
        open_checkpoint(tmp_path)
    assert "\x1b" not in str(refused.value)
    assert "a\\n\\x1b[31mevil" in str(refused.value)
