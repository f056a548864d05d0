"""Running the ranks of a command: as processes or threads of this machine, or as one of torchrun's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import click

from tpspec.cli.arguments import code_option, spec_option
from tpspec.errors import TpspecError

if TYPE_CHECKING:
    from tpspec.runtime.launch import Kind
    from tpspec.runtime.loading import Loading

F = TypeVar("F", bound=Callable[..., Any])
Choice = Literal["auto", "shared", "gloo", "threads"]


OPTIONS = (
    click.argument("directory", metavar="OUT", type=click.Path(path_type=Path)),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "bfloat16", "float16"]),
        help="Cast to this type; as stored, if unsaid.",
    ),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True),
    click.option(
        "--collectives",
        type=click.Choice(["auto", "shared", "gloo", "threads"]),
        default="auto",
        show_default=True,
        help="How ranks meet; auto is torchrun's group under torchrun, else shared memory.",
    ),
    spec_option,
    code_option,
    click.option("--no-verify", is_flag=True, help="Load without checking the files' hashes."),
)


class Ran(NamedTuple):
    """What rank 0 returned (None in another of torchrun's), how many ranks there were, how they met."""

    result: Any
    size: int
    kind: str


def loading_options(function: F) -> F:
    """OUT, and how it is loaded and its ranks meet; the command gets a `loading` and a `choice`."""

    @wraps(function)
    def command(
        *,
        directory: Path,
        dtype: str | None,
        device: str,
        collectives: Choice,
        spec_file: Path | None,
        code: Path | None,
        no_verify: bool,
        **options: Any,
    ) -> Any:
        from tpspec.runtime.loading import Loading

        loading = Loading(directory, spec_file, dtype, device, verify=not no_verify, code=code)
        return function(loading=loading, choice=collectives, **options)

    for option in reversed(OPTIONS):
        command = option(command)
    return cast("F", command)


def run_ranks(
    loading: Loading,
    choice: Choice,
    target: Callable[..., Any],
    arguments: Sequence[object],
    on_message: Callable[[Any], None],
) -> Ran:
    """Runs `target(collectives, loading, *arguments)` as every rank of the directory; see `launch`.

    Under torchrun, this process is one of them. Raises TpspecError where the directory cannot be run.
    """
    from tpspec.runtime.launch import launch, torchrun_rank
    from tpspec.runtime.loading import check_own_file, check_rank_files, modules_to_preload
    from tpspec.runtime.out_of_memory import memory_told

    presharded = loading.open()
    own = torchrun_rank()
    for remark in loading.remarks(presharded) if not own or own[0] == 0 else ():
        click.echo(click.style(remark, dim=True), err=True)
    if own:
        if choice not in ("auto", "gloo"):
            raise click.UsageError(
                f"under torchrun the ranks are its own: --collectives {choice} starts others"
            )
        loading = check_own_file(loading, presharded, *own)
        with memory_told(presharded, loading.dtype):
            return _join(loading, target, arguments, on_message)
    kind: Kind = "shared" if choice == "auto" else choice
    if loading.device != "cpu" and kind != "threads" and presharded.tp > 1:
        raise TpspecError(
            "ranks on several GPUs meet over NCCL, which torchrun sets up",
            remedy=f"start it as: torchrun --nproc-per-node {presharded.tp} -m tpspec …",
        )
    loading = check_rank_files(loading, presharded)
    if kind == "threads":
        import torch

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // presharded.tp))
    preload = modules_to_preload(presharded)
    with memory_told(presharded, loading.dtype):
        result = launch(
            presharded.tp, target, (loading, *arguments), kind=kind, on_message=on_message, preload=preload
        )
    return Ran(result, presharded.tp, kind)


def _join(
    loading: Loading,
    target: Callable[..., Any],
    arguments: Sequence[object],
    on_message: Callable[[Any], None],
) -> Ran:
    from tpspec.runtime.calls import of_rank
    from tpspec.runtime.launch import joined_group
    from tpspec.runtime.rank_process import as_fault, drive

    loading.check_device()
    collectives = joined_group(loading.device)
    assert collectives is not None

    def message(value: object) -> None:
        if collectives.rank == 0:
            on_message(value)

    try:
        result = drive(target(collectives, loading, *arguments), message)
    except Exception as error:
        if fault := as_fault(error):
            raise of_rank(collectives.rank, fault) from None
        raise
    collectives.close()
    kind = "gloo" if loading.device == "cpu" else "nccl"
    return Ran(result if collectives.rank == 0 else None, collectives.size, kind)
