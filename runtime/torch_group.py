"""Collectives over torch.distributed: gloo between CPUs, NCCL between GPUs, across machines too."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from tpspec.errors import TpspecError
from tpspec.runtime.calls import Call, RankLost
from tpspec.runtime.collectives import Alone, Collectives
from tpspec.runtime.rank_order import HALF_TYPES


class TorchGroup:
    """The collectives of one rank of torch.distributed's default group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        # gloo rounds half types at each of its p - 1 additions
        self._widens = dist.get_backend() == "gloo" and self.size > 2

    def all_reduce(self, tensor: torch.Tensor, site: str) -> torch.Tensor:
        dtype = torch.float32 if self._widens and tensor.dtype in HALF_TYPES else tensor.dtype
        result = tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
        with self._told("all_reduce", tensor, site):
            dist.all_reduce(result)
        return result.to(tensor.dtype)

    def all_gather(self, tensor: torch.Tensor, site: str) -> list[torch.Tensor]:
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._told("all_gather", tensor, site):
            dist.all_gather(parts, tensor)
        return parts

    def broadcast(self, tensor: torch.Tensor, site: str) -> torch.Tensor:
        result = tensor.clone(memory_format=torch.contiguous_format)
        with self._told("broadcast", tensor, site):
            dist.broadcast(result, 0)
        return result

    def barrier(self, site: str) -> None:
        with self._told("barrier", torch.empty(0), site):
            dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()

    @contextmanager
    def _told(self, kind: str, tensor: torch.Tensor, site: str) -> Iterator[None]:
        """Turns torch's error, which knows an address at most, into one that says what was under way."""
        try:
            yield
        except RuntimeError as error:
            call = Call(kind, site, tensor.dtype, tensor.shape)
            raise RankLost(
                f"another rank was lost: rank {self.rank} was in {call}",
                remedy="see that rank's own message, or which one torchrun says has failed",
            ) from error


def listen() -> socket.socket:
    """A listening socket on a free port of this machine alone, for `meet`; the ranks inherit it."""
    return socket.create_server(("127.0.0.1", 0))


def meet(listener: socket.socket, rank: int, size: int, timeout: float) -> TorchGroup:
    """Joins a gloo group of this machine's ranks; rank 0 answers on the inherited socket."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # a host's name may not resolve in a container
    host, port = listener.getsockname()
    answering = os.dup(listener.fileno()) if rank == 0 else None
    listener.close()
    patience = timedelta(seconds=timeout)
    with _joining(rank, size, f"{host}:{port}"):
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, size, rank == 0, patience, master_listen_fd=answering
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    return TorchGroup()


def join(device: str, timeout: float) -> Collectives:
    """Joins the group that torchrun's environment describes: NCCL on `cuda`, else gloo."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return Alone()
    cuda = torch.device(device).type == "cuda"
    if cuda:
        _take_gpu(rank)
    with _joining(rank, size, f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"):
        dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout))
    return TorchGroup()


def _take_gpu(rank: int) -> None:
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= gpus:
        raise TpspecError(
            f"rank {rank} is number {local} on its machine, where torch finds {gpus} GPUs",
            remedy="NCCL wants a GPU for each rank; the device cpu goes without",
        )
    torch.cuda.set_device(local)


@contextmanager
def _joining(rank: int, size: int, address: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise TpspecError(
            f"rank {rank} of {size} could not join the group at {address}: {_reason(error)}",
            remedy="is the port free, and do all ranks reach it? (torchrun --master-port takes another)",
        ) from error


def _reason(error: Exception) -> str:
    """What torch says first; of a port in use, no more than that."""
    reason = str(error).strip().splitlines()[0]
    return "the port is in use" if "EADDRINUSE" in reason else reason
