"""`tpspec plan`: what a tensor parallel size buys, in memory and in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpspec.cli.arguments import Quantity, count_list, json_option, pad_option, spec_option, tp_list
from tpspec.cli.pictures import picture_options

if TYPE_CHECKING:
    from tpspec.padding import Order
    from tpspec.planning.hardware import Hardware
    from tpspec.planning.report import PlanReport
    from tpspec.resolution import Resolution

EPILOG = """\b
Examples:
  tpspec plan ./Llama-3-70B --tp 1,2,4,8,16 --hardware h100-sxm
  tpspec plan config.json --hardware mi300x --context 32768 --kv-dtype fp8
  tpspec plan config.json --hardware h100-sxm --gpus 16 --context 8192 --batch 64
  tpspec plan config.json --hbm 48GiB --bandwidth 864GB/s --link 32GB/s --reserve 2GiB
  tpspec plan ./SmolLM2 --calibrate ./SmolLM2-tp3
"""
DEFAULT = "h100-sxm"
OVERRIDES = ("hbm", "bandwidth", "flops", "link", "node_link", "latency", "node_latency")


@click.command("plan", epilog=EPILOG)
@click.argument("path")
@click.option("--tp", callback=tp_list, metavar="N[,N...]", help="Sizes; if unsaid, 1 to 32 where they fit.")
@click.option(
    "--hardware",
    metavar="NAME|FILE",
    help=f"A device of specs/hardware, or a file like those; {DEFAULT}, if unsaid.",
)
@click.option("--hbm", type=Quantity("bytes"), metavar="SIZE", help="Memory of a device, as 80GiB.")
@click.option(
    "--reserve",
    type=Quantity("bytes", zero=True),
    default="4GiB",
    show_default=True,
    metavar="SIZE",
    help="What of it neither weights nor cache may have.",
)
@click.option("--bandwidth", type=Quantity("rate"), metavar="RATE", help="Of its memory, as 3.35TB/s.")
@click.option("--flops", type=Quantity("flops"), metavar="RATE", help="Dense, in bf16, as 989TFLOP/s.")
@click.option("--link", type=Quantity("rate"), metavar="RATE", help="One direction, inside a node.")
@click.option("--node-link", type=Quantity("rate"), metavar="RATE", help="One direction, across nodes.")
@click.option(
    "--latency",
    type=Quantity("time", zero=True),
    metavar="TIME",
    help="Of a collective inside a node, as 5us.",
)
@click.option(
    "--node-latency", type=Quantity("time", zero=True), metavar="TIME", help="Of a collective across nodes."
)
@click.option(
    "--context",
    type=click.IntRange(1, 10**8),
    metavar="N",
    help="Tokens of a sequence; if unsaid, 8192, or the model's positions where those are fewer.",
)
@click.option("--batch", callback=count_list, metavar="N[,N...]", help="Sequences; 1,16,64,256, if unsaid.")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Of weights and activations when served; as stored, if unsaid.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["bfloat16", "float16", "float32", "fp8"]),
    help="Of the cache; the model's, if unsaid.",
)
@click.option("--gpus", type=click.IntRange(1, 1024), metavar="N", help="Rank the ways to use N devices.")
@click.option(
    "--calibrate",
    metavar="OUT",
    help="Take what bench measures on this machine: a directory that convert wrote, or bench's JSON.",
)
@pad_option
@spec_option
@picture_options
@json_option
def command(
    path: str,
    tp: tuple[int, ...],
    hardware: str | None,
    calibrate: str | None,
    context: int | None,
    batch: tuple[int, ...],
    reserve: float,
    dtype: str | None,
    kv_dtype: str | None,
    gpus: int | None,
    pad: Order | None,
    spec_file: Path | None,
    html: Path | None,
    svg: Path | None,
    png: Path | None,
    as_json: bool,
    **figures: float | None,
) -> None:
    """Say what each tensor parallel size buys: room for the cache, tokens, time; and what stops growing.

    PATH is what `tpspec validate` takes: a config.json is enough. Weights are counted tensor by tensor, cache
    and collectives as the spec says; times are floors, from the figures of a device and its links.
    """
    from tpspec.errors import TpspecError
    from tpspec.hub import locate
    from tpspec.planning.plan import make_plan, usual_context
    from tpspec.planning.served import served_config, served_tensors
    from tpspec.planning.sizes import Question
    from tpspec.quantities import size
    from tpspec.resolve import choose_spec, resolve

    device = _hardware(hardware, calibrate, figures)
    if reserve >= device.hbm:
        raise TpspecError(
            f"a device has {size(device.hbm)}, and {size(reserve)} of it are for neither weights nor cache",
            remedy="give a smaller --reserve",
        )
    located = locate(path)
    checkpoint = located.checkpoint
    headers = checkpoint is not None and checkpoint.format == "safetensors"
    tensors = checkpoint.tensors if checkpoint and headers else None
    config = located.config
    if dtype:
        config = served_config(config, dtype)
        tensors = served_tensors(tensors, dtype) if tensors else None
    resolution = resolve(choose_spec(located.config, spec_file), config, tensors, pad)
    question = Question(
        tp,
        context or usual_context(resolution.config, 8192),
        batch or (1, 16, 64, 256),
        int(reserve),
        kv_dtype,
        gpus,
        max(batch, default=64),
        dtype,
    )
    report = make_plan(located.name, resolution, device, question, headers=headers)
    if html or svg or png:
        _draw(report, resolution, html=html, svg=svg, png=png)
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        from tpspec.cli.plan_tables import print_plan

        print_plan(report)


def _hardware(name: str | None, calibrate: str | None, figures: dict[str, Any]) -> Hardware:
    from tpspec.planning.hardware import find_hardware

    base = (
        None if calibrate is not None and name is None else find_hardware(DEFAULT if name is None else name)
    )
    if calibrate == "":
        raise click.BadParameter("it names nothing", param_hint="'--calibrate'")
    if calibrate is not None:
        from tpspec.planning.calibrate import measured_hardware

        base = measured_hardware(_bench(calibrate), base)
    assert base
    given = {key: figures[key] for key in OVERRIDES if key != "flops"}
    if given["hbm"] is not None:
        given["hbm"] = int(given["hbm"])
    changed = base.changed("given", **given)
    if figures["flops"] is None:
        return changed
    return changed.changed("given", flops={**changed.flops, "bf16": figures["flops"]})


def _bench(calibrate: str) -> Any:
    from tpspec.planning.calibrate import read_bench
    from tpspec.regular_file import read_regular

    if Path(calibrate).is_dir():
        from tpspec.cli.bench import bench_as_json

        return read_bench(json.dumps(bench_as_json(Path(calibrate))).encode(), calibrate)
    return read_bench(read_regular(Path(calibrate), 1 << 20, calibrate, remedy=""), calibrate)


def _draw(report: PlanReport, resolution: Resolution, **files: Path | None) -> None:
    from tpspec.cli.pictures import say_written
    from tpspec.pictures.write import write_plan
    from tpspec.shard_map import shard_map

    write_plan(report, {plan.tp: shard_map(resolution, plan.tp) for plan in report.sizes}, **files)
    say_written(*files.values())
