"""What the `tpspec` command starts with: Ctrl-C is an exit status from the first moment on.

Imports nothing but what the interpreter has loaded anyway, so that little can be interrupted before.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def leave(number: int, frame: FrameType | None) -> None:
    """Ends the process while it has done nothing yet but import."""
    del number, frame
    os.write(2, b"interrupted\n")
    os._exit(130)


def main() -> None:
    """Runs the command line."""
    signal.signal(signal.SIGINT, leave)
    from tpspec.cli.app import main as run

    run()
