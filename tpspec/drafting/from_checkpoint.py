"""Evidence from a checkpoint's headers and config alone."""

from __future__ import annotations

from tpspec.config import model_types
from tpspec.drafting.evidence import Evidence, Observation
from tpspec.errors import Finding, TpspecError
from tpspec.hub import Located
from tpspec.scope import flatten


def seen_on_disk(located: Located) -> Evidence:
    """What names and shapes say. Raises TpspecError where there are only a config's values."""
    if located.checkpoint is None:
        raise TpspecError(
            f"{located.name} has no weights",
            [Finding(located.name, "without tensor names there is nothing to draft from")],
            remedy="give the checkpoint's directory, or install torch: pip install 'tpspec[torch]'",
        )
    shapes = {name: tensor.shape for name, tensor in located.checkpoint.tensors.items()}
    return Evidence(model_types(located.config)[0], (Observation(flatten(located.config), shapes),))
