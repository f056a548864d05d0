"""SGLang's models of any rank in one process. Without a GPU nothing runs, but its loaders load.

Its kernels and torchvision do not import on a CPU; modules that stand for them do.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

# ruff: noqa: E402 - transformers is asked first for what stand-ins stand for
import torch
from transformers import AutoModelForCausalLM, AutoProcessor  # noqa: F401

State = Mapping[str, torch.Tensor]


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that have whatever is asked of them."""

    names = ("sgl_kernel", "torchvision", "decord")

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = name.split(".", maxsplit=1)[0] in self.names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return MagicMock(name=spec.name, __path__=[], __spec__=spec, __name__=spec.name, __version__="9")

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, StandIns())

import sglang
from sglang.srt import runtime_context
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_loader import loader as loaders
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.server_args import ServerArgs

VERSION = sglang.__version__
GROUPS = {"tp": True, "attn_tp": True, "moe_tp": True, "shared_experts_tp": True, "world": True}
"""Groups of all ranks; in the others each rank is alone."""
ALONE = ("pp", "moe_ep", "moe_dp", "attn_cp")


def start() -> None:
    torch.set_num_threads(1)


def load(path: Path, tp: int, rank: int, load_format: str) -> torch.nn.Module:
    """A rank's model with the weights that a loader gives it."""
    arguments = ServerArgs(
        model_path=str(path),
        tp_size=tp,
        device="cpu",
        dtype="bfloat16",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
    )
    runtime_context.reset_context()
    runtime_context.publish(arguments, role="test", ranks=runtime_context.SpawnRanks(world_rank=rank))
    groups = {name: _group(rank, tp) for name in GROUPS} | {name: _group(0, 1) for name in ALONE}
    parallel = runtime_context.get_parallel()
    parallel.override_permanently(**{f"{name}_group": group for name, group in groups.items()})
    config = ModelConfig.from_server_args(arguments)
    settings = LoadConfig(load_format=load_format)
    if load_format == "sharded_state":
        device = DeviceConfig("cpu")
        return loaders.ShardedStateLoader(settings).load_model(model_config=config, device_config=device)
    loader = loaders.DefaultModelLoader(settings)
    with set_default_torch_dtype(config.dtype):
        model = loaders._initialize_model(config, settings)
        model.load_weights(loader._get_all_weights(config, model))
    return model


def state(model: torch.nn.Module) -> State:
    """A model's tensors, each storage under the one name that SGLang keeps."""
    return loaders.ShardedStateLoader._filter_subtensors(model.state_dict())


def save(model: torch.nn.Module, folder: Path) -> None:
    """Has SGLang save a rank."""
    loaders.ShardedStateLoader.save_model(model, str(folder), max_size=1 << 20)


def _group(rank: int, size: int) -> SimpleNamespace:
    first, last = rank == 0, rank == size - 1
    return SimpleNamespace(
        rank_in_group=rank, rank=rank, world_size=size, is_first_rank=first, is_last_rank=last, cpu_group=None
    )
