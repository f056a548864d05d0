"""stories260k cut for some tp sizes, and what transformers itself makes of a prompt."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.sources import open_source
from tpspec.resolve import resolve_layout
from tpspec.runtime import load
from tpspec.runtime.model import Model

STORIES = Path(__file__).parent / "models" / "stories260k"
ONCE = "Once upon a time"
PROMPTS = (
    ONCE,
    "Lily and Tom went to the park. They",
    "The dog",
    "One day, a girl named Sue saw a big red ball in the tree and she wanted",
)


@cache
def sharded(tp: int) -> Path:
    """The model, cut."""
    out = _root() / f"stories-tp{tp}"
    checkpoint = open_checkpoint(STORIES)
    convert(open_source(str(STORIES)), out, resolve_layout(checkpoint, tp))
    return out


@cache
def loaded(tp: int) -> Model:
    """All ranks, in threads of this process."""
    return load(sharded(tp), threads=True)


@cache
def continued(prompt: str, new_tokens: int) -> tuple[int, ...]:
    """What transformers' own greedy decoding of the whole model adds to a prompt."""
    model, tokenizer = _reference()
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    generated = model.generate(ids, max_new_tokens=new_tokens, do_sample=False)
    return tuple(generated[0, ids.shape[1] :].tolist())


@cache
def _reference() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(STORIES), AutoTokenizer.from_pretrained(STORIES)


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="stories-"))
    atexit.register(shutil.rmtree, root)
    return root
