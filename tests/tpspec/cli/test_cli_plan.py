"""`tpspec plan`: what it prints, and what it says of a wrong device, unit or size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stories import STORIES, sharded

Tpspec = Callable[..., Any]
LLAMA = Path(__file__).parents[2] / "models" / "Meta-Llama-3-70B" / "config.json"


def test_the_table_has_a_line_for_each_size_with_its_tokens(tpspec: Tpspec):
    out = tpspec("plan", LLAMA, "--tp", "2,4,8,16").out
    first = next(line for line in out.splitlines() if line.startswith("  8 "))
    assert first.split()[1:3] == ["16.4", "GiB"]
    assert "1.56M" in first
    assert "190" in first
    assert "tp=16 adds 14% KV tokens over tp=8" in out
    assert "assumed, not published: latency, node latency" in out


def test_json_has_all_numbers(tpspec: Tpspec):
    report = json.loads(tpspec("plan", LLAMA, "--tp", "8,6", "--json").out)
    (size,) = report["sizes"]
    assert (size["tp"], size["exact"]["tokens"], size["all_reduces"]) == (8, 1561612, 161)
    assert [step["batch"] for step in size["steps"]] == [1, 16, 64, 256]
    assert [step["why_not"] for step in size["steps"]] == ["", "", "", "holds 190 sequences"]
    assert all(step["seconds"] > step["floor"] for step in size["steps"])
    assert [refused["tp"] for refused in report["refused"]] == [6]
    assert report["hardware"]["sources"]["bandwidth"].endswith("(2023-03)")
    assert report["headers"] is False


def test_a_reserve_that_leaves_nothing_is_refused(tpspec: Tpspec):
    ran = tpspec("plan", LLAMA, "--tp", "2", "--hbm", "1GiB")
    assert (ran.status, ran.err.splitlines()[0]) == (
        1,
        "error: a device has 1 GiB, and 4 GiB of it are for neither weights nor cache",
    )
    assert "--reserve" in ran.err


def test_a_checkpoint_s_own_headers_are_used(tpspec: Tpspec):
    report = json.loads(tpspec("plan", STORIES, "--tp", "2", "--json").out)
    (size,) = report["sizes"]
    held = [path.stat().st_size for path in sorted(sharded(2).glob("model-rank-*"))]
    assert report["headers"]
    assert all(0 < file - rank < 8192 for file, rank in zip(held, size["weights"]["ranks"], strict=True))


def test_weights_are_planned_in_the_type_that_they_are_served_in(tpspec: Tpspec):
    """From a config, and from the headers of a checkpoint in float32."""
    config = LLAMA.parents[2] / "fixtures" / "configs" / "gemma-2-9b.json"
    for path in (config, STORIES):
        stored, served = (
            json.loads(tpspec("plan", path, "--tp", "1", "--json", *options).out)
            for options in ((), ("--dtype", "bfloat16"))
        )
        assert served["weight_bytes"] == stored["weight_bytes"] / 2
        assert served["assumptions"]["kv_bytes"] == 2
        assert not any("float32" in advice["text"] for advice in served["advice"])
        assert "weights are counted in bfloat16, whatever they are stored in" in served["notes"]
    ran = tpspec("plan", config.with_name("DeepSeek-V3.json"), "--dtype", "bfloat16")
    assert (ran.status, ran.err.splitlines()[0]) == (
        1,
        "error: the weights are quantized: they are not cast to bfloat16",
    )


def test_single_figures_replace_the_device_s(tpspec: Tpspec):
    options = ("--hbm", "48GiB", "--reserve", "2GiB", "--bandwidth", "1TB/s", "--link", "32GB/s")
    more = (
        "--flops",
        "100TFLOP/s",
        "--latency",
        "10us",
        "--kv-dtype",
        "fp8",
        "--context",
        1000,
        "--batch",
        4,
    )
    report = json.loads(tpspec("plan", LLAMA, "--tp", "8", *options, *more, "--json").out)
    (size,) = report["sizes"]
    device = report["hardware"]
    assert (device["hbm"], device["bandwidth"], device["link"]) == (48 << 30, 1e12, 32e9)
    assert (device["flops"]["bf16"], device["sources"]["link"]) == (1e14, "given")
    assert size["exact"]["pool"] == (46 << 30) - max(size["weights"]["ranks"])
    assert size["cache"]["per_token"] == 20 << 10
    (step,) = size["steps"]
    assert step["batch"] == 4
    assert step["cache"] == pytest.approx(4 * 1000 * (20 << 10) / 1e12)
    assert step["latency"] == pytest.approx(162 * 10e-6)


@pytest.mark.parametrize(
    ("options", "status", "line"),
    [
        (("--hardware", "h100"), 1, "error: no hardware is called 'h100'; near it: h100-sxm"),
        (("--hardware", "none.yaml"), 1, "error: cannot read none.yaml"),
        (("--hbm", "80"), 2, "Invalid value for '--hbm': '80': the unit is missing; write 80GiB"),
        (("--link", "400Gb/s"), 2, "'400Gb/s': 'Gb/s' are bits; bytes are GB/s"),
        (("--tp", "0"), 2, "a tensor parallel size lies between 1 and"),
        (("--tp", "6"), 1, "error: tp=6 does not fit"),
        (("--batch", "0"), 2, "'0': a count lies between 1 and 1000000"),
        (("--batch", "1000001"), 2, "'1000001': a count lies between 1 and 1000000"),
        (("--batch", "9" * 5000), 2, "a count lies between 1 and 1000000"),
        (("--batch", "1,,2"), 2, "'1,,2' is not a list of counts such as 1,16,64"),
        (("--bandwidth", "0TB/s"), 2, "'0TB/s' must be above 0"),
        (("--flops", "0TFLOP/s"), 2, "'0TFLOP/s' must be above 0"),
        (("--node-link", "0GB/s"), 2, "'0GB/s' must be above 0"),
        (("--hbm", "0GiB"), 2, "'0GiB' must be above 0"),
        (("--hardware", ""), 1, "error: no hardware is called ''"),
        (("--hardware", "/tmp"), 1, "/tmp: is a directory, not a file"),
        (("--calibrate", ""), 2, "Invalid value for '--calibrate': it names nothing"),
        (("--context", "0"), 2, "0 is not in the range"),
        (("--calibrate", "nowhere.json"), 1, "error: cannot read nowhere.json"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tpspec: Tpspec, options, status, line):
    ran = tpspec("plan", LLAMA, *options)
    assert ran.status == status
    assert line in ran.err
    assert ran.out == ""


def test_a_measurement_replaces_what_is_assumed(tpspec: Tpspec, tmp_path: Path):
    bench = tmp_path / "bench.json"
    ran = tpspec("bench", sharded(2), "--new-tokens", 5, "--runs", 1, "--collectives", "threads", "--json")
    bench.write_text(ran.out)
    measured = json.loads(ran.out)
    report = json.loads(tpspec("plan", STORIES, "--tp", "2", "--calibrate", bench, "--json").out)
    device = report["hardware"]
    assert device["bandwidth"] == pytest.approx(measured["read_bytes"] / measured["compute_seconds"])
    assert device["latency"] == measured["all_reduces"][0]["seconds"]
    assert device["sources"]["bandwidth"].startswith("measured by bench on")
    assert (device["devices_per_node"], device["sources"]["hbm"]) == (
        2,
        "this machine's memory, shared by 2 ranks",
    )
    (size,) = report["sizes"]
    assert size["steps"][0]["floor"] == pytest.approx(measured["compute_seconds"], rel=1e-6)
    assert any("that is the time of overhead" in note for note in report["notes"])
    based = json.loads(tpspec("plan", LLAMA, "--hardware", "l4", "--calibrate", bench, "--json").out)
    known = based["hardware"]
    assert (known["hbm"], known["bandwidth"]) == (int(22.5 * 2**30), device["bandwidth"])
    assert known["title"] == "NVIDIA L4 24 GB, some of its figures measured"
    (said,) = (note for note in based["notes"] if note.startswith("measured by bench"))
    assert "tp=2, threads: bandwidth, " in said


def test_a_file_that_bench_did_not_write_is_refused(tpspec: Tpspec, tmp_path: Path):
    (tmp_path / "it.json").write_text('{"tp": 2}')
    ran = tpspec("plan", LLAMA, "--calibrate", tmp_path / "it.json")
    assert ran.status == 1
    assert "is not what bench measured" in ran.err
    assert "read_bytes: Field required" in ran.err


def test_gpus_are_ranked(tpspec: Tpspec):
    out = tpspec("plan", LLAMA, "--gpus", 16, "--context", 8192, "--batch", 64).out
    lines = [line.split() for line in out.splitlines() if " × " in line and "→" not in line][1:]
    assert [line[:3] for line in lines][:3] == [["2", "×", "8"], ["4", "×", "4"], ["1", "×", "16"]]


def test_choices_are_of_the_sizes_asked_for_and_the_largest_batch(tpspec: Tpspec):
    out = tpspec("plan", LLAMA, "--tp", "3,8", "--gpus", 16, "--batch", "1,64").out
    assert "choices for 64 sequences on 16 devices, best first" in out
    lines = [line.split()[:3] for line in out.splitlines() if " × " in line and "→" not in line][1:]
    assert lines == [["2", "×", "8"]]
    assert "tp=3 does not fit" in out
    assert "or: --pad" in out


def test_a_batch_that_does_not_fit_has_no_times(tpspec: Tpspec):
    out = tpspec("plan", LLAMA, "--tp", "1,2", "--batch", "1,256").out
    rows = out.split("a decode step")[1].split("a pass")[0].splitlines()[2:5]
    assert rows[0].split() == ["1", "the", "weights", "do", "not", "fit"]
    assert rows[1].split()[-1] == "█" * 16
    assert rows[2].split() == ["256", "holds", "8", "sequences"]


def test_the_planned_collectives_are_those_that_run_traces(tpspec: Tpspec):
    report = json.loads(tpspec("plan", STORIES, "--tp", "2", "--json").out)
    options = (
        "--prompt",
        "Once upon",
        "--max-new-tokens",
        4,
        "--collectives",
        "threads",
        "--trace",
        "--json",
    )
    ran = json.loads(tpspec("run", sharded(2), *options).out)
    traced = {(row["collective"], row["site"]): row for row in ran["trace"]}
    planned = {(call["collective"], call["site"]): call for call in report["sizes"][0]["calls"]}
    assert traced.keys() == planned.keys()
    for call, row in traced.items():
        assert row["counted"] == row["predicted"] == planned[call]["calls"] * ran["passes"]
        assert row["token_bytes"] == planned[call]["payload"]
        assert row["token_wire_bytes"] == planned[call]["wire"]
