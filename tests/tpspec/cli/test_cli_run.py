"""`tpspec run`, as people see it: text on stdout, faults on stderr, no process left."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from quantizers import fp8
from safetensors.torch import load_file, save_file
from stories import ONCE, PROMPTS, STORIES, continued, loaded, sharded

Tpspec = Callable[..., Any]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
SLOW = 5
"""Seconds within which every rank has stopped, once it runs, where one cannot load its file."""


def started(
    *arguments: object, under: tuple[str, ...] = (sys.executable,)
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [*under, "-m", "tpspec", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("tp", [2, 4])
def test_shared_memory_gives_transformers_own_text_and_the_collectives_of_the_tags(tp: int):
    ran = started(sharded(tp), *with_prompts(PROMPTS), "--max-new-tokens", 200, "--trace", "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert [tuple(completion["tokens"]) for completion in report["completions"]] == [
        continued(prompt, 200) for prompt in PROMPTS
    ]
    assert (report["tp"], report["collectives"], report["passes"]) == (tp, "shared", 200)
    assert {(row["collective"], row["site"]): row["counted"] for row in report["trace"]} == {
        ("all_reduce", "model.embed_tokens"): 200,
        ("all_reduce", "model.layers.0-4.self_attn.o_proj"): 5 * 200,
        ("all_reduce", "model.layers.0-4.mlp.down_proj"): 5 * 200,
        ("all_gather", "next token"): 200,
    }
    assert all(row["counted"] == row["predicted"] for row in report["trace"])
    down, choice = report["trace"][2:]
    # fp32, hidden 64, 4 sequences: 1 KiB for each of 5 layers; a ring sends 2(p-1)/p of it
    assert (down["token_bytes"], down["token_wire_bytes"]) == (5120, 5120 * 2 * (tp - 1) / tp)
    assert (choice["token_bytes"], choice["token_wire_bytes"]) == (4 * 8, 4 * 8 * (tp - 1))


@pytest.mark.parametrize(("tp", "under"), [(4, (sys.executable,)), (2, (*TORCHRUN, "--nproc-per-node=2"))])
def test_gloo_gives_transformers_own_text_and_under_torchrun_rank_0_alone_prints_it(
    tp: int, under: tuple[str, ...]
):
    options = ("--max-new-tokens", 200, "--collectives", "gloo", "--json")
    ran = started(sharded(tp), "--prompt", ONCE, *options, under=under)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert tuple(report["completions"][0]["tokens"]) == continued(ONCE, 200)
    assert (report["tp"], report["collectives"]) == (tp, "gloo")


def with_prompts(prompts: tuple[str, ...]) -> list[str]:
    return [word for prompt in prompts for word in ("--prompt", prompt)]


def test_text_is_shown_after_its_prompt_and_speed_on_stderr(tpspec: Tpspec):
    threads = ("--collectives", "threads")
    ran = tpspec("run", sharded(2), "--prompt", ONCE, "--max-new-tokens", 11, *threads)
    assert ran.out == "Once upon a time, there was a little girl named Lily.\n"
    assert re.fullmatch(
        r"11 tokens, the first after \d+\.\d s, then \d+\.\d tok/s, 2 ranks \(threads\)\n", ran.err
    )
    ran = tpspec("run", sharded(2), "--prompt", ONCE, "--max-new-tokens", 11, *threads, "-q")
    assert (ran.out, ran.err) == (", there was a little girl named Lily.\n", "")


def test_texts_are_shown_in_the_order_of_their_prompts(tpspec: Tpspec, tmp_path: Path):
    (tmp_path / "prompts.txt").write_text("\n".join((*PROMPTS[2:], "", "")))
    options = ("--max-new-tokens", 25, "--collectives", "threads", "-q")
    ran = tpspec(
        "run",
        sharded(2),
        *with_prompts(PROMPTS[:2]),
        "--prompt-file",
        tmp_path / "prompts.txt",
        *options,
        "--batch-size",
        3,
    )
    texts = [completion.text for completion in loaded(2).generate(PROMPTS, max_new_tokens=25)]
    assert ran.out == "".join(text + "\n" for text in texts)


def test_a_drawn_text_tells_its_seed_and_is_drawn_again_by_it_at_another_tp(tpspec: Tpspec):
    options = ("--prompt", ONCE, "--max-new-tokens", 30, "--top-k", 50, "--json", "--collectives", "threads")
    drawn = json.loads(tpspec("run", sharded(2), *options).out)
    again = json.loads(tpspec("run", sharded(4), *options, "--seed", drawn["seed"]).out)
    assert again["completions"] == drawn["completions"]
    greedy = json.loads(tpspec("run", sharded(2), *options, "--temperature", 0).out)
    assert "seed" not in greedy
    assert tuple(greedy["completions"][0]["tokens"]) == continued(ONCE, 30)


def test_the_trace_is_a_table(tpspec: Tpspec):
    options = ("--max-new-tokens", 5, "--top-p", 0.9, "--stop", "no such words", "--collectives", "threads")
    ran = tpspec("run", sharded(2), "--prompt", ONCE, *options, "--trace", "-q")
    table = [re.split(r" {3,}", line.strip()) for line in ran.out.splitlines()[-6:]]
    assert [row[:4] for row in table] == [
        ["all_reduce", "model.embed_tokens", "1", "1"],
        ["all_reduce", "model.layers.0-4.self_attn.o_proj", "5", "5"],
        ["all_reduce", "model.layers.0-4.mlp.down_proj", "5", "5"],
        ["all_gather", "next token", "1", "1"],
        ["broadcast", "next token", "1", "1"],
        ["broadcast", "stop strings", "1", "1"],
    ]


def test_bfloat16_can_be_asked_for(tpspec: Tpspec):
    options = ("--prompt", ONCE, "--max-new-tokens", 5, "--collectives", "threads", "--trace", "--json")
    report = json.loads(tpspec("run", sharded(2), *options, "--dtype", "bfloat16").out)
    assert report["trace"][0]["token_bytes"] == 64 * 2


def damaged(tmp_path: Path, how: str, rank: int = 1) -> Path:
    """A directory for two ranks in which a rank's file is not what was written."""
    out = shutil.copytree(sharded(2), tmp_path / "damaged")
    file = out / f"model-rank-0000{rank}-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(data[:-1])
    else:  # the last tensor of the file: part of a norm, which every rank has whole
        data[-1] ^= 0x40
        file.write_bytes(data)
    return out


@pytest.mark.parametrize(
    ("how", "words"), [("missing", "does not exist"), ("truncated", "the manifest says")]
)
def test_a_file_that_is_not_whole_is_found_before_ranks_start(
    tpspec: Tpspec, tmp_path: Path, how: str, words: str
):
    begun = time.monotonic()
    ran = tpspec("run", damaged(tmp_path, how), "--prompt", ONCE)
    assert time.monotonic() - begun < SLOW
    assert (ran.status, ran.out) == (1, "")
    assert "rank 1 cannot be loaded" in ran.err
    assert "model-rank-00001-of-00002.safetensors" in ran.err
    assert words in ran.err


def test_an_edited_file_stops_every_rank(tmp_path: Path):
    ran = started(damaged(tmp_path, "edited"), "--prompt", ONCE)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: rank 1 cannot be loaded\n")
    assert "model-rank-00001-of-00002.safetensors: has the hash" in ran.stderr


def test_ranks_that_diverge_are_found_where_they_do(tpspec: Tpspec, tmp_path: Path):
    options = ("--prompt", ONCE, "--check-ranks", "--collectives", "threads", "--max-new-tokens", 11, "-q")
    ran = tpspec("run", damaged(tmp_path, "edited"), *options, "--no-verify")
    assert (ran.status, ran.out) == (1, "")
    assert "the ranks diverge at lm_head: rank 1 has another input than rank 0" in ran.err
    ran = tpspec("run", sharded(2), *options)
    assert (ran.status, ran.out) == (0, ", there was a little girl named Lily.\n")


def test_another_number_of_ranks_under_torchrun_is_refused_before_they_meet(
    tpspec: Tpspec, monkeypatch: pytest.MonkeyPatch
):
    torchrun = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "1"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    ran = tpspec("run", sharded(2), "--prompt", ONCE)
    assert (ran.status, ran.out) == (1, "")
    assert "was cut for tp 2, not for tp 3\n  → use 2 ranks, or cut it again" in ran.err
    ran = tpspec("run", sharded(2), "--prompt", ONCE, "--collectives", "shared")
    assert ran.status == 2
    assert "under torchrun the ranks are its own" in ran.err


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ((), 2, "give --prompt or --prompt-file"),
        (("--prompt", ONCE, "--top-p", "0"), 2, "top-p"),
        (("--prompt", ONCE, "--stop", ""), 1, "an empty stop string"),
        (
            ("--prompt", "word " * 600),
            1,
            r"prompt 1 \('word word.*\): has \d+ tokens, the model 512 positions",
        ),
        (("--prompt", ONCE, "--chat"), 1, "its tokenizer has no chat template"),
        (("--prompt", ONCE, "--device", "cuda"), 1, "torchrun --nproc-per-node 2"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_said(tpspec: Tpspec, options: tuple[str, ...], status: int, words: str):
    ran = tpspec("run", sharded(2), "--collectives", "threads" if "cuda" not in options else "auto", *options)
    assert (ran.status, ran.out) == (status, "")
    assert re.search(words, ran.err)


def test_a_prompt_file_that_is_not_text_is_named(tpspec: Tpspec, tmp_path: Path):
    (tmp_path / "prompts.txt").write_bytes(b"\xff\xfe bad\n")
    ran = tpspec("run", sharded(2), "--prompt-file", tmp_path / "prompts.txt")
    assert ran.status == 1
    assert "prompts.txt is not UTF-8 text: invalid start byte at byte 0" in ran.err


def test_a_prompt_file_may_come_from_another_system(tpspec: Tpspec, tmp_path: Path):
    (tmp_path / "prompts.txt").write_bytes(f"\ufeff{ONCE}\r\n\r\n  \r\n{PROMPTS[2]}\r\n".encode())
    options = ("--max-new-tokens", 3, "--collectives", "threads", "--json")
    report = json.loads(tpspec("run", sharded(2), "--prompt-file", tmp_path / "prompts.txt", *options).out)
    assert [completion["prompt"] for completion in report["completions"]] == [ONCE, PROMPTS[2]]


def test_a_prompt_file_without_prompts_is_named(tpspec: Tpspec, tmp_path: Path):
    (tmp_path / "prompts.txt").write_text("\n \n")
    ran = tpspec("run", sharded(2), "--prompt-file", tmp_path / "prompts.txt")
    assert (ran.status, ran.out) == (1, "")
    assert "prompts.txt has no prompt: each of its lines is empty" in ran.err


def test_bytes_that_are_no_text_are_named_and_not_raised(tpspec: Tpspec):
    ran = tpspec("run", sharded(2), "--prompt", ONCE, "--prompt", "a\udcff", "--collectives", "threads")
    assert (ran.status, ran.out) == (1, "")
    assert "  prompt 2: has the byte 0xff, which is no UTF-8 text" in ran.err


def test_who_reads_one_line_and_goes_is_no_error():
    """Threads are within torch's code then, and the interpreter has to wait for them."""
    options = ["--collectives", "threads", "--max-new-tokens", "300"]
    command = [sys.executable, "-m", "tpspec", "run", str(sharded(2)), *with_prompts(PROMPTS), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(ONCE)
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_no_color_is_respected(tpspec: Tpspec, monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name, escapes in (("NO_COLOR", 0), ("ANOTHER", 3)):
        monkeypatch.setenv(name, "1")
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        tpspec("run", sharded(2), "--prompt", ONCE, "--stop", "")
        assert terminal.getvalue().count("\x1b[") == escapes
        monkeypatch.delenv(name)


def test_the_speed_of_one_token_has_no_rate(tpspec: Tpspec):
    ran = tpspec("run", sharded(2), "--prompt", ONCE, "--max-new-tokens", 1, "--collectives", "threads")
    assert re.fullmatch(r"1 token, the first after \d+\.\d s, 2 ranks \(threads\)\n", ran.err)


def test_a_proof_begins_with_a_whole_model(tpspec: Tpspec):
    ran = tpspec("prove", sharded(2), "--tp", "2")
    assert ran.status == 1
    assert "is cut already" in ran.err


def test_ranks_of_a_quantized_directory_compute_their_weights_and_say_so(tpspec: Tpspec, tmp_path: Path):
    quantizer = fp8("tensor", name="weight_scale")
    folder, plain = (shutil.copytree(STORIES, tmp_path / name) for name in ("quantized", "plain"))
    tensors = load_file(STORIES / "model.safetensors")
    stored, whole = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            parts, whole[name] = quantizer.quantize(tensor)
            del stored[name]
            stored |= {name.removesuffix("weight") + part: each for part, each in parts.items()}
    save_file(stored, folder / "model.safetensors")
    save_file(whole, plain / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantizer.settings}))
    for source in (folder, plain):
        tpspec("convert", source, tmp_path / f"{source.name}-tp2", "--tp", "2")
    one, two = (
        tpspec("run", tmp_path / f"{name}-tp2", "--prompt", ONCE, "--max-new-tokens", "12", "--quiet")
        for name in ("quantized", "plain")
    )
    assert one.out == two.out != ""
    said = "is quantized (fp8), and there are no kernels for that here: each rank computes its own weights in"
    assert f"{said} float32 as it loads them" in one.err
    assert said not in two.err


@contextmanager
def decoding(
    tmp_path: Path, *options: str, batch_size: int = 1, under: tuple[str, ...] = (sys.executable,)
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A command that would decode for long, once its first text is there, and its server and ranks."""
    (tmp_path / "prompts.txt").write_text(f"{ONCE}\n" * 500)
    command = [*under, "-m", "tpspec", "run", str(sharded(2)), "--prompt-file", "prompts.txt"]
    long = ["--batch-size", str(batch_size), "--max-new-tokens", "400"]
    with subprocess.Popen(
        [*command, *long, *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(len(ONCE) + 5)
            first = children(process.pid)
            yield process, [*first, *(rank for server in first for rank in children(server))]
        finally:
            process.kill()


def children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return sorted(int(pid) for pid in found.split())


def test_a_rank_that_is_killed_while_decoding_ends_the_command(tmp_path: Path):
    with decoding(tmp_path) as (process, others):
        _, _, second = others
        os.kill(second, signal.SIGKILL)
        begun = time.monotonic()
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - begun < SLOW
    assert process.returncode == 1
    assert "rank 1 was killed by signal 9 (SIGKILL)" in err
    assert not [pid for pid in others if Path(f"/proc/{pid}").exists()]


def test_a_rank_that_runs_out_of_memory_while_decoding_ends_the_command(tmp_path: Path):
    with decoding(tmp_path, batch_size=500) as (process, others):
        pages = int(Path(f"/proc/{others[2]}/statm").read_text().split()[0])
        resource.prlimit(others[2], resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
        begun = time.monotonic()
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - begun < SLOW
    assert process.returncode == 1
    assert re.search(r"error: rank 1: out of memory: \S+ .iB more was asked for\n", err)
    assert "  the weights of a rank take 509 KiB; ranks: 2\n  → fewer prompts side by side" in err
    assert not [pid for pid in others if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(("kind", "number"), [("shared", 3), ("threads", 0)])
def test_ctrl_c_leaves_no_process(tmp_path: Path, kind: str, number: int):
    with decoding(tmp_path, "--collectives", kind) as (process, others):
        assert len(others) == number
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the command and the ranks alike
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip() == "interrupted"
    assert not [pid for pid in others if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "interrupted"), (signal.SIGKILL, "rank 1 was in all_")]
)
def test_torchrun_s_ranks_end_with_ctrl_c_and_when_one_of_them_is_killed(
    tmp_path: Path, number: signal.Signals, said: str
):
    with decoding(tmp_path, under=(*TORCHRUN, "--nproc-per-node=2")) as (process, ranks):
        assert len(ranks) == 2
        os.kill(process.pid if number == signal.SIGINT else ranks[0], number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1  # torchrun's own
    assert said in err
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
