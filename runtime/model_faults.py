"""Faults of a model itself: a config that makes no model, code that fails in a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from huggingface_hub.errors import StrictDataclassError
from torch import nn

from tpspec.errors import Finding, TpspecError
from tpspec.runtime.out_of_memory import out_of_memory

RUNNING = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
UNBUILDABLE = (*RUNNING, KeyError, ZeroDivisionError, ImportError, StrictDataclassError)
"""What transformers raises where a config's values do not make a model."""


class ModelError(TpspecError):
    """A model's own code failed in the forward pass of a module."""


@contextmanager
def config_at_fault(path: Path) -> Iterator[None]:
    """Turns what transformers raises over a file's values into a TpspecError that names the file."""
    try:
        yield
    except UNBUILDABLE as error:
        if out_of_memory(error):
            raise
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        remedy = f"correct {path.name} in the checkpoint; if that is cut already, cut it again"
        raise TpspecError(
            f"transformers refuses {path}", [Finding(path.name, said)], remedy=remedy
        ) from error


@contextmanager
def code_at_fault(model: nn.Module, remedy: str = "") -> Iterator[None]:
    """Turns a failure of a model's code into a ModelError that names the module in which it happens."""
    try:
        yield
    except RUNNING as error:
        if out_of_memory(error):
            raise
        where = _module_of(error.__traceback__, model)
        raise ModelError(f"the forward pass fails at {where}: {error}", remedy=remedy) from error


def _module_of(traceback: TracebackType | None, model: nn.Module) -> str:
    """The innermost module whose code was running."""
    names = {id(module): name for name, module in model.named_modules()}
    found = ""
    while traceback is not None:
        found = names.get(id(traceback.tb_frame.f_locals.get("self")), "") or found
        traceback = traceback.tb_next
    return found or type(model).__name__
