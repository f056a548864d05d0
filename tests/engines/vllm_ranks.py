"""vLLM's models of any rank in one process, as its loaders leave them, before its post-processing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

os.environ.update(
    VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", TQDM_DISABLE="1"
)

from unittest.mock import MagicMock

import torch
import vllm
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.attention import mla_attention
from vllm.model_executor.layers.quantization import fp8
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backends.registry import AttentionBackendEnum

State = Mapping[str, torch.Tensor]
VERSION = vllm.__version__


def start() -> None:
    """A process group of one, which `load` has say that it is any rank of any number."""
    torch.set_num_threads(1)
    # What multiplies FP8, and some of latent attention, want other processors; operators compiled for another
    # torch do not import. Modules that are made without load all the same.
    fp8.init_fp8_linear_kernel = mla_attention.get_mla_prefill_backend = MagicMock()
    if not hasattr(AttentionBackendEnum, "CPU_MLA"):
        mla_attention.get_attn_backend = MagicMock()
    if not hasattr(torch.ops._C, "gelu_new"):
        torch.ops._C = MagicMock()
        linear.choose_scaled_mm_linear_kernel = MagicMock(return_value=MagicMock(__name__="none"))
    parallel_state.init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
    with set_current_vllm_config(VllmConfig()):
        parallel_state.initialize_model_parallel(1, 1, backend="gloo")
    # Made for models with experts alone.
    parallel_state._EP = parallel_state._EP or parallel_state.init_model_parallel_group(
        [[0]], 0, "gloo", group_name="ep"
    )


def load(path: Path, tp: int, rank: int, load_format: str) -> torch.nn.Module:
    """A rank's model with the weights that a loader gives it."""
    config = EngineArgs(
        model=str(path),
        skip_tokenizer_init=True,
        tensor_parallel_size=tp,
        distributed_executor_backend="mp",
        load_format=load_format,
        enforce_eager=True,
        use_tqdm_on_load=False,
        max_model_len=64,
    ).create_engine_config()
    for group in (parallel_state._TP, parallel_state._EP):
        group.world_size, group.rank_in_group = tp, rank
    loader = get_model_loader(config.load_config)
    with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype):
        model = initialize_model(vllm_config=config, model_config=config.model_config)
        loader.load_weights(model, config.model_config)
    return model


def state(model: torch.nn.Module) -> State:
    """A model's tensors, each storage under the one name that vLLM keeps."""
    return ShardedStateLoader._filter_subtensors(model.state_dict())


def save(model: torch.nn.Module, folder: Path) -> None:
    """Has vLLM save the rank that was loaded last."""
    ShardedStateLoader.save_model(model, str(folder), max_size=1 << 20)
