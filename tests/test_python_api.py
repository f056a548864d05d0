"""What docs/python-api.md shows is what happens, in threads and under torchrun."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stories import sharded

DOCUMENT = Path(__file__).parent.parent / "docs" / "python-api.md"


@pytest.fixture
def _beside_stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stories-tp2").symlink_to(sharded(2))


@pytest.mark.usefixtures("_beside_stories")
def test_the_examples_in_threads_run():
    result = doctest.testfile(str(DOCUMENT), module_relative=False)
    assert (result.attempted, result.failed) == (12, 0)


@pytest.mark.usefixtures("_beside_stories")
def test_the_example_under_torchrun_runs():
    (script,) = re.findall(
        r"^```python\n# story.py\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL
    )
    Path("story.py").write_text(script)
    (command,) = re.findall(r"^torchrun (.*)$", DOCUMENT.read_text(), re.MULTILINE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", *command.split()]
    ran = subprocess.run(torchrun, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ", there was a little girl named Lily.\n"
