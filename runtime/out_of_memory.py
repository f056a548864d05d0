"""Memory that runs out: how it shows, and what is said of it. No torch here: the launcher says it too."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpspec.dtypes import STORED_AS, nbytes
from tpspec.errors import Finding, TpspecError
from tpspec.presharded import Presharded
from tpspec.quantities import size

SIGNS = (
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "bad_alloc",
    "can't start new thread",
    "failed to map segment from shared object",
)
"""What torch, the C library, CUDA, C++, Python and the loader say in exceptions of no kind of their own."""
ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", re.IGNORECASE)
UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
REMEDY = (
    "fewer prompts side by side (a smaller batch size), fewer new tokens, bfloat16, "
    "or the model cut for more ranks on more machines"
)


class OutOfMemory(TpspecError):  # noqa: N818 - it is what happened
    """A rank asked for memory and there was none."""


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """The error as one of memory, which says how much was asked for; None for any other error."""
    if isinstance(error, TpspecError):
        return error if isinstance(error, OutOfMemory) else None
    text = str(error)
    short = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if not short and not any(sign in text.lower() for sign in SIGNS):
        return None
    asked = ASKED.search(text)
    amount = f": {size(float(asked[1]) * UNITS[asked[2].lower()])} more was asked for" if asked else ""
    return OutOfMemory(f"out of memory{amount}", remedy=REMEDY)


@contextmanager
def memory_told(presharded: Presharded, dtype: str | None) -> Iterator[None]:
    """Turns an error of memory into one that says what the weights of a rank take, cast to a dtype or not."""
    try:
        yield
    except Exception as error:
        short = out_of_memory(error)
        if short is None:
            raise
        stored = STORED_AS[dtype] if dtype else None
        sizes = [
            sum(nbytes(stored or t.dtype, t.local_shape(rank)) for t in presharded.layout.of_rank(rank))
            for rank in range(presharded.tp)
        ]
        cast = f" as {dtype}" if dtype else ""
        need = f"the weights of a rank take {size(max(sizes))}{cast}; ranks: {presharded.tp}"
        raise OutOfMemory(short.message, [Finding("", need)], short.remedy) from error


def kills() -> int:
    """How many processes of this machine the kernel has killed for memory so far; 0 where it does not say."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))
