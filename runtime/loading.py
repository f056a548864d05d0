"""Which model the ranks load, and how. Light to import: ranks import torch where they load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tpspec.cache import cache_dtype
from tpspec.errors import TpspecError
from tpspec.presharded import Presharded
from tpspec.quantization import detect_format
from tpspec.scope import flatten

if TYPE_CHECKING:
    from tpspec.runtime.collectives import Collectives
    from tpspec.runtime.rank_model import RankModel


HASHED_FIRST = 2 << 30
"""Bytes of rank files that are hashed in well under a second."""
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class Loading:
    """A pre-sharded directory and how its ranks are loaded.

    `dtype` is a name of torch's, None for the one that is stored; `verify` whether hashes are checked.
    `code` is a Python file that registers a model's classes, where transformers has none.
    """

    directory: Path
    spec_file: Path | None = None
    dtype: str | None = None
    device: str = "cpu"
    verify: bool = True
    code: Path | None = None

    def open(self) -> Presharded:
        """The directory, before a rank starts.

        Raises TpspecError where the runtime cannot run it, or, unless it is not to `verify`, where a
        config or a tokenizer's file was edited.
        """
        if self.dtype not in (None, *DTYPES):
            raise TpspecError(f"there is no dtype '{self.dtype}' to load as; there are {', '.join(DTYPES)}")
        presharded = Presharded.open(self.directory)
        if self.verify:
            presharded.check_copied("; or load it as it is: --no-verify")
        return presharded

    def remarks(self, presharded: Presharded) -> list[str]:
        """What a user should know before the ranks start."""
        quantization = detect_format(flatten(presharded.config))
        if not any(map(quantization.is_part, presharded.stored)):
            return []
        kept = self.dtype or cache_dtype(flatten(presharded.config))[0]
        said = f"{self.directory} is quantized ({quantization.name}), and there are no kernels for that here"
        return [f"{said}: each rank computes its own weights in {kept} as it loads them"]

    def register(self) -> None:
        """Makes transformers know the model, in each process that loads it or reads its config."""
        if self.code:
            from tpspec.runtime.model_code import register_once

            register_once(self.code)

    def check_device(self) -> None:
        """Raises TpspecError where torch cannot use the device."""
        if self.device != "cpu":
            import torch

            if not torch.cuda.is_available():
                raise TpspecError(f"torch finds no GPU here, and the device asked for is {self.device}")

    def load(self, collectives: Collectives) -> RankModel:
        """One rank's model."""
        import torch
        from transformers.utils import logging

        from tpspec.runtime.rank_model import load_rank

        self.check_device()
        self.register()
        logging.set_verbosity_error()
        return load_rank(
            self.directory,
            collectives,
            spec_file=self.spec_file,
            dtype=getattr(torch, self.dtype) if self.dtype else None,
            device=self.device,
            verify=self.verify,
        )


def check_own_file(loading: Loading, presharded: Presharded, rank: int, ranks: int) -> Loading:
    """Looks at the file of one of torchrun's ranks before it meets the others: at fault, it ends at once.

    Returns what is left to do. Raises TpspecError with what is wrong with it, or with the number of ranks.
    """
    presharded.check_rank(rank, ranks, hashes=loading.verify)
    return replace(loading, verify=False)


def check_rank_files(loading: Loading, presharded: Presharded) -> Loading:
    """Looks at every rank's file before ranks start on this machine; returns what is left for them to do.

    Small files are hashed here and now, so that a fault shows before torch is imported; large ones
    by the ranks, all at once. Raises TpspecError with what is wrong with all of them.
    """
    hashes = loading.verify and sum(record.size for record in presharded.manifest.ranks) <= HASHED_FIRST
    faulty: dict[int, TpspecError] = {}
    for rank in range(presharded.tp):
        try:
            presharded.check_rank(rank, presharded.tp, hashes=hashes)
        except TpspecError as error:
            faulty[rank] = error
    if faulty:
        ranks = f"rank{'s' * (len(faulty) > 1)} {', '.join(map(str, faulty))}"
        findings = [finding for error in faulty.values() for finding in error.findings]
        remedies = dict.fromkeys(error.remedy for error in faulty.values())
        raise TpspecError(f"{ranks} cannot be loaded", findings, remedy="\n  → ".join(remedies))
    return replace(loading, verify=loading.verify and not hashes)


def modules_to_preload(presharded: Presharded) -> list[str]:
    """What all ranks import, for the process that they are forked from; nothing is imported here.

    Raises ModuleNotFoundError where torch or transformers are not installed.
    """
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)
    transformers = find_spec("transformers")
    assert transformers is not None
    assert transformers.origin is not None
    name = str(flatten(presharded.config).get("model_type")).replace("-", "_")
    path = Path(transformers.origin).parent / "models" / name / f"modeling_{name}.py"
    model = [f"transformers.models.{name}.modeling_{name}"] if path.exists() else []
    return ["tpspec.runtime.generate", "tpspec.runtime.rank_model", *model]
