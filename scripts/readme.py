"""`make readme`: runs the console blocks of README and guide, and writes down what the commands print.

The blocks of a document are one session, in a folder that looks like a clone and takes what the commands
write. `...` in a shown output stands for anything, as in doctest.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
GUIDES = ("adding-an-architecture", "padding", "quantization")
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in GUIDES))
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>.*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)
MARK = "\x1e"


def rerun(document: str) -> str:
    """A document, with what the commands print now wherever that differs from what is shown."""
    commands = [command for block in BLOCK.findall(document) for command, _ in COMMAND.findall(block)]
    outputs = iter(run(commands))
    return BLOCK.sub(lambda block: COMMAND.sub(partial(renewed, outputs), block[0]), document)


def renewed(outputs: Iterator[str], shown: re.Match[str]) -> str:
    printed = next(outputs)
    same = doctest.OutputChecker().check_output(shown["output"], printed, doctest.ELLIPSIS)
    return shown[0] if same else f"$ {shown['command']}\n{printed}"


def run(commands: list[str]) -> list[str]:
    """What each command of one shell session prints, errors included."""
    script = "".join(f"{command}\nstatus=$?; printf '{MARK}'; (exit $status)\n" for command in commands)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "120", "HF_HUB_OFFLINE": "1"}
    with TemporaryDirectory() as clone:
        for name in ("specs", "tests", "docs"):
            (Path(clone) / name).symlink_to(ROOT / name)
        session = ["bash", "-c", f"exec 2>&1\n{script}"]
        result = subprocess.run(session, cwd=clone, env=env, capture_output=True, text=True, check=True)
    return result.stdout.split(MARK)[:-1]


if __name__ == "__main__":
    for path in DOCUMENTS:
        path.write_text(rerun(path.read_text()))
